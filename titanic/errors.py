"""All exceptions of Titanic, under one root.

    TitanicError
    ├── CallerError     the call was wrong; repeating it won't help
    ├── StoreError      the disk, the directory or the file behind the store
    └── RequestError    the outcome of a request, for its waiting client

A message says what is wrong, the fact behind it, and what to do, in that order and separated by "; ".
Exceptions of lmdb and the operating system are turned into these where the store calls them, and stay
reachable as `__cause__`.
"""

from __future__ import annotations


class TitanicError(Exception):
    """Root of all. `str()` of it is for people; `fact` is its second part, the fact behind what is wrong."""

    def __init__(self, what: str, fact: str = "", advice: str = "") -> None:
        super().__init__("; ".join(part for part in (what, fact, advice) if part))
        self.fact = fact


class CallerError(TitanicError):
    """The call can't succeed as it stands."""


class InvalidRequest(CallerError):
    """A request that can't be stored as given."""


class InvalidSchedule(CallerError):
    """An invalid schedule."""


class InvalidArchive(CallerError):
    """The archive acknowledged requests that were never closed, or isn't registered."""


class CapacityTooSmall(CallerError):
    """The capacity leaves no room to work in."""


class NotInMemory(CallerError):
    """A store with the durability `memory` would be on a disk."""


class Contradiction(CallerError):
    """Settings, by name, that cannot be combined, though each is valid."""

    def __init__(self, settings: tuple[str, ...], what: str, fact: str, advice: str) -> None:
        super().__init__(what, fact, advice)
        self.settings = settings


class KeyRefused(CallerError):
    """A server refuses the connection because the key is wrong or missing."""


class Forbidden(CallerError):
    """The user of this key lacks a permission, which the text names."""


class NoRequest(CallerError):
    """There is no current request, or it is not stored."""


class UnknownRequest(CallerError):
    """No request has this UUID."""


class StoreError(TitanicError):
    """The store or its file system failed."""


class StoreUnwritable(StoreError):
    """The store's directory can't be created or written."""


class NotAStore(StoreError):
    """The path holds something that isn't a store; it was left as it was."""


class StoreTooNew(StoreError):
    """The store was written in a format that this version, or the installed LMDB, does not know."""


class StoreTooOld(StoreError):
    """The store has an earlier format, which only a writer can convert, or a format from before the first release."""


class StoreReadOnly(StoreError):
    """The store was opened for reading only."""


class StoreLocked(StoreError):
    """Another process has the store open. `pid` is its id, None if it is unknown."""

    def __init__(self, what: str, fact: str, advice: str, *, pid: int | None) -> None:
        super().__init__(what, fact, advice)
        self.pid = pid


class StoreCorrupt(StoreError):
    """The data file is damaged as a whole: truncated, or its pages don't fit together."""


class RecordCorrupt(StoreError):
    """One record fails its checksum. `uuid` and `database` say which; closing the request removes it.

    (In `closed`, `uuid` is the number in the sequence, 8 bytes.)
    """

    def __init__(self, uuid: bytes, database: str, fact: str) -> None:
        advice = "repair the store" if database == "closed" else "close the request to remove it"
        super().__init__(f"the record of {uuid.hex()} in '{database}' is damaged", fact, advice)
        self.uuid = uuid
        self.database = database


def disk_trouble(path: str, free: int | None) -> tuple[str, str, str]:
    """What is wrong while `titanic.stats` reports `disk_full`, the fact, and what to do. `free`: bytes left on the disk
    of the store; None: the store was deleted."""
    if free is None:
        fact = "the server still has the deleted file open, and anything stored now would be lost"
        return f"the store in {path} was deleted", fact, "stop the server and restore a backup"
    fact = f"{free / (1 << 20):.1f} MiB is free on it"
    return f"the disk of the store in {path} is full", fact, "free some disk space: replies and closing need it, too"


class StoreFull(StoreError):
    """No room for new requests, or for a large reply.

    `used`, `kept` (for replies and closing), `capacity` and `needed` (for the whole batch) are bytes. `fitting` says
    how many of the batch's requests, counted from its start, would have fitted. `disk` is the store's directory if its
    disk is too full for the capacity: `free` bytes are left (None: the store was deleted), and `capacity` is what fits.
    """

    def __init__(
        self,
        used: int,
        capacity: int,
        needed: int = 0,
        fitting: int = 0,
        *,
        kept: int = 0,
        disk: str = "",
        free: int | None = 0,
    ) -> None:
        what, fact, advice = disk_trouble(disk, free) if disk else ("the store is full", "", "raise the capacity")
        if free is not None:
            fact += f"{fact and ', '}{used} of {capacity} bytes are used"
            fact += f", {kept} are kept back for replies and closing" if kept else ""
            fact += f", {needed} more are needed" if needed else ""
            advice = f"try again when requests have been closed, or {advice}"
        super().__init__(what, fact, advice)
        self.disk = disk
        self.used = used
        self.kept = kept
        self.capacity = capacity
        self.needed = needed
        self.fitting = fitting


class StoreFailed(StoreError):
    """The disk or the database failed. The transaction was rolled back."""


class OtherLease(StoreError):
    """Other servers that share the store have a different lease."""


class OtherLimits(StoreError):
    """Other servers that share the store were given different limits for a service."""


class StoreAway(StoreFailed):
    """The database cannot be used at present. Work resumes by itself; the store has logged it."""


class OutcomeUnknown(StoreFailed):
    """The connection to the database was lost during a commit: whether the transaction was committed is unknown."""


class WriteConflict(StoreFailed):
    """Another node changed the same rows first. The transaction was rolled back; it can be retried."""


class DiskFull(StoreFailed):
    """The store's disk has no room for the write."""


class RequestError(TitanicError):
    """The outcome of a request."""


class RequestFailed(RequestError):
    """The request ended without a reply: it failed for good, expired or was cancelled.

    `state` is `failed`, `expired` or `cancelled`; `detail` is what the worker sent with its failure, such as
    a command's stderr.
    """

    def __init__(self, what: str, *, state: str = "failed", detail: list[bytes] | None = None) -> None:
        super().__init__(what)
        self.state = state
        self.detail = detail or []


class Refused(RequestError):
    """Titanic did not accept the request."""


class TimedOut(RequestError):
    """No answer within the time given."""
