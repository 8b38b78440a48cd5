"""The queue whose ring is archived, and how it is told what is safe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker import DEFAULT_ENDPOINT
from titanic import Client, InvalidRequest
from titanic.errors import StoreLocked
from titanic.store import ArchiveState, Archivist, WriteTransaction, open_store
from titanic_data.errors import ArchiveError
from titanic_data.reading import forget, identity, store_at


class Queue:
    """A store, and the server that has it open, if there is one."""

    def __init__(self, store: Path, endpoint: str = DEFAULT_ENDPOINT) -> None:
        self.store = store
        self.endpoint = endpoint
        self.uncertain = False
        """Whether a server was told something and has not answered: it may have done it."""

    def progress(self) -> ArchiveState:
        """Whether an archive is registered, what it has, and what there is."""
        with store_at(self.store).read() as transaction:
            return transaction.archive()

    def cut(self, first: int, last: int, max_bytes: int) -> int:
        """Up to what number, from `first` to `last`, the frames come to `max_bytes`."""
        with store_at(self.store).read() as transaction:
            return transaction.cut_closed(first, last, max_bytes)

    def id_of(self, number: int) -> str | None:
        """The UUID of the request with this number; None when the ring does not have it."""
        with store_at(self.store).read() as transaction:
            found = transaction.closed(number - 1, 1, 1)
        return found[0].uuid.hex() if found and found[0].sequence == number else None

    def identity(self) -> str:
        """Which store it is, 32 hexadecimal digits; nothing before a server of this version has opened it."""
        return identity(self.store)

    def archivist(self) -> Archivist | None:
        """Whose archive is registered, or was last."""
        with store_at(self.store).read() as transaction:
            return transaction.archivist()

    def register(self, archivist: Archivist) -> None:
        """From now on the ring lets go of nothing before it is acknowledged by this archive.

        Raises ArchiveError while another one is registered.
        """
        known, registered = self.archivist(), self.progress().registered
        if registered and known == archivist:
            return
        if registered and known is not None and known.id != archivist.id:
            what = f"another archive is registered with the store {self.store}"
            advice = "go on with that one; or, to have this one instead, run titanic-data unregister first"
            raise ArchiveError(what, f"it is {known.name} (id {known.id.hex()})", advice)
        said = {"archive": archivist.id.hex(), "name": archivist.name}
        self._tell(lambda transaction: transaction.register_archive(archivist), register=True, **said)

    def unregister(self) -> None:
        """The ring need not wait for the archive any more."""
        if self.progress().registered:
            self._tell(lambda transaction: transaction.unregister_archive(), register=False)

    def acknowledge(self, upto: int, uuid: str, archivist: Archivist) -> None:
        """Everything up to a number is in the archive; it is the request `uuid`."""
        if self.progress().archived_upto < upto:
            key = bytes.fromhex(uuid)
            self._tell(
                lambda transaction: transaction.acknowledge_archive(upto, key, archivist),
                upto=upto,
                uuid=uuid,
                archive=archivist.id.hex(),
                name=archivist.name,
            )

    def _tell(self, change: Callable[[WriteTransaction], Any], **said: Any) -> None:
        """Do it in the store itself if nobody has it open, otherwise ask who has."""
        identity = self.identity()
        forget(self.store)  # a process may have a store open only once
        try:
            with open_store(self.store) as store, store.write() as transaction:
                change(transaction)
        except StoreLocked:
            with Client(self.endpoint) as client:
                self._expect(client.archive(), identity)
                self.uncertain = True
                try:
                    client.archive(store=identity, **said)
                except InvalidRequest as error:
                    self.uncertain = False
                    what = f"the server at {self.endpoint} has refused what the archive said"
                    raise ArchiveError(what, str(error), "nothing was changed there") from error
                self.uncertain = False

    def _expect(self, told: dict[str, Any], identity: str) -> None:
        """Raise ArchiveError unless a server that has said this has our store: nothing may be changed in another."""
        if "store" not in told or not identity:
            what = f"the store {self.store} cannot be archived while its server runs"
            raise ArchiveError(what, "the server is of an earlier version", "upgrade it, and start it again")
        if told["store"] != identity:
            what = f"the server at {self.endpoint} has another store than {self.store}"
            fact = f"that one's id is {told['store']}, this one's {identity}; nothing was changed"
            raise ArchiveError(what, fact, "name the right --endpoint")
