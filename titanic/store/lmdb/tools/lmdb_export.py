"""An LMDB store as it is read out or made from another one (titanic/store/moving.py).

A new store is made in the folder `unfinished-migration` of its directory. As long as only that is there, the directory
is refused as a store. When it is complete, synced and compared, its file is moved up, in one step.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar

from msgspec.structs import asdict, replace

from titanic.errors import NotAStore, StoreCorrupt, StoreFailed
from titanic.store import service_settings
from titanic.store.lmdb import closed_record, facts, opening, outcome_record, request_record
from titanic.store.lmdb.capacity import divide
from titanic.store.lmdb.closed_record import ClosedRecord, Part, Where
from titanic.store.lmdb.lifecycle import put_unended
from titanic.store.lmdb.outcome_record import RetryRecord, expiry
from titanic.store.lmdb.record import Ref, join_frames, refer, verify
from titanic.store.lmdb.request_record import KeyRecord, row_key
from titanic.store.lmdb.schema import (
    ARCHIVE,
    ARCHIVE_KEY,
    ARCHIVIST_KEY,
    IDENTITY_KEY,
    INLINE,
    KEY,
    LOST_KEY,
    REPAIR,
    SEQUENCE_KEY,
    SERVICES_KEY,
    U64,
    closed_key,
    ready_prefix,
    sequence_of,
    timer_key,
)
from titanic.store.lmdb.store import LmdbStore, LmdbWriteTransaction
from titanic.store.lmdb.tools.check import check
from titanic.store.moving import (
    PORTION,
    PORTION_BYTES,
    Progress,
    StoredClosing,
    StoredKey,
    StoredLife,
    StoreHead,
    Totals,
    life_of,
)
from titanic.store.records import MIN_CAPACITY
from titanic.store.request import as_new

UNFINISHED = "unfinished-migration"
_ROOMY = 1 << 40
"""Bytes that a store in the making may take; it gets its capacity when it is known what is in it."""

Record = TypeVar("Record")


def _portions(records: Iterator[tuple[Record, int]]) -> Iterator[list[Record]]:
    """Records, which come with their sizes, in lists that are not too long."""
    portion: list[Record] = []
    size = 0
    for record, bytes_ in records:
        portion.append(record)
        size += bytes_
        if len(portion) >= PORTION or size >= PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _size(frames: Sequence[bytes]) -> int:
    return sum(map(len, frames))


class LmdbExport:
    """All of a store that is open in this process only."""

    def __init__(self, store: LmdbStore, *, closes: bool = False) -> None:
        """`closes`: the store is closed with it."""
        self._store = store
        self._closes = closes
        self._tx = store.read()
        self.place = store.place

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> LmdbExport:
        """Raises NotAStore, StoreLocked when a server has it open, or what else `open_store` raises."""
        directory = Path(path)
        if not (directory / opening.DATA).is_file():
            raise NotAStore(f"{directory} is not a store", f"it has no {opening.DATA}", "name another directory")
        return cls(LmdbStore.open(directory, verified=True), closes=True)

    def __enter__(self) -> Self:
        tx = self._tx.__enter__()
        counts = tx.counts()
        self.head = StoreHead(tx.identity(), counts.capacity, tx.archive(), tx.service_settings())
        self.totals = Totals(counts.requests, int(tx.raw.stat(tx.db.keys)["entries"]), counts.closed)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._tx.__exit__(kind, error, trace)
        if self._closes:
            self._store.close()

    def requests(self) -> Iterator[list[StoredLife]]:
        return _portions(self._requests())

    def idempotency_keys(self) -> Iterator[list[StoredKey]]:
        return _portions(self._keys())

    def closed(self) -> Iterator[list[StoredClosing]]:
        return _portions(self._closed())

    def facts(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """All facts that are sound."""
        rows = ((key, value) for key, value in facts.rows(self._tx) if value is not None)
        return _portions((row, len(row[1])) for row in rows)

    def _requests(self) -> Iterator[tuple[StoredLife, int]]:
        tx = self._tx
        for view, record in tx.raw.cursor(tx.db.requests).iternext():
            uuid = bytes(view)
            request = request_record.decode(uuid, record, tx.fetch)
            size = _size(request.body)
            reply = tx.raw.get(uuid, db=tx.db.replies)
            if reply is not None:
                outcome = outcome_record.decode(uuid, reply, tx.fetch)
                yield StoredLife(request, 0, 0, 0, 0, "", outcome), size + _size(outcome.frames)
                continue
            past = tx.past(uuid) or RetryRecord(0, 0)
            life = life_of(
                request,
                expires_at=expiry(request.expires_at, past),
                attempts=past.attempts,
                due=past.due,
                dispatched_at=past.dispatched_at,
                reason=past.reason,
                deliveries=past.deliveries,
            )
            yield life, size

    def _keys(self) -> Iterator[tuple[StoredKey, int]]:
        tx = self._tx
        for view, row in tx.raw.cursor(tx.db.keys).iternext():
            name = bytes(view)
            owner = request_record.owner_of_key(name)
            key = name[2 + len(owner) :] if name[:1] == b"\xff" else name
            holder = request_record.decode_key_record(row)
            if holder is None:
                raise StoreCorrupt(f"the store {self.place} is damaged", f"key {name.hex()} is invalid", REPAIR)
            uuids = [holder.at(n) for n in range(holder.requests)]
            yield StoredKey(owner, key, holder.until, holder.given, uuids), len(row)

    def _closed(self) -> Iterator[tuple[StoredClosing, int]]:
        tx = self._tx
        for view, record in tx.raw.cursor(tx.db.closed).iternext():
            sequence = sequence_of(view)
            verify(closed_key(sequence), record, closed_record.DATABASE)
            header = closed_record.decode_header(sequence, record)
            closed = closed_record.decode_rest(sequence, header, tx.fetch)
            size = _size(closed.request) + _size(closed.reply)
            yield StoredClosing(closed, header.request.frames, header.reply.frames), size


class LmdbImport:
    """A store in the making, in a directory that is empty or does not exist yet."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises NotAStore when something is there, StoreLocked when another process creates it, StoreUnwritable."""
        self._directory = directory = Path(path)
        self._unfinished = directory / UNFINISHED
        self._capacity = 0
        self.place = str(directory)
        if not self._unfinished.exists():
            opening.prepare(directory)
        self._lock = opening.take_lock(directory)
        try:
            if (directory / opening.DATA).exists():
                advice = "choose another directory, or move the store"
                raise NotAStore(f"cannot write to {directory}", "it already has a store", advice)
            shutil.rmtree(self._unfinished, ignore_errors=True)  # of one that was interrupted
            opening.prepare(directory)
            self._store = LmdbStore.open(self._unfinished, capacity=_ROOMY, durability="relaxed")
        except BaseException:
            opening.release_lock(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()
        opening.release_lock(self._lock)

    def put_head(self, head: StoreHead) -> None:
        self._capacity = head.capacity
        archive = head.archive
        with self._store.write() as tx:
            rows = {SEQUENCE_KEY: U64.pack(archive.last)}
            if archive.registered or archive.archived_upto:
                rows[ARCHIVE_KEY] = ARCHIVE.pack(archive.registered, archive.archived_upto)
            if archive.lost:
                rows[LOST_KEY] = U64.pack(archive.lost)
            if archive.archivist is not None:
                rows[ARCHIVIST_KEY] = archive.archivist.id + archive.archivist.name.encode(errors="replace")
            if head.identity is not None:
                rows[IDENTITY_KEY] = head.identity
            if head.settings:
                rows[SERVICES_KEY] = service_settings.encode(head.settings)
            for key, value in rows.items():
                tx.raw.put(key, value, db=tx.db.meta)

    def put_requests(self, lives: Sequence[StoredLife]) -> None:
        with self._store.write() as tx:
            for life in lives:
                _put_life(tx, life)

    def put_keys(self, keys: Sequence[StoredKey]) -> None:
        with self._store.write() as tx:
            for owner, key, until, given, uuids in keys:
                name = row_key(key, owner)
                tx.put_key(name, request_record.encode_key_record(KeyRecord(until, b"".join(uuids), given)))
                tx.put(tx.db.timers, timer_key(KEY, until, name), b"")

    def put_closed(self, closings: Sequence[StoredClosing]) -> None:
        with self._store.write() as tx:
            for closing in closings:
                _put_closing(tx, closing)

    def put_facts(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        with self._store.write() as tx:
            tx.put_facts(rows)

    def problems(self, progress: Progress) -> list[str]:
        """Give it its capacity, and check it."""
        with self._store.read() as tx:
            used = tx.counts().used + tx.charges()
        capacity = max(self._capacity, MIN_CAPACITY)
        if divide(capacity).accept < used:  # the other engine counts other bytes
            capacity = max(used + used // 4, MIN_CAPACITY)
        self._store.close()
        self._store = LmdbStore.open(self._unfinished, capacity=capacity)
        found = check(self._store, lambda name, done, total: progress(f"checking {name}", done, total))
        return [f"{one.where}: {one.what}" for one in found]

    def read(self) -> LmdbExport:
        return LmdbExport(self._store)

    def finish(self) -> None:
        self._store.close()
        made, data = self._unfinished / opening.DATA, self._directory / opening.DATA
        try:
            with made.open("rb") as file:
                os.fsync(file.fileno())
            made.rename(data)
            opening.sync_directory(self._directory)
            shutil.rmtree(self._unfinished, ignore_errors=True)
        except OSError as error:
            raise opening.unwritable(self._directory, error) from error


def _put_life(tx: LmdbWriteTransaction, life: StoredLife) -> None:
    request, outcome = life.request, life.outcome
    uuid, service, owner = request.uuid, request.service, request.owner

    def put_blob(body: bytes) -> Ref:
        return _put_blob(tx, body)

    record = request_record.encode(uuid, as_new(request, request.body), request.submitted_at, put_blob)
    if not tx.raw.put(uuid, record, db=tx.db.requests, append=True):
        raise StoreFailed("the request IDs do not ascend", f"{uuid.hex()} follows a higher one", "report this")
    size = request_record.decode_header(uuid, record).size
    if outcome is not None:
        reply = outcome_record.encode(uuid, outcome, put_blob)
        tx.raw.put(uuid, reply, db=tx.db.replies, append=True)
        for timer in outcome_record.retention_timers(uuid, outcome, request.options, len(request.body)):
            tx.put(tx.db.timers, timer, b"")
        if owner:
            tx.count_owned(owner, size=size + outcome_record.decode_header(uuid, reply).size)
        return
    prefix = ready_prefix(service, request.priority)
    own = None if life.expires_at == request.expires_at else life.expires_at
    past = RetryRecord(life.attempts, life.due, life.dispatched_at, life.reason, own, life.deliveries)
    put_unended(tx, uuid, prefix, past, life.expires_at)
    tx.count_load(service, ready=0 if past.due else 1, pending=1, size=size)
    if owner:
        tx.count_owned(owner, pending=1, size=size)


def _put_blob(tx: LmdbWriteTransaction, body: bytes) -> Ref:
    ref = refer(tx.new_blob(), body)
    tx.put_blob(ref, body)
    return ref


def _put_closing(tx: LmdbWriteTransaction, closing: StoredClosing) -> None:
    one = closing.closed
    parts = {
        "request": _part(one.request, one.request_left_out, closing.request_frames, one.request_bytes),
        "reply": _part(one.reply, one.reply_left_out, closing.reply_frames, one.reply_bytes),
    }
    fields = asdict(one) | parts
    record = ClosedRecord(**{name: fields[name] for name in ClosedRecord.__struct_fields__})
    for name, part in sorted(parts.items(), key=lambda item: -len(item[1].data)):  # the larger one makes way first
        if closed_record.size(record) > INLINE and part.data:
            ref = _put_blob(tx, bytes(part.data))
            record = replace(record, **{name: part._replace(where=Where.BLOB, data=ref.pack())})
    tx.raw.put(closed_key(one.sequence), closed_record.encode(one.sequence, record), db=tx.db.closed, append=True)


def _part(frames: Sequence[bytes], left_out: bool, count: int, size: int) -> Part:
    if left_out:
        return Part(Where.LEFT_OUT, count, size + 4 * count)
    data = join_frames(frames)
    return Part(Where.HERE, len(frames), len(data), data)
