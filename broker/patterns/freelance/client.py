"""Freelance (Guide, chapter 4, "Brokerless Reliability"; RFC 10): clients that know several servers, no broker between.

`LazyPirate` with several endpoints is model 1, `Shotgun` is model 2, `Freelance` model 3. `server.py` has the server
of each.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future

import zmq

from broker.client import Body, body_frames, reply_body
from broker.core.client import ReplyEvent
from broker.core.mdp import Frames
from broker.errors import EndpointError, UsageError
from broker.io import sockets
from broker.patterns.freelance.core import FreelanceAgent, FreelanceConfig, FreelanceSession, ShotgunCore
from broker.patterns.request_reply.client import SharedClient

STALE = 10
"""Messages that wait for a server which is not there (model 2). It will execute them later, for no one."""


class Shotgun:
    """Model 2: asks all servers at once, takes the first reply. Not thread-safe.

    with Shotgun(["tcp://10.0.0.1:5555", "tcp://10.0.0.2:5555"]) as client:
        frames = client.call(b"hello")
    """

    def __init__(self, endpoints: str | Iterable[str], config: FreelanceConfig | None = None) -> None:
        self.core = ShotgunCore(endpoints, config)
        self._sockets: dict[str, sockets.Socket] = {}
        try:
            for name in self.core.servers.names:
                socket: sockets.Socket = zmq.Context.instance().socket(zmq.DEALER)
                self._sockets[name] = socket
                socket.linger, socket.sndhwm = 0, STALE
                sockets.connect(socket, name)
        except EndpointError:
            self.close()
            raise

    def call(self, *body: Body, timeout: float | None = None, retries: int | None = None) -> Frames:
        """The first reply. Raises TimedOut, or RemoteError when the first reply is an error."""
        if not self._sockets:
            raise UsageError("the client is closed")
        core = self.core
        ticket = core.request(body_frames(body), time.monotonic(), timeout=timeout, retries=retries)
        poller = [(socket, zmq.POLLIN) for socket in self._sockets.values()]
        try:
            while True:
                for name, frames in core.take_output():
                    self._send(name, frames)
                for event in core.take_events():
                    return reply_body(event, _silence(core))
                deadline = core.next_deadline()
                wait = 0.0 if deadline is None else max(0.0, deadline - time.monotonic())
                zmq.zmq_poll(poller, min(1000, int(wait * 1000) + 1))
                for name, socket in self._sockets.items():
                    while (reply := sockets.receive(socket)) is not None:
                        core.receive(name, reply, time.monotonic())
                core.tick(time.monotonic())
        finally:
            core.cancel(ticket)

    def close(self) -> None:
        """Close the connections."""
        while self._sockets:
            self._sockets.popitem()[1].close()

    def __enter__(self) -> Shotgun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, name: object, frames: Frames | None) -> None:
        assert isinstance(name, str)
        assert frames is not None
        try:
            sockets.send(self._sockets[name], frames)
        except zmq.Again:  # it has not been there for a while
            return


class Freelance(SharedClient[FreelanceAgent]):
    """Model 3: asks a server that lives, and the next one when it dies. Any number of threads may share it.

        with Freelance(["tcp://10.0.0.1:5555", "tcp://10.0.0.2:5555"]) as client:
            frames = client.call(b"hello")

    An agent in a thread of its own pings the servers and does the talking; it is started and stopped by the context
    manager, or by `start` and `stop`.
    """

    _thread_name = "freelance"

    def __init__(self, endpoints: str | Iterable[str], config: FreelanceConfig | None = None) -> None:
        super().__init__(FreelanceAgent(endpoints, config, now=time.monotonic()))
        context: zmq.Context[sockets.Socket] = zmq.Context.instance()
        socket = self._socket = context.socket(zmq.ROUTER)
        socket.linger = 0
        # No message waits for a server that is not connected: sending one fails, and the core learns of it.
        socket.router_mandatory = True
        socket.immediate = True
        socket.sndhwm = socket.rcvhwm = 0
        socket.heartbeat_ivl, socket.heartbeat_timeout = 5_000, 15_000
        socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 1_000
        try:
            for name in self.core.servers.names:
                sockets.connect(self._socket, name)
        except EndpointError:
            self.stop()
            raise

    def call(self, *body: Body, timeout: float | None = None, retries: int | None = None) -> Frames:
        """The reply. Raises TimedOut after the last try, RemoteError for an error reply. Any thread may ask."""
        return reply_body(self.send(*body, timeout=timeout, retries=retries).result(), _silence(self.core))

    def send(self, *body: Body, timeout: float | None = None, retries: int | None = None) -> Future[ReplyEvent]:
        """Ask without waiting; what becomes of it will be in the future. Any thread may ask."""
        frames = body_frames(body)
        return self._submit(lambda now: self.core.request(frames, now, timeout=timeout, retries=retries))

    def sockets(self) -> list[zmq.Socket[bytes]]:
        return [self._socket]

    def drain(self, now: float) -> bool:
        for _ in range(sockets.DRAIN_LIMIT):
            if (frames := sockets.receive(self._socket)) is None:
                return False
            self.core.receive(frames[0].decode(errors="replace"), frames[1:], now)
        return True

    def flush(self, now: float) -> None:
        """Send all: a request that cannot reach one server goes to another. Then complete the futures."""
        while output := self.core.take_output():
            for name, frames in output:
                assert isinstance(name, str)
                assert frames is not None
                try:
                    sockets.send(self._socket, [name.encode(), *frames])
                except zmq.ZMQError:
                    self.core.undeliverable(name, frames, now)
        self._tell(self.core.take_events())

    def close(self) -> None:
        self._socket.close()
        self._give_up()


def _silence(core: FreelanceSession) -> str:
    return f"no answer from {core.servers}; is a server there?"
