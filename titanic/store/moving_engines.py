"""Which engine reads out a whole store, or makes one of what was read out: as engines.py has it."""

from __future__ import annotations

import os

from titanic.store.engines import expect_psycopg
from titanic.store.moving import Export, Import
from titanic.util.text import is_url


def open_export(place: str | os.PathLike[str]) -> Export:
    """Open a store to read it out as a whole (moving.py). It must be out of use meanwhile.

    Raises NotAStore, StoreLocked when it is in use, or what `open_store` raises.
    """
    if is_url(place):
        expect_psycopg()
        from titanic.store.postgres.moving import PostgresExport

        return PostgresExport.open(str(place))
    from titanic.store.lmdb.tools.moving import LmdbExport

    return LmdbExport.open(place)


def open_import(place: str | os.PathLike[str]) -> Import:
    """Make a store of another one (moving.py), where there is none yet.

    Raises NotAStore when something is there, StoreLocked or StoreUnwritable.
    """
    if is_url(place):
        expect_psycopg()
        from titanic.store.postgres.moving import PostgresImport

        return PostgresImport(str(place))
    from titanic.store.lmdb.tools.moving import LmdbImport

    return LmdbImport(place)
