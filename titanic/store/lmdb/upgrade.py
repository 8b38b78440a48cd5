"""Converting a store of an earlier format, step by step up to the present one (schema.py says how to add a step).

Each step changes indexes and counters. Records are left as they are: their codecs know the older ones (record.py). All
steps happen in one transaction, which changes the format number last: after a crash the store is the old one or the new
one. A reader must not see it change, so no process may have it open.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmdb

from titanic.store.lmdb import schema

_SPARE = 64 << 20

STEPS: dict[int, Callable[[lmdb.Environment, lmdb.Transaction[memoryview]], None]] = {}
"""By the format that each begins with. There is none yet: format 1 is the first that was released."""


def upgrade(directory: Path, found: int) -> None:
    """Convert the store in a directory that is locked. When that fails, with lmdb.Error, it stays as it was."""
    size = (directory / "data.mdb").stat().st_size
    with (
        lmdb.open(str(directory), map_size=2 * size + _SPARE, max_dbs=16, create=False) as env,
        env.begin(write=True, buffers=True) as txn,
    ):
        for number in range(found, schema.FORMAT):
            STEPS[number](env, txn)
        meta = env.open_db(b"meta", txn=txn, create=False)
        txn.put(schema.FORMAT_KEY, schema.U32.pack(schema.FORMAT), db=meta)
