"""Clients that any number of threads may share: one thread of the client's own does all the talking."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Self

from broker.core.client import Event, EventKind
from broker.errors import UsageError
from broker.io.loop import Channel, Loop


class SharedClient(Channel):
    """Threads ask, a loop answers: the client is a channel of it. Subclasses have the session and the sockets."""

    def __init__(self, name: str) -> None:
        """`name`: of the thread."""
        self._name = name
        self._loop = Loop()
        self._loop.add(self)
        self._futures: dict[int, Future[Event]] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._guard = threading.Lock()  # nothing may be asked behind the loop's back, when it is ending

    def start(self) -> Self:
        """Start the thread."""
        self._thread = threading.Thread(target=self._loop.run, name=self._name, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop it; requests without an answer end with TimedOut. Any thread may ask."""
        with self._guard:
            self._stopping = True
            self._loop.stop()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _submit(self, request: Callable[[float], int]) -> Future[Event]:
        """Have a request made in the loop's thread: the function gets the time and gives the ticket."""
        future: Future[Event] = Future()
        with self._guard:
            if self._thread is None or self._stopping:
                raise UsageError("the client is not running; use it in a with block, or call start")
            self._loop.call(self._request, future, request)
        return future

    def _request(self, future: Future[Event], request: Callable[[float], int]) -> None:
        self._futures[request(time.monotonic())] = future

    def _tell(self, events: Iterable[Event]) -> None:
        """Hand on what became of requests."""
        for event in events:
            self._futures.pop(event.ticket).set_result(event)

    def _give_up(self) -> None:
        """Nobody is to wait for ever."""
        while self._futures:
            ticket, future = self._futures.popitem()
            future.set_result(Event(ticket, EventKind.GAVE_UP, []))
