"""Threads that work in batches: whatever has gathered during one batch is the next one.

This is all there is to group commit. Under load the batches grow by themselves, and a single message waits for nobody.
There is no timer and no size to tune.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeVar

log = logging.getLogger(__name__)

Item = TypeVar("Item")


AGAIN = 0.01
"""Seconds until `work` is called again that has put something off, when no item comes."""


class _Call(NamedTuple):
    """A function that the thread is to call, instead of an item."""

    function: Callable[[], None]


class BatchThread(Generic[Item]):
    """Calls `work` in a thread of its own with all items that wait, at least one.

    When `work` has put something off, it returns True: then it is called soon, perhaps without an item. What is put off
    when the thread ends stays undone.
    """

    def __init__(self, name: str, work: Callable[[list[Item]], bool | None]) -> None:
        self._work = work
        self._queue: SimpleQueue[Item | _Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def put(self, item: Item) -> None:
        """Add an item. Any thread may."""
        self._queue.put(item)

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called in the thread after what was put before. Any thread may."""
        self._queue.put(_Call(function))

    def stop(self) -> None:
        """Do what was put so far, then end."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        get, get_nowait = self._queue.get, self._queue.get_nowait
        again: bool | None = False
        while True:
            batch: list[Item] = []
            calls: list[_Call] = []
            stopping = False
            try:
                item = get(timeout=AGAIN if again else None)
                while item is not None:
                    if isinstance(item, _Call):
                        calls.append(item)
                    else:
                        batch.append(item)
                    item = get_nowait()
                stopping = True
            except Empty:
                pass
            if batch or again:
                again = False
                try:
                    again = self._work(batch)
                except Exception:
                    # Items handle their own errors, so this is an error of this program. The thread must live on: all
                    # others depend on it.
                    log.exception("the %s thread met an unexpected error", self._thread.name)
            for call in calls:
                call.function()
            if stopping:
                return
