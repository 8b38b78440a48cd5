"""Which engine reads out a whole store, or makes one of what was read out, as engine_choice.py has it: apart from that,
since a server loads neither this nor moving.py."""

from __future__ import annotations

import os

from titanic.store.engine_choice import expect_psycopg
from titanic.store.moving import Export, Import
from titanic.util.text import is_url


def open_export(place: str | os.PathLike[str]) -> Export:
    """Open a store to read it out as a whole (moving.py). It must be out of use meanwhile.

    Raises NotAStore, StoreLocked when it is in use, or what `open_store` raises.
    """
    if is_url(place):
        expect_psycopg()
        from titanic.store.postgres.postgres_export import PostgresExport

        return PostgresExport.open(str(place))
    from titanic.store.lmdb.tools.lmdb_export import LmdbExport

    return LmdbExport.open(place)


def open_import(place: str | os.PathLike[str]) -> Import:
    """Make a store of another one (moving.py), where there is none yet.

    Raises NotAStore when something is there, StoreLocked or StoreUnwritable.
    """
    if is_url(place):
        expect_psycopg()
        from titanic.store.postgres.postgres_export import PostgresImport

        return PostgresImport(str(place))
    from titanic.store.lmdb.tools.lmdb_export import LmdbImport

    return LmdbImport(place)
