"""The broker's ROUTER socket: many peers, none of which may fill the memory or hold up the others.

ZeroMQ bounds what is queued for a peer by the number of messages only, and gives out a message only as a whole. So
this adds what is missing: an account of the bytes of large messages (`Outbox`), and a message of millions of frames
is taken off bit by bit, so that heartbeats and answers go out in between.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import zmq

from broker.core.mdp import Frames, Peer
from broker.core.requests import footprint
from broker.io.sockets import DRAIN_LIMIT, LINGER, MOST_FRAMES, Socket, bind, skip

SKIP_FRAMES = 100_000
"""Frames of a message that is too large that are thrown away in one go: a twentieth of a second's work."""

HEAD = 32
"""Frames by which it can be told what a message was to be: addresses, header, command, service."""

LARGE = 16 << 10
"""Bytes from which a message is counted. It is not copied then either, which makes up for the counting."""

READY = b"\1"
"""The last frame but one of what a worker says first."""

UNREAD_SECONDS = 120
"""A peer that reads nothing of what is queued for it for this long has its connection closed by the system."""

ENOUGH = 16 << 20
"""Bytes queued for one peer from which it has enough to read."""

_SWEEP_EVERY = 256
"""Messages after which peers with nothing queued are forgotten."""

_backend: Any = zmq.backend.Socket
_recv = _backend.recv
_send = _backend.send
_DONTWAIT = int(zmq.DONTWAIT)
_SNDMORE = int(zmq.SNDMORE)
_MORE = _DONTWAIT | _SNDMORE


class Leaving(Protocol):
    """A message on its way out."""

    @property
    def done(self) -> bool:
        """Whether ZeroMQ has let go of it."""


class Outbox:
    """The bytes of large messages that ZeroMQ has and has not sent yet, for each peer.

    ZeroMQ tells when it no longer needs a message that was handed over without a copy: the message was sent, or its
    peer is gone. When a peer's last message has left, all before it have.

    Any thread may ask; large messages are few, so a lock costs nothing.
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
        """For how many peers something is queued, as far as we know."""
        return len(self._queued)

    def admits(self, peer: Peer, size: int) -> bool:
        """Whether a message may be queued for a peer: the first always; then as much as it leaves for the others."""
        with self._lock:
            if self._fits(peer, size):
                return True
            self._sweep()
            return self._fits(peer, size)

    def add(self, peer: Peer, size: int, tracker: Leaving) -> None:
        """A message was handed to ZeroMQ."""
        with self._lock:
            self._queued.setdefault(peer, deque()).append((size, tracker))
            self._sizes[peer] = self._sizes.get(peer, 0) + size
            self.total += size
            self._added += 1
            if self._added % _SWEEP_EVERY == 0:
                self._sweep()

    def full(self, peer: Peer) -> bool:
        """Whether a peer has enough to read."""
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
        """Take off the account what has left."""
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
    """A ROUTER that says when a peer is gone or does not read (`zmq.ZMQError`) instead of dropping silently."""

    def __init__(
        self,
        context: zmq.Context[Socket],
        *,
        most_bytes: int = 128 << 20,
        send_queue: int = 10_000,
        send_bytes: int = 1 << 30,
        too_large: Callable[[Frames], None] | None = None,
        named: Callable[[bytes, Any], None] | None = None,
    ) -> None:
        """`most_bytes`: of a message that comes in, and of one of its frames. `too_large` is called with the first
        HEAD frames of each message that has more, its sender in front; `named` with a sender that has given itself
        its name, and a frame of the message."""
        self.outbox = Outbox(send_bytes)
        self.skipping = False
        """Whether a message is being thrown away, with more to come. Nothing else can be received meanwhile."""
        self.newcomer: Any = None
        """The last frame of a message that looks like READY: it tells the connection that the message came by."""
        self._most_bytes = most_bytes
        self._too_large = too_large
        self._named = named
        socket = self.socket = context.socket(zmq.ROUTER)
        socket.linger = LINGER
        socket.router_mandatory = True
        # Without it a peer that comes back with its name gets nothing until its old connection ends.
        socket.router_handover = True
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
        """Listen; the endpoint with the real port comes back. EndpointError says why not."""
        return bind(self.socket, endpoint)

    def receive(self) -> Frames | None:
        """One message with its sender in front, or None when there is none (while `skipping`: yet). Of a message that
        is too large only the sender is returned."""
        if self.skipping:
            self.skipping = skip(self.socket, SKIP_FRAMES)
            if self.skipping:
                return None
        socket = self.socket
        try:
            frame = _recv(socket, _DONTWAIT, False)
        except zmq.Again:
            return None
        sender = frame.bytes
        if sender[0] and self._named is not None:  # names of the ROUTER's own making begin with 0
            self._named(sender, frame)
        frames = [sender]
        size = 0
        while frame.more:
            frame = _recv(socket, 0, False)
            size += len(frame)
            frames.append(frame.bytes)
            if len(frames) > MOST_FRAMES or size > self._most_bytes:
                if self._too_large is not None:
                    self._too_large(frames[:HEAD])
                self.skipping = skip(socket, SKIP_FRAMES)
                return frames[:1]
        if 3 < len(frames) < 6 and frames[-2] == READY:
            self.newcomer = frame
        return frames

    def send(self, peer: bytes, frames: Frames) -> None:
        """One message, all or nothing, without waiting. ZMQError when the peer is gone, or its queue is full."""
        if len(frames) > LARGE // 64 or sum(map(len, frames)) > LARGE:
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
