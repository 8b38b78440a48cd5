"""Reading `closed`: the ring of closed requests, oldest first.

    archived_upto          first                      last
          │                  │                          │
      ────┴── dropped ───────┴─── can be read ──────────┴── numbers to come

Numbers have no gaps. The oldest entries are dropped when their time is over or their room is needed, but not before the
archive has them, if one is registered (unless the store was told not to care).
"""

from __future__ import annotations

from titanic.errors import RecordCorrupt
from titanic.store.lmdb import closed_record
from titanic.store.lmdb.record import verify
from titanic.store.lmdb.schema import closed_key, sequence_of
from titanic.store.lmdb.transaction import Reading
from titanic.store.records import ClosedRequest


def closed(tx: Reading, after_seq: int, limit: int, max_bytes: int) -> list[ClosedRequest]:
    """The entries whose numbers are above `after_seq`, in order."""
    entries: list[ClosedRequest] = []
    cursor = tx.raw.cursor(tx.db.closed)
    if not cursor.set_range(closed_key(after_seq + 1)):
        return entries
    size = 0
    for view, record in cursor.iternext():
        if len(entries) >= limit:
            break
        sequence = sequence_of(view)
        try:
            header = closed_record.decode_header(sequence, record)
            size += len(record) + sum(ref.size for ref in header.refs)
            if entries and size > max_bytes:
                break
            verify(closed_key(sequence), record, closed_record.DATABASE)
            entries.append(closed_record.decode_rest(sequence, header, tx.fetch))
        except RecordCorrupt:
            if entries:
                break
            raise
    return entries


def closed_range(tx: Reading) -> tuple[int, int]:
    """The first and the last number that can be read; the first is one above the last when there are none."""
    last = tx.last_sequence()
    cursor = tx.raw.cursor(tx.db.closed)
    return (sequence_of(cursor.key()) if cursor.first() else last + 1), last


def oldest_closing(tx: Reading) -> list[int]:
    cursor = tx.raw.cursor(tx.db.closed)
    if not cursor.first():
        return []
    sequence = sequence_of(cursor.key())
    registered, upto = tx.archived()
    if registered and sequence > upto:
        return []  # waits for the archive, not for its time
    try:
        return [closed_record.decode_header(sequence, cursor.value()).closed_at]
    except RecordCorrupt:
        return [0]
