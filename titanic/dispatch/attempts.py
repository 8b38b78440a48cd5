"""A request from the moment it is sent until its outcome is on disk, and what follows a failed attempt: the next one
after a back-off, or, after the last one, the end of the request.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from broker import TRACEBACK, WorkerIdentity
from titanic.dispatch.backlogs import HIGHEST, Backlog
from titanic.facts.counts import EXPIRED, FAILED, RETRIED, SUCCEEDED
from titanic.facts.recorder import AttemptEnd
from titanic.protocol.submit_options import Policy
from titanic.protocol.tsp import LEAST_PAUSE, Frames, Progress, read_retry_hint
from titanic.settings import JITTER, ServerConfig
from titanic.store import MOST_ERROR, ReadyRow, Status
from titanic.util.ids import text

NO_WORKER = WorkerIdentity()


class AttemptFailure(NamedTuple):
    """How an attempt failed: for the history of its request (`titanic.store.attempt_history`)."""

    outcome: Literal["failed", "died", "lost"]
    error: str
    delivery: int
    worker: WorkerIdentity


@dataclass(slots=True, eq=False)
class Flight:
    """A request that is being executed, or has an outcome that is not on disk yet. `started` is in the core's clock."""

    backlog: Backlog
    attempts: int
    max_attempts: int
    policy: Policy
    expires_at: int
    """The end of its time to live, µs since the epoch; 0: none."""
    started: float
    priority: int = HIGHEST
    recalled: bool = False
    """Whether the broker was asked to give it back, because others are more urgent."""
    refused: int = 0
    """How often its outcome found no room in the store."""
    settling: bool = False
    """Whether its attempt is over and the outcome is on its way to the disk."""
    size: int = 0
    """Bytes of memory of that outcome, roughly."""
    expiring: bool = False
    """Whether that outcome is that the request has expired."""
    held: bool = False
    """Whether the disk did not take the outcome. The request keeps its place meanwhile, as if the worker still had
    it: results must not pile up in memory when a disk fails."""
    closed: bool = False
    """Whether its client closed it. The worker still has it, so it keeps its place until the reply comes."""
    kept: bool = False
    """Whether the broker answered after the close that a worker has it, or that this is unknown."""
    kill: bool = False
    """Whether its process is to be killed, since it is closed."""
    ends: bool = False
    """Whether its worker does that."""
    overdue: bool = False
    """Whether its attempt has passed its limit: its worker is to end it."""
    overstays: bool = False
    """Whether its worker had time enough for that."""
    progress: Progress | None = None
    """How far its worker is, as it said last."""
    deliveries: int = 0
    """How often workers have had it before, whatever came of that, as far as is known."""
    ready_at: int = 0
    """Since when it could be sent, µs since the epoch; 0: not known, or this is not the first delivery."""
    worker: WorkerIdentity = NO_WORKER
    """The worker at which its attempt failed, as far as known."""
    failure: AttemptFailure | None = None
    """How that was."""

    @property
    def past_limit(self) -> str:
        """Why its attempt fails at its limit."""
        return f"no reply within its limit of {self.policy.limit:g} s"

    def fail(self, outcome: Literal["failed", "died", "lost"], reason: str, detail: Frames) -> None:
        """Note how its attempt has failed."""
        error = failure_text(reason, detail, MOST_ERROR)
        self.failure = AttemptFailure(outcome, error, self.deliveries + 1, self.worker)


class Send(NamedTuple):
    """Send a request to its service: answer with `replied`. `has_ttl`: it may expire, so check the clock before sending
    it again. `context`: facts about the request for its worker, if the broker passes them on."""

    uuid: bytes
    service: bytes
    body: Frames
    has_ttl: bool = False
    context: bytes = b""


class Finish(NamedTuple):
    """Keep how a request ended: answer with `settled` or `unsettled`. `started` is when it was sent, in the core's
    clock."""

    uuid: bytes
    status: Status
    frames: Frames
    attempts: int
    reason: str
    started: float


class Postpone(NamedTuple):
    """Put a request off for `delay` seconds: answer with `settled` or `unsettled`. 0: its worker was lost, which was no
    attempt, and it goes back to the queue with a `reason`. `asked`: its handler only wants to have it again later, as
    that of a flow does."""

    uuid: bytes
    delay: float
    attempts: int
    reason: str
    started: float
    deliveries: int
    """Those of workers, this one included."""
    asked: bool = False


AttemptOutcome = Finish | Postpone


class RecallRequest(NamedTuple):
    """Have the broker give back a request that no worker is to begin: its attempt is beyond its limit, its time to live
    is over, it was closed, more urgent ones wait behind it, or the node gives it up. Answer with `refused` (499), or
    with `kept`."""

    uuid: bytes


class AskWorkers(NamedTuple):
    """Ask the broker how many workers these services have: answer with `present`."""

    services: list[bytes]


class Survey(NamedTuple):
    """Ask the broker for all its workers: answer with `surveyed`."""


class Maintain(NamedTuple):
    """Do what is due in the store, and set the alarm again (`set_alarm`)."""


class KeepOutcomes(NamedTuple):
    """Write these at once: answer with `settled` or `unsettled`."""

    outcomes: list[AttemptOutcome]


class GivenBack(NamedTuple):
    """A request is back in the queue. Only nodes that share a store need to know."""

    uuid: bytes


class Certain(NamedTuple):
    """It is certain now whether a worker has this closed request: no further one can get it."""

    uuid: bytes


Effect = RecallRequest | AskWorkers | Survey | Maintain | KeepOutcomes | GivenBack | Certain


MOST_REASON = 1000
"""Bytes that a store keeps of a reason."""

MAX_UNREADY = 100_000
"""Requests of which is remembered since when no worker was ready for them."""

REFUSED_MOST = 10
"""How often a reply may find no room in the store, some four minutes long, before the request fails for that."""


def back_off(attempt: int, first: float, most: float) -> float:
    """Seconds from the failure of this attempt until the next one, before jitter: `first`, doubled with each further
    attempt, at most `most`.
    (`broker.core.timers.Backoff` is for attempts to reach something: reconnecting, asking again.)"""
    return float(min(most, first * 2.0 ** min(attempt - 1, 60)))


def _retry_bounds(flight: Flight, config: ServerConfig) -> tuple[float, float]:
    """The first and the longest delay before a retry of this request."""
    policy = flight.policy
    return _with_defaults(policy.retry_first, policy.retry_most, config.retry_first, config.retry_most)


def _with_defaults(own_first: float, own_most: float, first: float, most: float) -> tuple[float, float]:
    """The first and the longest delay: a request's own, where it has them (0: none), else the server's."""
    own_first = own_first or first
    return own_first, own_most or max(own_first, most)


def _unready_delay(waited: float, flight: Flight, config: ServerConfig) -> float:
    """Seconds, before jitter, until a request for which no worker was ready is sent again: as long as it has waited for
    one so far, so each delay is twice the one before."""
    first, most = _retry_bounds(flight, config)
    return min(most, max(first, waited, LEAST_PAUSE))


def after_failure(
    uuid: bytes,
    flight: Flight,
    reason: str,
    detail: Frames,
    config: ServerConfig,
    dice: random.Random,
    unready: dict[bytes, float],
    *,
    died: bool = False,
) -> tuple[AttemptOutcome, int]:
    """Decide the outcome of a request after a failed attempt, and return it with the bytes of its frames or text.
    `detail` is what the worker sent besides the `reason`; it may contain the time of the next attempt
    (`titanic.protocol.tsp`). `unready`: since when no worker was ready for a request; updated here. `died`: its worker
    died."""
    hint = read_retry_hint(detail)
    detail, waited = hint.detail, 0.0
    since = unready.pop(uuid, flight.started)
    if hint.unready and (waited := flight.started - since) < config.unready_timeout:
        unready[uuid] = since
        if len(unready) > MAX_UNREADY:
            del unready[next(iter(unready))]
    elif hint.unready:
        reason = f"no worker was ready for it within {config.unready_timeout:g} s: {reason}"
        flight.fail("failed", reason, detail)
        return Finish(uuid, Status.FAILED, detail, flight.attempts, reason, flight.started), sum(map(len, detail))
    flight.attempts += hint.counts
    if hint.counts:
        flight.fail("died" if died else "failed", reason, detail)
    if hint.fatal or (hint.counts and flight.attempts >= flight.max_attempts):
        return Finish(uuid, Status.FAILED, detail, flight.attempts, reason, flight.started), sum(map(len, detail))
    delay = hint.pause
    if delay is None:
        if hint.unready:
            pause = _unready_delay(waited, flight, config)
        else:
            pause = back_off(flight.attempts, *_retry_bounds(flight, config))
        delay = pause * dice.uniform(1 - JITTER, 1 + JITTER)
    failure = failure_text(reason, detail)
    asked = not (hint.counts or hint.unready)
    return Postpone(uuid, delay, flight.attempts, failure, flight.started, flight.deliveries + 1, asked), len(failure)


def failure_text(reason: str, detail: Frames, most: int = MOST_REASON) -> str:
    """What is kept of a failure, at most `most` bytes. Of much the end stays: there tracebacks and what commands write
    say what went wrong."""
    said = b"\n".join(detail).decode(errors="replace")
    if not said:
        return reason
    room = most - len(reason.encode(errors="replace")) - len(b"\n...")
    if len(encoded := said.encode()) > max(room, 0):
        said = "..." + encoded[len(encoded) - max(room, 0) :].decode(errors="ignore")
    return f"{reason}\n{said}"


def without_room(outcome: AttemptOutcome, flight: Flight) -> AttemptOutcome:
    """Replace an outcome that does not fit into the store: keep it for some tries, then fail the request for lack of
    room."""
    flight.refused += 1
    if not isinstance(outcome, Finish):
        return outcome
    if outcome.status is Status.FAILED and outcome.frames and outcome.frames[-1].startswith(TRACEBACK):
        return outcome._replace(frames=[])  # no client waits for a traceback
    if flight.refused <= REFUSED_MOST:
        return outcome
    reason = f"the store had no room for its reply of {sum(map(len, outcome.frames))} bytes"
    if outcome.status is not Status.DONE:
        reason = f"{outcome.reason} ({reason})"
    return outcome._replace(status=Status.FAILED, frames=[], reason=reason)


_GENERATED = b"~"
"""The prefix of keys that clients generate when the caller gives none."""


@lru_cache(maxsize=4096)
def _numbers(
    attempt: int, of: int, priority: int, own_first: float, own_most: float, first: float, most: float
) -> bytes:
    """Most requests have these alone, and most have the same."""
    bounds = _with_defaults(own_first, own_most, first, most)
    next_in = b',"retry_in":%g' % back_off(attempt, *bounds) if attempt < of else b""
    return b'","attempt":%d,"of":%d,"priority":%d%s}' % (attempt, of, priority, next_in)


def context_of(row: ReadyRow, flight: Flight, config: ServerConfig, wall_us: int, *, alone: bool = False) -> bytes:
    """The context of an attempt that begins now. `wall_us`: the time of day. `alone`: its worker's process is to do
    nothing else meanwhile; that is for the broker (`broker.core.requests`)."""
    policy, key = flight.policy, row.idempotency_key
    again = flight.deliveries > flight.attempts
    numbers = _numbers(
        flight.attempts + 1,
        flight.max_attempts,
        flight.priority,
        policy.retry_first,
        policy.retry_most,
        config.retry_first,
        config.retry_most,
    )
    said = b'{"uuid":"' + text(row.uuid) + numbers
    if not (again or alone or policy.limit or policy.trace or policy.type or (key and not key.startswith(_GENERATED))):
        return said
    said = said[:-1]
    if again:
        said += b',"delivery":%d' % (flight.deliveries + 1)
    if alone:
        said += b',"alone":true'
    if policy.limit:
        said += b',"deadline":%.3f' % (wall_us / 1e6 + policy.limit)
    if policy.trace:
        said += b',"trace":' + json.dumps(policy.trace).encode()
    if policy.tracestate:
        said += b',"tracestate":' + json.dumps(policy.tracestate).encode()
    if policy.type:
        said += b',"type":' + json.dumps(policy.type).encode()
    if key and not key.startswith(_GENERATED):
        said += b',"key":' + json.dumps(key.decode(errors="replace")).encode()
    return said + b"}"


def attempt_end(outcome: AttemptOutcome, flight: Flight, ended: float, ended_us: int) -> AttemptEnd | None:
    """Return what counts; None: it was no attempt. `ended`: when it had ended, in the core's clock, and `ended_us` in
    µs since the epoch."""
    service, reason = flight.backlog.name, outcome.reason
    if isinstance(outcome, Finish):
        if outcome.status is Status.EXPIRED:
            return AttemptEnd(outcome.uuid, service, EXPIRED, None, None, "")
        kind = SUCCEEDED if outcome.status is Status.DONE else FAILED
    elif outcome.delay and not outcome.asked:
        kind = RETRIED
    else:  # no attempt has failed
        return None
    run = max(0.0, ended - outcome.started)
    wait = max(0.0, (ended_us - flight.ready_at) / 1e6 - run) if flight.ready_at else None
    return AttemptEnd(outcome.uuid, service, kind, wait, run, reason)
