"""The broker's ROUTER socket: many peers, none of whom may fill the memory or hold the others up.

ZeroMQ bounds what is queued for a peer by the number of messages only, and gives out a message only as a whole. So
this adds what is missing: an account of the bytes of large messages (`Outbox`), and a message of millions of frames
is taken off bit by bit, so that heartbeats and answers go out in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq

from broker.core.mdp import Frames
from broker.core.request import footprint
from broker.io.dealer import DRAIN_LIMIT, LINGER, MOST_FRAMES, Socket, bind, skip
from broker.io.outbox import Outbox

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

_backend: Any = zmq.backend.Socket
_recv = _backend.recv
_send = _backend.send
_DONTWAIT = int(zmq.DONTWAIT)
_SNDMORE = int(zmq.SNDMORE)
_MORE = _DONTWAIT | _SNDMORE


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
        """The last frame of a message that looks like READY, for who wants to know where it came from."""
        self._most_bytes = most_bytes
        self._too_large = too_large
        self._named = named
        socket = self.socket = context.socket(zmq.ROUTER)
        socket.linger = LINGER
        socket.router_mandatory = True
        socket.router_handover = True  # else who comes back by a name stays deaf until its old connection ends
        socket.sndhwm = send_queue
        socket.rcvhwm = DRAIN_LIMIT * 10
        socket.maxmsgsize = most_bytes
        socket.copy_threshold = 0  # what is counted must not be copied: that is how we learn when it has left
        # Peers whose machine vanished say no good-bye: let the system find out, or their connections stay for ever.
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
