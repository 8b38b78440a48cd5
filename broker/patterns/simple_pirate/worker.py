"""Simple Pirate (Guide, chapter 4, "Basic Reliable Queuing"): a queue that gives requests to the least recently used
worker; workers are REQ sockets that say READY.

Nobody sends heartbeats: that a worker hangs is found out by the clients, who ask again. That the queue is gone the
worker learns from the transport.
"""

from __future__ import annotations

import time

from broker.config import WorkerConfig
from broker.core.worker import WorkerSession
from broker.patterns.pirate_queue.queue import Queue
from broker.patterns.pirate_queue.wire import SIMPLE
from broker.worker import Handler, Worker


class SimpleQueue(Queue):
    """The queue. Its clients are Lazy Pirates."""

    dialect = SIMPLE


class SimpleWorker(Worker):
    """A worker: `run` blocks until `stop`; `start` and the context manager use a thread.

    `jobs` connections, each with one request at a time. The configuration's heartbeats do not count.
    """

    _watch = True
    _registers_at = "queue"

    def __init__(self, handler: Handler, endpoint: str, *, jobs: int = 1, config: WorkerConfig | None = None) -> None:
        super().__init__("simple pirate", handler, endpoint, jobs=jobs, config=config or WorkerConfig())

    def _new_session(self, config: WorkerConfig | None) -> WorkerSession:
        return WorkerSession(self.service, config, now=time.monotonic(), dialect=SIMPLE)
