"""Simple and Paranoid Pirate as running things (Guide, chapter 4; RFC 6): the queue and its workers.

Simple workers send no heartbeats: they learn from the transport that the queue is gone. A simple worker that hangs is
noticed by its clients only, which ask again. A paranoid one that does not hear its queue comes back on a new
connection, after a wait that doubles up to 32 s.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from broker.config import WorkerConfig
from broker.core.mdp import Output
from broker.core.timers import earliest
from broker.core.worker import WorkerSession
from broker.handlers import Handler
from broker.io.channels import CoreRunner
from broker.io.connections import PeerGone
from broker.io.curve import Key
from broker.io.peer_connection import PeerConnection
from broker.io.server_keys import ServerKey, server_keys
from broker.patterns.pirate_queue.core import (
    CLIENT,
    PARANOID,
    SIMPLE,
    WORKER,
    At,
    PirateDialect,
    PirateQueueCore,
    QueueConfig,
)
from broker.worker import Worker


class PirateQueue(CoreRunner[PirateQueueCore]):
    """`bind_clients`, `bind_workers`, then `run` (or `start`) until `stop`. What waits then is lost, and
    its clients ask again."""

    _thread_name = "queue"

    dialect: PirateDialect
    """Of the workers."""

    def __init__(
        self,
        config: QueueConfig | None = None,
        *,
        key: ServerKey = None,
        allow: Iterable[str | Path] = (),
        open: bool = False,
    ) -> None:
        """`key`, `allow`, `open`: as of `Server`; for clients and workers."""
        keys = self._keys = server_keys(key, allow, open=open)
        super().__init__(PirateQueueCore(config, dialect=self.dialect, now=time.monotonic()))
        # Workers first: what they say makes room.
        self._sides = {side: keys.connections(self.loop, self, named=True) for side in (WORKER, CLIENT)}

    def bind_clients(self, endpoint: str) -> str:
        """Listen to clients, before the queue runs; the endpoint with its real port comes back."""
        self._keys.protect(endpoint)
        return self._sides[CLIENT].bind(endpoint)

    def bind_workers(self, endpoint: str) -> str:
        """Listen to workers, before the queue runs; the endpoint with its real port comes back."""
        self._keys.protect(endpoint)
        return self._sides[WORKER].bind(endpoint)

    def drain(self, now: float) -> bool:
        for side, connections in self._sides.items():
            for connection, frames in connections.take(now):
                if isinstance(frames, list) and isinstance(connection.peer, bytes):
                    self.core.receive(At(side, connection.peer), frames, now)
                elif frames is None:
                    self._left(side, connection)
        return any(connections.ready for connections in self._sides.values())

    def flush(self, now: float) -> None:
        """Send until there is nothing more: what one worker could not be sent goes to another."""
        while output := self.core.take_output():
            self._send(output, now)
        for side, connections in self._sides.items():
            for connection, _ in connections.flush():
                self._left(side, connection)

    def _left(self, side: str, connection: PeerConnection) -> None:
        """Forget a worker whose connection has ended, unless another one has its name by now."""
        if side == WORKER and self._sides[WORKER].of(connection.name) is None:
            self.core.forget(connection.name)

    def _send(self, output: list[Output], now: float) -> None:
        for peer, frames in output:
            assert isinstance(peer, At)
            assert frames is not None
            try:
                self._sides[peer.side].send(peer.identity, frames)
            except PeerGone:
                self.core.undeliverable(peer, frames, now)

    def tick(self, now: float) -> None:
        super().tick(now)
        for connections in self._sides.values():
            connections.tick(now)

    def next_deadline(self) -> float | None:
        return earliest(self.core.next_deadline(), *(side.next_deadline() for side in self._sides.values()))

    def close(self) -> None:
        for connections in self._sides.values():
            connections.close()


class SimpleQueue(PirateQueue):
    """The queue of Simple Pirate. Its clients are Lazy Pirates."""

    dialect = SIMPLE


class ParanoidQueue(PirateQueue):
    """The queue of Paranoid Pirate. Its clients are Lazy Pirates."""

    dialect = PARANOID


class _PirateWorker(Worker):
    """`run` blocks until `stop`; `start` and the context manager use a thread.

    `jobs` connections, each with one request at a time.
    """

    _dialect: PirateDialect
    _default = WorkerConfig()
    _registers_at = "queue"
    _joins = False

    def __init__(
        self,
        handler: Handler,
        endpoint: str,
        *,
        jobs: int = 1,
        config: WorkerConfig | None = None,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        name, config = f"{self._dialect.name} pirate", config or self._default
        super().__init__(name, handler, endpoint, jobs=jobs, config=config, key=key, server_key=server_key)

    def _new_session(self, service: bytes, config: WorkerConfig | None) -> WorkerSession:
        return WorkerSession(self.service, config, now=time.monotonic(), dialect=self._dialect)


class SimpleWorker(_PirateWorker):
    """A worker of Simple Pirate. The configuration's heartbeats do not count."""

    _dialect = SIMPLE
    _watch = True


class ParanoidWorker(_PirateWorker):
    """A worker of Paranoid Pirate. Heartbeats must be about as frequent as the queue's.

    By default they are the Guide's: every second, three may be missed.
    """

    _dialect = PARANOID
    _default = WorkerConfig(heartbeat_interval=1.0, liveness=3, reconnect_first=1.0, reconnect_most=32.0)
