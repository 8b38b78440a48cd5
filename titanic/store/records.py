"""The records that a store takes and returns. Times are µs since the epoch, 0 = none; sizes are bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from titanic.protocol.submit_options import DEFAULT_PRIORITY
from titanic.store.states import State, Status
from titanic.util.ids import SIZE

DAY = 24 * 3600 * 1_000_000
MIN_CAPACITY = 16 << 20
DEFAULT_CAPACITY = 1 << 30

Durability = Literal["synced", "relaxed", "memory"]
"""What a commit waits for. `synced`: it is on the disk. `relaxed`: all of it is but the page that makes it valid, so a
power cut may take the last commit, unless `Store.sync` came behind it. `memory`: nothing; the store is in RAM."""
DURABILITIES: tuple[Durability, ...] = ("synced", "relaxed", "memory")

_HEAD, _FRAME_HEAD, _KEY_HEAD = 44, 4, 18
"""Bytes that a store adds to a request, to each frame of its body, and to the row of its key."""


class NewRequest(NamedTuple):
    """A request to be accepted. Times are µs since the epoch.

    Of requests with the same `key`, one is accepted until `key_until`. With `together`, the key is not this one's own,
    but that of so many from this one on, the others of which have none: all of them are accepted, or none. `owner` is
    who submitted it, empty without access control. Each owner's keys are his own: others may use the same ones.
    """

    service: bytes
    body: Sequence[bytes]
    priority: int = DEFAULT_PRIORITY
    not_before: int = 0
    expires_at: int = 0
    max_attempts: int = 0
    options: bytes = b""
    key: bytes = b""
    key_until: int = 0
    together: int = 0
    owner: bytes = b""

    @property
    def kept(self) -> int:
        """Bytes that will be kept of it for its owner: the request, and its key by itself."""
        size = _HEAD + len(self.service) + len(self.owner) + len(self.options)
        size += sum(map(len, self.body)) + _FRAME_HEAD * len(self.body)
        if self.key:
            size += _KEY_HEAD + len(self.owner) + len(self.key) + SIZE * (self.together or 1)
            size += 0 if self.together else len(self.key)
        return size


class StoredRequest(NamedTuple):
    """A stored request. Times are µs since the epoch, 0 = none."""

    uuid: bytes
    service: bytes
    body: list[bytes]
    priority: int
    submitted_at: int
    not_before: int
    expires_at: int
    max_attempts: int
    options: bytes
    key: bytes = b""
    owner: bytes = b""


class Outcome(NamedTuple):
    """The end of a request. Times are µs since the epoch."""

    status: Status
    frames: list[bytes]
    reason: str
    attempts: int
    dispatched_at: int
    finished_at: int


class Pending(NamedTuple):
    """The request is known and has not ended: `state` is WAITING or DELAYED."""

    state: State


class ReadyRow(NamedTuple):
    """A request that can be dispatched.

    `key` is its place in the queue, for `next_ready(after=…)`. It ends with 9 − priority in a byte, and the id.
    """

    key: bytes
    uuid: bytes
    attempts: int
    body: list[bytes]
    max_attempts: int
    expires_at: int
    options: bytes
    idempotency_key: bytes = b""
    deliveries: int = 0
    """How often workers have had it, if that is known to be more often than `attempts`; else 0."""


def priority_in(key: bytes) -> int:
    """The priority in the `key` of a ReadyRow."""
    return 9 - key[-SIZE - 1]


class Closed(NamedTuple):
    """A request that was just closed: what service it was for, and the state it was in."""

    service: bytes
    state: State

    @property
    def waited(self) -> bool:
        """Whether it had not ended yet."""
        return self.state in (State.WAITING, State.DELAYED)


class Description(NamedTuple):
    """A request without its frames. A running request is WAITING here: the store does not know which requests run.

    `expires_at` is also 0 when the request was retried after it had expired.
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
    owner: bytes = b""
    deliveries: int = 0
    """As of a ReadyRow; 0 once it has ended."""

    def mentions(self, text: str) -> bool:
        """Whether its reason or its key contains a text, in capitals or not."""
        found = text.casefold()
        return found in self.reason.casefold() or found in self.key.decode(errors="replace").casefold()


class Load(NamedTuple):
    """The requests of a service, or of an owner, that have not ended, delayed ones included.

    `bytes` are theirs for a service; for an owner they are those of all that is kept for him.
    """

    waiting: int
    bytes: int


class QueueFigures(NamedTuple):
    """What a service has to do: requests in its queue, those that have not ended (delayed ones included), their bytes,
    and when the oldest in the queue was submitted that waits; None: there is none."""

    ready: int
    unended: int
    bytes: int
    oldest: int | None


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


class Space(NamedTuple):
    """The room for new requests.

    `full`: there is none for a small request, even after dropping all closed requests that may be dropped. `disk_full`:
    the disk has no room for what the store is to write next.
    """

    full: bool
    disk_full: bool


PINS_MUCH = 0.1
"""Of the capacity; a reader that keeps more from being used again is a warning."""


class StoreReader(NamedTuple):
    """A process that has been reading the store for some time: so many seconds, and bytes that cannot be used again
    until it ends. `command` is empty when it is not known."""

    pid: int
    command: str
    age: float
    pinned: int


class ArchiveState(NamedTuple):
    """The archive of closed requests. It has them up to number `archived_upto`; the store has `first` … `last`."""

    registered: bool
    archived_upto: int
    first: int
    last: int
    lost: int


class Archivist(NamedTuple):
    """The owner of an archive: an id of 16 bytes and, for people, the archive's location."""

    id: bytes
    name: str


class Accepted(NamedTuple):
    """An accepted request. If it is not `new`, its key was known, and `uuid` is the id of the first request with it."""

    uuid: bytes
    new: bool


class Retention(NamedTuple):
    """How long unclosed replies, dead requests and closed requests are kept, in µs.

    0 = for ever (`closed_retention`: as long as there is room).
    """

    reply_retention: int = 7 * DAY
    dead_retention: int = 30 * DAY
    closed_retention: int = 0


class Trimmed(NamedTuple):
    """What a trim removed. `more`: it reached its limit, and there may be more to trim now."""

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


CLOSED_LAYOUT = (
    ("format", "B"),
    ("kind", "B"),
    ("attempts", "H"),
    ("crc", "I"),
    ("submitted_at", "Q"),
    ("dispatched_at", "Q"),
    ("replied_at", "Q"),
    ("closed_at", "Q"),
    ("uuid", "16s"),
    ("service_size", "B"),
    ("key_size", "B"),
    ("error_size", "H"),
    ("request_where", "B"),
    ("reply_where", "B"),
    ("priority", "B"),
    ("owner_size", "B"),
    ("request_frames", "I"),
    ("request_size", "I"),
    ("reply_frames", "I"),
    ("reply_size", "I"),
)
"""The header of a record in ClosedBulk: its fields, with their codes in `struct`, little-endian and without padding."""

CLOSED_FORMAT = 0x81
"""In `format`: 128 + 1."""

UNCLAIMED = 0x80
"""In `kind`: nobody closed it."""


class ClosedRequest(NamedTuple):
    """A closed request as it is read back. Times are µs since the epoch, 0 = none; sizes are bytes.

    Frames that were `left_out` because they were larger than is kept (or found damaged) are an empty list; their
    size is known all the same. `unclaimed`: nobody closed it, its retention ended.
    """

    sequence: int
    uuid: bytes
    service: bytes
    key: bytes
    status: Status
    attempts: int
    submitted_at: int
    dispatched_at: int
    replied_at: int
    closed_at: int
    request: list[bytes]
    reply: list[bytes]
    error: str
    priority: int
    unclaimed: bool
    request_bytes: int
    reply_bytes: int
    request_left_out: bool
    reply_left_out: bool
    owner: bytes = b""


class ClosedBulk(NamedTuple):
    """The records of closed requests with the numbers from `first` on, without gaps.

    `data` has them one after the other, each beginning where `starts` says. A record is the header of
    CLOSED_LAYOUT, then service, key, error and owner, then the request's frames and the reply's: at most one of each,
    as a u32 length and the bytes. Of all others (several frames, or a body that is elsewhere) `apart` has the whole
    under their place in `starts`; their frames follow the record, the request's and then the reply's, without lengths.
    """

    first: int
    data: bytes
    starts: list[int]
    apart: dict[int, ClosedRequest]
