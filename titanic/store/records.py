"""What can be seen of a store. Times are µs since the epoch, 0 = none; sizes are bytes."""

from __future__ import annotations

from typing import NamedTuple

from titanic.store.state import State

DAY = 24 * 3600 * 1_000_000


class ReadyRow(NamedTuple):
    """A request that can be dispatched. `key` is its place in the queue, for `next_ready(after=…)`."""

    key: bytes
    uuid: bytes
    attempts: int
    body: list[bytes]
    max_attempts: int
    expires_at: int
    options: bytes


class Closed(NamedTuple):
    """A request that was just closed: what service it was for, and the state it was in."""

    service: bytes
    state: State

    @property
    def waited(self) -> bool:
        """Whether it had not ended."""
        return self.state in (State.WAITING, State.DELAYED)


class Description(NamedTuple):
    """All about a request but its frames. A running one is WAITING: the store doesn't know who runs.

    `expires_at` is 0 also when the request was given another life after its time was over.
    """

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
    key: bytes = b""


class Load(NamedTuple):
    """What a service has to do: its requests that have not ended, delayed ones too, and their bytes."""

    waiting: int
    bytes: int


class Counts(NamedTuple):
    """Totals. `requests` = waiting + delayed + replies; `replies` counts all that ended, however.

    `used` are the bytes of the pages in use, `closed` the closed requests that are remembered, `lost` those that were
    forgotten for want of room before the archive had them.
    """

    requests: int
    waiting: int
    delayed: int
    replies: int
    used: int
    capacity: int
    closed: int = 0
    lost: int = 0


class Archive(NamedTuple):
    """The archive of closed requests. It has them up to number `archived_upto`; the store has `first` … `last`."""

    registered: bool
    archived_upto: int
    first: int
    last: int
    lost: int


class Archivist(NamedTuple):
    """Whose archive it is: an id of 16 bytes, and for people where it is."""

    id: bytes
    name: str


class Accepted(NamedTuple):
    """An accepted request. Not `new`: its key had come before, and `uuid` is the id given then."""

    uuid: bytes
    new: bool


class Retention(NamedTuple):
    """How long what nobody closes is kept, in µs; 0 = for ever (`closed_retention`: as long as there is room)."""

    reply_retention: int = 7 * DAY
    dead_retention: int = 30 * DAY
    closed_retention: int = 0


class Trimmed(NamedTuple):
    """What a trim did. `more`: its limit was reached, and there may be more to do at once."""

    replies: int
    dead: int
    closed: int
    keys: int
    more: bool


class Page(list[Description]):
    """A part of a listing. `next` is what to pass as `after` for the part that follows; None at the end.

    A page can be short, or empty, and yet have a `next`: a listing looks at a bounded number of requests.
    """

    next: bytes | None = None
