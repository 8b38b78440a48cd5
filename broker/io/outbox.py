"""What is on its way to whom: the bytes of large messages that ZeroMQ has and has not sent yet.

ZeroMQ tells of a message that was handed over without a copy when it needs it no more: it was sent, or its peer is
gone. The last one of a peer that has left means that all before it have.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

from broker.core.mdp import Peer

ENOUGH = 16 << 20
"""Bytes queued for one peer from which it has enough to read."""

_SWEEP_EVERY = 256
"""Messages after which the peers are looked through for whom nothing is queued any more."""


class Leaving(Protocol):
    """A message on its way out."""

    @property
    def done(self) -> bool:
        """Whether ZeroMQ has let go of it."""


class Outbox:
    """An account for each peer. Any thread may ask; large messages are few, so a lock costs nothing."""

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
