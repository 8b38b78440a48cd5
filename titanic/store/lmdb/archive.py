"""The agreement with an archive: nothing is dropped from the ring before the archive has it."""

from __future__ import annotations

from titanic.errors import InvalidArchive
from titanic.store.lmdb import closed_record
from titanic.store.lmdb.schema import ARCHIVE, ARCHIVE_KEY, ARCHIVIST_KEY, closed_key
from titanic.store.lmdb.transaction import Change
from titanic.store.records import Archive, Archivist

_MOST_NAME = 255
"""Bytes of an archivist's name that are kept."""


class Archiving(Change):
    """The part of a write transaction that an archive talks to."""

    def register_archive(self, archivist: Archivist | None = None) -> Archive:
        """From now on keep all closed requests until they are acknowledged. Registering again changes nothing.

        Only one archive can be registered: another `archivist` raises InvalidArchive until it is unregistered. What was
        registered without one becomes that of the first who comes.

        An archive that comes back after it was unregistered finds `archived_upto` as it left it, unless entries
        behind it have gone meanwhile: then it begins with the first that is there. So does another archive.
        """
        registered, upto = self._archived()
        if registered:
            self._expect_archivist(archivist)
        first = self.closed_range()[0]
        if archivist is not None and archivist != (known := self.archivist()):
            if known is None or known.id != archivist.id:
                upto, registered = first - 1, False  # what somebody else has need not be in this one
            row = archivist.id + archivist.name.encode(errors="replace")[:_MOST_NAME]
            self._txn.put(ARCHIVIST_KEY, row, db=self._db.meta)
        if not registered:
            self._note_archive(True, max(upto, first - 1))
        return self.archive()

    def unregister_archive(self) -> Archive:
        """Closed requests need not be kept for the archive any more, whose ever it is."""
        registered, upto = self._archived()
        if registered:
            self._note_archive(False, upto)
        return self.archive()

    def acknowledge_archive(self, upto: int, uuid: bytes | None = None, archivist: Archivist | None = None) -> Archive:
        """The archive has everything up to number `upto`, and safely. A number below an earlier one changes nothing.

        `uuid` is the id of the request that has this number in the archive: a store where another one has it isn't the
        one that was archived. Raises InvalidArchive then, when no archive or another one is registered, or the number
        was never given out.
        """
        registered, before = self._archived()
        last = self._last_sequence()
        if not registered:
            raise InvalidArchive("nothing can be acknowledged", "no archive is registered", "register it first")
        self._expect_archivist(archivist)
        if upto > last:
            raise InvalidArchive(
                f"closed requests up to {upto} can't be acknowledged", f"the last is {last}", "look for another store"
            )
        if upto > before and uuid is not None:
            record = self._txn.get(closed_key(upto), db=self._db.closed)
            if record is not None and closed_record.decode_header(upto, record).uuid != uuid:
                raise InvalidArchive(
                    f"closed requests up to {upto} can't be acknowledged",
                    "another request has that number here",
                    "look for another store",
                )
        if upto > before:
            self._note_archive(True, upto)
        return self.archive()

    def _expect_archivist(self, archivist: Archivist | None) -> None:
        """Nobody but whose archive it is may speak for it."""
        known = self.archivist()
        if known is not None and (archivist is None or archivist.id != known.id):
            raise InvalidArchive(
                "another archive is registered",
                f"{known.name} (id {known.id.hex()})",
                "go on with that one, or end it first: titanic-data unregister",
            )

    def _note_archive(self, registered: bool, upto: int) -> None:
        self._txn.put(ARCHIVE_KEY, ARCHIVE.pack(registered, upto), db=self._db.meta)
