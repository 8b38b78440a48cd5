"""The same life with queues that work on PostgreSQL.

Neither of them keeps what a task returns. So the task puts its result into a table, by its own connections; who
submitted
it takes it out there, all that are there with one statement, and looks again each millisecond when there is none.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
from benchmarks.peers import tasks
from benchmarks.peers.peer import BODY, Peer

HERE = Path(__file__).parents[2]
PATIENCE = 60.0
AGAIN = 0.001

RESULTS = "CREATE TABLE result (id bigint PRIMARY KEY, value text NOT NULL)"
TAKE = "DELETE FROM result WHERE id = ANY(%s) RETURNING id, value"


class OnPostgres(Peer):
    """A queue on PostgreSQL, with a worker of some processes, each of which does ten jobs at a time."""

    share = 5
    worker = ""

    def start(self) -> None:
        tasks.POSTGRES = url = self.database()
        self.connection = self.stack.enter_context(psycopg.connect(url, autocommit=True))
        self.connection.execute(RESULTS)
        self.prepare(url)
        environment = {"BENCH_POSTGRES": url, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}
        for number in range(self.terms.processes):
            log = self.folder / f"worker{number}"
            self.run("worker", sys.executable, "-m", f"benchmarks.peers.{self.worker}", log=log, **environment)
        self.many(1)

    def prepare(self, url: str) -> None:
        raise NotImplementedError

    def submit(self, count: int) -> Sequence[int]:
        """Hand in so many; their ids."""
        raise NotImplementedError

    def version(self) -> str:
        there = self.connection.info.server_version // 10000
        return f"{self.name} {version(self.name)} on PostgreSQL {there}"

    def many(self, count: int) -> None:
        left = set(self.submit(count))
        until = time.monotonic() + PATIENCE
        while left:
            found = self.connection.execute(TAKE, [list(left)]).fetchall()
            for number, value in found:
                assert value == BODY.decode()
                left.remove(number)
            if not found:
                assert time.monotonic() < until, f"{len(left)} results are missing"
                time.sleep(AGAIN)

    def one(self, count: int) -> None:
        for _ in range(count):
            self.many(1)


class Procrastinate(OnPostgres):
    """Jobs are handed in by one statement, and deleted when they are done."""

    name = "procrastinate"
    worker = "procrastinate_worker"

    def prepare(self, url: str) -> None:
        app, self.task = tasks.procrastinate(in_worker=False)
        self.stack.enter_context(app.open())
        app.schema_manager.apply_schema()

    def submit(self, count: int) -> Sequence[int]:
        text = BODY.decode()
        if count == 1:
            return [self.task.defer(body=text)]
        found: Sequence[int] = self.task.batch_defer(*[{"body": text}] * count)
        return found


class PgQueuer(OnPostgres):
    """With asyncpg, and a hundred jobs in a batch."""

    name = "pgqueuer"
    worker = "pgqueuer_worker"

    def prepare(self, url: str) -> None:
        self.runner = self.stack.enter_context(asyncio.Runner())
        self.queries: Any = self.runner.run(_connected(url))

    def submit(self, count: int) -> Sequence[int]:
        found: Sequence[int] = self.runner.run(
            self.queries.enqueue(["echo"] * count, [BODY] * count, [0] * count),
        )
        return found


async def _connected(url: str) -> Any:
    import asyncpg
    from pgqueuer import Queries
    from pgqueuer.db import AsyncpgDriver

    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    await queries.install()
    return queries
