"""Paranoid Pirate (Guide, chapter 4, "Robust Reliable Queuing"; RFC 6): Simple Pirate with heartbeats both ways.

The queue forgets workers that are silent; a worker that does not hear its queue comes back on a new connection, after
a wait that doubles up to 32 s.
"""

from __future__ import annotations

import time

from broker.config import WorkerConfig
from broker.core.worker import WorkerSession
from broker.patterns.pirate_queue.queue import Queue
from broker.patterns.pirate_queue.wire import PARANOID
from broker.worker import Handler, Worker

CONFIG = WorkerConfig(heartbeat_interval=1.0, liveness=3, reconnect_first=1.0, reconnect_most=32.0)
"""As the Guide has it. Times are seconds."""


class ParanoidQueue(Queue):
    """The queue. Its clients are Lazy Pirates."""

    dialect = PARANOID


class ParanoidWorker(Worker):
    """A worker: `run` blocks until `stop`; `start` and the context manager use a thread.

    `jobs` connections, each with one request at a time. Heartbeats must be those of the queue, about.
    """

    _registers_at = "queue"

    def __init__(self, handler: Handler, endpoint: str, *, jobs: int = 1, config: WorkerConfig | None = None) -> None:
        super().__init__("paranoid pirate", handler, endpoint, jobs=jobs, config=config or CONFIG)

    def _new_session(self, config: WorkerConfig | None) -> WorkerSession:
        return WorkerSession(self.service, config, now=time.monotonic(), dialect=PARANOID)
