"""Reads of a remote store for the dispatcher: the reader's thread waits for the network, the loop goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from titanic.errors import StoreError, StoreFailed
from titanic.store import ReadTransaction, Store

log = logging.getLogger(__name__)

Found = TypeVar("Found")


class BackgroundReader:
    """Methods without an underscore are called in the loop's thread, the others in the reader's."""

    def __init__(
        self, store: Store, read_soon: Callable[[Callable[[], None]], None], call: Callable[..., None]
    ) -> None:
        """`read_soon`: has a function called in the reader's thread. `call`: has one called in the loop's."""
        self._store = store
        self._read_soon = read_soon
        self._call = call

    def read(
        self,
        look: Callable[[ReadTransaction], Found],
        found: Callable[[Found], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        """Have `look` called in the reader's thread, and then, in the loop's, `found` with what it returned or `failed`
        with what it raised."""
        self._read_soon(partial(self._read, look, found, failed))

    def _read(
        self,
        look: Callable[[ReadTransaction], Found],
        found: Callable[[Found], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        try:
            with self._store.read() as transaction:
                result = look(transaction)
        except StoreError as error:
            self._call(failed, error)
        except Exception as error:  # the thread must live on, and whoever asked is to hear of it
            log.exception("a fault of this program: could not read the store")
            self._call(failed, StoreFailed("the read failed", f"{type(error).__name__}: {error}", "report this"))
        else:
            self._call(found, result)
