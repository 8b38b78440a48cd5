"""Checking for room in the file, and making some (capacity.py says what for).

A write transaction does this at three points. At its beginning, it checks what the one before it left: when the file is
nearly full and much was freed at once, or is to be freed, an extra commit makes that available first. In between, each
step that needs room asks `fits`. At its end, it deletes a bounded part of what is in `graves` and, when the file is
nearly full, some of the oldest entries of `closed`, so that a request finds room without having to make it.
"""

from __future__ import annotations

from itertools import islice

from titanic.errors import RecordCorrupt, StoreFull
from titanic.store.attempt_history import CLOSED, closed_history_key
from titanic.store.lmdb import closed_record
from titanic.store.lmdb.closed_ring import charged_since, closed_range, end_charges, kept
from titanic.store.lmdb.disk import room_on_disk
from titanic.store.lmdb.facts import facts, put_facts
from titanic.store.lmdb.record import blob_id_of, blob_key
from titanic.store.lmdb.schema import PAGE, SETTLED_KEY, U32, closed_key, sequence_of, unpack
from titanic.store.lmdb.transaction import Reading, Writing

_TRIM_ROWS = 64
_MOST_LOOKED_AT = 50_000
"""Entries of `closed` that are searched for room; more are assumed to be enough."""


def is_near_the_end(tx: Reading) -> bool:
    """Whether the part of the file that was never used may be too small for a transaction."""
    room = tx.room
    end = (tx.environment.env.info()["last_pgno"] + 1) * PAGE
    return bool(end > room.accept - room.headroom)


def clean_up_before(tx: Writing) -> bool:
    """Do what the transaction before this one left to do; False when there was nothing."""
    room, pace = tx.room, tx.environment.pace
    if pace.freed > 2 * room.pages_freed:
        tx.raw.put(SETTLED_KEY, b"", db=tx.db.meta)
        _empty_graves(tx)
        return True
    if _empty_graves(tx):
        return True
    if pace.wanted and not fits(tx, pace.wanted, room.accept) and could_fit(tx, pace.wanted, room.accept):
        return bool(drop_oldest(tx, _TRIM_ROWS))
    pace.wanted = 0
    return False


def clean_up_after(tx: Writing) -> None:
    """Delete a bounded part of what a later transaction could delete as well."""
    if tx.raw.stat(tx.db.graves)["entries"]:
        _empty_graves(tx)
    end_charges(tx, _TRIM_ROWS)
    room = tx.room
    if is_near_the_end(tx) and not fits(tx, room.headroom, room.accept) and not tx.pinned:
        drop_oldest(tx, _TRIM_ROWS)


def fits(tx: Writing, needed: int, limit: int) -> bool:
    """Whether `needed` bytes more leave the store below a limit."""
    if tx.taken is None:
        # The file is at least as large as what is in it. Most of the time that is answer enough.
        end = (tx.environment.env.info()["last_pgno"] + 1) * PAGE
        tx.taken = end + tx.charges()
    return tx.taken + tx.added + needed <= limit or recount(tx) + needed <= limit


def make_room(tx: Writing, needed: int, limit: int, *, most: int, at_once: int) -> bool:
    """Drop up to `most` entries of `closed`, so many at once, until `needed` bytes more fit; False when they don't."""
    dropped = 0
    while not fits(tx, needed, limit):
        if dropped >= most or tx.pinned or not (n := drop_oldest(tx, at_once)):
            return False
        dropped += n
    return True


def refusal(tx: Writing, needed: int, limit: int, fitting: int = 0) -> StoreFull:
    """The exception for `needed` bytes that don't fit below a limit, `fitting` of the requests would have."""
    capacity, taken = tx.room.capacity, recount(tx)
    disk = "" if tx.room is tx.environment.room else str(tx.environment.env.path())
    if tx.pinned and taken - tx.pinned + needed <= limit:
        tx.environment.readers.refused()
    free = room_on_disk(tx.environment.file) if disk else 0
    return StoreFull(taken, capacity, needed, fitting, kept=capacity - limit, disk=disk, free=free)


def could_fit(tx: Writing, needed: int, limit: int) -> bool:
    """Whether `needed` bytes more fit once closed requests have made way. If not, none must be dropped in vain."""
    missing = recount(tx) + needed - limit
    return missing <= 0 or (not tx.pinned and can_make_way(tx, missing) >= missing)


def recount(tx: Writing) -> int:
    """Count the bytes that are taken. While readers pin pages, nothing is gained by dropping what may make way."""
    environment = tx.environment
    tx.taken = tx.used() + tx.charges()
    if (pinned := environment.readers.pinned()) > may_be_pinned(tx):
        environment.readers.end_ours()
        pinned = environment.readers.pinned()
    tx.pinned = pinned
    tx.taken += pinned
    tx.added = 0
    return tx.taken


def may_be_pinned(tx: Reading) -> int:
    """Bytes that readers may keep from being used again."""
    room = tx.room
    return max(0, room.accept - tx.used() - tx.charges()) + room.readers


def can_make_way(tx: Reading, wanted: int) -> int:
    """Bytes that dropping entries of `closed` would give back, about; from `wanted` on, there may be more."""
    entries, present = _droppable_entries(tx)
    if not present:
        return 0
    found = tx.pages(tx.db.closed) * entries // present * PAGE
    if found >= wanted or found + tx.pages(tx.db.blobs) * PAGE < wanted:
        return found
    for record in islice(tx.raw.cursor(tx.db.closed).iternext(keys=False), min(entries, _MOST_LOOKED_AT)):
        found += closed_record.pages_elsewhere(record) * PAGE
        if found >= wanted:
            return found
    return wanted if entries > _MOST_LOOKED_AT else found


def _droppable_entries(tx: Reading) -> tuple[int, int]:
    """How many entries of `closed` may be dropped, and how many there are."""
    present = tx.raw.stat(tx.db.closed)["entries"]
    if not present:
        return 0, 0
    first, last = closed_range(tx)
    registered, upto = tx.archived()
    if registered and not tx.environment.settings.drop_unarchived:
        last = min(last, upto)
    return min(max(0, last + 1 - first), present), present


def droppable(tx: Reading) -> int:
    """About how many bytes dropping all droppable entries of `closed` would free. The share of blobs is estimated from
    the first entries."""
    entries, present = _droppable_entries(tx)
    if not present:
        return 0
    some = [closed_record.pages_elsewhere(one) for one in islice(tx.raw.cursor(tx.db.closed).iternext(keys=False), 500)]
    elsewhere = min(sum(some) * entries // len(some), tx.pages(tx.db.blobs))
    return (tx.pages(tx.db.closed) * entries // present + elsewhere) * PAGE


def drop_oldest(tx: Writing, limit: int, closed_before: int | None = None) -> int:
    """Drop up to `limit` of the oldest entries of `closed`, and return how many.

    With `closed_before` only those that were closed before that time. Without, it is for their room, and entries that
    the archive does not have may go, too, if that is the setting.
    """
    registered, upto = tx.archived()
    lossy = closed_before is None and tx.environment.settings.drop_unarchived
    charged = charged_since(tx)
    dropped = size = last = 0
    while dropped < limit and size < tx.room.pages_freed * PAGE:
        cursor = tx.raw.cursor(tx.db.closed)
        if not cursor.first():
            break
        sequence, record = sequence_of(cursor.key()), cursor.value()
        if registered and sequence > upto and not lossy:
            break
        try:
            header = closed_record.decode_header(sequence, record)
            if closed_before is not None and header.closed_at >= closed_before:
                break
            refs = header.refs
            if charged is not None and sequence > charged:
                tx.count_owned(header.owner, size=-kept(header, len(record)))
        except RecordCorrupt:
            refs = []
        dropped += 1
        last = sequence
        size += len(record)
        tx.raw.delete(closed_key(sequence), db=tx.db.closed)
        for ref in refs:
            size += ref.size
            tx.drop_blob(ref)
        if registered and sequence > upto:
            tx.lost += 1
    tx.freed += size // PAGE + 1 if dropped else 0
    if dropped:
        put_facts(tx, [(key, None) for key, _ in facts(tx, CLOSED, limit=dropped) if key <= closed_history_key(last)])
    return dropped


def _empty_graves(tx: Writing) -> bool:
    """Delete pieces of blobs from their ends; False when there were none."""
    raw, graves = tx.raw, tx.db.graves
    # However much the transaction has freed already, a little is always done: nothing waits for ever.
    allowed = max(tx.room.pages_freed - tx.freed, 8) * 2
    done = False
    while allowed > 0:
        cursor = raw.cursor(graves)
        if not cursor.first():
            break
        key = bytes(cursor.key())
        blob_id = blob_id_of(key, "graves")
        (pieces,) = unpack(U32, cursor.value(), "graves", key)
        rest = max(0, pieces - allowed)
        for index in range(rest, pieces):
            raw.delete(blob_key(blob_id, index), db=tx.db.blobs)
        allowed -= pieces - rest
        tx.freed += (pieces - rest) // 2 + 1
        if rest:
            raw.put(key, U32.pack(rest), db=graves)
        else:
            raw.delete(key, db=graves)
        done = True
    return done
