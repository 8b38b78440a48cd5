"""What can be seen of a store. Times are µs since the epoch, 0 = none; sizes are bytes."""

from __future__ import annotations

from typing import NamedTuple

from titanic.store.state import State


class ReadyRow(NamedTuple):
    """A request that can be dispatched. `key` is its place in the queue, for `next_ready(after=…)`."""

    key: bytes
    uuid: bytes
    attempts: int
    body: list[bytes]
    max_attempts: int
    expires_at: int


class Closed(NamedTuple):
    """A request that was just closed: what service it was for, and the state it was in."""

    service: bytes
    state: State


class Description(NamedTuple):
    """All about a request but its frames. A running one is WAITING: the store doesn't know who runs."""

    uuid: bytes
    state: State
    service: bytes
    priority: int
    submitted_at: int
    not_before: int
    expires_at: int
    max_attempts: int
    options: bytes
    body_frames: int
    body_bytes: int
    attempts: int = 0
    due: int = 0
    dispatched_at: int = 0
    finished_at: int = 0
    reason: str = ""
    reply_frames: int = 0
    reply_bytes: int = 0


class Counts(NamedTuple):
    """Totals. `requests` = waiting + delayed + replies; `replies` counts all that ended, however."""

    requests: int
    waiting: int
    delayed: int
    replies: int
    used: int
    capacity: int


class Page(list[Description]):
    """A part of a listing. `next` is what to pass as `after` for the part that follows; None at the end.

    A page can be short, or empty, and yet have a `next`: a listing looks at a bounded number of requests.
    """

    next: bytes | None = None
