"""The agreement with the archive that reads the closed requests: none is dropped before the archive has it."""

from __future__ import annotations

from titanic.errors import InvalidArchive
from titanic.store.postgres.arrays import Raw
from titanic.store.postgres.closed_reads import archive
from titanic.store.postgres.closed_reads import archivist as known_archivist
from titanic.store.postgres.writing import Writing
from titanic.store.records import ArchiveState, Archivist

_MOST_NAME = 255
"""Letters of an archivist's name that are kept."""

_NOTE = "UPDATE meta SET registered = %s <> 0, archived_upto = %s"
_NOTE_ARCHIVIST = "UPDATE meta SET archivist_id = %s::uuid, archivist_name = %s"
_ID_OF = "SELECT uuid FROM closed WHERE seq = %s AND seq >= (SELECT closed_first FROM meta)"


def register_archive(tx: Writing, archivist: Archivist | None = None) -> ArchiveState:
    """From now on keep all closed requests until they are acknowledged. Registering again changes nothing."""
    found = _locked(tx)
    registered, upto = found.registered, found.archived_upto
    known = known_archivist(tx)
    if registered:
        _expect(known, archivist)
    if archivist is not None and archivist != known:
        if known is None or known.id != archivist.id:
            upto, registered = found.first - 1, False  # this archive need not have what another one has
        name = archivist.name.replace("\0", "").encode(errors="replace").decode(errors="replace")[:_MOST_NAME]
        tx.fetch(_NOTE_ARCHIVIST, Raw(archivist.id), name)
    if not registered:
        tx.fetch(_NOTE, 1, max(upto, found.first - 1))
    return archive(tx)


def unregister_archive(tx: Writing) -> ArchiveState:
    """End the registration of any archive: closed requests are no longer kept for it."""
    found = _locked(tx)
    if found.registered:
        tx.fetch(_NOTE, 0, found.archived_upto)
    return archive(tx)


def acknowledge_archive(
    tx: Writing, upto: int, uuid: bytes | None = None, archivist: Archivist | None = None
) -> ArchiveState:
    """The archive has everything up to number `upto`, and safely. A number below an earlier one changes nothing."""
    found = _locked(tx)
    if not found.registered:
        raise InvalidArchive("nothing can be acknowledged", "no archive is registered", "register it first")
    _expect(known_archivist(tx), archivist)
    what = f"closed requests up to {upto} can't be acknowledged"
    if upto > found.last:
        raise InvalidArchive(what, f"the last is {found.last}", "look for another store")
    if upto > found.archived_upto:
        if uuid is not None and (row := tx.fetch(_ID_OF, upto)) and row[0][0] != uuid:
            raise InvalidArchive(what, "another request has that number here", "look for another store")
        tx.fetch(_NOTE, 1, upto)
    return archive(tx)


def _locked(tx: Writing) -> ArchiveState:
    """What is known of the archive, which nobody else changes until the transaction ends."""
    tx.fetch("SELECT 1 FROM meta FOR UPDATE")
    return archive(tx)


def _expect(known: Archivist | None, who: Archivist | None) -> None:
    """Raise InvalidArchive unless the archive is this archivist's, or has no owner."""
    if known is not None and (who is None or who.id != known.id):
        fact = f"{known.name} (id {known.id.hex()})"
        raise InvalidArchive(
            "another archive is registered", fact, "go on with that one, or end it first: titanic-data unregister"
        )
