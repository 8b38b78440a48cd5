"""A database in which stores are made to be measured, one after the other, and removed."""

from __future__ import annotations

from titanic.errors import NotAStore
from titanic.store.postgres.connection import place_of
from titanic.store.postgres.tools.moving_out import connected, translated


def expect_nothing(url: str) -> None:
    """Raise NotAStore when there is a schema `titanic` in the database, StoreUnwritable when it cannot be used."""
    place = place_of(url)
    with translated(place), connected(url) as connection:
        found = connection.execute("SELECT to_regnamespace('titanic') IS NOT NULL").fetchone()
    if found is None or found[0]:
        raise NotAStore(f"{place} is in the way", "it has a schema 'titanic'", "choose another database")


def remove(url: str) -> None:
    """Remove the schema with all that is in it."""
    with translated(place_of(url)), connected(url) as connection:
        connection.execute("DROP SCHEMA IF EXISTS titanic CASCADE")
