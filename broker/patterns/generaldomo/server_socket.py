"""A broker's SERVER socket: many CLIENT peers, none of which may fill the memory or hold up the others.

The same bounds as for its ROUTER (`broker.io.router`): messages queued for a peer, bytes of large ones for all of both
sockets, the size of what comes in, connections whose peer has vanished or does not read.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from broker.core.mdp import Frames
from broker.core.request import footprint
from broker.io.draft_sockets import STUCK, DraftSocket, Unreachable
from broker.io.router import LARGE, UNREAD_SECONDS
from broker.io.sockets import DRAIN_LIMIT, LINGER
from broker.patterns.generaldomo.wire import pack_mdp, unpack_mdp
from broker.server import Broker, LocalPeer

AHEAD = 64 << 20
"""Bytes that are read ahead of the broker, and at least one message."""

_RECEIVE_QUEUE = 10 * DRAIN_LIMIT

_PAUSE = 0.001
"""Seconds until it is looked again whether the broker has caught up."""


@dataclass(frozen=True)
class ServerPeer(LocalPeer):
    """A CLIENT peer of a SERVER socket, as the broker sees it."""

    socket: ServerSocket
    routing_id: int

    def put(self, frames: Frames) -> None:
        """Send a message."""
        self.socket.send(self, frames)

    def flush(self) -> None:
        """All has been sent."""


class ServerSocket:
    """The socket, and the thread that reads it."""

    def __init__(self, broker: Broker) -> None:
        """Raises MissingDrafts."""
        config = broker.config
        self._broker = broker
        self._socket = DraftSocket(
            "SERVER",
            mute=0,  # the broker must not wait for one that does not read
            send_queue=config.send_queue,
            receive_queue=_RECEIVE_QUEUE,
            most_bytes=broker.most_bytes,
            unread=UNREAD_SECONDS * 1000,
        )
        self._read_bytes = 0
        """Written by the thread that reads only."""
        self._dealt_with = 0
        """Of these bytes; written by the broker's thread only."""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._read, name="server socket", daemon=True)

    def open(self, endpoint: str) -> str:
        """Listen; the endpoint with its real port comes back."""
        try:
            bound = self._socket.bind(endpoint)
        except BaseException:
            self._socket.close(0)
            raise
        self._thread.start()
        return bound

    def send(self, peer: ServerPeer, frames: Frames) -> None:
        """Called in the broker's thread."""
        try:
            size = footprint(frames)
            if size > LARGE:
                self._send_large(peer, frames, size)
            else:
                self._socket.send(pack_mdp(frames), peer.routing_id)
        except Unreachable:
            self._broker.core.stats["unroutable"] += 1
            self._broker.core.lost(peer, time.monotonic(), frames)

    def _send_large(self, peer: ServerPeer, frames: Frames, size: int) -> None:
        outbox = self._broker.outbox
        if not outbox.admits(peer, size):
            raise Unreachable("enough is queued already")
        outbox.add(peer, size, self._socket.send_tracked(pack_mdp(frames), peer.routing_id))

    def close(self) -> None:
        """Close the socket; what was sent may still go out for a moment."""
        self._end.set()
        self._socket.wake(LINGER)
        self._thread.join(STUCK)
        if not self._thread.is_alive():
            self._socket.close(LINGER)

    def _read(self) -> None:
        while not self._end.is_set():
            if self._broker.loop.behind or self._read_bytes - self._dealt_with >= AHEAD:
                self._end.wait(_PAUSE)
                continue
            batch, size = [], 0
            got = self._socket.receive(None)
            while got is not None:
                batch.append(got)
                size += len(got[0])
                got = self._socket.receive(0) if len(batch) < DRAIN_LIMIT and size < AHEAD else None
            if batch:
                self._read_bytes += size
                self._broker.loop.call(self._arrived, batch, size)

    def _arrived(self, batch: list[tuple[bytes, int]], size: int) -> None:
        now = time.monotonic()
        for data, routing_id in batch:
            self._broker.core.receive(ServerPeer(self, routing_id), unpack_mdp(data) or [], now)
        self._dealt_with += size
