"""The workers of Simple and Paranoid Pirate (Guide, chapter 4; RFC 6).

Simple ones send no heartbeats: they learn from the transport that the queue is gone. A simple worker that hangs is
noticed by its clients only, which ask again. A paranoid one that does not hear its queue comes back on a new
connection, after a wait that doubles up to 32 s.
"""

from __future__ import annotations

import time

from broker.config import WorkerConfig
from broker.core.worker import WorkerSession
from broker.patterns.pirate_queue.wire import PARANOID, SIMPLE, PirateDialect
from broker.worker import Handler, Worker


class _PirateWorker(Worker):
    """`jobs` connections, each with one request at a time."""

    _dialect: PirateDialect
    _default = WorkerConfig()
    _registers_at = "queue"

    def __init__(self, handler: Handler, endpoint: str, *, jobs: int = 1, config: WorkerConfig | None = None) -> None:
        name = f"{self._dialect.name} pirate"
        super().__init__(name, handler, endpoint, jobs=jobs, config=config or self._default)

    def _new_session(self, config: WorkerConfig | None) -> WorkerSession:
        return WorkerSession(self.service, config, now=time.monotonic(), dialect=self._dialect)


class SimpleWorker(_PirateWorker):
    """A worker: `run` blocks until `stop`; `start` and the context manager use a thread.

    `jobs` connections, each with one request at a time. The configuration's heartbeats do not count.
    """

    _dialect = SIMPLE
    _watch = True


class ParanoidWorker(_PirateWorker):
    """A worker: `run` blocks until `stop`; `start` and the context manager use a thread.

    `jobs` connections, each with one request at a time. Heartbeats must be about as frequent as the queue's. By default
    they are the Guide's: every second, three may be missed.
    """

    _dialect = PARANOID
    _default = WorkerConfig(heartbeat_interval=1.0, liveness=3, reconnect_first=1.0, reconnect_most=32.0)
