"""A persistent queue in one LMDB environment.

The state of a request is *where it is*. Its body is written once, when it is accepted, into `requests`, and its
reply once, when it ends, into `replies`; neither is ever written again. What changes are small rows beside them: a
row in `ready` while it can be dispatched, in `later` while it is delayed, in `retries` when it has failed. With the
state and the attempts in the header of the request, every dispatch, failure and end would copy the body to another
page of the tree, a megabyte to change a byte, and the file would need room for both. That a request *runs* isn't
stored at all: it is in `ready` until it ends. Dispatching costs no write, and after a crash all that ran is found
waiting again with no log to replay.

    accept_many      requests, ready                                    (or later and retries, when delayed)
    postpone         ready ► later and retries
    promote          later ► ready
    finish           ready or later ► replies
    close            all of it goes

The ids sort by time (ids.py), so requests are appended at the end of their tree and closed, mostly, at its
beginning. LMDB uses freed pages again: the file stays at its size, like a ring, except that one old request pins
only its own pages and not all that came after.

LMDB writes to free pages only and switches to them when they are synced, by writing the one page that says where the
trees begin. So a transaction is there as a whole or not at all, and it is there for good when `write` is left. The
cost of a transaction is the sync: put as much into one as is waiting, and no more.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from titanic.errors import NotAStore
from titanic.store import lock, opening
from titanic.store.environment import Environment
from titanic.store.read import ReadTransaction
from titanic.store.write import WriteTransaction

DEFAULT_CAPACITY = 1 << 30


class Store:
    """An open store. Threads may share it; a transaction belongs to the thread that began it.

    `path` is its directory, `capacity` is in bytes.
    """

    def __init__(self, path: Path, environment: Environment, lock_descriptor: int) -> None:
        self.path = path
        self.capacity = environment.capacity
        self._environment = environment
        self._lock: int | None = lock_descriptor

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, capacity: int = DEFAULT_CAPACITY) -> Store:
        """Open the store in the directory `path`, and create both if they aren't there.

        `capacity` is in bytes and can be another one each time. Raises StoreUnwritable, NotAStore, StoreLocked,
        StoreTooNew or StoreCorrupt.
        """
        directory = Path(path)
        opening.prepare(directory)
        descriptor = opening.take_lock(directory)
        try:
            return cls(directory, opening.open_environment(directory, capacity), descriptor)
        except BaseException as error:
            lock.release(descriptor)
            if isinstance(error, NotAStore):
                lock.remove(directory)  # what isn't ours stays as it was
            raise

    def close(self) -> None:
        """Close the store; its transactions must have ended. Closing again does nothing."""
        if self._lock is not None:
            self._environment.env.close()
            lock.release(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self) -> WriteTransaction:
        """`with store.write() as txn:` waits for the writer before it, then commits and syncs on leaving.

        An exception drops all of its changes. Leaving raises StoreFailed, StoreFull or StoreCorrupt when LMDB can't
        go on; nothing was changed then.
        """
        return WriteTransaction(self._environment)

    def read(self) -> ReadTransaction:
        """`with store.read() as txn:` sees the store as it is now, and doesn't wait for writers. Keep it short."""
        return ReadTransaction(self._environment)

    def reader_check(self) -> int:
        """Free the places of readers that were killed, and return how many. There are 126 places in all."""
        return self._environment.env.reader_check()
