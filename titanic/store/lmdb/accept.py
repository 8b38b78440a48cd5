"""Accepting requests, in four steps: look up their keys, plan the rows, make room, write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from operator import attrgetter
from typing import NamedTuple

from titanic.errors import InvalidRequest, RecordCorrupt, StoreFailed
from titanic.store import service_settings
from titanic.store.lmdb import outcome_record, request_record
from titanic.store.lmdb.capacity import CHARGE
from titanic.store.lmdb.free_space import could_fit, drop_oldest, fits, recount, refusal
from titanic.store.lmdb.outcome_record import RetryRecord
from titanic.store.lmdb.read import settings_of_services, state
from titanic.store.lmdb.record import REF_SIZE, Ref, refer
from titanic.store.lmdb.request_record import KeyRecord, row_key
from titanic.store.lmdb.schema import (
    EXPIRY,
    KEY,
    PAGE,
    SERVICES_KEY,
    cost,
    later_key,
    ready_prefix,
    service_of,
    timer_key,
)
from titanic.store.lmdb.transaction import Writing
from titanic.store.records import AcceptResult
from titanic.store.request import NewRequest
from titanic.store.rules import check_key, check_owner, check_together
from titanic.store.service_settings import ServiceSetting, ServiceSettings
from titanic.store.states import State
from titanic.store.uniqueness import counting
from titanic.util.ids import SIZE

_TIMER_COST = 45
_FIXED_COST = CHARGE + 3 * _TIMER_COST // 2  # for its end and its row in `ready`
_MOST_DROPPED = 1000

_key_of, _unique_of = attrgetter("key"), attrgetter("unique")

Row = tuple[bytes, bytes]


class _Keys(NamedTuple):
    """The idempotency keys of a batch. Requests are named by their place in it.

    `taken` are the requests with a key that is in use; they are not stored. `holders` has the rows of the new keys, and
    `extras` the bytes that each of those needs.
    """

    taken: set[int]
    holders: dict[bytes, KeyRecord]
    extras: dict[int, int]


class _Plan(NamedTuple):
    """What is to be written for a batch: the rows by database, the blobs, and the room that they need.

    `sizes` are those of the records, in order, 0 for a request that is not stored; `extras` what some need besides;
    `loads` the bytes of each request, by the beginning of its row in `ready`; `owned` those of each owner.
    """

    records: list[Row]
    ready: list[Row]
    later: list[Row]
    retries: list[Row]
    timers: list[Row]
    blobs: list[tuple[Ref, bytes]]
    sizes: list[int]
    extras: dict[int, int]
    loads: dict[bytes, list[int]]
    owned: dict[bytes, list[int]]


def accept(
    tx: Writing, requests: Sequence[NewRequest], now_us: int, ahead_us: int = 0, running: Container[bytes] = ()
) -> list[AcceptResult]:
    uuids = tx.environment.ids.make(len(requests), now_us)
    keys = _look_up_keys(tx, requests, uuids, now_us, now_us - ahead_us)
    if any(map(_unique_of, requests)):
        _look_up_unique(tx, requests, uuids, keys, now_us, now_us - ahead_us, running)
    plan = _plan(tx, requests, uuids, now_us, keys)
    expect_room(tx, plan.sizes, plan.extras)
    _write(tx, plan)
    for key, holder in keys.holders.items():
        _hold(tx, key, holder)
    taken = keys.taken
    return [AcceptResult(uuid, n not in taken) for n, uuid in enumerate(uuids)]


def fresh(
    tx: Writing, requests: Sequence[NewRequest], now_us: int, ahead_us: int = 0, running: Container[bytes] = ()
) -> list[NewRequest]:
    sure_us = now_us - ahead_us
    seen: set[bytes] = set()
    fresh = []
    known = 0  # up to which the requests share a key that is taken
    for n, new in enumerate(requests):
        if new.key:
            key = row_key(new.key, new.owner)
            if key in seen or _holder(tx, key, sure_us) is not None:
                known = n + max(1, new.together)
            seen.add(key)
        if n >= known and new.unique:
            key = row_key(new.unique, new.owner)
            if key in seen or _first(tx, key, new.unique, sure_us, running)[0] is not None:
                continue
            seen.add(key)
        if n >= known:
            fresh.append(new)
    return fresh


def forget(tx: Writing, keys: Sequence[bytes], owner: bytes = b"") -> None:
    for given in keys:
        tx.forget_key(row_key(given, owner))


def set_service(tx: Writing, service: bytes, setting: ServiceSetting) -> ServiceSettings:
    found = service_settings.changed(settings_of_services(tx), service, setting)
    row = service_settings.encode(found)
    tx.put(tx.db.meta, SERVICES_KEY, row)
    tx.added += len(row) + PAGE
    return found


def _look_up_keys(tx: Writing, requests: Sequence[NewRequest], uuids: list[bytes], now_us: int, sure_us: int) -> _Keys:
    """Look up the keys. In `uuids`, requests with a key that is in use get the id of the first request with it."""
    keys = _Keys(set(), {}, {})
    if not any(map(_key_of, requests)):  # mostly
        return keys
    holder: KeyRecord | None = None
    first = known = 0  # from which to which the requests have a key that is taken, by `holder`
    for n, new in enumerate(requests):
        if key := new.key:
            check_key(key, new.key_until)
            if new.owner:
                check_owner(new.owner)
                key = row_key(key, new.owner)
            count = check_together(new.together, len(requests) - n)
            holder = keys.holders.get(key) or _holder(tx, key, sure_us)
            if holder is None:
                known = 0
                keys.holders[key] = KeyRecord(new.key_until, b"".join(uuids[n : n + count]), now_us)
                # The row of several has a page to itself, when keys ascend.
                keys.extras[n] = 2 * len(key) + 3 * _TIMER_COST + (PAGE if count > 1 else 0)
            elif holder.requests != count:
                fact = f"it covers {holder.requests} requests of one message"
                raise InvalidRequest("the key is in use for other requests", fact, "use another key")
            else:
                first, known = n, n + count
        if n < known and holder is not None:
            uuids[n] = holder.at(n - first)
            keys.taken.add(n)
    return keys


def _look_up_unique(
    tx: Writing,
    requests: Sequence[NewRequest],
    uuids: list[bytes],
    keys: _Keys,
    now_us: int,
    sure_us: int,
    running: Container[bytes],
) -> None:
    """Look up the unique requests that their keys have not found, as `_look_up_keys`."""
    for n, new in enumerate(requests):
        if not new.unique or n in keys.taken:
            continue
        name = row_key(new.unique, new.owner)
        held = keys.holders.get(name)
        first, older = (held.uuid, []) if held else _first(tx, name, new.unique, sure_us, running)
        if first is None:
            keys.holders[name] = KeyRecord(new.unique_until, b"".join([uuids[n], *older]), now_us)
            keys.extras[n] = keys.extras.get(n, 0) + 2 * len(name) + 3 * _TIMER_COST + SIZE * len(older)
            continue
        own, uuids[n] = uuids[n], first
        keys.taken.add(n)
        keys.extras.pop(n, None)
        if new.key:  # no request has it, and others in this batch have found none by it
            keys.holders.pop(row_key(new.key, new.owner))
            uuids[n:] = [first if uuid == own else uuid for uuid in uuids[n:]]


def _first(
    tx: Writing, name: bytes, unique: bytes, sure_us: int, running: Container[bytes]
) -> tuple[bytes | None, list[bytes]]:
    """The request that counts of those with the name of a unique one, as `counting`."""

    def state_of(uuid: bytes) -> State | None:
        try:
            found = state(tx, uuid)
        except RecordCorrupt:
            return None
        return State.RUNNING if found is State.WAITING and uuid in running else found

    holder = tx.key_holder(name)
    if holder is None:
        return None, []
    return counting(unique, {uuid: state_of(uuid) for uuid in holder.uuids}, holder.until, sure_us)


def _plan(tx: Writing, requests: Sequence[NewRequest], uuids: list[bytes], now_us: int, keys: _Keys) -> _Plan:
    """Plan the rows. Raises InvalidRequest when a request cannot be stored, even if its key is taken."""
    plan = _Plan([], [], [], [], [], [], [], {}, {}, {})
    records, ready, later, retries, timers, blobs, sizes, extras, loads, owned = plan
    encode, taken, keyed = request_record.encode, keys.taken, keys.extras
    last = b""
    load: list[int] = []
    placed = 0

    def put_blob(body: bytes) -> Ref:
        ref = refer(tx.new_blob(), body)
        blobs.append((ref, body))
        return ref

    for n, new in enumerate(requests):
        uuid = uuids[n]
        if taken and n in taken:
            encode(uuid, new, now_us)
            sizes.append(0)
            continue
        service, priority, owner = new.service, new.priority, new.owner
        not_before, expires_at = new.not_before, new.expires_at
        record = encode(uuid, new, now_us, put_blob)
        records.append((uuid, record))
        prefix = ready_prefix(service, priority)
        size = len(record)
        extra = keyed.get(n, 0) if keyed else 0
        if prefix is not last:
            load = loads.setdefault(prefix, [])
            last = prefix
        load.append(size)
        if len(blobs) > placed:
            ref = blobs[placed][0]
            placed += 1
            load[-1] += ref.size - REF_SIZE
            extra += ref.pages * PAGE
        if owner:
            owned.setdefault(owner, []).append(load[-1])
        if not_before > now_us:
            delay = outcome_record.encode_retry(uuid, RetryRecord(0, not_before))
            later.append((later_key(not_before, uuid), prefix))
            retries.append((uuid, delay))
            extra += len(delay) + 3 * _TIMER_COST
        else:
            ready.append((prefix + uuid, b""))
        if expires_at:
            timers.append((timer_key(EXPIRY, expires_at, uuid), b""))
            extra += _TIMER_COST
        sizes.append(size)
        if extra:
            extras[n] = extra
    return plan


def _write(tx: Writing, plan: _Plan) -> None:
    """Put the rows and blobs. Raises StoreFailed when the ids do not ascend."""
    raw, db = tx.raw, tx.db
    if records := plan.records:
        tx.environment.spans.note(records[0][0], records[-1][0], len(records), map(service_of, plan.loads))
    # Appending skips the search for the place and fills pages completely. LMDB leaves out a key that is out of order
    # and reports no error: that would be an acknowledged request that does not exist.
    _, added = raw.cursor(db.requests).putmulti(plan.records, append=True)
    if added != len(plan.records):
        fact = f"{added} of {len(plan.records)} were new"
        raise StoreFailed("the request IDs do not ascend", fact, "restart")
    plan.ready.sort()  # neighbours in the tree one after the other
    raw.cursor(db.ready).putmulti(plan.ready)
    if plan.later:
        raw.cursor(db.later).putmulti(plan.later)
        raw.cursor(db.retries).putmulti(plan.retries)
    if plan.timers:
        raw.cursor(db.timers).putmulti(plan.timers)
    for ref, body in plan.blobs:
        tx.put_blob(ref, body)
    tx.freed += len(plan.loads) + len(plan.later) + len(plan.timers) + 8
    delayed: dict[bytes, int] = Counter([prefix for _, prefix in plan.later]) if plan.later else {}
    for prefix, load in plan.loads.items():
        n = len(load)
        tx.count_load(service_of(prefix), ready=n - delayed.get(prefix, 0), pending=n, size=sum(load))
    if plan.owned:  # rarely
        for owner, load in plan.owned.items():
            tx.count_owned(owner, pending=len(load), size=sum(load))


def _holder(tx: Writing, key: bytes, now_us: int) -> KeyRecord | None:
    """The holder of the key, if the key still counts."""
    holder = tx.key_holder(key)
    return holder if holder and holder.until > now_us else None


def _hold(tx: Writing, key: bytes, holder: KeyRecord) -> None:
    tx.forget_key(key)  # if there is one, its time is over
    tx.put_key(key, request_record.encode_key_record(holder))
    tx.put(tx.db.timers, timer_key(KEY, holder.until, key), b"")


def expect_room(tx: Writing, sizes: list[int], extras: dict[int, int]) -> None:
    """Raise StoreFull unless records of these sizes may be added, with what some of them need besides."""
    room, pace = tx.room, tx.environment.pace
    if not any(sizes):
        return
    most = 2 * sum(sizes) + sum(extras.values()) + len(sizes) * _FIXED_COST
    if fits(tx, most, room.accept):  # no need to count exactly
        tx.added += most
        return
    needs = [cost(SIZE, size) + extras.get(n, 0) + _FIXED_COST if size else 0 for n, size in enumerate(sizes)]
    needed = sum(needs)
    possible = could_fit(tx, needed, room.accept)
    dropped = 0
    while not fits(tx, needed, room.accept):
        # The pages of what is dropped can be used from the transaction after next on. Drop no more than can be lent
        # until then.
        if possible and dropped < _MOST_DROPPED and tx.freed < 2 * room.pages_freed and (n := drop_oldest(tx, 50)):
            dropped += n
            continue
        if possible:
            pace.wanted = needed
        free = room.accept - recount(tx)
        fitting = 0
        for need in needs:
            free -= need
            if free < 0:
                break
            fitting += 1
        raise refusal(tx, needed, room.accept, fitting)
    tx.added += needed
