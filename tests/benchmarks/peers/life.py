"""A whole life: handed in, stored, executed by ten threads of one worker process, the result fetched and forgotten.

The task queues work on Redis with `appendfsync always`.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers import servers, tasks
from benchmarks.peers.accept import Titanic as Accepting
from benchmarks.peers.peer import BODY, Peer

TEXT = BODY.decode()
HERE = Path(__file__).parents[2]


class Titanic(Accepting):
    """Submitted, fetched and closed 1,000 at a time, or each by itself; the worker of this project."""

    name = "titanic"

    def start(self) -> None:
        super().start()
        code = "import sys; from broker import Worker; Worker('echo', lambda body: body, sys.argv[1], jobs=10).run()"
        for number in range(self.terms.processes):
            self.run("worker", sys.executable, "-c", code, self.client.endpoint, log=self.folder / f"worker{number}")
        self.client.call("echo", BODY)

    def many(self, count: int) -> None:
        uuids = self.client.submit_many("echo", [BODY] * count, unique=False)  # the peers have no keys either
        for _, reply in self.client.replies(uuids, 60):
            assert reply == [BODY]
        self.client.close_many(uuids)

    def one(self, count: int) -> None:
        for _ in range(count):
            uuid = self.client.submit("echo", BODY)
            assert self.client.wait(uuid, 60) == [BODY]
            self.client.close(uuid)


class TitanicPostgres(Titanic):
    """Its store is in PostgreSQL."""

    name = "titanic, PostgreSQL"

    def place(self) -> object:
        return self.database()


class TaskQueue(Peer):
    """A task queue on a Redis of its own."""

    share = 10

    def start(self) -> None:
        self.port = self.serve(servers.redis)
        tasks.URL = os.environ["BENCH_REDIS"] = f"redis://127.0.0.1:{self.port}/0"
        self.prepare()

    def prepare(self) -> None:
        raise NotImplementedError

    def version(self) -> str:
        there = servers.said(servers.program("redis-server"), "--version").partition(" sha=")[0]
        return f"{self.name} {version(self.name.lower())}, {there}, redis-py {version('redis')}"

    def work(self, *command: object) -> None:
        """Start the worker."""
        environment = {"BENCH_REDIS": tasks.URL, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}
        self.run("worker", *command, log=self.folder / "worker", **environment)

    def one(self, count: int) -> None:
        for _ in range(count):
            self.many(1)


class Huey(TaskQueue):
    """huey_consumer with ten threads."""

    name = "Huey"

    def prepare(self) -> None:
        _, self.task = tasks.huey()
        consumer = servers.program("huey_consumer")
        self.work(consumer, "benchmarks.peers.huey_worker.queue", "-w", 10, "-k", "thread", "-q")

    def many(self, count: int) -> None:
        for result in [self.task(TEXT) for _ in range(count)]:
            assert result.get(blocking=True, timeout=60, backoff=1.0, max_delay=0.001) == TEXT


class Dramatiq(TaskQueue):
    """One process with ten threads."""

    name = "Dramatiq"

    def prepare(self) -> None:
        self.task = tasks.dramatiq()
        command = "-m", "dramatiq", "benchmarks.peers.dramatiq_worker", "--processes", 1, "--threads", 10
        self.work(sys.executable, *command)

    def many(self, count: int) -> None:
        for message in [self.task.send(TEXT) for _ in range(count)]:
            assert message.get_result(block=True, timeout=60_000) == TEXT


class Celery(TaskQueue):
    """Ten threads; late acknowledgement, so that a killed worker loses nothing."""

    name = "Celery"

    def prepare(self) -> None:
        _, self.task = tasks.celery()
        command = "-m", "celery", "-A", "benchmarks.peers.celery_worker", "worker", "--pool", "threads", "-c", 10
        self.work(sys.executable, *command, "--without-gossip", "--without-mingle", "-l", "ERROR")

    def many(self, count: int) -> None:
        for result in [self.task.delay(TEXT) for _ in range(count)]:
            assert result.get(timeout=60) == TEXT
            result.forget()


class RQ(TaskQueue):
    """Its usual worker, which forks for each job."""

    name = "RQ"

    def prepare(self) -> None:
        import redis
        import rq

        self.queue = rq.Queue("bench", connection=redis.Redis(port=self.port))
        self.work(servers.program("rq"), "worker", "bench", "--url", tasks.URL, "--quiet")

    def many(self, count: int) -> None:
        jobs: list[Any] = [self.queue.enqueue(tasks.echo, TEXT) for _ in range(count)]
        for job in jobs:
            result = job.latest_result(timeout=60)
            assert result is not None
            assert result.return_value == TEXT
            job.delete()
