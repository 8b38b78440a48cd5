"""What all transactions have in common: they begin, they end, and see the store as it was at one moment."""

from __future__ import annotations

import struct
from types import TracebackType
from typing import Self

import lmdb

from titanic.errors import StoreError
from titanic.store.lmdb import blob
from titanic.store.lmdb.blob import Ref
from titanic.store.lmdb.capacity import CHARGE
from titanic.store.lmdb.environment import Environment
from titanic.store.lmdb.lmdb_errors import translate
from titanic.store.lmdb.schema import PAGE, unpack


class View:
    """The store at one moment."""

    # LMDB hands out views of its pages (buffers=True), so that nobody copies a large body to read its header.
    # They die with the transaction and, in a write transaction, with the next change: copy before either.
    _txn: lmdb.Transaction[memoryview]

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._db = environment.databases

    def __enter__(self) -> Self:
        env = self._environment.env
        try:
            try:
                self._txn = env.begin(buffers=True)
            except lmdb.ReadersFullError:
                env.reader_check()  # some may have been killed
                self._txn = env.begin(buffers=True)
        except lmdb.Error as error:
            raise self._translated(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._txn.abort()
        if isinstance(error, lmdb.Error):
            raise self._translated(error) from error

    def _translated(self, error: lmdb.Error) -> StoreError:
        return translate(error, self._environment.env, self._environment.capacity)

    def _used(self) -> int:
        """Bytes of the pages that are in use."""
        return PAGE * sum(map(self._pages, self._db))

    def _pages(self, database: lmdb._Database) -> int:
        found = self._txn.stat(database)
        return int(found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"])

    def _charges(self) -> int:
        """What the requests count that have not ended."""
        stat = self._txn.stat
        return int(CHARGE * (stat(self._db.requests)["entries"] - stat(self._db.replies)["entries"]))

    def _meta_row(self, key: bytes, layout: struct.Struct) -> tuple[int, ...] | None:
        """The numbers of a row of `meta`; None when there is none. Raises StoreCorrupt when its length is wrong."""
        value = self._txn.get(key, db=self._db.meta)
        return None if value is None else unpack(layout, value, "meta", key)

    def _fetch(self, ref: Ref) -> bytes:
        return blob.read(self._txn, self._db.blobs, ref)
