"""The broker's ROUTER socket: many peers, none of which may exhaust the memory or delay the others; its connections.

ZeroMQ limits the queue of a peer by the number of messages only, and delivers only whole messages. This module adds the
rest: it counts the bytes of large messages (`Outbox`), and discards a message of millions of frames bit by bit, so that
heartbeats and answers go out in between.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import zmq

from broker.core.mdp import Frames, Peer
from broker.core.requests import footprint
from broker.io.loop import Channel
from broker.io.sockets import DRAIN_LIMIT, LINGER, MOST_FRAMES, Socket, bind, monitored_event, receive, seed_names, skip

SKIP_FRAMES = 100_000
"""Frames of an oversized message that are discarded at once: a twentieth of a second's work."""

HEAD = 32
"""Frames that identify a message: addresses, header, command, service."""

LARGE = 16 << 10
"""Bytes from which a message is counted. It is not copied then, which makes up for the counting."""

_MANY = LARGE // 64
"""Frames from which a message is counted."""

UNREAD_SECONDS = 120
"""Seconds after which the system closes the connection of a peer that reads nothing of its queue."""

BACKLOG = 4096
"""Connections waiting to be accepted, if the system allows as many. ZeroMQ has 100: of a thousand clients that
reconnect at once, or beside a flood, the others would only retry a second later."""

ENOUGH = 16 << 20
"""Queued bytes from which a peer has enough to read."""

_SWEEP_EVERY = 256
"""Messages after which peers with an empty queue are forgotten."""

_backend: Any = zmq.backend.Socket
_get = _backend.get
_recv = _backend.recv
_send = _backend.send
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_DONTWAIT = int(zmq.DONTWAIT)
_SNDMORE = int(zmq.SNDMORE)
_MORE = _DONTWAIT | _SNDMORE


class Leaving(Protocol):
    """A message that ZeroMQ is sending."""

    @property
    def done(self) -> bool:
        """Whether ZeroMQ has released it."""


class Outbox:
    """Counts the bytes of large messages that ZeroMQ has not sent yet, for each peer.

    ZeroMQ reports when it releases a message that was passed without a copy: it was sent, or its peer is gone. When a
    peer's last message is released, all before it are.

    Any thread may use this; large messages are few, so a lock costs nothing.
    """

    def __init__(self, most: int) -> None:
        """`most`: bytes in all."""
        self.total = 0
        self._most = most
        self._queued: dict[Peer, deque[tuple[int, Leaving]]] = {}
        self._sizes: dict[Peer, int] = {}
        self._lock = threading.Lock()
        self._added = 0

    def __len__(self) -> int:
        """The number of peers with something queued, as far as known."""
        return len(self._queued)

    def admits(self, peer: Peer, size: int) -> bool:
        """Return whether a message may be queued for a peer: the first always, then as much as it leaves for the
        others."""
        with self._lock:
            if self._fits(peer, size):
                return True
            self._sweep()
            return self._fits(peer, size)

    def add(self, peer: Peer, size: int, tracker: Leaving) -> None:
        """Count a message that was passed to ZeroMQ."""
        with self._lock:
            self._queued.setdefault(peer, deque()).append((size, tracker))
            self._sizes[peer] = self._sizes.get(peer, 0) + size
            self.total += size
            self._added += 1
            if self._added % _SWEEP_EVERY == 0:
                self._sweep()

    def full(self, peer: Peer) -> bool:
        """Return whether a peer has enough to read."""
        if peer not in self._sizes:
            return False
        with self._lock:
            self._settle(peer)
            return self._sizes.get(peer, 0) > ENOUGH

    def _fits(self, peer: Peer, size: int) -> bool:
        self._settle(peer)
        queued = self._sizes.get(peer, 0)
        return not queued or queued + size <= self._most - self.total

    def _settle(self, peer: Peer) -> None:
        """Subtract released messages."""
        queue = self._queued.get(peer)
        if queue is None:
            return
        while queue and queue[0][1].done:
            size, _ = queue.popleft()
            self._sizes[peer] -= size
            self.total -= size
        if not queue:
            del self._queued[peer], self._sizes[peer]

    def _sweep(self) -> None:
        for peer in list(self._queued):
            self._settle(peer)


class Router:
    """A ROUTER that raises `zmq.ZMQError` when a peer is gone or does not read, instead of dropping silently."""

    def __init__(
        self,
        context: zmq.Context[Socket],
        *,
        most_bytes: int = 128 << 20,
        send_queue: int = 10_000,
        send_bytes: int = 1 << 30,
        too_large: Callable[[Frames], None] | None = None,
        look: Callable[[bytes, Any], bool] | None = None,
        distrust: bool = False,
    ) -> None:
        """`most_bytes`: of a received message and of each of its frames. `too_large` is called with the first HEAD
        frames of each message that has more, its sender in front. `look` is called with a sender that has named itself
        and a frame of the message, and returns whether to read the message. `distrust`: `look` at every sender, and let
        none take the name of another that is still connected."""
        self.outbox = Outbox(send_bytes)
        self.skipping = False
        """Whether a message is being discarded, with more to come. Nothing else can be received meanwhile."""
        self.last_frame: Any = None
        """The last frame of the last message, which knows the connection it came by; None if the message was large."""
        self._most_bytes = most_bytes
        self._too_large = too_large
        self._look = look
        self._trusted = -1 if distrust else 0
        """First byte of the names that `look` does not check: the ROUTER's own names begin with 0."""
        seed_names()
        socket = self.socket = context.socket(zmq.ROUTER)
        socket.linger = LINGER
        socket.router_mandatory = True
        # Without it a peer that comes back with its name gets nothing until its old connection ends.
        socket.router_handover = not distrust
        socket.backlog = BACKLOG
        socket.sndhwm = send_queue
        socket.rcvhwm = DRAIN_LIMIT * 10
        socket.maxmsgsize = most_bytes
        socket.copy_threshold = 0  # what is counted must not be copied: that is how we learn when it has left
        # A peer whose machine vanished sends no good-bye: the system finds out, or its connection would stay for ever.
        socket.tcp_keepalive = 1
        socket.tcp_keepalive_idle = 60
        socket.tcp_keepalive_intvl = 15
        socket.tcp_keepalive_cnt = 4
        socket.tcp_maxrt = UNREAD_SECONDS * 1000

    def bind(self, endpoint: str) -> str:
        """Listen on an endpoint and return it with its real port. Raises EndpointError."""
        return bind(self.socket, endpoint)

    @property
    def readable(self) -> bool:
        """Whether there is another message. This costs a third of a `receive` that finds none."""
        return bool(_get(self.socket, _EVENTS) & _POLLIN)

    def receive(self) -> Frames | None:
        """Receive a message with its sender in front; None when there is none (while `skipping`: yet). Of an oversized
        message only the sender is returned, and an empty list for one that is not to be read."""
        if self.skipping:
            self.skipping = skip(self.socket, SKIP_FRAMES)
            if self.skipping:
                return None
        socket = self.socket
        try:
            sender: bytes = _recv(socket, _DONTWAIT)  # a copy, unlike a Frame, does not tell if more follows: it does
        except zmq.Again:
            return None
        frame = _recv(socket, 0, False)
        if sender[0] != self._trusted and self._look is not None and not self._look(sender, frame):
            self.skipping = frame.more and skip(socket, SKIP_FRAMES)
            return []
        data: bytes = frame.bytes
        frames = [sender, data]
        size, most = len(data), self._most_bytes
        for _ in range(MOST_FRAMES - len(frames)):
            if not frame.more or size > most:
                break
            frame = _recv(socket, 0, False)
            data = frame.bytes
            size += len(data)
            frames.append(data)
        if frame.more or size > most:
            if self._too_large is not None:
                self._too_large(frames[:HEAD])
            self.skipping = skip(socket, SKIP_FRAMES)
            return frames[:1]
        self.last_frame = frame if size < LARGE else None  # a large one would stay in memory
        return frames

    def send(self, peer: bytes, frames: Frames) -> None:
        """Send a message, all or nothing, without waiting. Raises ZMQError when the peer is gone, or its queue is
        full."""
        if len(frames) > _MANY or sum(map(len, frames)) > LARGE:
            self._send_large(peer, frames)
            return
        socket = self.socket
        _send(socket, peer, _MORE)
        last = frames[-1]
        for frame in frames[:-1]:
            _send(socket, frame, _MORE)
        _send(socket, last, _DONTWAIT)

    def _send_large(self, peer: bytes, frames: Frames) -> None:
        size = footprint(frames)
        if not self.outbox.admits(peer, size):
            raise zmq.Again
        socket = self.socket
        _send(socket, peer, _MORE)
        for frame in frames[:-1]:
            _send(socket, frame, _MORE, len(frame) < LARGE)
        # ZeroMQ lets go of a message's frames in order: with the last one all have left.
        self.outbox.add(peer, size, _send(socket, frames[-1], _DONTWAIT, False, True))

    def close(self) -> None:
        """Close the socket; what was sent may still go out for a moment."""
        self.socket.close()


IPV4 = "::ffff:"
"""How IPv4 addresses begin at a socket of IPv6."""


def peer_ip(frame: Any) -> bytes:
    """The IP address of the peer that sent a frame; empty for ipc and inproc."""
    try:
        address: str = frame.get("Peer-Address")
    except (zmq.ZMQError, UnicodeDecodeError):
        return b""
    if address.startswith(("localhost:", ":")):  # of ipc: localhost:uid:gid:pid
        return b""
    return address.removeprefix(IPV4).encode()


class NamedConnections:
    """The connections of peers that have named themselves (ZMQ_ROUTING_ID), by their file descriptors.

    A peer that connects with a name in use takes it over: the socket does not report it, and drops what it held for the
    former peer. All other names are the ROUTER's own and are never reused.
    """

    def __init__(self) -> None:
        self._connections: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._names)

    def new(self, name: bytes, frame: Any) -> int | None:
        """Return the connection that a message came by, of which this is a frame; None if the name had it before. It is
        to be `opened`, after the former connection of that number is `closed`: descriptors are reused."""
        try:
            connection: int = frame.get(zmq.SRCFD)
        except zmq.ZMQError:  # inproc
            return None
        return None if self._connections.get(name) == connection else connection

    def opened(self, name: bytes, connection: int) -> bool:
        """Note a name's new connection. Return whether the name was taken over from another that is still connected."""
        before = self._connections.get(name)
        if before is not None:
            del self._names[before]
        self.closed(connection)
        self._connections[name], self._names[connection] = connection, name
        return before is not None

    def closed(self, connection: int) -> bytes | None:
        """Forget a connection. Return its name, if that has no other."""
        name = self._names.pop(connection, None)
        if name is not None:
            del self._connections[name]
        return name


class ConnectionCount(Channel):
    """A channel that counts connections by TCP and IPC from the moment they are accepted.

    Make it before the socket is bound, and close it before the socket.

    It does not monitor failed handshakes: if it did, ZeroMQ would not end a connection whose messages it cannot decrypt
    (reporting changes the errno that it checks next; libzmq 4.3.5), and it would stay until its keepalive.
    """

    rests = True

    def __init__(
        self,
        socket: Socket,
        report: Callable[[int], None],
        closed: Callable[[int], None],
        accepted: Callable[[int], None] | None = None,
    ) -> None:
        """`report` gets the count when it changes, `closed` and `accepted` the file descriptor of a connection."""
        self._watched = socket
        self._report = report
        self._closed = closed
        self._accepted = accepted
        self._count = 0
        self._monitor: Socket | None = socket.context.socket(zmq.PAIR)
        # Without a limit: when its queue is full, ZeroMQ's own thread waits, which does the work of all connections.
        self._monitor.rcvhwm = 0
        address = f"inproc://peers-{os.urandom(8).hex()}"
        socket.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._monitor.connect(address)

    def sockets(self) -> list[Socket]:
        return [] if self._monitor is None else [self._monitor]

    def drain(self, now: float) -> bool:
        """Count events, up to a limit."""
        if self._monitor is None:
            return False
        before = self._count
        for left in range(DRAIN_LIMIT, -1, -1):
            if not left or (frames := receive(self._monitor)) is None:
                break
            event, connection = monitored_event(frames), int.from_bytes(frames[0][2:6], sys.byteorder)
            if event == zmq.EVENT_ACCEPTED:
                self._count += 1
                if self._accepted is not None:
                    self._accepted(connection)
            elif event == zmq.EVENT_DISCONNECTED:
                self._count -= 1
                self._closed(connection)
        if self._count != before:
            self._report(self._count)
        return not left

    def close(self) -> None:
        if self._monitor is not None:
            if not self._watched.closed:
                self._watched.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
