"""Generaldomo: the Majordomo broker behind a SERVER socket, next to its ROUTER; clients and workers with CLIENT ones.

Threads may share such a client. Needs draft sockets: see `broker.io.draft_sockets`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

from broker.client import Body, body_frames, reply_body
from broker.config import DEFAULT_ENDPOINT, BrokerConfig, ClientConfig, WorkerConfig
from broker.core.client import ReplyEvent
from broker.core.endpoints import Servers
from broker.core.mdp import Frames, service_fault
from broker.core.worker import WorkerSession
from broker.errors import Means, UsageError
from broker.io.dealer import Dealer
from broker.io.sockets import protect
from broker.patterns.generaldomo.client_server_sockets import ClientDealer, ServerSocket
from broker.patterns.generaldomo.core import DomoSession
from broker.patterns.request_reply.lazy_pirate import SharedClient
from broker.server import Broker
from broker.worker import Worker


class GeneraldomoBroker(Broker):
    """The Majordomo broker, which also listens at SERVER sockets. Each end serves the clients of the other.

    broker = GeneraldomoBroker()
    broker.bind("tcp://127.0.0.1:5555")             # REQ and DEALER sockets: any Majordomo peer
    broker.bind_server("tcp://127.0.0.1:5556")      # CLIENT sockets
    broker.run()
    """

    _means = Means.NONE

    def __init__(self, config: BrokerConfig | None = None, *, version: str = "", open: bool = False) -> None:
        super().__init__(config, version=version, open=open)
        self._servers: list[ServerSocket] = []

    def bind_server(self, endpoint: str) -> str:
        """Listen to CLIENT sockets, before the broker runs; the endpoint with its real port comes back."""
        protect(endpoint, open=self._open, by=self._means)
        server = ServerSocket(self)
        bound = server.open(endpoint)
        self._servers.append(server)
        self.core.about = replace(self.core.about, endpoints=(*self.core.about.endpoints, bound))
        return bound

    def close(self) -> None:
        super().close()
        for server in self._servers:
            server.close()


class GeneraldomoWorker(Worker):
    """A worker with CLIENT sockets, one for each of `jobs`; else as `broker.Worker`."""

    _joins = False

    def _connection(self, channel: Any, endpoints: Sequence[str], *, watch: bool) -> Dealer:
        """Called by a channel, for the sockets that it speaks through."""
        if self._curve is not None:
            raise UsageError("CLIENT sockets do not support keys here; use broker.Worker")
        return ClientDealer(endpoints, lambda: self._loop.call(self._arrived, channel))

    def _new_session(self, service: bytes, config: WorkerConfig | None) -> WorkerSession:
        return super()._new_session(service, replace(config or WorkerConfig(), versions=("0.1",)))

    def _arrived(self, channel: Any) -> None:
        channel.drain(time.monotonic())
        self._loop.touch(channel)


class Generaldomo(SharedClient[DomoSession]):
    """A client that any number of threads may share: they have one CLIENT socket.

    with Generaldomo("tcp://127.0.0.1:5556") as client:
        frames = client.call("echo", b"hello")
    """

    _thread_name = "generaldomo"

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        timeout: float | None = 2.5,
        retries: int = 3,
        window: int = 1000,
    ) -> None:
        """`window`: requests in flight; `send` waits while there are more. With a broker that is not of this project,
        up to 16 of them are with the broker, each on a connection of its own."""
        super().__init__(DomoSession(ClientConfig(timeout, retries, "0.1")))
        self._servers = Servers(endpoint)
        self._dealers: dict[int, ClientDealer] = {}
        self._room = threading.BoundedSemaphore(window)

    def call(self, service: Body, *body: Body, timeout: float | None = None, retries: int | None = None) -> Frames:
        """The reply. Raises TimedOut after the last try, RemoteError for an error reply. Any thread may ask."""
        event = self.send(service, *body, timeout=timeout, retries=retries).result()
        return reply_body(event, f"no answer from {self._servers}; is a broker there, and a worker?")

    def send(
        self, service: Body, *body: Body, timeout: float | None = None, retries: int | None = None
    ) -> Future[ReplyEvent]:
        """Ask without waiting; what becomes of it will be in the future. Any thread may ask."""
        name = service.encode() if isinstance(service, str) else service
        if fault := service_fault(name):
            raise UsageError(fault)
        frames = body_frames(body)
        self._room.acquire()
        try:
            future = self._submit(lambda now: self.core.request(name, frames, now, timeout=timeout, retries=retries))
        except UsageError:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        return future

    def flush(self, now: float) -> None:
        for peer, frames in self.core.take_output():
            connection, number = cast("tuple[int, int]", peer)
            if connection not in self._dealers:
                self._dealers[connection] = self._make_dealer(connection)
            self._dealers[connection].send([(number, frames)])
        self._report(self.core.take_events())

    def close(self) -> None:
        for dealer in self._dealers.values():
            dealer.close(linger=0)  # no client waits for what is still queued here
        self._give_up()

    def _make_dealer(self, connection: int) -> ClientDealer:
        return ClientDealer(self._servers.names, lambda: self.loop.call(self._arrived, connection))

    def _arrived(self, connection: int) -> None:
        dealer = self._dealers[connection]
        while (frames := dealer.receive()) is not None:
            self.core.receive((connection, dealer.number), frames, time.monotonic())
