"""The queue whose ring is archived, and how it is told what is safe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker import DEFAULT_ENDPOINT
from titanic import Client
from titanic.errors import StoreLocked
from titanic.store import Archive as Progress
from titanic.store import Store, WriteTransaction
from titanic_data.errors import ArchiveError
from titanic_data.reading import forget, store_at


class Queue:
    """A store, and the server that has it open, if there is one."""

    def __init__(self, store: Path, endpoint: str = DEFAULT_ENDPOINT) -> None:
        self.store = store
        self.endpoint = endpoint

    def progress(self) -> Progress:
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

    def register(self) -> None:
        """From now on the ring lets go of nothing before it is acknowledged."""
        if not self.progress().registered:
            self._tell(lambda transaction: transaction.register_archive(), register=True)

    def unregister(self) -> None:
        """The ring need not wait for the archive any more."""
        if self.progress().registered:
            self._tell(lambda transaction: transaction.unregister_archive(), register=False)

    def acknowledge(self, upto: int, uuid: str) -> None:
        """Everything up to a number is in the archive; it is the request `uuid`."""
        if self.progress().archived_upto < upto:
            key = bytes.fromhex(uuid)
            self._tell(lambda transaction: transaction.acknowledge_archive(upto, key), upto=upto, uuid=uuid)
        if self.progress().archived_upto < upto:
            what = f"the server at {self.endpoint} has another store than {self.store}"
            raise ArchiveError(what, f"what is archived up to {upto} was not noted there", "name the right --endpoint")

    def _tell(self, change: Callable[[WriteTransaction], Any], **said: Any) -> None:
        """Do it in the store itself if nobody has it open, otherwise ask who has."""
        forget(self.store)  # a process may have a store open only once
        try:
            with Store.open(self.store) as store, store.write() as transaction:
                change(transaction)
        except StoreLocked:
            with Client(self.endpoint) as client:
                client.archive(**said)
