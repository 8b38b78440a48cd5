"""Request and reply without a broker: `LazyPirate` for one thread, what clients have that threads share, and `Server`.

A Lazy Pirate (Guide, chapter 4) waits a while, then asks again on a new connection, then gives up. Its server is any
REP socket, or a `Server`: connections and a handler. That is also the other end of Binary Star's client and of all
three Freelance models; only the envelope differs (`broker.patterns.request_reply.core` has the table).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from broker.client import Body, Conversation, reply_body
from broker.config import DEFAULT_ENDPOINT, ClientConfig
from broker.core.client import ClientSession, EventKind, ReplyEvent
from broker.core.mdp import Frames, error_body, joined
from broker.core.timers import earliest
from broker.errors import RemoteError, UsageError
from broker.handlers import Handler, HandlerThreads, error_frames, execute, failure
from broker.io.channels import AnyCore, CoreRunner
from broker.io.connections import PeerGone
from broker.io.curve import Key, credentials
from broker.io.loop import Loop
from broker.io.server_keys import ServerKey, server_keys
from broker.patterns.idempotent.core import Superseded
from broker.patterns.request_reply.core import PLAIN, Admit, ClientRequest, Replier

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
        future.set_running_or_notify_cancel()  # who waits no longer cannot cancel it: the loop sets its result
        with self._guard:
            if self._thread is None or self._stopping or self.loop.ended:
                raise UsageError("the client is not running; use it in a with block, or call start")
            self.loop.call(self._request, future, request)
        return future

    def _request(self, future: Future[ReplyEvent], request: NewRequest) -> None:
        self._futures[request(time.monotonic())] = future

    def _report(self, events: Iterable[ReplyEvent]) -> None:
        """Hand on what became of requests."""
        for event in events:
            self._futures.pop(event.ticket).set_result(event)

    def _give_up(self) -> None:
        """End all requests without an answer."""
        while self._futures:
            ticket, future = self._futures.popitem()
            future.set_result(ReplyEvent(ticket, EventKind.GAVE_UP, []))


log = logging.getLogger(__name__)

MOST_IN_HAND = 1000
"""Requests without an answer from which no more are read; the rest waits in the system, then at the clients."""


class Server(CoreRunner[Replier]):
    """Answers each request with what `handler` returns: bytes, text, or frames. Handlers run beside the socket.
    What a handler yields goes into its one reply, in front.

        server = Server(lambda frames: frames)
        server.bind("tcp://127.0.0.1:5555")
        server.run()

    An exception becomes an error reply (see `broker.core.mdp`), which this project's clients raise as RemoteError.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        way: str = "plain",
        jobs: int = 1,
        identity: str | None = None,
        admit: Admit | None = None,
        loop: Loop | None = None,
        key: ServerKey = None,
        allow: Iterable[str | Path] = (),
        open: bool = False,
    ) -> None:
        """`way`: plain, numbered or flp; `jobs`: requests handled at a time; `identity`: of the socket (RFC 10).

        `admit` may refuse requests, see `Replier`. With a `loop` the server is a channel of that one, and the
        owner of the loop stops it.

        `key`: the server's secret key file; `allow`: the public keys of those who may connect then, in files or in Z85.
        Without, it listens where other machines can connect only if it is `open`.
        """
        keys = self._keys = server_keys(key, allow, open=open)
        if jobs < 1:
            raise UsageError(f"jobs is {jobs}; it must be 1 or more")
        super().__init__(Replier(way, *([admit] if admit else [])), loop)
        self._handler = handler
        self._handlers = HandlerThreads(jobs)
        self._connections = keys.connections(self.loop, self, identity=(identity or "").encode())
        self.endpoints: tuple[str, ...] = ()
        """Where it listens."""
        self.in_hand = 0
        """Requests that were read and have no reply yet."""
        self._leaving = False

    def bind(self, endpoint: str) -> str:
        """Listen on one more endpoint, before the server runs; the endpoint with its real port comes back. Raises
        Unprotected for one that other machines can reach, without keys."""
        self._keys.protect(endpoint)
        bound = self._connections.bind(endpoint)
        self.endpoints = (*self.endpoints, bound)
        return bound

    def _end(self) -> None:
        """Take no more requests, finish those in hand, and have the loop end."""
        self.loop.call(self._leave)
        self.loop.close_unless_running()

    def drain(self, now: float) -> bool:
        for connection, frames in self._connections.take(now):
            if isinstance(frames, list):
                self.core.receive(connection.peer, frames, now)
                self._hand_over(now)
        return bool(self._connections.ready)

    def flush(self, now: float) -> None:
        for peer, frames in self.core.take_output():
            assert frames is not None
            with suppress(PeerGone):  # or the client does not read
                self._connections.send(peer, frames)
        self._connections.flush()
        self._connections.pause(self._leaving or self.in_hand >= MOST_IN_HAND)
        if self._leaving and not self.in_hand:
            self.loop.stop()

    def tick(self, now: float) -> None:
        super().tick(now)
        self._connections.tick(now)

    def next_deadline(self) -> float | None:
        return earliest(self.core.next_deadline(), self._connections.next_deadline())

    def close(self) -> None:
        self._connections.close()
        self._handlers.end()

    def _leave(self) -> None:
        self._leaving = True

    def _hand_over(self, now: float) -> None:
        for request in self.core.take_requests():
            if self._handlers.call(self._handle, request):
                self.in_hand += 1
            else:
                self.core.reply(request, error_body(500, "the server cannot start a thread; try again later"), now)

    def _handle(self, request: ClientRequest) -> None:
        """Runs in a handler thread."""
        reply = self.core.reply
        parts: Frames = []
        try:
            body = joined(parts, execute(self._handler, request.body, parts.extend))
        except RemoteError as error:
            body = error_frames(error)
            if isinstance(error, Superseded):
                reply = self.core.supersede
        except BaseException as error:  # SystemExit too: it would end this thread only, and silently
            log.exception("a handler failed")
            body = failure(error)
        self.loop.call(self._reply, reply, request, body)

    def _reply(
        self, reply: Callable[[ClientRequest, Frames, float], None], request: ClientRequest, body: Frames
    ) -> None:
        self.in_hand -= 1
        self._handlers.done()
        reply(request, body, time.monotonic())
