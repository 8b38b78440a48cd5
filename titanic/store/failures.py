"""LMDB's exceptions, turned into the store's own."""

from __future__ import annotations

import lmdb

from titanic.errors import StoreCorrupt, StoreError, StoreFailed, StoreFull
from titanic.store.schema import PAGE

_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.PageFullError,
    lmdb.CursorFullError,
)


def translate(error: lmdb.Error, env: lmdb.Environment, capacity: int) -> StoreError:
    """The exception to raise in place of `error`, which struck a transaction of `env`."""
    if isinstance(error, lmdb.MapFullError):
        return StoreFull((env.info()["last_pgno"] + 1) * PAGE, capacity)
    if isinstance(error, _DAMAGE):
        return StoreCorrupt(f"the store in {env.path()} is damaged", str(error), "restore it from a backup")
    if isinstance(error, lmdb.ReadersFullError):
        return StoreFailed("the store has too many readers", str(error), "end those that hang")
    return StoreFailed(
        f"the store in {env.path()} failed", str(error), "nothing was kept of the transaction; look at the disk"
    )
