"""The threads in which a worker's handlers run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Call = tuple[Callable[..., None], tuple[Any, ...]]


class Handlers:
    """Up to `most` threads, started when they are needed. What they call must not raise.

    `concurrent.futures` does the same, but makes a future with its locks for each call: a worker that was kept busy did
    11,000 to 17,000 requests a second with it, and 18,000 to 26,000 with this. It also waits for its threads when the
    program ends, where some may work for ever.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._threads: set[int] = set()
        self._started = 0
        self._busy = 0
        self._calls: SimpleQueue[Call | None] = SimpleQueue()

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Have a function called in one of the threads. One thread may ask; it is to say so when it is `done`."""
        self._calls.put((function, args))
        self._busy += 1
        if self._busy > self._started < self._most:
            self._started += 1
            threading.Thread(target=self._run, name=f"handler {self._started}", daemon=True).start()

    def done(self) -> None:
        """One of the calls is done: its thread is free, or will be at once."""
        self._busy -= 1

    def end(self) -> None:
        """End the threads once they have nothing more to do; doesn't wait for that."""
        for _ in range(self._started):
            self._calls.put(None)

    def __contains__(self, thread: int) -> bool:
        """Whether it is one of these, by its `threading.get_ident()`."""
        return thread in self._threads

    def _run(self) -> None:
        self._threads.add(threading.get_ident())
        while (call := self._calls.get()) is not None:
            function, args = call
            function(*args)
            del call, function, args  # a body is not to be kept until the next one comes
        self._threads.discard(threading.get_ident())
