"""Putting a damaged store right, without losing a request that was acknowledged.

Indexes and counters follow from the records, so they are rewritten where they are wrong. A record that can't be read is
kept in `aside`, and its request fails with a reason, so that its client learns of it; it can be retried if the record
of the request is still good. All happens in one transaction.

*Salvage* is for damaged pages. All rows that are found, without LMDB (pages.py), are written into a new file, which
takes the place of the damaged one. That is kept beside it. `repair` then does the rest: it fails requests that are not
complete.

The leaves below a branch that can't be read are found all the same: no tree has them, and they aren't free
(`_home_of`).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

import lmdb

from titanic.errors import InvalidRequest, RecordCorrupt, StoreCorrupt
from titanic.protocol.submit_options import DEFAULT_PRIORITY, MAX_PRIORITY
from titanic.store.lmdb import closed_record, opening, outcome_record, request_record
from titanic.store.lmdb.closed_record import ClosedRecord, Part, Where
from titanic.store.lmdb.lifecycle import search
from titanic.store.lmdb.outcome_record import OutcomeHeader
from titanic.store.lmdb.pages import SALVAGE, Hole, Pages
from titanic.store.lmdb.record import BLOB_KEY_SIZE, GRAVE_KEY_SIZE, REF_SIZE
from titanic.store.lmdb.request_record import RequestHeader
from titanic.store.lmdb.schema import (
    BODIES,
    DEAD,
    EXPIRY,
    KEPT,
    KEY,
    LOAD,
    PAGE,
    REPLIED,
    SERVICES_KEY,
    TIME_SIZE,
    U32,
    Databases,
    sequence_of,
    service_of,
)
from titanic.store.lmdb.store import LmdbStore, LmdbWriteTransaction
from titanic.store.lmdb.tools.check import check_all
from titanic.store.lmdb.tools.findings import Finding, Remedy, Row, Verb, Walk
from titanic.store.lmdb.transaction import Writing
from titanic.store.moving import Progress
from titanic.store.records import Outcome, priority_in
from titanic.store.request import NewRequest
from titanic.store.rules import check_owner, check_service
from titanic.store.states import Status
from titanic.util.clock import wall_us
from titanic.util.ids import SIZE

RowTest = Callable[[bytes, bytes], bool]
"""Whether a key and a value have the form of a row of some database."""

UNKNOWN_SERVICE = b"unknown"
"""The service of a request when no record of it is left."""

_PASSES = 6
_VERSION_AND_VARIANT = (0x70, 0x80)
_SPARE = 64 << 20
_PORTION = 8 << 20
_ROOT = -1


def repair(store: LmdbStore, now_us: int | None = None, progress: Progress | None = None) -> list[Finding]:
    """Repair what can be repaired, and return the problems that were found. A check shows what is left.

    `now_us` (wall clock, µs since the epoch; None: read the clock) is the time at which damaged requests fail.
    `progress` is as for check(). Raises StoreCorrupt, and changes nothing, when LMDB can't read all of it: then
    salvage() comes first.
    """
    found: list[Finding] = []
    with LmdbWriteTransaction(store.environment, prepared=True) as tx:
        mender = _Mender(tx, wall_us() if now_us is None else now_us)
        for _ in range(_PASSES):  # one remedy can bring the next problem to light
            walk = Walk(tx, progress=progress)
            if fault := check_all(walk):
                raise StoreCorrupt(f"the store in {store.path} is damaged", fault, SALVAGE)
            found += [problem for problem in walk.problems if problem not in found]
            if not walk.remedies:
                break
            for remedy in walk.remedies:
                mender.apply(remedy)
    return found


class _Mender:
    """Applies remedies in a write transaction."""

    def __init__(self, tx: Writing, now_us: int) -> None:
        self._tx = tx
        self._raw = tx.raw
        self._db = tx.db
        self._now_us = now_us
        self._verbs: dict[Verb, Callable[[Remedy, lmdb._Database], None]] = {
            Verb.PUT: self._put,
            Verb.DELETE: self._delete,
            Verb.SET_ASIDE: self._set_aside,
            Verb.FAIL: self._fail,
            Verb.LOSE_REPLY: self._lose_reply,
            Verb.LOSE_ENTRY: self._lose_entry,
            Verb.BURY: self._bury,
        }

    def apply(self, remedy: Remedy) -> None:
        """Do what the remedy says."""
        self._verbs[remedy.verb](remedy, getattr(self._db, remedy.database))

    def _put(self, remedy: Remedy, database: lmdb._Database) -> None:
        self._raw.put(remedy.key, remedy.value, db=database)

    def _delete(self, remedy: Remedy, database: lmdb._Database) -> None:
        self._raw.delete(remedy.key, db=database)

    def _set_aside(self, remedy: Remedy, database: lmdb._Database) -> None:
        record = self._raw.get(remedy.key, db=database)
        if record is not None:
            label = f"{remedy.database} {self._now_us} ".encode() + remedy.key
            self._raw.put(label[:511], bytes(record), db=self._db.aside)
            self._raw.delete(remedy.key, db=database)

    def _fail(self, remedy: Remedy, database: lmdb._Database) -> None:
        """A request that can't be read, or isn't there, becomes a stand-in that has failed."""
        raw, uuid = self._raw, remedy.key
        service, priority, submitted_at, owner = self._what_is_known(uuid)
        self._set_aside(remedy, database)
        if not _is_id(uuid):
            return
        stand_in = request_record.encode(uuid, NewRequest(service, [], priority, owner=owner), submitted_at)
        raw.put(uuid, stand_in, db=self._db.requests)
        if raw.get(uuid, db=self._db.replies) is None:
            self._end(uuid, remedy.value.decode())

    def _what_is_known(self, uuid: bytes) -> tuple[bytes, int, int, bytes]:
        """Service, priority, time and owner of a request that is damaged, from its header or its row in a queue."""
        record = self._raw.get(uuid, db=self._db.requests)
        if record is not None:
            try:
                header = request_record.decode_header(uuid, record)
                check_service(header.service)
                check_owner(header.owner)
                return header.service, header.priority, header.submitted_at, header.owner
            except Exception:  # it is damaged: anything can be wrong with it
                pass
        prefix = search(self._tx, uuid).prefix
        if prefix:
            service, priority = service_of(prefix), priority_in(prefix + uuid)
            with suppress(InvalidRequest):
                check_service(service)
                return service, priority if 0 <= priority <= MAX_PRIORITY else DEFAULT_PRIORITY, 0, b""
        return UNKNOWN_SERVICE, DEFAULT_PRIORITY, 0, b""

    def _lose_reply(self, remedy: Remedy, database: lmdb._Database) -> None:
        self._set_aside(remedy, database)
        if _is_id(remedy.key):
            self._end(remedy.key, "the reply was damaged")

    def _end(self, uuid: bytes, reason: str) -> None:
        end = Outcome(Status.FAILED, [], reason, 0, 0, self._now_us)
        self._raw.put(uuid, outcome_record.encode(uuid, end), db=self._db.replies)

    def _lose_entry(self, remedy: Remedy, database: lmdb._Database) -> None:
        sequence = sequence_of(remedy.key)
        uuid, closed_at = bytes(SIZE), 0
        record = self._raw.get(remedy.key, db=database)
        if record is not None:
            try:
                header = closed_record.decode_header(sequence, record)
                uuid, closed_at = header.uuid, header.closed_at
            except RecordCorrupt:
                pass
        self._set_aside(remedy, database)
        closed = ClosedRecord(
            uuid,
            status=Status.FAILED,
            closed_at=closed_at,
            error="its record was damaged" if record is not None else "its record was missing",
            request=Part(Where.DAMAGED),
        )
        self._raw.put(remedy.key, closed_record.encode(sequence, closed), db=database)

    def _bury(self, remedy: Remedy, database: lmdb._Database) -> None:
        """Delete a blob, whatever pieces it has."""
        pieces = []
        cursor = self._raw.cursor(database)
        if cursor.set_range(remedy.key):
            for view in cursor.iternext(values=False):
                if view[: len(remedy.key)] != remedy.key:
                    break
                pieces.append(bytes(view))
        for key in pieces:
            self._raw.delete(key, db=database)
        self._raw.delete(remedy.key, db=self._db.graves)


def _is_id(uuid: bytes) -> bool:
    """Whether this can be the id of a request: new ids must be above all that are in the store."""
    version, variant = _VERSION_AND_VARIANT
    return len(uuid) == SIZE and uuid[6] & 0xF0 == version and uuid[8] & 0xC0 == variant and uuid[0] < 0x80


# -- salvage ---------------------------------------------------------------------------------------------------


class Salvaged(NamedTuple):
    """What was saved: how many rows. `damaged` is the file as it was, `problems` is what couldn't be read of it."""

    damaged: Path
    rows: int
    problems: list[Finding]


def salvage(directory: Path) -> Salvaged:
    """Put a new file with all that can be read in the place of the data file of a store that no process has open.

    Raises StoreLocked, StoreUnwritable (there must be room for a copy), or StoreCorrupt when nothing can be read. Then
    all is as it was.
    """
    data, new = directory / opening.DATA, directory / opening.NEW
    descriptor = opening.take_lock(directory)
    try:
        try:
            with data.open("rb") as file:
                pages = Pages(file.fileno())
                rows = _save(pages, new, data.stat().st_size)
            damaged = _free_name(directory, time.strftime("damaged-%Y%m%dT%H%M%S"))
            owner = data.stat()
            _give(new, owner)
            os.link(data, damaged)
            new.rename(data)
            _renew_lock(directory, owner)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        opening.sync_directory(directory)
    except (OSError, lmdb.Error) as error:
        raise opening.unwritable(directory, error) from error
    finally:
        opening.release_lock(descriptor)
    return Salvaged(damaged, rows, _problems(pages))


def _free_name(directory: Path, name: str) -> Path:
    first = directory / f"{name}.mdb"
    names = (directory / f"{name}-{n}.mdb" for n in count(2))
    return next(path for path in chain([first], names) if not path.exists())


def _renew_lock(directory: Path, owner: os.stat_result) -> None:
    """Make a new lock file: the old one knows of transactions that the new file hasn't had."""
    (directory / opening.LOCK).unlink(missing_ok=True)
    opening.allocate_lock(directory)
    _give(directory / opening.LOCK, owner)


def _give(file: Path, owner: os.stat_result) -> None:
    """Keep the owner and mode: the server must be able to open a file that another user has repaired."""
    if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(file, owner.st_uid, owner.st_gid)
    file.chmod(stat.S_IMODE(owner.st_mode))


def _save(pages: Pages, new: Path, size: int) -> int:
    """Write all rows into a new file, synced, and return how many."""
    roots = pages.trees()
    if not roots.keys() & {name.encode() for name in Databases._fields}:
        raise StoreCorrupt(f"{new.with_name(opening.DATA)} is damaged", "no part of it can be read", "restore a backup")
    new.unlink(missing_ok=True)
    options = {"subdir": False, "max_dbs": 16, "mode": 0o640, "lock": False, "sync": False}
    with lmdb.open(str(new), map_size=2 * size // PAGE * PAGE + _SPARE, **options) as env:  # type: ignore[arg-type]
        databases = Databases(**{name: env.open_db(name.encode()) for name in Databases._fields})
        rows = 0
        for name, database in databases._asdict().items():
            root = roots.get(name.encode())
            if root is not None:
                rows += _write(env, database, pages.rows(name, root))
            elif pages.odd_rows or pages.holes:
                pages.holes.append(Hole(name, _ROOT, b"", None))
        for leaf in pages.strays() if pages.holes else ():
            if home := _home_of(leaf, pages.holes):
                rows += _write(env, getattr(databases, home), leaf)
        env.sync(True)
    return rows


def _write(env: lmdb.Environment, database: lmdb._Database, rows: Iterable[tuple[bytes, bytes]]) -> int:
    written = 0
    for portion in _portions(rows):
        with env.begin(write=True) as txn:
            written += txn.cursor(database).putmulti(portion, dupdata=False, overwrite=False)[1]
    return written


def _portions(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """The rows in lists of a few MiB."""
    portion: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in rows:
        portion.append((key, value))
        size += len(key) + len(value) + 100
        if size > _PORTION:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _problems(pages: Pages) -> list[Finding]:
    found = []
    if pages.is_older:
        found.append(("the last transaction", "it can't be read, but the one before it can"))
    for hole in pages.holes:
        what = "its root can't be found" if hole.page == _ROOT else f"page {hole.page} can't be read"
        found.append((hole.tree, what))
    if pages.odd_rows:
        found.append(("rows", f"{pages.odd_rows} can't be read"))
    return [Finding(where, what, "copy the rest to a new file") for where, what in found]


# -- leaves that no tree has ---------------------------------------------------------------------------------


def _home_of(leaf: list[Row], holes: Iterable[Hole]) -> str:
    """Return the database of a leaf that belongs to no tree; nothing when it fits none.

    Its keys are in a gap that a lost page left, and its rows have that database's format.
    """
    if not leaf:
        return ""
    first, last = min(leaf)[0], max(leaf)[0]
    gaps = {hole.tree for hole in holes if hole.low <= first and (hole.high is None or last < hole.high)}
    for name in _ROW_TESTS:
        if name in gaps and 2 * sum(_looks_like(name, *row) for row in leaf) > len(leaf):
            return name
    return ""


def _looks_like(name: str, key: bytes, value: bytes) -> bool:
    try:
        return _ROW_TESTS[name](key, value)
    except (RecordCorrupt, StoreCorrupt):
        return False


def _record(
    decode_header: Callable[[bytes, bytes], RequestHeader | OutcomeHeader],
    decode: Callable[[bytes, memoryview], object],
) -> RowTest:
    """Whether a row is a record with frames, or with a reference to them at its end."""

    def looks_like(key: bytes, value: bytes) -> bool:
        header = decode_header(key, value)
        if header.ref is None:
            decode(key, memoryview(value))
        return len(key) == SIZE and (header.ref is None or header.body_at + REF_SIZE == len(value))

    return looks_like


_TIMERS = (EXPIRY, REPLIED, DEAD, KEPT, BODIES, KEY)

_ROW_TESTS: dict[str, RowTest] = {
    "requests": _record(request_record.decode_header, request_record.decode),
    "replies": _record(outcome_record.decode_header, outcome_record.decode),
    # for a retry, the other two check all that matters
    "retries": lambda key, value: len(key) == SIZE and bool(outcome_record.decode_retry(key, memoryview(value))),
    "closed": lambda key, value: bool(closed_record.decode_header(sequence_of(key), memoryview(value))),
    "graves": lambda key, value: len(key) == GRAVE_KEY_SIZE and len(value) == U32.size,
    "blobs": lambda key, value: len(key) == BLOB_KEY_SIZE and len(value) > 0,
    "later": lambda key, value: len(key) == TIME_SIZE + SIZE and value[-2:-1] == b"\0",
    "ready": lambda key, value: not value and key[-SIZE - 2 : -SIZE - 1] == b"\0" and key[-SIZE - 1] <= 9,
    "timers": lambda key, value: not value and key[:1] in _TIMERS and len(key) > 1 + TIME_SIZE,
    "keys": lambda key, value: request_record.decode_key_record(value) is not None,
    "meta": lambda key, value: len(value) <= LOAD.size or key == SERVICES_KEY,
    "facts": lambda key, value: len(value) > 0,
    "aside": lambda key, value: True,
}
"""The format of each database's rows; the most ambiguous formats last."""
