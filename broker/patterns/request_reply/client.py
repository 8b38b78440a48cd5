"""Clients of request and reply: `LazyPirate` for one thread, and what clients have that threads share.

A Lazy Pirate (Guide, chapter 4) waits a while, then asks again on a new connection, then gives up. Its server is any
REP socket, or `broker.patterns.Server`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path

from broker.client import Body, Conversation, reply_body
from broker.config import DEFAULT_ENDPOINT, ClientConfig
from broker.core.client import ClientSession, EventKind, ReplyEvent
from broker.core.mdp import Frames
from broker.errors import UsageError
from broker.io.channels import AnyCore, CoreRunner
from broker.io.curve import Key, credentials
from broker.patterns.request_reply.core import PLAIN

NewRequest = Callable[[float], int]
"""Makes a request, at a time, and returns its ticket."""


class LazyPirate(Conversation):
    """One request at a time, to servers that speak plain request and reply. Not thread-safe: use one per thread.

        with LazyPirate("tcp://127.0.0.1:5555") as client:
            frames = client.call(b"hello")

    Of several endpoints each try goes to the next one, beginning with the one that answered last.
    `timeout` is what a try may take, in seconds; `retries` how often it is tried again.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        timeout: float | None = 2.5,
        retries: int = 3,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """`key`, `server_key`: as of `broker.Client`."""
        session = ClientSession(ClientConfig(timeout, retries), dialect=PLAIN)
        super().__init__(endpoint, session, credentials(key, server_key))

    def call(self, *body: Body, timeout: float | None = None, retries: int | None = None) -> Frames:
        """The reply. Raises TimedOut after the last try, RemoteError for an error reply."""
        ticket = self._ask(b"", body, timeout, retries)
        done = False
        try:
            while True:
                self._pump(None)
                for event in self._session.take_events():
                    done = True
                    tries = 1 + (self.config.retries if retries is None else retries)
                    return reply_body(event, f"no answer from {self.endpoint} in {tries} tries; is a server there?")
        finally:
            if not done:
                self._session.cancel(ticket)
            self._dealer.send(self._session.take_output())


class SharedClient(CoreRunner[AnyCore]):
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

    def _submit(self, request: NewRequest) -> Future[ReplyEvent]:
        """Have a request made in the loop's thread: the function gets the time and gives the ticket."""
        future: Future[ReplyEvent] = Future()
        with self._guard:
            if self._thread is None or self._stopping:
                raise UsageError("the client is not running; use it in a with block, or call start")
            self.loop.call(self._request, future, request)
        return future

    def _request(self, future: Future[ReplyEvent], request: NewRequest) -> None:
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
