"""Converting a store of an earlier format, step by step up to the present one (schema.py says how to add a step).

Each step changes indexes and counters. Records are left as they are: their codecs know the older ones (record.py). All
steps happen in one transaction, the number of the format being changed last: after a crash the store is the old one or
the new one. A reader must not see it change, so no process may have it open.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import lmdb

from titanic.errors import RecordCorrupt
from titanic.store.lmdb import idempotency_key, outcome_record, request_record
from titanic.store.lmdb.schema import (
    EXPIRY,
    FORMAT,
    FORMAT_KEY,
    LOAD,
    LOAD_PREFIX,
    OWNER_LOAD,
    OWNER_PREFIX,
    U32,
    ready_prefix,
    timer_key,
)

_SPARE = 64 << 20


def upgrade(directory: Path, found: int) -> None:
    """Convert the store in a directory that is locked. When that fails, with lmdb.Error, it stays as it was."""
    size = (directory / "data.mdb").stat().st_size
    with (
        lmdb.open(str(directory), map_size=2 * size + _SPARE, max_dbs=16, create=False) as env,
        env.begin(write=True, buffers=True) as txn,
    ):
        for number in range(found, FORMAT):
            STEPS[number](env, txn)
        txn.put(FORMAT_KEY, U32.pack(FORMAT), db=env.open_db(b"meta", txn=txn, create=False))


def _add_timers_and_loads(env: lmdb.Environment, txn: lmdb.Transaction[memoryview]) -> None:
    """1 → 2: timers for what ends by time, loads instead of counts, blobs, no more sum of bytes."""
    meta, requests, replies, ready, timers, *_ = [
        env.open_db(name, txn=txn)
        for name in (b"meta", b"requests", b"replies", b"ready", b"timers", b"blobs", b"graves", b"aside")
    ]
    loads: dict[bytes, list[int]] = {}
    rows: list[bytes] = []
    for view, record in txn.cursor(requests).iternext():
        uuid = bytes(view)
        reply = txn.get(uuid, db=replies)
        try:
            if reply is not None:
                end = outcome_record.decode_header(uuid, reply)
                rows.append(outcome_record.retention_timer(uuid, end))
                continue
            header = request_record.decode_header(uuid, record)
        except RecordCorrupt:
            continue  # a check will find it
        load = loads.setdefault(header.service, [0, 0, 0])
        is_ready = txn.get(ready_prefix(header.service, header.priority) + uuid, db=ready) is not None
        load[0] += is_ready
        load[1] += 1
        load[2] += header.size
        if header.expires_at:
            rows.append(timer_key(EXPIRY, header.expires_at, uuid))
    rows.sort()
    for row in rows:
        txn.put(row, b"", db=timers, append=True)
    txn.delete(b"used", db=meta)
    old = [bytes(key) for key in txn.cursor(meta).iternext(values=False) if bytes(key[:1]) == LOAD_PREFIX]
    for key in old:
        txn.delete(key, db=meta)
    for service, load in loads.items():
        txn.put(LOAD_PREFIX + service, LOAD.pack(*load), db=meta)


def _add_when_keys_came(env: lmdb.Environment, txn: lmdb.Transaction[memoryview]) -> None:
    """2 → 3: the rows of keys say when they were given; for existing rows that is unknown."""
    keys = env.open_db(b"keys", txn=txn)
    rows = [(bytes(key), bytes(row)) for key, row in txn.cursor(keys).iternext()]
    for key, row in rows:
        txn.put(key, idempotency_key.modern(row), db=keys)


def _belong_to_nobody(env: lmdb.Environment, txn: lmdb.Transaction[memoryview]) -> None:
    """3 → 4: requests and keys can have an owner. What is there has none, and is written as it was.

    Earlier versions must not touch what belongs to somebody: they would not count it.
    """


def _count_all_that_is_an_owners(env: lmdb.Environment, txn: lmdb.Transaction[memoryview]) -> None:
    """4 → 5: the bytes of an owner are those of his ended requests, of replies and of keys as well."""
    meta, requests, replies, keys = [env.open_db(name, txn=txn) for name in (b"meta", b"requests", b"replies", b"keys")]
    before = U32.unpack(bytes(txn.get(FORMAT_KEY, b"", db=meta)))[0]
    if before < 4:
        return  # nobody has anything: nothing needs to be read
    owned: dict[bytes, list[int]] = {}

    def add(owner: bytes, size: int, pending: int = 0) -> None:
        load = owned.setdefault(owner, [0, 0])
        load[0] += pending
        load[1] += size

    for view, record in txn.cursor(requests).iternext():
        if not (owner := request_record.owner_in(record)):
            continue
        uuid = bytes(view)
        reply = txn.get(uuid, db=replies)
        with suppress(RecordCorrupt):  # a check will find it
            add(owner, request_record.decode_header(uuid, record).size, reply is None)
            if reply is not None:
                add(owner, outcome_record.decode_header(uuid, reply).size)
    for view, row in txn.cursor(keys).iternext():
        if owner := idempotency_key.owner_of(bytes(view)):
            add(owner, len(view) + len(row))
    old = [bytes(key) for key in txn.cursor(meta).iternext(values=False) if bytes(key[:1]) == OWNER_PREFIX]
    for key in old:
        txn.delete(key, db=meta)
    for owner, load in owned.items():
        txn.put(OWNER_PREFIX + owner, OWNER_LOAD.pack(*load), db=meta)


def _count_what_waits_for_the_archive(env: lmdb.Environment, txn: lmdb.Transaction[memoryview]) -> None:
    """5 → 6: what is closed from now on counts for its owner until the archive has it.

    Earlier versions must not touch that: they would count it for ever.
    """


STEPS: dict[int, Callable[[lmdb.Environment, lmdb.Transaction[memoryview]], None]] = {
    1: _add_timers_and_loads,
    2: _add_when_keys_came,
    3: _belong_to_nobody,
    4: _count_all_that_is_an_owners,
    5: _count_what_waits_for_the_archive,
}
