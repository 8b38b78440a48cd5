"""Freelance (Guide, chapter 4, "Brokerless Reliability"; RFC 10): clients that know several servers, no broker between.

`LazyPirate` with several endpoints is model 1, `Shotgun` is model 2, `Freelance` model 3. `freelance_server`
makes the server of model 3: its identity is what clients connect to (RFC 10).
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable
from concurrent.futures import Future
from ipaddress import ip_address
from pathlib import Path

import zmq

from broker.client import Body, body_frames, reply_body
from broker.core.client import EventKind, ReplyEvent
from broker.core.mdp import Frames
from broker.core.timers import earliest
from broker.errors import EndpointError, KeyRefused, UsageError
from broker.handlers import Handler
from broker.io import sockets
from broker.io.curve import PROBE_AFTER, Key, KeyProbe, credentials
from broker.io.server_keys import ServerKey, ServerKeys, server_keys
from broker.patterns.freelance.core import FreelanceAgent, FreelanceConfig, FreelanceSession, ShotgunCore
from broker.patterns.request_reply.lazy_pirate import NewRequest, Server, SharedClient

STALE = 10
"""Messages that wait for a server which is not there (model 2). It will execute them later, for no one."""


class Shotgun:
    """Model 2: asks all servers at once, takes the first reply. Not thread-safe.

    with Shotgun(["tcp://10.0.0.1:5555", "tcp://10.0.0.2:5555"]) as client:
        frames = client.call(b"hello")
    """

    def __init__(
        self,
        endpoints: str | Iterable[str],
        config: FreelanceConfig | None = None,
        *,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """`key`, `server_key`: as of `broker.Client`; all servers have the same key."""
        self.core = ShotgunCore(endpoints, config)
        self._curve = credentials(key, server_key)
        self._sockets: dict[str, sockets.Socket] = {}
        try:
            for name in self.core.servers.names:
                socket: sockets.Socket = zmq.Context.instance().socket(zmq.DEALER)
                self._sockets[name] = socket
                socket.linger, socket.sndhwm = 0, STALE
                if self._curve is not None:
                    self._curve.apply(socket)
                sockets.connect(socket, name)
        except EndpointError:
            self.close()
            raise

    def call(self, *body: Body, timeout: float | None = None, retries: int | None = None) -> Frames:
        """The first reply. Raises TimedOut, RemoteError when the first reply is an error, KeyRefused when all servers
        refuse the key."""
        if not self._sockets:
            raise UsageError("the client is closed")
        core, began = self.core, time.monotonic()
        ticket = core.request(body_frames(body), began, timeout=timeout, retries=retries)
        probe = KeyProbe(core.servers.names, self._curve, began + PROBE_AFTER)
        try:
            while True:
                for name, frames in core.take_output():
                    self._send(name, frames)
                for event in core.take_events():
                    if event.kind is EventKind.GAVE_UP:
                        _check_key(core, probe)
                    return reply_body(event, _silence(core))
                self._wait(earliest(core.next_deadline(), probe.due), probe)
                for name, socket in self._sockets.items():
                    while (reply := sockets.receive(socket)) is not None:
                        core.receive(name, reply, time.monotonic())
                now = time.monotonic()
                core.tick(now)
                probe.tick(now)
                if probe.refused:
                    raise KeyRefused(probe.refused)
        finally:
            core.cancel(ticket)
            probe.close()

    def close(self) -> None:
        """Close the connections."""
        while self._sockets:
            self._sockets.popitem()[1].close()

    def __enter__(self) -> Shotgun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, until: float | None, probe: KeyProbe) -> None:
        """Wait until something comes, at most until then."""
        seconds = 0.0 if until is None else max(0.0, until - time.monotonic())
        polled = [(socket, zmq.POLLIN) for socket in (*self._sockets.values(), *probe.sockets())]
        zmq.zmq_poll(polled, min(1000, int(seconds * 1000) + 1))

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

    def __init__(
        self,
        endpoints: str | Iterable[str],
        config: FreelanceConfig | None = None,
        *,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """`key`, `server_key`: as of `broker.Client`; all servers have the same key."""
        self._curve = credentials(key, server_key)
        super().__init__(FreelanceAgent(endpoints, config, now=time.monotonic()))
        self._probe = KeyProbe()
        """Finds out whether the key is refused, while requests wait and no server is known to live."""
        self._probing = False
        context: zmq.Context[sockets.Socket] = zmq.Context.instance()
        socket = self._socket = context.socket(zmq.ROUTER)
        socket.linger = 0
        # No message waits for a server that is not connected: sending one fails, and the core learns of it.
        socket.router_mandatory = True
        socket.immediate = True
        socket.sndhwm = socket.rcvhwm = 0
        socket.heartbeat_ivl, socket.heartbeat_timeout = 5_000, 15_000
        socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 1_000
        if self._curve is not None:
            self._curve.apply(socket)
        try:
            for name in self.core.servers.names:
                sockets.connect(self._socket, name)
        except EndpointError:
            self.stop()
            raise

    def call(self, *body: Body, timeout: float | None = None, retries: int | None = None) -> Frames:
        """The reply. Raises TimedOut after the last try, RemoteError for an error reply, KeyRefused when all servers
        refuse the key. Any thread may ask."""
        event = self.send(*body, timeout=timeout, retries=retries).result()
        if event.kind is EventKind.GAVE_UP:
            _check_key(self.core, KeyProbe(self.core.servers.names, self._curve))
        return reply_body(event, _silence(self.core))

    def send(self, *body: Body, timeout: float | None = None, retries: int | None = None) -> Future[ReplyEvent]:
        """Ask without waiting; what becomes of it will be in the future, KeyRefused as its exception. Any thread may
        ask."""
        frames = body_frames(body)
        return self._submit(lambda now: self.core.request(frames, now, timeout=timeout, retries=retries))

    def sockets(self) -> list[zmq.Socket[bytes]]:
        return [self._socket, *self._probe.sockets()]

    def changed(self) -> bool:
        return self._probe.changed()

    def drain(self, now: float) -> bool:
        if self._probing:
            self._look_at_probe(now)
        for _ in range(sockets.DRAIN_LIMIT):
            if (frames := sockets.receive(self._socket)) is None:
                return False
            self.core.receive(frames[0].decode(errors="replace"), frames[1:], now)
        return True

    def tick(self, now: float) -> None:
        super().tick(now)
        if self._probing:
            self._look_at_probe(now)
        elif self._futures:
            self._begin_probe(now)

    def next_deadline(self) -> float | None:
        return earliest(super().next_deadline(), self._probe.due)

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
        self._report(self.core.take_events())
        if self._probing and not self._futures:
            self._end_probe()

    def close(self) -> None:
        self._probe.close()
        self._socket.close()
        self._give_up()

    def _request(self, future: Future[ReplyEvent], request: NewRequest) -> None:
        super()._request(future, request)
        if not self._probing:
            self._begin_probe(time.monotonic())

    def _begin_probe(self, now: float) -> None:
        """Note a waiting request: if no server is known to live, the key may be refused. ZeroMQ does not report it."""
        if self.core.servers.live() is None:
            self._probe, self._probing = KeyProbe(self.core.servers.names, self._curve, now + PROBE_AFTER), True

    def _look_at_probe(self, now: float) -> None:
        """End all requests when it is certain."""
        self._probe.tick(now)
        if self.core.servers.live() is not None:
            self._end_probe()
        elif refused := self._probe.refused:
            self._end_probe()
            while self._futures:
                ticket, future = self._futures.popitem()
                self.core.cancel(ticket)
                future.set_exception(KeyRefused(refused))

    def _end_probe(self) -> None:
        self._probe.close()
        self._probing = False


def _check_key(core: FreelanceSession, probe: KeyProbe) -> None:
    """A request was given up: raise KeyRefused if servers are there and refuse the key. The probe is closed."""
    if not sockets.unreachable(core.servers.names):
        probe.finish(PROBE_AFTER)
    probe.close()
    if probe.refused:
        raise KeyRefused(probe.refused)


def _silence(core: FreelanceSession) -> str:
    return f"no answer from {core.servers}; is a server there?"


WAYS = {1: "plain", 2: "numbered", 3: "flp"}
"""What a server speaks in each model."""

LONGEST = 255
"""Bytes of an identity."""

_TCP = re.compile(r"tcp://([^:;\[\] ]+|\[[^\]]+\]):(\d+|\*)")


class NotPublic(UsageError):
    """A server of model 3 has no endpoint that clients could connect to."""

    def __init__(self, endpoint: str, why: str) -> None:
        super().__init__(
            f"{endpoint} {why}; model 3 needs the endpoint for clients as `public`, like tcp://10.0.0.1:5555"
        )
        self.endpoint = endpoint
        self.why = why


def freelance_server(
    handler: Handler,
    endpoint: str,
    *,
    model: int = 3,
    public: str = "",
    jobs: int = 1,
    key: ServerKey = None,
    allow: Iterable[str | Path] = (),
    open: bool = False,
) -> Server:
    """A server for clients of one of the models, listening at `endpoint`.

    In model 3 clients address it by the endpoint that they connect to: `public` is that one, if it is not `endpoint`.
    Without `public`, any free port and the name of a network card stand for what they turn out to be.
    `key`, `allow`, `open`: as of `Server`; clients know all servers by the same key. Raises NotPublic, EndpointError.
    """
    keys = server_keys(key, allow, open=open)
    if model not in WAYS:
        raise UsageError(f"model is {model}; it must be 1, 2 or 3")
    if model == 3 and not public:
        endpoint = public = _resolved(endpoint, keys)
    if model == 3 and (why := _private(public)):
        raise NotPublic(public, why)
    server = Server(handler, way=WAYS[model], jobs=jobs, identity=public if model == 3 else None, key=keys)
    try:
        server.bind(endpoint)
    except EndpointError:
        server.stop()
        raise
    return server


def _resolved(endpoint: str, keys: ServerKeys) -> str:
    """The endpoint with its real port, and its address if it names a network card."""
    match = _TCP.fullmatch(endpoint)
    if match is None or _is_everywhere(match[1]) or (match[2] not in ("*", "0") and not _is_card(match[1])):
        return endpoint
    probe = Server(lambda frames: frames, key=keys)
    try:
        address, _, port = probe.bind(endpoint).rpartition(":")
    finally:
        probe.stop()
    return f"{address}:{port}" if _is_card(match[1]) else f"tcp://{match[1]}:{port}"


def _private(endpoint: str) -> str:
    """Return why clients cannot connect to an endpoint; empty: they can, as far as is known."""
    if len(endpoint.encode()) > LONGEST:
        return f"is longer than {LONGEST} bytes"
    if re.fullmatch(r"(ipc|inproc)://[^*].*", endpoint):
        return ""
    match = _TCP.fullmatch(endpoint)
    if match is None:
        return "is not an endpoint"
    if _is_everywhere(match[1]):
        return "is not an address to connect to"
    if match[2] in ("*", "0"):
        return "has no fixed port"
    return "is a network interface of this machine" if _is_card(match[1]) else ""


def _is_everywhere(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host in ("*", "0")


def _is_card(host: str) -> bool:
    return any(host == name for _, name in socket.if_nameindex())
