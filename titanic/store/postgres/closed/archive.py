"""The agreement with the archive that reads the closed requests: none is dropped before the archive has it.

It stands in `meta`, whose row is locked last of all. So it is read without a lock, and changed with the other changes
of the transaction if nobody else has changed it since.
"""

from __future__ import annotations

from titanic.errors import InvalidArchive
from titanic.store.postgres.tables import Agreement
from titanic.store.postgres.writing import Writing
from titanic.store.records import ArchiveState, Archivist

_MOST_NAME = 255
"""Letters of an archivist's name that are kept."""

_KNOWN = """
SELECT registered, archived_upto, archivist_id, archivist_name, closed_first, closed_last, lost FROM meta"""
_ID_OF = "SELECT uuid FROM closed WHERE seq = %s AND seq >= (SELECT closed_first FROM meta)"


def current_archive(tx: Writing) -> ArchiveState:
    """Whether an archive is registered, what it has, and what there is, with the changes of this transaction."""
    return _known(tx)[0]


def current_archivist(tx: Writing) -> Archivist | None:
    """The owner of the archive that is registered, or was last; None when it is unknown."""
    return _known(tx)[1].archivist


def register_archive(tx: Writing, archivist: Archivist | None = None) -> ArchiveState:
    """From now on keep all closed requests until they are acknowledged. Registering again changes nothing."""
    found, agreed = _known(tx)
    registered, upto, known = agreed
    if registered:
        _expect(known, archivist)
    if archivist is not None and archivist != known:
        if known is None or known.id != archivist.id:
            upto, registered = found.first - 1, False  # this archive need not have what another one has
        name = archivist.name.replace("\0", "").encode(errors="replace").decode(errors="replace")[:_MOST_NAME]
        known = Archivist(archivist.id, name)
    if not registered:
        upto = max(upto, found.first - 1)
    return _agree(tx, found, agreed, Agreement(True, upto, known))


def unregister_archive(tx: Writing) -> ArchiveState:
    """End the registration of any archive: closed requests are no longer kept for it."""
    found, agreed = _known(tx)
    return _agree(tx, found, agreed, agreed._replace(registered=False))


def acknowledge_archive(
    tx: Writing, upto: int, uuid: bytes | None = None, archivist: Archivist | None = None
) -> ArchiveState:
    """The archive has everything up to number `upto`, and safely. A number below an earlier one changes nothing."""
    found, agreed = _known(tx)
    if not found.registered:
        raise InvalidArchive("nothing can be acknowledged", "no archive is registered", "register it first")
    _expect(agreed.archivist, archivist)
    what = f"closed requests up to {upto} can't be acknowledged"
    if upto > found.last:
        raise InvalidArchive(what, f"the last is {found.last}", "look for another store")
    if upto <= found.archived_upto:
        return found
    if uuid is not None and (row := tx.fetch_apart(_ID_OF, upto)) and row[0][0] != uuid:
        raise InvalidArchive(what, "another request has that number here", "look for another store")
    return _agree(tx, found, agreed, agreed._replace(upto=upto))


def _known(tx: Writing) -> tuple[ArchiveState, Agreement]:
    """What there is, with the changes that are not in the database yet."""
    if tx.changes.drop_before:
        tx.flush()
    ((registered, upto, id_, name, first, last, lost),) = tx.fetch_apart(_KNOWN)
    agreed = Agreement(registered, upto, None if id_ is None else Archivist(id_, name))
    if tx.changes.agreement is not None:
        agreed = tx.changes.agreement[1]
    state = ArchiveState(agreed.registered, agreed.upto, first, last + len(tx.changes.closed), lost)
    return state, agreed


def _agree(tx: Writing, found: ArchiveState, before: Agreement, now: Agreement) -> ArchiveState:
    if now != before:
        first = tx.changes.agreement
        tx.changes.agreement = (before if first is None else first[0], now)
    return found._replace(registered=now.registered, archived_upto=now.upto)


def _expect(known: Archivist | None, who: Archivist | None) -> None:
    """Raise InvalidArchive unless the archive is this archivist's, or has no owner."""
    if known is not None and (who is None or who.id != known.id):
        fact = f"{known.name} (id {known.id.hex()})"
        raise InvalidArchive(
            "another archive is registered", fact, "go on with that one, or end it first: titanic-data unregister"
        )
