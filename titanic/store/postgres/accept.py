"""Idempotency keys: the transaction that inserts one has it. Another node that wants it waits until this transaction
ends, and then finds it taken.

An optimistic transaction assumes that keys are free, as they mostly are, and inserts those of a whole batch with the
requests; if one was taken, it is repeated without that assumption. A careful one takes the keys of each `accept` first,
with one statement in a round trip of its own.

Accepting requests, in four steps: check them, take their keys, see that there is room, note the rows.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

from titanic.errors import InvalidRequest, StoreFull
from titanic.store.postgres.changes import ANY, FORGET
from titanic.store.postgres.closed import make_room
from titanic.store.postgres.database_session import ids, numbers, texts
from titanic.store.postgres.nodes import CLAIMED
from titanic.store.postgres.rows import KEY, REQUEST, KeyRow, LaterRow, ReadyColumns, check, request_row
from titanic.store.postgres.transaction import PLACES, STATE, Row, by_key
from titanic.store.postgres.writing import PostgresWriting
from titanic.store.records import AcceptResult
from titanic.store.request import NewRequest, key_size
from titanic.store.rules import LATEST, check_fact, check_key, check_owner, check_together
from titanic.store.states import State
from titanic.store.uniqueness import counting
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

_FIND_UNIQUE = """
SELECT k.owner, k.key, k.until, k.uuids FROM unnest(%s::bytea[], %s::bytea[]) AS given (owner, key)
JOIN key AS k ON k.owner = given.owner AND k.key = given.key"""

_STATES = f"""
SELECT r.uuid, CASE WHEN q.uuid IS NOT NULL AND {CLAIMED} THEN {int(State.RUNNING)} ELSE {STATE} END
FROM unnest(%s::uuid[]) AS w (uuid) {by_key("request", "r", "t.uuid = w.uuid", "INNER")} {PLACES}"""
"""A request that a node has claimed is running, or is about to. Nothing is locked."""


class Wanted(NamedTuple):
    """A key that requests of a batch are to have: so many from a place on."""

    until: int
    first: int
    requests: int


class TakenKey(NamedTuple):
    """The holder of a key that was there before. `is_over`: the key has expired. `older`: the requests that stay."""

    uuids: list[bytes]
    is_over: bool
    older: Sequence[bytes] = ()


def holders(tx: PostgresWriting, names: Sequence[Name], sure_us: int) -> set[Name]:
    """Return the names that are taken and have not expired."""
    owners, keys = zip(*names, strict=True)
    known = {name for name in names if name in tx.assumed_keys and tx.assumed_keys[name].until > sure_us}
    return known | {(owner, key) for owner, key in tx.fetch_keys(_FIND, texts(owners), texts(keys), sure_us)}


def take(
    tx: PostgresWriting, wanted: Mapping[Name, Wanted], uuids: list[bytes], now_us: int, sure_us: int
) -> dict[Name, TakenKey]:
    """Take the keys for requests of these ids. Returns the holders of those that were there before, which stay."""
    if tx.is_optimistic:
        known = {name: tx.assumed_keys[name] for name in wanted if name in tx.assumed_keys}
        if wanted.keys().isdisjoint(one[:2] for one in tx.changes.to_forget) and all(
            one.until > sure_us for one in known.values()
        ):
            return {name: TakenKey(list(one.uuids), False) for name, one in known.items()}
        tx.ask_first()
    rows = tx.fetch_keys(_TAKE, *_arrays(wanted, uuids, now_us))
    return {(owner, key): TakenKey(holders, until <= sure_us) for owner, key, until, holders in rows}


def renew(
    tx: PostgresWriting, wanted: Mapping[Name, Wanted], over: Mapping[Name, TakenKey], uuids: list[bytes], now_us: int
) -> None:
    """Give expired keys to the requests of these ids."""
    again: dict[Name, Wanted] = {}
    holders: list[bytes] = []
    for name, holder in over.items():
        until, first, requests = wanted[name]
        again[name] = Wanted(until, len(holders), requests + len(holder.older))
        holders += [*uuids[first : first + requests], *holder.older]
    tx.fetch_keys(_RENEW, *_arrays(again, holders, now_us))
    for (owner, key), holder in over.items():
        _count(tx, owner, len(key), again[owner, key].requests, -len(holder.uuids))


def give_back(tx: PostgresWriting, names: Sequence[Name]) -> None:
    """Undo `take` for keys that were new: their requests are not accepted after all."""
    if names and not tx.is_optimistic:
        owners, keys = zip(*names, strict=True)
        tx.fetch_keys(FORGET, texts(owners), texts(keys), ids([ANY] * len(names)), ids([]))


def count_taken(tx: PostgresWriting, name: Name, wanted: Wanted, uuids: Sequence[bytes], now_us: int) -> None:
    """A key is there that was not there before, unless another node took it."""
    owner, key = name
    requests = wanted.requests
    if tx.is_optimistic:
        holders = uuids[wanted.first : wanted.first + requests]
        row = KeyRow(owner, key, min(wanted.until, LATEST), now_us, holders)
        tx.assumed_keys[name] = row
        tx.changes.keys.append(row)
    tx.changes.count_owner(owner, size=key_size(owner, len(key), requests))
    tx.changes.count(used=KEY + SIZE * requests)


def forget(tx: PostgresWriting, keys: Sequence[bytes], owner: bytes = b"") -> None:
    names = [(owner, key) for key in keys]
    if not tx.assumed_keys.keys().isdisjoint(names):
        tx.ask_first()
    tx.changes.to_forget |= {(*name, ANY) for name in names}


def put_facts(tx: PostgresWriting, changed: Iterable[tuple[bytes, bytes | None]]) -> None:
    for key, value in changed:
        check_fact(key, value)
        tx.changes.facts[key] = value


def _count(tx: PostgresWriting, owner: bytes, length: int, *requests: int) -> None:
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


# -- accept ----------------------------------------------------------------------------------------------------


class _Keys(NamedTuple):
    """The idempotency keys of a batch. `new` are those that are taken for it now, `over` the expired ones. `known` are
    the ids of requests, by their place in the batch, that are there already."""

    wanted: dict[Name, Wanted]
    new: list[Name]
    over: dict[Name, TakenKey]
    known: dict[int, bytes]


def accept(
    tx: PostgresWriting, requests: Sequence[NewRequest], now_us: int, ahead_us: int = 0, running: Container[bytes] = ()
) -> list[AcceptResult]:
    uuids = tx.writer.ids.make(len(requests), now_us)
    needs = [check(new) for new in requests]
    keys = _take_keys(tx, requests, uuids, now_us, now_us - ahead_us)
    try:
        _expect_room(tx, [0 if n in keys.known else need + REQUEST for n, need in enumerate(needs)], keys)
    except StoreFull:
        give_back(tx, keys.new)
        raise
    for name in keys.new:
        count_taken(tx, name, keys.wanted[name], uuids, now_us)
    if keys.over:
        renew(tx, keys.wanted, keys.over, uuids, now_us)
    known = keys.known
    tx.changes.touched.update(uuids)
    _note(tx, uuids, requests, needs, known, now_us)
    return [AcceptResult(known.get(n, uuid), n not in known) for n, uuid in enumerate(uuids)]


def fresh(
    tx: PostgresWriting, requests: Sequence[NewRequest], now_us: int, ahead_us: int = 0, running: Container[bytes] = ()
) -> list[NewRequest]:
    names = sorted({(new.owner, new.key) for new in requests if new.key})
    unique = sorted({(new.owner, new.unique) for new in requests if new.unique})
    if not names and not unique:
        return list(requests)
    taken = holders(tx, names, now_us - ahead_us) if names else set()
    if unique:
        owners, keys = zip(*unique, strict=True)
        rows = tx.fetch(_FIND_UNIQUE, texts(owners), texts(keys))
        taken |= {name for name, holder in _unique_holders(tx, rows, now_us - ahead_us).items() if not holder.is_over}
    found = []
    known = 0  # up to which the requests share a key that is taken
    for n, new in enumerate(requests):
        name = new.owner, new.key
        if new.key and name in taken:
            known = n + max(1, new.together)
        elif new.key:
            taken.add(name)
        if n >= known and new.unique:
            if (new.owner, new.unique) in taken:
                continue
            taken.add((new.owner, new.unique))
        if n >= known:
            found.append(new)
    return found


def _take_keys(
    tx: PostgresWriting, requests: Sequence[NewRequest], uuids: list[bytes], now_us: int, sure_us: int
) -> _Keys:
    """Take the keys that are free. Raises InvalidRequest, and takes none then."""
    keys = _Keys({}, [], {}, {})
    unique = [n for n, new in enumerate(requests) if new.unique]
    if unique:  # a row is mostly there, of a request that has ended
        tx.ask_first()
    places: list[tuple[int, Name, int]] = []
    for n, new in enumerate(requests):
        if new.key:
            check_key(new.key, new.key_until)
            check_owner(new.owner)
            count = check_together(new.together, len(requests) - n)
            name = new.owner, new.key
            places.append((n, name, count))
            keys.wanted.setdefault(name, Wanted(new.key_until, n, count))
    taken = take(tx, keys.wanted, uuids, now_us, sure_us) if places else {}
    keys.over.update({name: holder for name, holder in taken.items() if holder.is_over})
    keys.new.extend(keys.wanted.keys() - taken.keys())
    for n, name, count in places:
        holder, wanted = taken.get(name), keys.wanted[name]
        if holder is None or holder.is_over:
            if n == wanted.first:
                continue
            holders = uuids[wanted.first : wanted.first + wanted.requests]  # of an earlier one in this batch
        else:
            holders = holder.uuids
        if len(holders) != count:
            give_back(tx, keys.new)
            fact = f"it covers {len(holders)} requests of one message"
            raise InvalidRequest("the key is in use for other requests", fact, "use another key")
        keys.known.update(enumerate(holders, n))
    if unique:
        _take_unique(tx, requests, [n for n in unique if n not in keys.known], uuids, keys, now_us, sure_us)
    return keys


def _take_unique(
    tx: PostgresWriting,
    requests: Sequence[NewRequest],
    places: Sequence[int],
    uuids: list[bytes],
    keys: _Keys,
    now_us: int,
    sure_us: int,
) -> None:
    """Take the names of the unique requests at these places, which their keys have not found."""
    wanted: dict[Name, Wanted] = {}
    for n in places:
        wanted.setdefault((requests[n].owner, requests[n].unique), Wanted(requests[n].unique_until, n, 1))
    if not wanted:
        return
    taken = _unique_holders(tx, tx.fetch_keys(_TAKE, *_arrays(wanted, uuids, now_us)), sure_us)
    keys.wanted.update(wanted)
    keys.over.update({name: holder for name, holder in taken.items() if holder.is_over})
    keys.new.extend(wanted.keys() - taken.keys())
    for n in places:
        new = requests[n]
        name = new.owner, new.unique
        holder = taken.get(name)
        if holder is not None and not holder.is_over:
            keys.known[n] = holder.uuids[0]
        elif n != wanted[name].first:
            keys.known[n] = uuids[wanted[name].first]
        else:
            continue
        own = new.owner, new.key  # which no request has, and by which others in this batch have found none
        if new.key and keys.wanted[own].first == n:
            keys.known.update({m: keys.known[n] for m, uuid in keys.known.items() if uuid == uuids[n]})
            keys.over.pop(own, None)
            if own in keys.new:
                keys.new.remove(own)
                give_back(tx, [own])


def _unique_holders(tx: PostgresWriting, rows: Sequence[Row], sure_us: int) -> dict[Name, TakenKey]:
    """The holders of names of unique requests; `is_over`: they do not count any more."""
    uuids = ids([uuid for *_, holders in rows for uuid in holders])
    states = {uuid: State(state) for uuid, state in tx.fetch_apart(_STATES, uuids)} if rows else {}
    found: dict[Name, TakenKey] = {}
    for owner, name, until, holders in rows:
        first, older = counting(name, {uuid: states.get(uuid) for uuid in holders}, until, sure_us)
        found[owner, name] = TakenKey(holders if first is None else [first], first is None, older)
    return found


def _expect_room(tx: PostgresWriting, needs: list[int], keys: _Keys) -> None:
    """Raise StoreFull unless there is room for requests of these sizes, and for the keys that they bring."""
    for name in keys.new:
        wanted = keys.wanted[name]
        needs[wanted.first] += KEY + SIZE * wanted.requests
    needed, limit, capacity = sum(needs), tx.writer.quota.accept, tx.writer.quota.capacity
    if not needed or make_room(tx, needed, limit):
        return
    used = tx.used()
    fitting = sum(1 for _ in takewhile((limit - used).__ge__, accumulate(needs)))
    raise StoreFull(used, capacity, needed, fitting, kept=capacity - limit)


def _note(
    tx: PostgresWriting,
    uuids: list[bytes],
    requests: Sequence[NewRequest],
    needs: list[int],
    known: Container[int],
    now_us: int,
) -> None:
    """Note the rows of those that are new, and count them."""
    changes = tx.changes
    of_services: dict[bytes, list[int]] = {}
    of_owners: dict[bytes, list[int]] = {}
    in_all = [0, 0, 0]
    for n, new in enumerate(requests):
        if n in known:
            continue
        uuid, size = uuids[n], needs[n]
        service, priority, owner = new.service, new.priority, new.owner
        not_before, expires_at = min(new.not_before, LATEST), min(new.expires_at, LATEST)
        changes.requests.append(request_row(uuid, now_us, new))
        delayed = int(not_before > now_us)
        if delayed:
            changes.later.append(LaterRow(uuid, not_before, 0, 0, expires_at, priority, service, b""))
        else:
            changes.ready.append(ReadyColumns(uuid, service, 9 - priority, 0, 0, expires_at, b""))
        if expires_at:
            changes.expiring.append((expires_at, uuid))
        for count in (of_services.setdefault(service, [0, 0, 0]), of_owners.setdefault(owner, [0, 0, 0]), in_all):
            count[0] += 1
            count[1] += size
            count[2] += delayed
    for service, (count_new, size, delayed) in of_services.items():
        changes.count_service(service, waiting=count_new, size=size, ready=count_new - delayed)
    for owner, (count_new, size, _) in of_owners.items():
        changes.count_owner(owner, waiting=count_new, size=size)
    count_new, size, delayed = in_all
    used = size + REQUEST * count_new
    changes.count(requests=count_new, waiting=count_new - delayed, delayed=delayed, used=used)
