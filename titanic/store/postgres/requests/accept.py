"""Accepting requests, in four steps: check them, take their keys, see that there is room, note the rows."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

from titanic.errors import InvalidRequest, StoreFull
from titanic.store.postgres.closed.drops import make_room
from titanic.store.postgres.requests import idempotency_keys
from titanic.store.postgres.requests.idempotency_keys import Holder, Name, Wanted
from titanic.store.postgres.tables import KEY, REQUEST, LaterRow, ReadyRow, RequestRow, check, sizes
from titanic.store.postgres.writing import Writing
from titanic.store.records import Accepted, NewRequest
from titanic.store.rules import LATEST, check_key, check_owner, check_together
from titanic.util.ids import SIZE


class _Keys(NamedTuple):
    """The idempotency keys of a batch. `new` are those that are taken for it now, `over` those whose time is over.
    `known` are the ids of requests, by their place in the batch, that are there already."""

    wanted: dict[Name, Wanted]
    new: list[Name]
    over: dict[Name, Holder]
    known: dict[int, bytes]


def accept_many(tx: Writing, requests: Sequence[NewRequest], now_us: int) -> list[bytes]:
    """`accept`, for those who need nothing but the ids."""
    return [one.uuid for one in accept(tx, requests, now_us)]


def accept(tx: Writing, requests: Sequence[NewRequest], now_us: int, ahead_us: int = 0) -> list[Accepted]:
    """Store the requests and return their ids, in order, with which of them are new."""
    uuids = tx.writer.ids.make(len(requests), now_us)
    needs = [check(new) for new in requests]
    keys = _take_keys(tx, requests, uuids, now_us, now_us - ahead_us)
    try:
        _expect_room(tx, [0 if n in keys.known else need + REQUEST for n, need in enumerate(needs)], keys)
    except StoreFull:
        idempotency_keys.give_back(tx, keys.new)
        raise
    for name in keys.new:
        idempotency_keys.count_taken(tx, name, keys.wanted[name], uuids, now_us)
    if keys.over:
        idempotency_keys.renew(tx, keys.wanted, keys.over, uuids, now_us)
    known = keys.known
    tx.changes.touched.update(uuids)
    _note(tx, uuids, requests, needs, known, now_us)
    return [Accepted(known.get(n, uuid), n not in known) for n, uuid in enumerate(uuids)]


def fresh(tx: Writing, requests: Sequence[NewRequest], now_us: int, ahead_us: int = 0) -> list[NewRequest]:
    """Those that `accept` would store: their key is not taken."""
    names = sorted({(new.owner, new.key) for new in requests if new.key})
    if not names:
        return list(requests)
    taken = idempotency_keys.found(tx, names, now_us - ahead_us)
    found = []
    known = 0  # up to which the requests share a key that is taken
    for n, new in enumerate(requests):
        name = new.owner, new.key
        if new.key and name in taken:
            known = n + max(1, new.together)
        elif new.key:
            taken.add(name)
        if n >= known:
            found.append(new)
    return found


def _take_keys(tx: Writing, requests: Sequence[NewRequest], uuids: list[bytes], now_us: int, sure_us: int) -> _Keys:
    """Take the keys that are free. Raises InvalidRequest, and takes none then."""
    keys = _Keys({}, [], {}, {})
    places: list[tuple[int, Name, int]] = []
    for n, new in enumerate(requests):
        if new.key:
            check_key(new.key, new.key_until)
            check_owner(new.owner)
            count = check_together(new.together, len(requests) - n)
            name = new.owner, new.key
            places.append((n, name, count))
            keys.wanted.setdefault(name, Wanted(new.key_until, n, count))
    if not places:
        return keys
    taken = idempotency_keys.take(tx, keys.wanted, uuids, now_us, sure_us)
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
            idempotency_keys.give_back(tx, keys.new)
            fact = f"it was given to {len(holders)} in one message"
            raise InvalidRequest("the key stands for other requests", fact, "use another key")
        keys.known.update(enumerate(holders, n))
    return keys


def _expect_room(tx: Writing, needs: list[int], keys: _Keys) -> None:
    """Raise StoreFull unless there is room for requests of these sizes, and for the keys that they bring."""
    for name in keys.new:
        wanted = keys.wanted[name]
        needs[wanted.first] += KEY + SIZE * wanted.requests
    needed, limit = sum(needs), tx.writer.quota.accept
    if not needed or make_room(tx, needed, limit):
        return
    used = tx.used()
    fitting = sum(1 for _ in takewhile((limit - used).__ge__, accumulate(needs)))
    raise StoreFull(used + tx.writer.quota.capacity - limit, tx.writer.quota.capacity, needed, fitting)


def _note(
    tx: Writing,
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
        service, body, priority, not_before, expires_at, max_attempts, options, key, _, together, owner = new
        not_before, expires_at = min(not_before, LATEST), min(expires_at, LATEST)
        changes.requests.append(
            RequestRow(
                uuid,
                service,
                body,
                sizes(body),
                len(body),
                priority,
                now_us,
                not_before,
                expires_at,
                max_attempts,
                options,
                b"" if together else key,
                owner,
            )
        )
        delayed = int(not_before > now_us)
        if delayed:
            changes.later.append(LaterRow(uuid, not_before, 0, 0, expires_at, priority, service, b""))
        else:
            changes.ready.append(ReadyRow(uuid, service, 9 - priority, 0, 0, expires_at, b""))
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
