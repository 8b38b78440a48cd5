"""The agreement with the archive that reads the closed requests: none is dropped before the archive has it.

All engines follow these rules; each stores the agreement in its own way.
"""

from __future__ import annotations

from typing import NamedTuple

from titanic.errors import InvalidArchive
from titanic.store.records import Archivist


class Agreement(NamedTuple):
    """Whether an archive is registered, up to which number it has the closed requests, and its owner."""

    registered: bool = False
    upto: int = 0
    archivist: Archivist | None = None

    def awaits(self, number: int) -> bool:
        """Whether a closed request has to stay until the archive has it."""
        return self.registered and number > self.upto

    def with_archive(self, archivist: Archivist | None, first: int) -> Agreement:
        """The agreement once this archive is registered, when `first` is the first closed request that can be read.
        Raises InvalidArchive when another one is registered."""
        registered, upto, known = self
        if registered:
            self.expect(archivist)
        if archivist is not None and archivist != known:
            if known is None or known.id != archivist.id:
                registered, upto = False, first - 1  # this archive need not have what another one has
            known = archivist
        return Agreement(True, upto if registered else max(upto, first - 1), known)

    def acknowledged(
        self, upto: int, archivist: Archivist | None, last: int, uuids: tuple[bytes | None, bytes | None]
    ) -> Agreement:
        """The agreement when the archive has everything up to a number. `last` is the last number given out, `uuids`
        the request that has the number in the archive and the one that has it here, None: unknown. Raises
        InvalidArchive."""
        if not self.registered:
            raise InvalidArchive("nothing can be acknowledged", "no archive is registered", "register it first")
        self.expect(archivist)
        what = f"closed requests up to {upto} can't be acknowledged"
        if upto > last:
            raise InvalidArchive(what, f"the last is {last}", "name another store")
        if upto > self.upto and None not in uuids and uuids[0] != uuids[1]:
            raise InvalidArchive(what, "another request has that number here", "name another store")
        return self._replace(upto=max(upto, self.upto))

    def expect(self, archivist: Archivist | None) -> None:
        """Raise InvalidArchive unless the archive is this archivist's, or has no owner."""
        known = self.archivist
        if known is not None and (archivist is None or archivist.id != known.id):
            fact = f"{known.name} (id {known.id.hex()})"
            raise InvalidArchive(
                "another archive is registered", fact, "continue that one, or run titanic-data unregister first"
            )
