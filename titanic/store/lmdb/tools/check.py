"""Check of a store: every record, and all facts that two databases both contain.

It finds each problem together with its remedy (findings.py); only repair.py applies those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import lmdb

from titanic.errors import RecordCorrupt, StoreCorrupt
from titanic.store.lmdb import closed_record, facts, opening, outcome_record, request_record, schema
from titanic.store.lmdb.closed_ring import kept
from titanic.store.lmdb.outcome_record import RetryRecord, expiry
from titanic.store.lmdb.read import settings_of_services
from titanic.store.lmdb.record import BLOB_KEY_SIZE, GRAVE_KEY_SIZE, blob_id_of, blob_key, grave_key, verify
from titanic.store.lmdb.request_record import RequestHeader
from titanic.store.lmdb.schema import (
    ARCHIVE,
    ARCHIVE_KEY,
    BODIES,
    CHARGED_KEY,
    DEAD,
    EXPIRY,
    KEPT,
    KEY,
    LOAD,
    OWNER_LOAD,
    REPLIED,
    SEQUENCE_KEY,
    TIME_SIZE,
    U32,
    U64,
    closed_key,
    due_of,
    later_key,
    ready_prefix,
    sequence_of,
    timer_key,
)
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import batches
from titanic.store.lmdb.tools.findings import CopyingReading, Finding, Remedy, Verb, Walk
from titanic.store.moving import Progress
from titanic.store.uniqueness import unique_name
from titanic.util.ids import SIZE

_MISSING = b"the request was missing"


def check(store: LmdbStore, progress: Progress | None = None) -> list[Finding]:
    """Find all problems of the store; an empty list means that it is sound. `progress` is called with the name of the
    database that is being checked."""
    with CopyingReading(store.environment) as tx:
        walk = Walk(tx, progress=progress)
        check_all(walk)
        return walk.problems


def check_in_use(store: LmdbStore, progress: Progress, may_go_on: Callable[[int], None]) -> list[Finding]:
    """Check a store that a server goes on using: in short transactions.

    Where records seem to contradict each other, they are checked again in one transaction, which reads little of each.
    During that, `may_go_on` is called repeatedly with the number of the transaction; it ends the check by raising.
    """
    walk = Walk(CopyingReading(store.environment).__enter__(), store, progress=progress)
    check_all(walk)
    walk.tx.__exit__(None, None, None)
    if not walk.across:
        return walk.problems
    with CopyingReading(store.environment) as tx:

        def report_and_ask(name: str, done: int, total: int) -> None:
            progress(name, done, total)
            may_go_on(tx.raw.id())

        light = Walk(tx, light=True, progress=report_and_ask)
        check_all(light)
    doubtful = set(walk.across)
    return [problem for problem in walk.problems if problem not in doubtful] + light.across


def check_all(walk: Walk) -> str:
    """Check everything. Ends where LMDB cannot go on, and returns where and why.

    The problems behind that point stay unknown, and so does whether the remedies are right.
    """
    walk.total = sum(walk.tx.raw.stat(getattr(walk.tx.db, name))["entries"] for name in {*_CHECKS, "graves"} - {"meta"})
    for name, check_rows in _CHECKS.items():
        if (walk.light and name in _ALONE) or (name == "timers" and walk.knows_all(name)):
            continue
        walk.database = name
        walk.show()
        try:
            check_rows(walk)
        except lmdb.Error as error:
            walk.report(name, None, f"{error}; the rest was not checked")
            return f"{name}: {error}"
    return ""


# -- requests ------------------------------------------------------------------------------------------------


def _requests(walk: Walk) -> None:
    for rows in walk.batches("requests"):
        for uuid, record in batches.requests(walk, rows):
            _request(walk, uuid, record)


def _request(walk: Walk, uuid: bytes, record: bytes) -> None:
    ended = walk.has("replies", uuid)
    try:
        header = request_record.decode_header(uuid, record)
        walk.refer("requests", uuid, header.ref)
        if not ended:
            walk.load(header.service, 1, header.size)
        walk.own(header.owner, header.size, pending=not ended)
        if walk.light:
            return
        verify(uuid, record, request_record.DATABASE)
        request_record.decode_body(uuid, record, header, walk.tx.fetch)
    except RecordCorrupt as error:
        remedy = Remedy(Verb.FAIL, "requests", uuid, b"the request was damaged")
        walk.report("requests", uuid, str(error), remedy)
        return
    _places(walk, uuid, header, ended)


def _places(walk: Walk, uuid: bytes, header: RequestHeader, ended: bool) -> None:
    """The request is in exactly one of replies, ready and later, and has its timer."""
    past = walk.past(uuid)
    prefix = ready_prefix(header.service, header.priority)
    ready = prefix + uuid
    places = ["replies"] if ended else []
    is_due = past is not None and past.due
    if walk.has("ready", ready) if ended or is_due else walk.is_indexed("ready", ready):
        places.append("ready")
        walk.ready[header.service] += 1
    if past and past.due and walk.has("later", later_key(past.due, uuid)):
        places.append("later")
    if len(places) != 1:
        where = " and ".join(places) or "no queue and has no reply"
        walk.report("requests", uuid, f"it is in {where}", _right_place(walk, uuid, ended, past, prefix))
    expires_at = expiry(header.expires_at, past)
    if ended or not expires_at:
        return
    timer = timer_key(EXPIRY, expires_at, uuid)
    if not walk.is_indexed("timers", timer):
        walk.report("requests", uuid, "it would never expire", Remedy(Verb.PUT, "timers", timer))


def _right_place(walk: Walk, uuid: bytes, ended: bool, past: RetryRecord | None, prefix: bytes) -> Remedy | None:
    if ended:
        return None  # the rows too many are found with their databases
    if past and past.due:
        return Remedy(Verb.PUT, "later", later_key(past.due, uuid), prefix)
    return Remedy(Verb.PUT, "ready", prefix + uuid)


def _replies(walk: Walk) -> None:
    for rows in walk.batches("replies"):
        for uuid, record in batches.replies(walk, rows):
            _reply(walk, uuid, record)


def _reply(walk: Walk, uuid: bytes, record: bytes) -> None:
    try:
        header = outcome_record.decode_header(uuid, record)
        walk.refer("replies", uuid, header.ref)
        if not walk.light:
            outcome_record.decode_with(uuid, record, header, walk.tx.fetch)
    except RecordCorrupt as error:
        walk.report("replies", uuid, str(error), Remedy(Verb.LOSE_REPLY, "replies", uuid))
        return
    request = walk.tx.raw.get(uuid, db=walk.tx.db.requests)
    if request is None:
        walk.report("replies", uuid, "there is no such request", Remedy(Verb.FAIL, "requests", uuid, _MISSING))
    else:
        walk.own(request_record.owner_in(request), header.size)
    for timer in () if walk.light else walk.retention_timers(uuid, header):
        if not walk.is_indexed("timers", timer):
            walk.report("replies", uuid, "its retention would never end", Remedy(Verb.PUT, "timers", timer))


def _retries(walk: Walk) -> None:
    aside = Verb.SET_ASIDE
    for uuid, record in walk.rows("retries"):
        if not walk.has("requests", uuid):
            walk.report("retries", uuid, "there is no such request", Remedy(aside, "retries", uuid))
            continue
        if walk.has("replies", uuid):
            walk.report("retries", uuid, "the request has ended", Remedy(aside, "retries", uuid))
        try:
            past = outcome_record.decode_retry(uuid, record)
        except RecordCorrupt as error:
            walk.report("retries", uuid, str(error), Remedy(aside, "retries", uuid))
            continue
        if past.due and not walk.has("later", later_key(past.due, uuid)):
            walk.report("retries", uuid, f"it is due at {past.due}, but not in 'later'")  # remedy: see _places
        if not past.due and not past.matters:
            what = "its request is neither delayed nor failed"
            walk.report("retries", uuid, what, Remedy(Verb.DELETE, "retries", uuid))


# -- queues --------------------------------------------------------------------------------------------------


def _ready_rows(walk: Walk) -> None:
    if walk.knows_all("ready"):
        for service, count in walk.ready.items():
            walk.loads[service][0] = count
        return
    for key, value in walk.rows("ready", or_more=True):
        uuid, prefix = schema.uuid_of(key), key[:-SIZE]
        walk.loads.setdefault(schema.service_of(prefix), [0, 0, 0])[0] += 1
        if walk.light:
            continue
        delete = Remedy(Verb.DELETE, "ready", key)
        if len(value):
            walk.report("ready", uuid, "the row has a value", Remedy(Verb.PUT, "ready", key))
        if _expect_prefix(walk, "ready", uuid, prefix, delete):
            past = walk.past(uuid)
            if past and past.due:
                walk.report("ready", uuid, f"it is delayed until {past.due}", delete)


def _later_rows(walk: Walk) -> None:
    for key, value in walk.rows("later", or_more=True):
        uuid = schema.uuid_of(key)
        delete = Remedy(Verb.DELETE, "later", key)
        if not _expect_prefix(walk, "later", uuid, bytes(value), delete):
            continue
        try:
            past = walk.tx.past(uuid)
        except RecordCorrupt:
            continue  # reported with the retries
        due = past.due if past else 0
        if due != due_of(key):
            walk.report("later", uuid, f"it is due at {due_of(key)}, but 'retries' says {due}", delete)


def _expect_prefix(walk: Walk, where: str, uuid: bytes, prefix: bytes, delete: Remedy) -> bool:
    """The row's request is there, hasn't ended, and has the row's service and priority."""
    record = walk.tx.raw.get(uuid, db=walk.tx.db.requests)
    if record is None:
        stand_in = Remedy(Verb.FAIL, "requests", uuid, _MISSING)
        walk.report(where, uuid, "there is no such request", stand_in, delete)
        return False
    if walk.has("replies", uuid):
        walk.report(where, uuid, "the request has ended", delete)
        return False
    if request_record.is_of(record, schema.service_of(prefix)) and prefix[-1] == 9 - record[2]:
        return True  # mostly
    try:
        header = request_record.decode_header(uuid, record)
    except RecordCorrupt:
        return False  # reported with the requests
    right = ready_prefix(header.service, header.priority)
    if prefix == right:
        return True
    remedy = delete if where == "ready" else Remedy(Verb.PUT, where, delete.key, right)
    walk.report(where, uuid, f"it is filed under {prefix!r}", remedy)
    return False


# -- keys and timers ---------------------------------------------------------------------------------------


def _keys(walk: Walk) -> None:
    for rows in walk.batches("keys", 0, or_more=True):
        for key, row in batches.keys(walk, rows):
            _key(walk, key, row)


def _key(walk: Walk, key: bytes, row: bytes) -> None:
    walk.own(request_record.owner_of_key(key), len(key) + len(row))
    holder = request_record.decode_key_record(row)
    if holder is None:
        walk.report("keys", key, f"the row has {len(row)} bytes", Remedy(Verb.SET_ASIDE, "keys", key))
        return
    timer = timer_key(KEY, holder.until, key)
    if not walk.is_indexed("timers", timer):
        walk.report("keys", key, "it would never be forgotten", Remedy(Verb.PUT, "timers", timer))
    record = walk.tx.raw.get(holder.uuid, db=walk.tx.db.requests)
    if record is None:
        return  # it was closed
    try:
        header = request_record.decode_header(holder.uuid, record)
    except RecordCorrupt:
        return
    own = unique_name(header) if request_record.is_unique(key) else header.key
    if own and request_record.row_key(own, header.owner) != key:
        what = f"its request {holder.uuid.hex()} has the key {own!r}"
        walk.report("keys", key, what, Remedy(Verb.SET_ASIDE, "keys", key))


def _timers(walk: Walk) -> None:
    for key, value in walk.rows("timers", 0, or_more=True):
        if len(key) <= 1 + schema.TIME_SIZE:
            what = "the key has the wrong length"
        elif len(value):
            walk.report("timers", key, "the row has a value", Remedy(Verb.PUT, "timers", key))
            continue
        else:
            what = _timer_fault(walk, *schema.timer_of(key))
        if what:
            walk.report("timers", key, what, Remedy(Verb.DELETE, "timers", key))


def _timer_fault(walk: Walk, kind: bytes, time: int, subject: bytes) -> str:
    """What is wrong with a timer; nothing, as a rule."""
    if kind == KEY:
        holder = walk.tx.key_holder(subject)
        return "" if holder and holder.until == time else "there is no such key"
    if kind == EXPIRY:
        record = walk.tx.raw.get(subject, db=walk.tx.db.requests)
        if record is None:
            return "there is no such request"
        if walk.has("replies", subject):
            return "the request has ended"
        try:
            own = request_record.decode_header(subject, record).expires_at
        except RecordCorrupt:
            return ""
        expires_at = expiry(own, walk.past(subject))
        return "" if expires_at == time else f"the request says {expires_at}"
    if kind in (REPLIED, DEAD, KEPT, BODIES):
        record = walk.tx.raw.get(subject, db=walk.tx.db.replies)
        if record is None:
            return "there is no such reply"
        try:
            end = outcome_record.decode_header(subject, record)
        except RecordCorrupt:
            return ""
        right = timer_key(kind, time, subject) in walk.retention_timers(subject, end)
        return "" if right else f"the reply says {end.status.name} at {end.finished_at}"
    return f"unknown kind {kind!r}"


# -- what is counted: last, for only then is it known what the records refer to ------------------------------


def _blobs(walk: Walk) -> None:
    found: dict[int, int] = {}
    for key, _ in walk.rows("blobs", BLOB_KEY_SIZE, values=False):
        blob_id = blob_id_of(key)
        found[blob_id] = found.get(blob_id, 0) + 1
        ref = walk.refs.get(blob_id)
        if ref is not None and key >= blob_key(blob_id, ref.pieces):
            what = f"it has only {ref.pieces} pieces"
            walk.report("blobs", key, what, Remedy(Verb.DELETE, "blobs", key), across=True)
    for key, value in walk.rows("graves", GRAVE_KEY_SIZE):
        blob_id = blob_id_of(key, "graves")
        pieces = U32.unpack(value)[0] if len(value) == U32.size else -1
        if blob_id in walk.refs:
            what = "a record refers to it"
            walk.report("graves", key, what, Remedy(Verb.DELETE, "graves", key), across=True)
        elif found.pop(blob_id, 0) != pieces:
            what = f"it doesn't have {pieces} pieces" if pieces >= 0 else f"the row has {len(value)} bytes"
            walk.report("graves", key, what, Remedy(Verb.BURY, "blobs", key), across=True)
    for blob_id in found.keys() - walk.refs.keys():
        key = grave_key(blob_id)
        walk.report("blobs", key, "no record refers to it", Remedy(Verb.BURY, "blobs", key), across=True)


def _meta(walk: Walk) -> None:
    if not walk.light:
        _plain_meta(walk)
    counted: dict[bytes, tuple[int, ...] | str] = {}
    for view, value in walk.tx.raw.cursor(walk.tx.db.meta).iternext():
        if view[:1] == schema.LOAD_PREFIX:
            load = LOAD.unpack(value) if len(value) == LOAD.size else f"{len(value)} bytes"
            counted[bytes(view[len(schema.LOAD_PREFIX) :])] = load
    for service in counted.keys() | walk.loads.keys():
        ready, pending, size = walk.loads.get(service, (0, 0, 0))
        right = (ready, pending, size) if ready or pending else None
        if counted.get(service) == right:
            continue
        key = schema.LOAD_PREFIX + service
        if pending:
            remedy = Remedy(Verb.PUT, "meta", key, LOAD.pack(ready, pending, size))
        else:
            remedy = Remedy(Verb.DELETE, "meta", key)
        what = f"the counts of {service!r} (ready, pending, bytes) are {counted.get(service)}, but should be {right}"
        walk.report("meta", None, what, remedy, across=True)
    _owned_loads(walk)


def _owned_loads(walk: Walk) -> None:
    counted: dict[bytes, bytes] = {}
    for view, value in walk.tx.raw.cursor(walk.tx.db.meta).iternext():
        if view[:1] == schema.OWNER_PREFIX:
            counted[bytes(view[len(schema.OWNER_PREFIX) :])] = bytes(value)
    right = {owner: OWNER_LOAD.pack(*load) for owner, load in walk.owned.items()}
    for owner in counted.keys() | right.keys():
        if counted.get(owner) == right.get(owner):
            continue
        key = schema.OWNER_PREFIX + owner
        load = right.get(owner)
        remedy = Remedy(Verb.DELETE, "meta", key) if load is None else Remedy(Verb.PUT, "meta", key, load)
        pending, size = walk.owned.get(owner, (0, 0))
        what = f"the counts of the owner {owner!r} are wrong: they should be {pending} requests, {size} bytes"
        walk.report("meta", None, what, remedy, across=True)


def _plain_meta(walk: Walk) -> None:
    """The rows of `meta` that are no counts of what is stored."""
    right = U32.pack(opening.FORMAT)
    value = walk.tx.raw.get(schema.FORMAT_KEY, db=walk.tx.db.meta)
    if value is None or bytes(value) != right:
        what = "'store_format' " + ("is missing" if value is None else f"is {value.hex()}")
        walk.report("meta", None, what, Remedy(Verb.PUT, "meta", schema.FORMAT_KEY, right))
    found, fault = walk.meta_number(schema.CAPACITY_KEY, U64)
    if found is None or found[0] >= schema.MOST_BYTES:
        right = U64.pack(walk.tx.environment.room.capacity)
        what = f"'capacity' {fault}" if found is None else f"'capacity' is {found[0]}"
        walk.report("meta", None, what, Remedy(Verb.PUT, "meta", schema.CAPACITY_KEY, right))
    for key, least, most in ((schema.IDENTITY_KEY, SIZE, SIZE), (schema.ARCHIVIST_KEY, SIZE, 1 << 20)):
        value = walk.tx.raw.get(key, db=walk.tx.db.meta)
        if value is not None and not least <= len(value) <= most:
            what = f"'{key.decode()}' has {len(value)} bytes"
            walk.report("meta", None, what, Remedy(Verb.SET_ASIDE, "meta", key))
    try:
        settings_of_services(walk.tx)
    except StoreCorrupt:
        what = "'services' is invalid"
        walk.report("meta", None, what, Remedy(Verb.SET_ASIDE, "meta", schema.SERVICES_KEY))
    _, fault = walk.meta_number(schema.LOST_KEY, U64)
    if "bytes" in fault:
        walk.report("meta", None, f"'lost' {fault}", Remedy(Verb.SET_ASIDE, "meta", schema.LOST_KEY))


# -- closed ---------------------------------------------------------------------------------

# The check of `closed`: what must be true of its numbers, and which of two that disagree is to be believed.
#
#     first             sound              sequence
#       │                 │                   │
#       ├─────────────────┤ entries …         │        numbers without gaps, the last one given out is `sequence`
#
# An entry's checksum is over its number, so one that is sound has the number that it was given. A number between two
# sound entries was given out: when its entry is damaged or missing, an empty one takes its place. Up to MOST_MISSING
# that is believed of the numbers behind the last sound entry, too. Where `sequence` says more, it is taken for damaged:
# what is right follows from the entries and from what a registered archive has acknowledged. Those numbers certainly
# were given out, and must not be given out again: the archive would never read the new ones. (What it has read and not
# acknowledged may be given out again, since it reads from its acknowledgement on.) Damaged entries far from all others
# are set aside.

MOST_MISSING = 10_000
"""Entries of `closed` that are put in for missing ones, at most, one after the other."""

_MOST = 1 << 62
"""A number that is never reached."""


def _closed(walk: Walk) -> None:
    row, fault = walk.meta_number(CHARGED_KEY, U64)
    if "bytes" in fault and not walk.light:
        walk.report("meta", None, f"'charged' {fault}", Remedy(Verb.DELETE, "meta", CHARGED_KEY))
    charged = row[0] if row else _MOST
    first = sound = 0  # the numbers of the first and of the last sound entry
    spoiled: dict[int, str] = {}  # the damaged ones since then, and what is wrong with them
    for rows in walk.batches("closed", TIME_SIZE):
        odd = batches.closed(walk, rows, charged)
        for key, record in rows:
            sequence = sequence_of(key)
            if key in odd and (fault := _entry_fault(walk, sequence, record, charged)):
                spoiled[sequence] = fault
                continue
            if spoiled or sequence != sound + 1:
                _stretch(walk, sound, sequence, spoiled)
                spoiled = {}
            first, sound = first or sequence, sequence
    _end_of_ring(walk, first, sound, spoiled)


def _entry_fault(walk: Walk, sequence: int, record: bytes, charged: int) -> str:
    """What is wrong with an entry; nothing, as a rule."""
    key = closed_key(sequence)
    try:
        header = closed_record.decode_header(sequence, record)
        for ref in header.refs:
            walk.refer("closed", key, ref)
        if sequence > charged:
            walk.own(header.owner, kept(header, len(record)))
        if not walk.light:
            verify(key, record, closed_record.DATABASE)
            closed_record.decode_rest(sequence, header, walk.tx.fetch)
    except RecordCorrupt as error:
        return str(error)
    return ""


def _end_of_ring(walk: Walk, first: int, sound: int, spoiled: dict[int, str]) -> None:
    """What is behind the last sound entry, and what `meta` says of it."""
    found, fault = walk.meta_number(ARCHIVE_KEY, ARCHIVE)
    registered, upto = found or (0, 0)
    row, why = walk.meta_number(SEQUENCE_KEY, U64)
    sequence = last = row[0] if row else 0
    archived = upto if registered and upto < _MOST and (row is None or upto <= sequence) else 0
    least = max(sound, archived)
    if row is None:
        start = least or min(spoiled, default=0)
        last = max([least, *(n for n in spoiled if n < _MOST and n - start <= MOST_MISSING)])
        if last or "bytes" in why:
            _put_sequence(walk, f"'sequence' {why}", last)
    elif sequence >= _MOST and not sound:
        last = least
        _put_sequence(walk, f"'sequence' is {sequence}", last)
    elif sound and (sound > sequence or sequence - least > MOST_MISSING):
        last = least
        _put_sequence(walk, f"'sequence' is {sequence}, but 'closed' goes up to {sound}", last)
    if sound or spoiled:
        _stretch(walk, sound, last + 1, spoiled)
    if "bytes" in fault:
        # All that is there is to be archived, once more perhaps: to keep too much does less harm than too little.
        remedy = Remedy(Verb.PUT, "meta", ARCHIVE_KEY, ARCHIVE.pack(1, first - 1 if first else last))
        walk.report("meta", None, f"'archive' {fault}", remedy, across=True)
    elif upto > last:
        remedy = Remedy(Verb.PUT, "meta", ARCHIVE_KEY, ARCHIVE.pack(registered, last))
        what = f"the archive is at {upto}, but the last closed request is {last}"
        walk.report("meta", None, what, remedy, across=True)


def _put_sequence(walk: Walk, what: str, right: int) -> None:
    walk.report("meta", None, what, Remedy(Verb.PUT, "meta", SEQUENCE_KEY, U64.pack(right)), across=True)


def _stretch(walk: Walk, sound: int, end: int, spoiled: dict[int, str]) -> None:
    """Report what is between a sound entry (0: none) and the number `end`; beyond it nothing may be."""
    kept = []
    for number, what in spoiled.items():
        near = (sound and number - sound <= MOST_MISSING) or end - number <= MOST_MISSING
        verb = Verb.LOSE_ENTRY if near and number < end else Verb.SET_ASIDE
        if verb is Verb.LOSE_ENTRY:
            kept.append(number)
        walk.report("closed", closed_key(number), what, Remedy(verb, "closed", closed_key(number)))
    _gaps(walk, [*([sound] if sound else []), *kept, end])


def _gaps(walk: Walk, numbers: Iterable[int]) -> None:
    """Report the numbers that are missing between these, which ascend."""
    expected = 0
    for number in numbers:
        if expected and number > expected:
            missing = range(expected, number) if number - expected <= MOST_MISSING else ()
            remedies = [Remedy(Verb.LOSE_ENTRY, "closed", closed_key(lost)) for lost in missing]
            walk.report("closed", None, f"{expected} … {number - 1} are missing", *remedies, across=True)
        expected = number + 1


def _facts(walk: Walk) -> None:
    for key, value in facts.rows(walk.tx):
        if value is None:
            for piece in facts.piece_keys(walk.tx, key):
                walk.report("facts", piece, "its value is damaged", Remedy(Verb.SET_ASIDE, "facts", piece))


_CHECKS: dict[str, Callable[[Walk], None]] = {
    "requests": _requests,
    "replies": _replies,
    "retries": _retries,
    "ready": _ready_rows,
    "later": _later_rows,
    "keys": _keys,
    "timers": _timers,
    "closed": _closed,
    "blobs": _blobs,
    "facts": _facts,
    "meta": _meta,
}
"""How each database is checked, in this order."""

_ALONE = {"retries", "later", "timers", "facts"}
"""Databases of which nothing is added up."""
