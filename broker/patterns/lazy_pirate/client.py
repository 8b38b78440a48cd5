"""Lazy Pirate (Guide, chapter 4): a client that waits a while, then asks again on a new connection, then gives up.

The server is any REP socket, or `broker.patterns.Server`.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.client import Body, Conversation, reply_body
from broker.config import DEFAULT_ENDPOINT, ClientConfig
from broker.core.client import ClientSession
from broker.core.mdp import Frames
from broker.patterns.request_reply.core import PLAIN


class LazyPirate(Conversation):
    """One request at a time, to servers that speak plain request and reply. Not thread-safe: use one per thread.

        with LazyPirate("tcp://127.0.0.1:5555") as client:
            frames = client.call(b"hello")

    Of several endpoints each try goes to the next one, beginning with the one that answered last.
    `timeout` is what a try may take, in seconds; `retries` how often it is tried again.
    """

    def __init__(
        self, endpoint: str | Sequence[str] = DEFAULT_ENDPOINT, *, timeout: float | None = 2.5, retries: int = 3
    ) -> None:
        super().__init__(endpoint, ClientSession(ClientConfig(timeout, retries), dialect=PLAIN))

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
