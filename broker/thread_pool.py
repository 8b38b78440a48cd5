"""The threads in which a worker's handlers run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

log = logging.getLogger(__name__)

Call = tuple[Callable[..., None], tuple[Any, ...]]


class HandlerThreads:
    """Up to `most` threads, started when they are needed.

    `concurrent.futures` does the same, but makes a future with its locks for each call: a worker that was kept busy did
    11,000 to 17,000 requests a second with it, and 18,000 to 26,000 with this. It also waits for its threads when the
    program ends, where some may work for ever.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._threads: set[int] = set()
        self.started = 0
        """Threads that there are."""
        self._busy = 0
        self._short = False
        self._calls: SimpleQueue[Call | None] = SimpleQueue()

    def call(self, function: Callable[..., None], *args: Any) -> bool:
        """Have a function called in one of the threads. One thread may ask; it is to say so when it is `done`.

        False when there is no thread and none can be started: then it is not called. If there is one, it waits for it.
        """
        if self._busy >= self.started < self._most:
            self._start()
        if not self.started:
            return False
        self._calls.put((function, args))
        self._busy += 1
        return True

    def done(self) -> None:
        """One of the calls is done: its thread is free, or will be at once."""
        self._busy -= 1

    def end(self) -> None:
        """End the threads once they have nothing more to do; doesn't wait for that."""
        for _ in range(self.started):
            self._calls.put(None)

    def __contains__(self, thread: int) -> bool:
        """Whether it is one of these, by its `threading.get_ident()`."""
        return thread in self._threads

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name=f"handler {self.started + 1}", daemon=True).start()
        except (RuntimeError, MemoryError) as error:  # the system has no more; the next call tries again
            if not self._short:
                log.warning("cannot start thread %d for a handler: %s", self.started + 1, error)
            self._short = True
        else:
            self.started += 1
            self._short = False

    def _run(self) -> None:
        self._threads.add(threading.get_ident())
        while (call := self._calls.get()) is not None:
            function, args = call
            try:
                function(*args)
            except BaseException:  # a thread that ended would never be replaced
                with suppress(BaseException):
                    log.exception("a fault of this program, in the thread of a handler")
            del call, function, args  # a body is not to be kept until the next one comes
        self._threads.discard(threading.get_ident())
