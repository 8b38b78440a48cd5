"""The interface of a store, in terms of the states (states.py). `lmdb/`, `postgres/` and `memory.py` implement it.

*Atomicity.* A write transaction is kept as a whole when its `with` block ends without an error; otherwise nothing of it
is. A process or a machine that dies leaves one or the other. There is one writer at a time: the next one waits. Readers
never wait. A reader sees the store at one moment: that of its beginning or, in a `remote` store, of its first read;
prefetched requests are of the moment of the prefetch.

*Durability.* What was committed survives the process. It survives a power cut, too, if the store is `synced`; `relaxed`
stores may lose the last commit until they are synced, `memory` lasts as long as the machine runs (`Durability`).

*Order.* Ids ascend in the order of accepting. A service's queue is ordered by priority, the highest first, then by id.
Closed requests are numbered without gaps in the order of their closing.

*Time* is an argument, in µs since the epoch (0: none), and comes from `Store.now_us`. A wall clock may have been ahead:
`ahead_us` says by how much, and timers then wait so much longer.

*Damage.* Damaged data is never returned: RecordCorrupt names the record, StoreCorrupt what is wrong with the rest. A
list ends before a damaged record; if that record is the first, it is raised. A damaged request can be closed all the
same.

*Full stores.* The store keeps to its capacity. When it is full, `accept` raises StoreFull, and so does `finish` for a
reply that finds no room. The transaction remains good in both cases. Everything else goes on: a request can always end
without a reply, be postponed, expire, be retried and be closed, because room for its end is set aside when it is
accepted. Closed requests that may be dropped make way for new requests. Only a transaction that changes more than
`Store.batch` requests can be refused as a whole, when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Protocol, Self

from titanic.store.records import (
    AcceptResult,
    ArchiveState,
    Archivist,
    CloseResult,
    Counts,
    Durability,
    Load,
    Outcome,
    Page,
    Pending,
    QueueFigures,
    ReadyRows,
    Retention,
    Space,
    StoreReader,
    Trimmed,
)
from titanic.store.request import ClosedBulk, Description, NewRequest, StoredRequest
from titanic.store.service_settings import ServiceSetting, ServiceSettings
from titanic.store.states import State, Status


class Store(Protocol):
    """An open store. Threads may share it; a transaction belongs to the thread that began it.

    `facts_room` is how many bytes of facts there may be; their writers keep to it.

    `place` is its location, for people, without a password. `remote`: transactions may wait for a network, so none may
    begin in a loop's thread; and nodes may share it, so they claim what they dispatch (cluster.py).
    `capacity` is in bytes, `durability` is what its commits wait for. `batch` is how many requests one transaction can
    change (but not accept) however full the store is, and however far apart they are in it. `now_us` returns the
    time by which its timers count, in µs since the epoch: the same for all nodes, whatever their own clocks show.
    """

    place: str
    remote: bool
    capacity: int
    durability: Durability
    batch: int
    facts_room: int

    @property
    def now_us(self) -> Callable[[], int]: ...

    def read(self) -> ReadTransaction:
        """`with store.read() as transaction:` sees the store as it is now. Keep it short: what is deleted meanwhile
        keeps its room."""

    def write(self) -> WriteTransaction:
        """`with store.write() as transaction:` waits for the writer before it, then commits on leaving.

        An exception drops all of its changes. Leaving raises StoreFailed, StoreFull or StoreCorrupt when the engine
        cannot go on; nothing was changed then. Raises StoreReadOnly at once.
        """

    @property
    def usable(self) -> bool:
        """Whether transactions can begin. If not, the store must be opened again; nothing is lost by that."""

    def sync(self) -> None:
        """Sync all that was committed to the disk, unless it is there already; in a store that was opened for reading,
        what other processes committed. Any thread may call it, outside of its transactions. Raises StoreFailed."""

    def reader_check(self) -> int:
        """Free what killed readers hold, and return how many there were. It takes microseconds."""

    @property
    def backed_up_at(self) -> float | None:
        """When the last backup by `titanic backup` began, in seconds since 1970; None: not known, as always in
        PostgreSQL."""

    def readers(self) -> list[StoreReader]:
        """The processes that have been reading for some time, the longest first. Any thread may call it. Those of a
        `remote` store are transactions; `pinned` is then an estimate for all together."""

    def close(self) -> None:
        """Close the store; its transactions must have ended. Closing again does nothing."""

    def discard(self) -> None:
        """Close the store, and delete it if this opening created it and nothing was ever stored in it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None: ...


class ReadTransaction(Protocol):
    """The store at one moment. Any method may raise RecordCorrupt or StoreCorrupt."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None: ...

    def prefetch(self, uuids: Sequence[bytes], replies: bool = False) -> None:
        """Read these requests at once in a `remote` store; a write transaction locks them in the order of their ids.
        Other stores ignore this.

        `replies`: the frames of their replies as well, as far as they come to 16 MiB together.
        """

    # -- one request -----------------------------------------------------------------------------------------

    def request(self, uuid: bytes) -> StoredRequest | None:
        """The request as it was accepted; None when it is unknown."""

    def reply(self, uuid: bytes) -> Outcome | Pending | None:
        """The outcome of the request, Pending if it has not ended, or None when it is unknown."""

    def describe(self, uuid: bytes) -> Description | None:
        """The request without its frames, which are not checked; None when it is unknown."""

    def owner(self, uuid: bytes) -> bytes | None:
        """The owner of the request. Empty when it has none: there was no access control, or its record is too damaged
        to read. None when the request is unknown."""

    def holders(self, keys: Sequence[bytes], owner: bytes = b"") -> dict[bytes, bytes]:
        """The ids of the requests that their owner submitted with these idempotency keys, by key, also when they are
        closed. Keys that are unknown or forgotten are absent. Owners may use the same keys."""

    # -- queues ----------------------------------------------------------------------------------------------

    def next_ready(
        self, service: bytes, after: bytes | None, limit: int, max_bytes: int, skip: Container[bytes] = ()
    ) -> ReadyRows:
        """The next requests of a service: highest priority first, then oldest first.

        Begins behind the row whose key is `after`, or at the front. Ends at `limit` rows or when their records come to
        `max_bytes`; one row is returned however large it is. Requests in `skip` are passed over, and not read.
        """

    def ahead_of(
        self, service: bytes, priority: int, uuid: bytes, most: int = 10_000, skip: Collection[bytes] = ()
    ) -> int:
        """How many requests stand before this one in the queue of its service, at most `most`: of those that are not in
        `skip` and, in a store that nodes share, that no node has claimed."""

    def next_due(self, policy: Retention | None = None, skip: Collection[bytes] = (), ahead_us: int = 0) -> int | None:
        """When the next request is to be promoted or expire, or, with a `policy`, something is to be trimmed; None when
        there is no timer. Requests in `skip` do not expire. Promoting does not wait for `ahead_us`.
        """

    def queues(
        self,
        services: Collection[bytes] | None = None,
        skip: Container[bytes] | None = None,
        after: bytes = b"",
        limit: int | None = None,
    ) -> dict[bytes, QueueFigures]:
        """The figures of each service that has requests, or of those of `services` that have some, from counters. Of
        all, with a `limit`, those of so many behind the name `after`, in order.

        With `skip`, also when the oldest request in the queue was submitted, of those that are not in `skip` and, in a
        store that nodes share, that no node has claimed. The store searches each queue for it.
        """

    # -- listing and counts ----------------------------------------------------------------------------------

    def select(
        self,
        states: Collection[State] | None = None,
        *,
        service: bytes | None = None,
        older_than: int | None = None,
        owner: bytes | None = None,
        after: bytes | None = None,
        limit: int = 100,
        newest: bool = False,
        text: str | None = None,
        seconds: float = 0.0,
    ) -> Page:
        """Up to `limit` requests in the order of their ids (oldest first), of these states, this service and this owner
        if given (an empty `owner`: those without one). `newest`: newest first. `text`: only those with this text in
        their reason or key.

        `older_than` leaves out those that ended at that time or later or, if they have not ended, were submitted then.
        Begins behind the request `after`. Reads a bounded number of requests, and more only for about `seconds` while
        the page is not full; `next` of the page is where to go on.
        """

    def load(self, owner: bytes) -> Load:
        """The requests of an owner that have not ended, from counters.

        The bytes are those of all that is kept for the owner: requests and replies until they are closed, idempotency
        keys until they are forgotten. A closed request counts while it waits for a registered archive; in
        LMDB, only if the archive was registered when it was closed. Without access control, there is no owner and
        nothing is counted.
        """

    def counts(self) -> Counts:
        """Totals, from counters."""

    def space(self) -> Space:
        """Whether there is room for new requests. It asks the disk each time."""

    def room_left(self) -> int:
        """About how many bytes new requests may still take, once all closed requests that may be dropped have made
        way."""

    def identity(self) -> bytes | None:
        """Which store this is: 16 bytes that copies have, too. None: it was damaged, and repaired since."""

    # -- closed requests -------------------------------------------------------------------------------------

    def archive(self) -> ArchiveState:
        """Whether an archive is registered, what it has, and the first and last closed request that can be read."""

    def service_settings(self) -> ServiceSettings:
        """The settings of services, by their names."""

    # -- facts -----------------------------------------------------------------------------------------------

    def facts(
        self, prefix: bytes, after: bytes = b"", limit: int = 1000, newest: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """What the server remembers of its work (titanic/facts/): rows with keys that begin with `prefix`, in the order
        of their keys, behind the key `after`. `newest`: backwards, before `after`. Damaged ones are left out."""

    def facts_bytes(self) -> int:
        """About how many bytes all facts take."""

    # -- reading in bulk -------------------------------------------------------------------------------------

    def closed_bulk(self, first: int, last: int, max_bytes: int = 16 << 20) -> ClosedBulk:
        """The closed requests number `first` to `last`, or those of them that come to `max_bytes`; one however large.

        Empty when `first` cannot be read (any more): see `archive`. Raises RecordCorrupt when a record is damaged,
        or missing although it is newer than the first.
        """

    def cut_closed(self, first: int, last: int, max_bytes: int) -> int:
        """The last number, at most `last`, so that the frames from number `first` on come to `max_bytes`; one at least.

        It gives readers a range before they read it.
        """

    def request_ids(self, every: int) -> list[bytes]:
        """The id of every stored request that begins a part of `every` of them, oldest first."""

    def unended(
        self, begin: bytes, end: bytes | None, limit: int, max_bytes: int = 16 << 20
    ) -> tuple[list[tuple[Description, list[bytes]]], bytes | None]:
        """The requests with ids from `begin` up to `end` (not included; None: all) that wait or are delayed, with their
        bodies, and where to go on; None at the end. Reads at most `limit` requests."""


class WriteTransaction(ReadTransaction, Protocol):
    """Changes of the store: all of them are kept when the `with` block ends, or none. It reads what it has changed."""

    # -- accept ----------------------------------------------------------------------------------------------

    def accept(
        self, requests: Sequence[NewRequest], now_us: int, ahead_us: int = 0, running: Container[bytes] = ()
    ) -> list[AcceptResult]:
        """Store the requests: they are WAITING, or DELAYED until their `not_before`. Returns their ids, in order.

        All are stored, or none: raises StoreFull when there is no room for all (its `fitting` says for how many of
        them), InvalidRequest when one cannot be stored. The transaction remains good in both cases.

        A request with a key that is taken gets the id of the first, and is not `new`. So do those that share a key, and
        a `unique` one while the first counts. `running`: requests that workers have; stores that nodes share know that.
        """

    def fresh(
        self, requests: Sequence[NewRequest], now_us: int, ahead_us: int = 0, running: Container[bytes] = ()
    ) -> list[NewRequest]:
        """Those that `accept` would store: their key is not taken."""

    def forget(self, keys: Sequence[bytes], owner: bytes = b"") -> None:
        """Forget these idempotency keys of an owner before their time; unknown ones are fine."""

    def set_service(self, service: bytes, setting: ServiceSetting) -> ServiceSettings:
        """Set the settings of a service; return those of all. Raises InvalidRequest when too many have some."""

    def put_facts(self, changed: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Put rows of facts in place of those that are there; None deletes one. No key is the beginning of another.

        A part of the capacity is kept for them, so that a full store takes them as well. Raises InvalidRequest for a
        key over 400 bytes, or a value over 64 KiB.
        """

    # -- from state to state ---------------------------------------------------------------------------------

    def finish(
        self,
        uuid: bytes,
        status: Status,
        frames: Sequence[bytes],
        *,
        attempts: int,
        dispatched_at: int,
        finished_at: int,
        reason: str = "",
    ) -> bool:
        """Store how the request ended. False, and nothing is changed, when it is unknown or has ended before.

        Raises StoreFull, with the transaction still good, when there is no room for these frames. Without frames there
        always is, though perhaps for the beginning of the reason only.
        """

    def postpone(
        self, uuid: bytes, *, due: int, attempts: int, dispatched_at: int, reason: str, deliveries: int = 0
    ) -> bool:
        """Take a request that failed out of the queue until `due`. `deliveries`: how often workers have had it, if that
        is more often than `attempts`; else it may be 0.

        False, and nothing is changed, when it is unknown, has ended or is delayed already.
        """

    def promote(self, now_us: int, limit: int = 1000) -> list[tuple[bytes, int]]:
        """Put delayed requests that are due back into the queue, the longest due first, at most `limit`.

        Returns the services concerned and how many requests of each.
        """

    def expire(
        self, now_us: int, limit: int = 1000, skip: Collection[bytes] = (), ahead_us: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """Expire requests whose TTL is over, at most `limit`, but not those in `skip`: they are running.

        Returns their ids and services.
        """

    def retry(self, uuid: bytes, now_us: int) -> bool:
        """Let a request that failed or expired wait again, as if it had never been tried. False for other requests, and
        with `unique_for` once another was accepted, until its time is over.

        An expired request loses its TTL. A request that was never tried waits for the rest of its delay. The rest of
        either is never more than the whole: the clock may have been set back.
        """

    def change(
        self,
        uuid: bytes,
        now_us: int,
        *,
        priority: int | None = None,
        due: int | None = None,
        body: Sequence[bytes] | None = None,
    ) -> tuple[bytes, State] | None:
        """Change the priority of a request that has not ended, when it is `due` (in µs since the epoch, in the past for
        at once), and its body. Returns its service and its state then. None, and nothing is changed, when it is
        unknown, has ended, or was claimed by a node. Raises StoreFull, with the transaction still good, when the body
        does not fit."""

    def close(self, uuid: bytes, now_us: int | None = None) -> CloseResult | None:
        """Delete the request and all that belongs to it, whatever its state and even if it is damaged.

        It is remembered among the closed requests; `now_us` (None: ask the clock) is when it was closed. Returns None
        when the request is unknown. Raises StoreFull, with the transaction still good, only when an archive is
        registered, has fallen far behind, and nothing may be lost before it has it.
        """

    # -- time ------------------------------------------------------------------------------------------------

    def trim(self, now_us: int, policy: Retention | None = None, limit: int = 1000, ahead_us: int = 0) -> Trimmed:
        """Close replies and dead requests whose retention is over, drop old closed ones, forget old keys.

        At most `limit` of all together. While an archive has fallen so far behind that nothing can be closed, nothing
        is closed.
        """

    def clamp_timers(self, now_us: int, after: bytes = b"", limit: int = 1000) -> tuple[int, bytes | None]:
        """Clamp timers that were set by a clock that was ahead: each lasts at most for its own length from now on.

        Reads `limit` delays, times to live and keys, from the place `after` on. Returns how many were changed, and the
        place to go on from; None at the end.
        """

    # -- the archive -----------------------------------------------------------------------------------------

    def update_archive(
        self,
        archivist: Archivist | None = None,
        *,
        register: bool | None = None,
        upto: int | None = None,
        uuid: bytes | None = None,
    ) -> ArchiveState:
        """Change the agreement with the archive, and return it.

        `register=True`: keep all closed requests until they are acknowledged. Registering again changes nothing. Only
        one archive can be registered: another `archivist` raises InvalidArchive. A registration without an archivist
        becomes that of the first one. An archive that was unregistered finds `archived_upto` as it left it, unless
        closed requests behind it are gone: then it begins with the first that is there, as a new archive does.

        `register=False`: closed requests need not be kept for the archive any more, even for another archive.

        `upto`: the archive has everything up to this number, on disk. A number below an earlier one changes nothing.
        `uuid` is the id of the request that has this number in the archive. Raises InvalidArchive when another request
        has the number here, or it was never given out, or no archive or another one is registered.
        """
