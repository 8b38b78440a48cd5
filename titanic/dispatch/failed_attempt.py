"""What follows a failed attempt: the next one after a back-off, or, after the last one, the end of the request."""

from __future__ import annotations

import random

from titanic.config import ServerConfig
from titanic.dispatch.actions import AttemptOutcome, Finish, Postpone
from titanic.dispatch.flight import Flight
from titanic.protocol.tsp import Frames
from titanic.store import Status

REFUSED_MOST = 10
"""How often a reply may find no room in the store, some four minutes long, before the request fails for that."""


def back_off(flight: Flight, config: ServerConfig) -> float:
    """Seconds until the next attempt; `flight.attempts` counts the one that has failed. They double with each."""
    first = flight.policy.retry_first or config.retry_first
    most = flight.policy.retry_most or max(first, config.retry_most)
    return float(min(most, first * 2.0 ** min(flight.attempts - 1, 60)))


def after_failure(
    uuid: bytes, flight: Flight, reason: str, detail: Frames, config: ServerConfig, dice: random.Random
) -> tuple[AttemptOutcome, int]:
    """What becomes of a request whose attempt has failed, and the bytes of its frames or text. `detail` is what the
    worker said besides the `reason`."""
    if flight.attempts >= flight.max_attempts:
        return Finish(uuid, Status.FAILED, detail, flight.attempts, reason, flight.started), sum(map(len, detail))
    # Requests that failed together are not tried again together.
    delay = back_off(flight, config) * dice.uniform(0.9, 1.1)
    text = b"\n".join([reason.encode(), *detail]).decode(errors="replace")
    return Postpone(uuid, delay, flight.attempts, text, flight.started), len(text)


def without_room(outcome: AttemptOutcome, flight: Flight) -> AttemptOutcome:
    """What is to be written instead of an outcome for whose frames the store has no room: the same for a while, then
    that the request has failed for that reason."""
    flight.refused += 1
    if flight.refused <= REFUSED_MOST or not isinstance(outcome, Finish):
        return outcome
    reason = f"the store had no room for its reply of {sum(map(len, outcome.frames))} bytes"
    if outcome.status is not Status.DONE:
        reason = f"{outcome.reason} ({reason})"
    return outcome._replace(status=Status.FAILED, frames=[], reason=reason)
