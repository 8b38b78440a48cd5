"""Reading `closed`: the ring of closed requests, oldest first.

    archived_upto          first                      last
          │                  │                          │
      ────┴── dropped ───────┴─── can be read ──────────┴── numbers to come

Numbers have no gaps. The oldest entries are dropped when their time is over or their room is needed, but not before the
archive has them, if one is registered (unless the store was told not to care).
"""

from __future__ import annotations

from itertools import islice

from titanic.errors import RecordCorrupt
from titanic.store.lmdb import closed_record
from titanic.store.lmdb.closed_record import ClosedRequest
from titanic.store.lmdb.schema import (
    ARCHIVE,
    ARCHIVE_KEY,
    ARCHIVIST_KEY,
    IDENTITY_KEY,
    LOST_KEY,
    PAGE,
    SEQUENCE_KEY,
    U64,
    closed_key,
    odd_row,
    sequence_of,
)
from titanic.store.lmdb.snapshot import View
from titanic.store.records import Archive, Archivist
from titanic.util.ids import SIZE

_MOST_LOOKED_AT = 50_000
"""Entries that are looked through for room; of more it is taken for granted that there is enough."""


class Ring(View):
    """The closed requests, as a transaction sees them."""

    def closed(self, after_seq: int, limit: int, max_bytes: int) -> list[ClosedRequest]:
        """The entries whose numbers are above `after_seq`, in order.

        Ends at `limit` entries or when their frames come to `max_bytes`; one is returned however large it is. A
        damaged one ends the list before it, and raises RecordCorrupt when it comes first.
        """
        entries: list[ClosedRequest] = []
        cursor = self._txn.cursor(self._db.closed)
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
                entries.append(closed_record.decode(sequence, record, self._fetch))
            except RecordCorrupt:
                if entries:
                    break
                raise
        return entries

    def closed_range(self) -> tuple[int, int]:
        """The first and the last number that can be read; the first is one above the last when there are none."""
        last = self._last_sequence()
        cursor = self._txn.cursor(self._db.closed)
        return (sequence_of(cursor.key()) if cursor.first() else last + 1), last

    def archive(self) -> Archive:
        """Whether an archive is registered, what it has, and what there is."""
        registered, upto = self._archived()
        return Archive(registered, upto, *self.closed_range(), self._lost_lives())

    def archivist(self) -> Archivist | None:
        """Whose archive it is, or was last; None when nobody has said so."""
        row = self._txn.get(ARCHIVIST_KEY, db=self._db.meta)
        if row is None:
            return None
        if len(row) < SIZE:
            raise odd_row("meta", ARCHIVIST_KEY, row)
        return Archivist(bytes(row[:SIZE]), bytes(row[SIZE:]).decode(errors="replace"))

    def identity(self) -> bytes | None:
        """Which store this is: 16 bytes that copies have, too. None: only earlier versions have opened it yet."""
        row = self._txn.get(IDENTITY_KEY, db=self._db.meta)
        if row is not None and len(row) != SIZE:
            raise odd_row("meta", IDENTITY_KEY, row)
        return None if row is None else bytes(row)

    def _can_make_way(self, wanted: int) -> int:
        """Bytes that dropping entries would give back, about; when they come to `wanted`, there may be more."""
        present = self._txn.stat(self._db.closed)["entries"]
        if not present:
            return 0
        first, last = self.closed_range()
        registered, upto = self._archived()
        if registered and not self._environment.settings.drop_unarchived:
            last = min(last, upto)
        entries = min(max(0, last + 1 - first), present)
        found = self._pages(self._db.closed) * entries // present * PAGE
        if found >= wanted or found + self._pages(self._db.blobs) * PAGE < wanted:
            return found
        for record in islice(self._txn.cursor(self._db.closed).iternext(keys=False), min(entries, _MOST_LOOKED_AT)):
            found += closed_record.pages_elsewhere(record) * PAGE
            if found >= wanted:
                return found
        return wanted if entries > _MOST_LOOKED_AT else found

    def _archived(self) -> tuple[bool, int]:
        registered, upto = self._meta_row(ARCHIVE_KEY, ARCHIVE) or (0, 0)
        return bool(registered), upto

    def _last_sequence(self) -> int:
        (last,) = self._meta_row(SEQUENCE_KEY, U64) or (0,)
        return last

    def _lost_lives(self) -> int:
        (lost,) = self._meta_row(LOST_KEY, U64) or (0,)
        return lost

    def _oldest_closing(self) -> list[int]:
        cursor = self._txn.cursor(self._db.closed)
        if not cursor.first():
            return []
        sequence = sequence_of(cursor.key())
        registered, upto = self._archived()
        if registered and sequence > upto:
            return []  # waits for the archive, not for its time
        try:
            return [closed_record.decode_header(sequence, cursor.value()).closed_at]
        except RecordCorrupt:
            return [0]
