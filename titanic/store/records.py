"""The records that a store takes and returns. Times are µs since the epoch, 0 = none; sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypedDict

from titanic.store.request import Description
from titanic.store.states import State, Status
from titanic.util.ids import SIZE

DAY = 24 * 3600 * 1_000_000
MIN_CAPACITY = 16 << 20
DEFAULT_CAPACITY = 1 << 30

Durability = Literal["synced", "relaxed", "memory"]
"""What a commit waits for. `synced`: it is on the disk. `relaxed`: all of it is but the page that makes it valid, so a
power cut may take the last commit, unless `Store.sync` came behind it. `memory`: nothing; the store is in RAM."""
DURABILITIES: tuple[Durability, ...] = ("synced", "relaxed", "memory")


class StoreSettings(NamedTuple):
    """How a store is to behave: `open_store` says what each means."""

    keep_closed: bool = True
    closed_body_limit: int = 64 << 10
    drop_unarchived: bool = False
    durability: Durability = "synced"


class StoreOptions(TypedDict, total=False):
    """Those of StoreSettings that a caller gives."""

    keep_closed: bool
    closed_body_limit: int
    drop_unarchived: bool
    durability: Durability


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
    not_before: int = 0
    """When it could begin at the earliest, as it was submitted."""


class ReadyRows(list[ReadyRow]):
    """What `next_ready` has read. `more`: whether there may be more in the queue."""

    more = True


def priority_in(key: bytes) -> int:
    """The priority in the `key` of a ReadyRow."""
    return 9 - key[-SIZE - 1]


class CloseResult(NamedTuple):
    """A request that was just closed: what service it was for, the state it was in, its idempotency key, and its owner.

    `run_us`: how long its last attempt took, if it had ended; else None.
    """

    service: bytes
    state: State
    key: bytes = b""
    owner: bytes = b""
    run_us: int | None = None

    @property
    def waited(self) -> bool:
        """Whether it had not ended yet."""
        return self.state in (State.WAITING, State.DELAYED)


class Load(NamedTuple):
    """The requests of a service, or of an owner, that have not ended, delayed ones included.

    `bytes` count these requests for a service; for an owner, all that the store keeps for that user.
    """

    waiting: int
    bytes: int


class QueueFigures(NamedTuple):
    """What a service has to do: requests in its queue, those that have not ended (delayed ones included), their bytes,
    and when the oldest in the queue was submitted that waits; None: there is none, or it was not requested."""

    ready: int = 0
    unended: int = 0
    bytes: int = 0
    oldest: int | None = None

    @property
    def load(self) -> Load:
        """Its requests that have not ended."""
        return Load(self.unended, self.bytes)


NO_QUEUE = QueueFigures()


def ready_counts(queues: Mapping[bytes, QueueFigures]) -> dict[bytes, int]:
    """The number of requests in each queue that is not empty."""
    return {service: queue.ready for service, queue in queues.items() if queue.ready}


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
    the disk has no room for what the store is to write next, or the store was deleted. `disk_free`: bytes that its disk
    has left; None: deleted, or unknown.
    """

    full: bool
    disk_full: bool
    disk_free: int | None = None


PINS_MUCH = 0.1
"""Of the capacity; a reader that keeps more from being used again is a warning."""


class StoreReader(NamedTuple):
    """A process that has been reading the store for some time: so many seconds, and bytes that cannot be used again
    until it ends. `command` is empty when it is not known."""

    pid: int
    command: str
    age: float
    pinned: int


class Archivist(NamedTuple):
    """The owner of an archive: an id of 16 bytes and, for people, the archive's location."""

    id: bytes
    name: str


class ArchiveState(NamedTuple):
    """The archive of closed requests. It has them up to number `archived_upto`; the store has `first` … `last`, and
    `first` is one above `last` when there are none. `archivist` is that of the archive that is registered, or was last;
    None when it is unknown."""

    registered: bool
    archived_upto: int
    first: int
    last: int
    lost: int
    archivist: Archivist | None = None


class AcceptResult(NamedTuple):
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
    """And all that ended with a time of its own."""
    dead: int
    closed: int
    keys: int
    more: bool
    services: Mapping[bytes, int] = {}
    """The closed requests (`replies` and `dead`) by service."""
    bodies: int = 0
    """Bodies of other requests, by `keep_body`."""


class Page(list[Description]):
    """A part of a listing. `next` is what to pass as `after` for the part that follows; None at the end.

    A page can be short, or empty, and yet have a `next`: a listing examines a bounded number of requests.
    """

    next: bytes | None = None
