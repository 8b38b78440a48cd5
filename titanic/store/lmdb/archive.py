"""The agreement with an archive: nothing is dropped from the ring before the archive has it."""

from __future__ import annotations

from titanic.errors import InvalidArchive
from titanic.store.lmdb import closed_record
from titanic.store.lmdb.closed_ring import closed_range
from titanic.store.lmdb.schema import ARCHIVE, ARCHIVE_KEY, ARCHIVIST_KEY, closed_key, odd_row
from titanic.store.lmdb.transaction import Reading, Writing
from titanic.store.records import ArchiveState, Archivist
from titanic.util.ids import SIZE

_MOST_NAME = 255
"""Bytes of an archivist's name that are kept."""


def archive(tx: Reading) -> ArchiveState:
    """Whether an archive is registered, what it has, and what there is."""
    tx.put_counters()
    registered, upto = tx.archived()
    return ArchiveState(registered, upto, *closed_range(tx), tx.lost_count())


def known_archivist(tx: Reading) -> Archivist | None:
    """The owner of the archive that is registered, or was last; None when it is unknown."""
    row = tx.raw.get(ARCHIVIST_KEY, db=tx.db.meta)
    if row is None:
        return None
    if len(row) < SIZE:
        raise odd_row("meta", ARCHIVIST_KEY, row)
    return Archivist(bytes(row[:SIZE]), bytes(row[SIZE:]).decode(errors="replace"))


def register_archive(tx: Writing, archivist: Archivist | None = None) -> ArchiveState:
    """From now on keep all closed requests until they are acknowledged. Registering again changes nothing."""
    registered, upto = tx.archived()
    if registered:
        _expect_archivist(tx, archivist)
    first = closed_range(tx)[0]
    if archivist is not None and archivist != (known := known_archivist(tx)):
        if known is None or known.id != archivist.id:
            upto, registered = first - 1, False  # this archive need not have what another one has
        row = archivist.id + archivist.name.encode(errors="replace")[:_MOST_NAME]
        tx.raw.put(ARCHIVIST_KEY, row, db=tx.db.meta)
    if not registered:
        _note_archive(tx, True, max(upto, first - 1))
    return archive(tx)


def unregister_archive(tx: Writing) -> ArchiveState:
    """End the registration of any archive: closed requests are no longer kept for it."""
    registered, upto = tx.archived()
    if registered:
        _note_archive(tx, False, upto)
    return archive(tx)


def acknowledge_archive(
    tx: Writing, upto: int, uuid: bytes | None = None, archivist: Archivist | None = None
) -> ArchiveState:
    """The archive has everything up to number `upto`, and safely. A number below an earlier one changes nothing."""
    registered, before = tx.archived()
    last = tx.last_sequence()
    if not registered:
        raise InvalidArchive("nothing can be acknowledged", "no archive is registered", "register it first")
    _expect_archivist(tx, archivist)
    if upto > last:
        raise InvalidArchive(
            f"closed requests up to {upto} can't be acknowledged", f"the last is {last}", "look for another store"
        )
    if upto > before and uuid is not None:
        record = tx.raw.get(closed_key(upto), db=tx.db.closed)
        if record is not None and closed_record.decode_header(upto, record).uuid != uuid:
            raise InvalidArchive(
                f"closed requests up to {upto} can't be acknowledged",
                "another request has that number here",
                "look for another store",
            )
    if upto > before:
        _note_archive(tx, True, upto)
    return archive(tx)


def _expect_archivist(tx: Writing, archivist: Archivist | None) -> None:
    """Raise InvalidArchive unless the archive is this archivist's, or has no owner."""
    known = known_archivist(tx)
    if known is not None and (archivist is None or archivist.id != known.id):
        raise InvalidArchive(
            "another archive is registered",
            f"{known.name} (id {known.id.hex()})",
            "go on with that one, or end it first: titanic-data unregister",
        )


def _note_archive(tx: Writing, registered: bool, upto: int) -> None:
    tx.raw.put(ARCHIVE_KEY, ARCHIVE.pack(registered, upto), db=tx.db.meta)
