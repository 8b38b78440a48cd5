"""Stores with a bit of everything, and damage done to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmdb
from support.store_facts import accept_all

from titanic.store import NewRequest, Status
from titanic.store.lmdb.schema import Databases
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check

NOW = 1_795_258_520_106_479
BODY = b"a body that can be found in the file " * 3


def make(path: Path) -> list[bytes]:
    """A store with a waiting, a delayed and a finished request, in this order, closed.

    The waiting one has an idempotency key and expires, the finished one has a large reply. Three others were closed
    before: one of them had a large body.
    """
    with LmdbStore.open(path) as store:
        with store.write() as txn:
            past = accept_all(txn, [NewRequest(b"echo", [bytes(size)]) for size in (10, 10_000, 20)], NOW)
            for uuid in past:
                assert txn.close(uuid, NOW + 1)
            keyed = NewRequest(b"echo", [BODY, b"0"], expires_at=NOW + 50, key=b"key", key_until=NOW + 99)
            uuids = accept_all(txn, [keyed, *[NewRequest(b"echo", [BODY, b"%d" % n]) for n in (1, 2)]], NOW)
            txn.postpone(uuids[1], due=NOW + 1, attempts=1, dispatched_at=NOW, reason="it broke")
            reply = [b"the reply", bytes(9000)]
            txn.finish(uuids[2], Status.DONE, reply, attempts=1, dispatched_at=NOW, finished_at=NOW)
        assert check(store) == []
    return uuids


def edit(path: Path, change: Callable[[lmdb.Transaction, dict[str, lmdb._Database]], object]) -> None:
    """Let `change(txn, databases)` do to the store what the store never does."""
    with lmdb.open(str(path), max_dbs=16, map_size=1 << 24) as env:
        databases = {name: env.open_db(name.encode(), create=False) for name in Databases._fields}
        with env.begin(write=True) as txn:
            change(txn, databases)
