"""What a program may lack for a while: threads, draft sockets, a disk that works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from titanic.errors import StoreFailed
from titanic.store import WriteTransaction
from titanic.store.lmdb.store import LmdbWriteTransaction
from titanic.store.memory import MemoryWriteTransaction
from titanic.store.postgres.store import PostgresWriteTransaction


@contextmanager
def no_more_threads() -> Iterator[None]:
    """None can be started: no address space has room for such a stack."""
    before = threading.stack_size(1 << 50)
    try:
        yield
    finally:
        threading.stack_size(before)


@contextmanager
def no_draft_sockets() -> Iterator[None]:
    """Nothing is installed that has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broker.io.draft_sockets.find_spec", lambda name: None)
        patch.setattr("zmq.DRAFT_API", False)
        yield


@contextmanager
def broken_disk() -> Iterator[list[WriteTransaction]]:
    """No transaction is committed; those that were tried."""
    tried: list[WriteTransaction] = []

    def failing(leave: Callable[..., None]) -> Callable[..., None]:
        def fail(self: WriteTransaction, *_: Any) -> None:
            failure = StoreFailed("the disk failed")
            leave(self, StoreFailed, failure, None)
            tried.append(self)
            raise failure

        return fail

    with pytest.MonkeyPatch.context() as patch:
        for engine in (LmdbWriteTransaction, PostgresWriteTransaction, MemoryWriteTransaction):
            patch.setattr(engine, "__exit__", failing(engine.__exit__))
        yield tried
