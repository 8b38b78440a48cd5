"""Which engine opens a store: a path is a directory with LMDB, a URL a database of PostgreSQL."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Unpack

from titanic.errors import StoreUnwritable
from titanic.store.interface import Store
from titanic.store.records import StoreOptions
from titanic.util.text import how_to_install, is_url


def open_store(
    path: str | os.PathLike[str],
    *,
    capacity: int | None = None,
    preallocate: bool = False,
    **settings: Unpack[StoreOptions],
) -> Store:
    """Open the store in the directory `path`, and create both if they aren't there. A `path` that begins with
    postgresql:// is the URL of a database of PostgreSQL: the store is in it, and only its tables are made. It does not
    `preallocate`.

    `capacity` is what the store never exceeds on the disk, in bytes; None: as it was, or DEFAULT_CAPACITY. A higher one
    than before simply works. With a lower one than it has, the store keeps its size, and nothing is accepted until what
    is in it fits. `preallocate` takes the whole capacity from the disk at once.

    `keep_closed`: whether closed requests are remembered; without, closing leaves no trace and gives out no number.
    `closed_body_limit`: the largest request and the largest reply, in bytes, that is remembered with its frames.
    `drop_unarchived`: what is to be done when closed requests that an archive does not have yet take the room of new
    requests: drop them and count the loss, or refuse the requests.

    `durability`: what a commit waits for. A store may be opened with another one each time, but with `memory` only in a
    directory that is in memory (a tmpfs).

    Raises CapacityTooSmall, NotInMemory, StoreUnwritable, NotAStore, StoreLocked, StoreTooNew, StoreTooOld or
    StoreCorrupt.
    """
    if is_url(path):
        expect_psycopg()
        from titanic.store.postgres.store import PostgresStore

        if preallocate:
            fact = "PostgreSQL allocates space as needed"
            raise StoreUnwritable("a store in PostgreSQL cannot be preallocated", fact, "leave out preallocate")
        return PostgresStore.open(str(path), capacity=capacity, **settings)
    from titanic.store.lmdb.store import LmdbStore  # its import takes a while

    return LmdbStore.open(path, capacity=capacity, preallocate=preallocate, **settings)


def open_read_only(path: str | os.PathLike[str]) -> Store:
    """Open a store for reading, also while another process has it open (but not this one, if it is in a directory). Of
    one in PostgreSQL, a standby will do.

    Raises NotAStore, StoreUnwritable, StoreCorrupt, StoreTooNew or StoreTooOld.
    """
    if is_url(path):
        expect_psycopg()
        from titanic.store.postgres.store import ReadOnlyPostgresStore

        return ReadOnlyPostgresStore.open_read_only(str(path))
    from titanic.store.lmdb.store import LmdbStore

    return LmdbStore.open_read_only(path)


def expect_psycopg() -> None:
    """Raise StoreUnwritable unless it is installed: it is an extra."""
    if find_spec("psycopg") is None:
        what, advice = "a store in PostgreSQL needs psycopg", how_to_install("postgres")
        raise StoreUnwritable(what, "it is not installed", advice)


def expect_no_store(url: str) -> None:
    """Raise NotAStore when there is a store in a database, or anything in its place."""
    expect_psycopg()
    from titanic.store.postgres.postgres_export import expect_nothing

    expect_nothing(url)


def remove_store(place: str) -> None:
    """Remove the store in a directory or a database with all that is in it. Raises StoreLocked while a server uses the
    directory."""
    if is_url(place):
        from titanic.store.postgres.postgres_export import remove

        remove(place)
        return
    from titanic.store.lmdb.opening import release_lock, take_lock

    lock = take_lock(Path(place))
    try:
        from shutil import rmtree  # which a server does not load

        rmtree(place)
    finally:
        release_lock(lock)
