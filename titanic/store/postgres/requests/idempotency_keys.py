"""Idempotency keys: who inserts one has it. Another node that wants it waits until this transaction ends, and finds it
taken then.

A transaction that hopes that they are free, as they mostly are, inserts those of a whole batch with the requests, and
is done again without hope when one was taken. Without hope it takes them in a round trip of its own for each call of
`accept`, by one statement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from titanic.store.postgres.changes import FORGET
from titanic.store.postgres.connection import ids, numbers, texts
from titanic.store.postgres.tables import KEY, KeyRow, key_size
from titanic.store.postgres.writing import Writing
from titanic.store.rules import LATEST
from titanic.util.ids import SIZE

Name = tuple[bytes, bytes]
"""Owner and key."""

_TAKE = """
WITH taken AS (
    INSERT INTO key AS k (owner, key, until, given, uuids)
    SELECT owner, key, until, %s, (%s::uuid[])[first:last]
    FROM unnest(%s::bytea[], %s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[])
    AS given (owner, key, until, first, last)
    ON CONFLICT (owner, key) DO UPDATE SET until = k.until
    RETURNING owner, key, until, uuids, xmax = 0 AS is_new
)
SELECT owner, key, until, uuids FROM taken WHERE NOT is_new"""

_RENEW = """
UPDATE key AS k SET until = given.until, given = %s, uuids = (%s::uuid[])[given.first:given.last]
FROM unnest(%s::bytea[], %s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[])
AS given (owner, key, until, first, last)
WHERE k.owner = given.owner AND k.key = given.key"""

_FIND = """
SELECT k.owner, k.key FROM unnest(%s::bytea[], %s::bytea[]) AS given (owner, key)
JOIN key AS k ON k.owner = given.owner AND k.key = given.key WHERE k.until > %s"""


class Wanted(NamedTuple):
    """A key that requests of a batch are to have: so many from a place on."""

    until: int
    first: int
    requests: int


class Holder(NamedTuple):
    """Who has a key that was there before. `is_over`: its time is over."""

    uuids: list[bytes]
    is_over: bool


def found(tx: Writing, names: Sequence[Name], sure_us: int) -> set[Name]:
    """Those that are taken, and whose time is not over."""
    owners, keys = zip(*names, strict=True)
    known = {name for name in names if name in tx.hoped and tx.hoped[name].until > sure_us}
    return known | {(owner, key) for owner, key in tx.fetch_keys(_FIND, texts(owners), texts(keys), sure_us)}


def take(
    tx: Writing, wanted: Mapping[Name, Wanted], uuids: list[bytes], now_us: int, sure_us: int
) -> dict[Name, Holder]:
    """Take the keys for requests of these ids. Returns who has those that were there before, which stay as they are."""
    if tx.hopes:
        known = {name: tx.hoped[name] for name in wanted if name in tx.hoped}
        if tx.changes.to_forget.isdisjoint(wanted) and all(one.until > sure_us for one in known.values()):
            return {name: Holder(list(one.uuids), False) for name, one in known.items()}
        tx.hope_no_more()
    rows = tx.fetch_keys(_TAKE, *_arrays(wanted, uuids, now_us))
    return {(owner, key): Holder(holders, until <= sure_us) for owner, key, until, holders in rows}


def renew(
    tx: Writing, wanted: Mapping[Name, Wanted], over: Mapping[Name, Holder], uuids: list[bytes], now_us: int
) -> None:
    """Let the keys whose time is over be those of requests of these ids."""
    again = {name: wanted[name] for name in over}
    tx.fetch_keys(_RENEW, *_arrays(again, uuids, now_us))
    for (owner, key), holder in over.items():
        _count(tx, owner, len(key), again[owner, key].requests, -len(holder.uuids))


def give_back(tx: Writing, names: Sequence[Name]) -> None:
    """Undo `take` for keys that were new: their requests are not accepted after all."""
    if names and not tx.hopes:
        owners, keys = zip(*names, strict=True)
        tx.fetch_keys(FORGET, texts(owners), texts(keys))


def count_taken(tx: Writing, name: Name, wanted: Wanted, uuids: Sequence[bytes], now_us: int) -> None:
    """A key is there that was not there before, if all goes as hoped."""
    owner, key = name
    requests = wanted.requests
    if tx.hopes:
        holders = uuids[wanted.first : wanted.first + requests]
        row = KeyRow(owner, key, min(wanted.until, LATEST), now_us, holders)
        tx.hoped[name] = row
        tx.changes.keys.append(row)
    tx.changes.count_owner(owner, size=key_size(owner, len(key), requests))
    tx.changes.count(used=KEY + SIZE * requests)


def forget(tx: Writing, keys: Sequence[bytes], owner: bytes = b"") -> None:
    """Forget these idempotency keys of an owner before their time; unknown ones are fine."""
    names = [(owner, key) for key in keys]
    if not tx.hoped.keys().isdisjoint(names):
        tx.hope_no_more()
    tx.changes.to_forget.update(names)


def _count(tx: Writing, owner: bytes, length: int, *requests: int) -> None:
    tx.changes.count_owner(owner, size=sum(requests) * SIZE if owner else 0)
    tx.changes.count(used=sum(requests) * SIZE)


def _arrays(wanted: Mapping[Name, Wanted], uuids: list[bytes], now_us: int) -> list[object]:
    """In the order of the keys, in which all nodes take them, so that none waits for another that waits for it."""
    names = sorted(wanted)
    owners, keys = zip(*names, strict=True)
    ends, firsts, requests = zip(*(wanted[name] for name in names), strict=True)
    lasts = [first + count for first, count in zip(firsts, requests, strict=True)]
    places = numbers([first + 1 for first in firsts]), numbers(lasts)
    return [now_us, ids(uuids), texts(owners), texts(keys), numbers([min(one, LATEST) for one in ends]), *places]
