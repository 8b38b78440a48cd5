"""The engines that tests run with, where all must do the same: LMDB, and the dicts of store_dict.py."""

from __future__ import annotations

from collections.abc import Callable

from support.store_dict import DictStore

from titanic.store import Store, open_store
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check

ENGINES: dict[str, Callable[..., Store]] = {"lmdb": open_store, "dict": DictStore}


def is_sound(store: Store) -> bool:
    """Whether a check finds nothing; where there is nothing to check, all is well."""
    return not isinstance(store, LmdbStore) or check(store) == []


def damage_reply(store: Store, uuid: bytes) -> None:
    """What can be read of the reply is not what was stored."""
    if isinstance(store, DictStore):
        store.damaged.add(uuid)
        return
    with store.write() as transaction:
        record = bytearray(transaction.raw.get(uuid, db=transaction.db.replies))
        record[-1] ^= 1
        transaction.raw.put(uuid, bytes(record), db=transaction.db.replies)
