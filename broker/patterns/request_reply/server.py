"""A server that answers requests itself, without a broker: its connections and a handler.

It is the other end of Lazy Pirate, of Binary Star's client and of all three Freelance models; only the envelope
differs (`broker.patterns.request_reply.core` has the table).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from broker.core.mdp import Frames, error_body, joined
from broker.core.timers import earliest
from broker.errors import RemoteError, UsageError
from broker.handlers import Handler, HandlerThreads, error_frames, execute, failure
from broker.io.channels import CoreRunner
from broker.io.connections import PeerGone
from broker.io.loop import Loop
from broker.io.server_keys import ServerKey, server_keys
from broker.patterns.idempotent.core import Superseded
from broker.patterns.request_reply.core import Admit, ClientRequest, Replier

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

        `admit` may refuse requests, see `Replier`. With a `loop` the server is a channel of that one, and whoever
        runs the loop stops it.

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
        return self._connections.has_input

    def flush(self, now: float) -> None:
        for peer, frames in self.core.take_output():
            assert frames is not None
            with suppress(PeerGone):  # or the client does not read
                self._connections.send(peer, frames)
        self._connections.flush(now)
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
