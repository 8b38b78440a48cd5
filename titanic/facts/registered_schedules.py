"""Registered schedules: what schedulers report about the schedules that they run.

    key                       value
    ------------------------  -----------------
    s  owner  0  name         RegisteredSchedule

Schedulers register at their start, after ticks and every ten minutes. A row that is not refreshed for KEPT is deleted;
of more than MOST, those that were refreshed longest ago, of the users with the most schedules.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from broker import User
from titanic.protocol.documents import ScheduleInfo
from titanic.protocol.messages import ScheduleRow
from titanic.protocol.permissions import lacks_submit
from titanic.protocol.submit_options import MOST_UUIDS
from titanic.protocol.tsp import paused_key
from titanic.store import Description, ReadTransaction, WriteTransaction
from titanic.util import ids

SCHEDULES = b"s"

MOST = 1000
"""Schedules of all users."""

KEPT = 35 * 86_400_000_000
"""µs without a refresh: longer than a month, for schedulers that a monthly timer starts."""

LATE = 120_000_000
"""µs after its next tick at which a schedule is late: schedulers report ticks up to half a minute afterwards."""


class RegisteredSchedule(Struct, array_like=True):
    """A row. Times are in µs since 1970; `tick` and `uuid` are those of the last run, 0 and empty if none is known."""

    service: str
    when: str
    tz: str
    process: str
    next: int
    tick: int
    uuid: bytes
    registered_at: int
    seen_at: int


_decoder = msgspec.msgpack.Decoder(RegisteredSchedule)
_encode = msgspec.msgpack.Encoder().encode


def _read(transaction: ReadTransaction, prefix: bytes) -> dict[bytes, RegisteredSchedule]:
    found = {}
    for key, value in transaction.facts(prefix, limit=MOST + MOST_UUIDS):
        with contextlib.suppress(msgspec.MsgspecError):  # of a later version
            found[key] = _decoder.decode(value)
    return found


def register(
    transaction: WriteTransaction, given: Sequence[ScheduleRow], process: str, user: User | None, now_us: int
) -> int:
    """Store what a scheduler reports of its schedules, except those for services to which its user may not submit.
    Returns how many it stored."""
    owner = b"" if user is None else user.owner
    stored = _read(transaction, SCHEDULES)
    rows = dict(stored)
    changed: set[bytes] = set()
    for one in given:
        if user is not None and lacks_submit(user, one.service.encode()) is not None:
            continue
        key = SCHEDULES + owner + b"\0" + one.name.encode()
        row = RegisteredSchedule(
            one.service,
            one.when,
            one.tz,
            process,
            int(one.next * 1e6),
            int((one.tick or 0) * 1e6),
            ids.parse((one.uuid or "").encode()) or b"",
            now_us,
            now_us,
        )
        old = stored.get(key)
        if old is not None and (old.service, old.when, old.tz) == (row.service, row.when, row.tz):
            row.registered_at = old.registered_at
        if old is not None and row.tick < old.tick <= now_us:  # another scheduler has submitted it
            row.tick, row.uuid = old.tick, old.uuid
        rows[key] = row
        changed.add(key)
    gone = _superfluous(rows, now_us)
    transaction.put_facts([(key, None if key in gone else _encode(rows[key])) for key in sorted(changed | gone)])
    return len(changed - gone)


def _superfluous(rows: dict[bytes, RegisteredSchedule], now_us: int) -> set[bytes]:
    gone = {key for key, row in rows.items() if abs(now_us - row.seen_at) > KEPT}  # or the clock was ahead
    places: Counter[bytes] = Counter()
    ranked: list[tuple[int, bytes]] = []
    for key in sorted(rows.keys() - gone, key=lambda key: rows[key].seen_at, reverse=True):
        owner = key.partition(b"\0")[0]
        places[owner] += 1
        ranked.append((places[owner], key))
    return gone | {key for _, key in sorted(ranked)[MOST:]}


def documents(transaction: ReadTransaction, user: User | None, now_us: int) -> list[ScheduleInfo]:
    """List the schedules that a user may see, by owner and name."""
    prefix = SCHEDULES if user is None or user.reads_all else SCHEDULES + user.owner + b"\0"
    rows = _read(transaction, prefix)
    names = [(key[1:].partition(b"\0")[0], key.rpartition(b"\0")[2].decode()) for key in rows]
    pauses: dict[tuple[bytes, str], bytes] = {}
    for owner in dict.fromkeys(owner for owner, _ in names):
        keys = {paused_key(name).encode(): name for one, name in names if one == owner}
        pauses |= {(owner, keys[key]): uuid for key, uuid in transaction.holders([*keys], owner).items()}
    uuids = {*pauses.values(), *(row.uuid for row in rows.values() if row.uuid)}
    transaction.prefetch([*uuids])
    known = {uuid: found for uuid in uuids if (found := transaction.describe(uuid)) is not None}
    return [
        _document(owner, name, row, known.get(pauses.get((owner, name), b"")), known.get(row.uuid), now_us)
        for (owner, name), row in zip(names, rows.values(), strict=True)
    ]


def _document(
    owner: bytes, name: str, row: RegisteredSchedule, pause: Description | None, last: Description | None, now_us: int
) -> ScheduleInfo:
    own = last is not None and last.owner == owner  # else its scheduler has named the request of another user
    state = last.state.name.lower() if last is not None and own else "closed"
    return {
        "name": name,
        "owner": owner.decode(),
        "service": row.service,
        "when": row.when,
        "tz": row.tz,
        "next": row.next,
        "last": {"tick": row.tick, "uuid": row.uuid.hex(), "state": state} if row.uuid else None,
        "paused_at": 0 if pause is None else pause.submitted_at,
        "late": pause is None and row.next < now_us - LATE,
        "process": row.process,
        "registered_at": row.registered_at,
        "seen_at": row.seen_at,
    }
