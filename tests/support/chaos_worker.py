"""Workers under chaos: `python chaos_worker.py JOURNAL NAME JOBS NODE=ENDPOINT…`.

It works for each node by its own endpoint, so that the journal (journal.py) can say at which node an execution was:
`NAME@NODE-17`. `NODE=ENDPOINT,ENDPOINT` is a worker that goes where it likes.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from itertools import count

from support.chaos_bodies import kind_of, name_of, reply_of
from support.journal import note

from broker import RemoteError, Worker, WorkerConfig

SERVICES = ("a", "b")
QUICK = WorkerConfig(heartbeat_interval=1.0, liveness=10, reconnect_first=0.1, reconnect_most=1.0)
"""A busy machine is no death."""


def main(journal: str, name: str, jobs: str, *places: str) -> None:
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    dice = random.Random(name)
    numbers = count(1)

    def worker(service: str, node: str, endpoints: list[str]) -> Worker:
        def work(frames: list[bytes]) -> list[bytes]:
            execution = f"{name}@{node}-{next(numbers)}"
            body = name_of(frames[0]) if len(frames) == 1 else None
            if body is None:
                note(descriptor, "damaged", execution, repr(frames)[:200])
                raise RemoteError(400, "damaged")
            note(descriptor, "begin", execution, body)
            if kind_of(body) == "slow":
                threading.Event().wait(dice.uniform(0.1, 2.0))
            if kind_of(body) == "flaky" and dice.random() < 0.5:
                note(descriptor, "failed", execution, 0)
                raise RemoteError(500, f"{execution} could not")
            note(descriptor, "end", execution, 0)
            return reply_of(execution, body)

        return Worker(service, work, endpoints if len(endpoints) > 1 else endpoints[0], jobs=int(jobs), config=QUICK)

    found = [place.split("=") for place in places]
    workers = [worker(service, node, endpoints.split(",")) for node, endpoints in found for service in SERVICES]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # threads inherit it
    for each in workers:
        each.start()
    signal.sigwait({signal.SIGTERM})
    for each in workers:
        each.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
