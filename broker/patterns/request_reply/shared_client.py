"""Clients that any number of threads may share: a thread of the client's own sends and receives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from broker.core.client import EventKind, ReplyEvent
from broker.errors import UsageError
from broker.io.shell import AnyCore, Shell


class SharedClient(Shell[AnyCore]):
    """Threads ask, a loop answers: the client is a channel of it. Subclasses have the session and the sockets."""

    def __init__(self, core: AnyCore) -> None:
        super().__init__(core)
        self._futures: dict[int, Future[ReplyEvent]] = {}
        self._stopping = False
        self._guard = threading.Lock()  # nothing may be asked behind the loop's back, when it is ending

    def _end(self) -> None:
        """Have the loop end; requests without an answer end with TimedOut."""
        with self._guard:
            self._stopping = True
            super()._end()

    def _submit(self, request: Callable[[float], int]) -> Future[ReplyEvent]:
        """Have a request made in the loop's thread: the function gets the time and gives the ticket."""
        future: Future[ReplyEvent] = Future()
        with self._guard:
            if self._thread is None or self._stopping:
                raise UsageError("the client is not running; use it in a with block, or call start")
            self.loop.call(self._request, future, request)
        return future

    def _request(self, future: Future[ReplyEvent], request: Callable[[float], int]) -> None:
        self._futures[request(time.monotonic())] = future

    def _tell(self, events: Iterable[ReplyEvent]) -> None:
        """Hand on what became of requests."""
        for event in events:
            self._futures.pop(event.ticket).set_result(event)

    def _give_up(self) -> None:
        """End all requests without an answer."""
        while self._futures:
            ticket, future = self._futures.popitem()
            future.set_result(ReplyEvent(ticket, EventKind.GAVE_UP, []))
