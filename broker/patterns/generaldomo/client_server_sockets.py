"""Draft sockets that carry Majordomo: a session's CLIENT connections, and a broker's SERVER with its many peers.

All frames of a message are packed into one. A SERVER has the bounds of the broker's ROUTER (`broker.io.router`):
messages queued for a peer, bytes of large ones for all of both sockets, the size of what comes in, connections whose
peer has vanished or does not read.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from broker.core.mdp import Callback, Frames
from broker.core.requests import footprint
from broker.io.connections import MAX_QUEUED
from broker.io.curve import KeyProbe
from broker.io.dealer import Dealer
from broker.io.draft_sockets import STUCK, DraftSocket, Leaving, Unreachable
from broker.io.listeners import UNREAD_SECONDS
from broker.io.sockets import DRAIN_LIMIT, LINGER
from broker.patterns.generaldomo.core import pack_mdp, unpack_mdp
from broker.server import Broker, LocalPeer


class _Connection:
    """One connection: its socket, and the thread that reads it."""

    def __init__(self, number: int, endpoint: str, dealer: ClientDealer) -> None:
        self._number = number
        self._dealer = dealer
        self._end = threading.Event()
        self._linger = LINGER
        self._socket = DraftSocket("CLIENT", mute=0)
        try:
            self._socket.connect(endpoint)
        except BaseException:
            self._socket.close(0)
            raise
        threading.Thread(target=self._read, name="client reads", daemon=True).start()

    def send(self, data: bytes) -> None:
        """Send a message. Raises Unreachable when the queue is full."""
        self._socket.send(data)

    def close(self, linger: int) -> None:
        """Have the thread close it."""
        self._linger = linger
        self._end.set()
        self._socket.wake(linger)

    def _read(self) -> None:
        while not self._end.is_set():
            if (got := self._socket.receive(None)) is not None:
                self._dealer.arrived(self._number, got[0])
        self._socket.close(self._linger)


class ClientDealer(Dealer):
    """As `Dealer`, but a thread reads each connection, and `wake` is called for each message there is to `receive`."""

    def __init__(self, endpoint: str | Sequence[str], wake: Callback) -> None:
        super().__init__(zmq.Context.instance(), endpoint)
        self._wake = wake
        self._inbox: deque[tuple[int, bytes]] = deque()

    def receive(self) -> Frames | None:
        """One message of the present connection; `[]` for one that makes no sense."""
        while self._inbox:
            number, data = self._inbox.popleft()
            if number == self.number and self.socket is not None:
                self.answered = True
                return unpack_mdp(data) or []
        return None

    def sockets(self) -> list[Any]:
        return []

    def key_probe(self, when: float) -> KeyProbe:
        return KeyProbe()  # a CLIENT has no keys

    def close(self, linger: int = LINGER) -> None:
        connection: Any = self.socket
        self.socket = None
        if connection is not None:
            connection.close(linger)

    def _transmit(self, frames: Frames) -> None:
        connection: Any = self.socket
        try:
            connection.send(pack_mdp(frames))
        except Unreachable as error:
            raise zmq.Again from error

    def open(self, number: Any) -> None:
        endpoint = self._choose()
        connection: Any = _Connection(number, endpoint, self)
        self.number, self.socket = number, connection

    def arrived(self, number: int, data: bytes) -> None:
        """Called by the thread that reads."""
        self._inbox.append((number, data))
        self._wake()


AHEAD = 64 << 20
"""Bytes that are read ahead of the broker, and at least one message."""

_PAUSE = 0.001
"""Seconds between two checks whether the broker has caught up."""

LARGE = 16 << 10
"""Bytes from which a message is counted. It is not copied then, which makes up for the counting."""

_SWEEP_EVERY = 256
"""Messages after which peers with an empty queue are forgotten."""


@dataclass(frozen=True)
class ServerPeer(LocalPeer):
    """A CLIENT peer of a SERVER socket, as the broker sees it."""

    socket: ServerSocket
    routing_id: int

    def full(self) -> bool:
        return self.socket.outbox.full(self)

    def put(self, frames: Frames) -> None:
        """Send a message."""
        self.socket.send(self, frames)

    def flush(self) -> None:
        """All has been sent."""


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
        self._queued: dict[ServerPeer, deque[tuple[int, Leaving]]] = {}
        self._sizes: dict[ServerPeer, int] = {}
        self._lock = threading.Lock()
        self._added = 0

    def __len__(self) -> int:
        """The number of peers with something queued, as far as known."""
        return len(self._queued)

    def admits(self, peer: ServerPeer, size: int) -> bool:
        """Return whether a message may be queued for a peer: the first always, then as much as it leaves for the
        others."""
        with self._lock:
            if self._fits(peer, size):
                return True
            self._sweep()
            return self._fits(peer, size)

    def add(self, peer: ServerPeer, size: int, tracker: Leaving) -> None:
        """Count a message that was passed to ZeroMQ."""
        with self._lock:
            self._queued.setdefault(peer, deque()).append((size, tracker))
            self._sizes[peer] = self._sizes.get(peer, 0) + size
            self.total += size
            self._added += 1
            if self._added % _SWEEP_EVERY == 0:
                self._sweep()

    def full(self, peer: ServerPeer) -> bool:
        """Return whether a peer has enough to read."""
        if peer not in self._sizes:
            return False
        with self._lock:
            self._settle(peer)
            return self._sizes.get(peer, 0) > MAX_QUEUED

    def _fits(self, peer: ServerPeer, size: int) -> bool:
        self._settle(peer)
        queued = self._sizes.get(peer, 0)
        return not queued or queued + size <= self._most - self.total

    def _settle(self, peer: ServerPeer) -> None:
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
            receive_queue=10 * DRAIN_LIMIT,
            most_bytes=broker.config.max_message,
            unread=UNREAD_SECONDS * 1000,
        )
        self.outbox = Outbox(config.send_queue_bytes)
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
        if not self.outbox.admits(peer, size):
            raise Unreachable("the queue is full")
        self.outbox.add(peer, size, self._socket.send_tracked(pack_mdp(frames), peer.routing_id))

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
