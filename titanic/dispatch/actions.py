"""What the dispatcher's core wants done, and what it is told in return."""

from __future__ import annotations

from typing import NamedTuple

from titanic.protocol.tsp import Frames
from titanic.store import Status


class Fetch(NamedTuple):
    """Read the next requests of a service from the store, without those in `flights`: answer with `fetched`."""

    service: bytes
    after: bytes | None
    limit: int


class Send(NamedTuple):
    """Send a request to its service: answer with `replied`. `has_ttl`: it may expire, so it is not sent again without a
    look at the clock."""

    uuid: bytes
    service: bytes
    body: Frames
    has_ttl: bool = False


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
    """Put a request off for `delay` seconds: answer with `settled` or `unsettled`."""

    uuid: bytes
    delay: float
    attempts: int
    reason: str
    started: float


AttemptOutcome = Finish | Postpone
