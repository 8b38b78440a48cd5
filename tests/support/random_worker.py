"""Workers that do what comes into their mind: `python random_worker.py ENDPOINT JOURNAL NAME SERVICE…`.

One process with some jobs for each service. What a body begins with says what may happen to it (KINDS); which of it
does is up to the dice of NAME. Each execution is in the file JOURNAL (journal.py) before anything is done, and each
end of one before anybody is told.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import zlib
from collections.abc import Generator
from itertools import count

from support.journal import note, reply_of

from broker import RemoteError, Worker, WorkerConfig

KINDS = ("plain", "parts", "large", "slow", "flaky", "never", "mortal")
SERVICES = ("a", "b", "p")
PATIENCE = WorkerConfig(heartbeat_interval=0.2, liveness=50, reconnect_first=0.05, reconnect_most=0.2)
"""A busy machine is no death."""

JOBS = 2
STATUSES = (500, 500, 418, 400, 413)


def main(endpoint: str, journal: str, name: str, *services: str) -> None:
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    dice = random.Random(name)
    numbers = count(1)

    def work(frames: list[bytes]) -> Generator[list[bytes], None, list[bytes] | None]:
        body, *padding = frames
        execution = f"{name}-{next(numbers)}"
        note(descriptor, "begin", execution, body.decode())
        if [str(zlib.crc32(frame)) for frame in padding] != body.decode().split(":")[1:]:
            note(descriptor, "damaged", execution, body.decode())
        kind = body.decode().split(".")[0]
        if kind == "slow":
            threading.Event().wait(dice.uniform(0.05, 0.4))
        last = 0 if kind in ("plain", "slow") or dice.random() < 0.3 else dice.randrange(1, 4)
        fate = "end"
        if kind == "never" or (kind == "flaky" and dice.random() < 0.5):
            fate = "failed"
        elif kind == "mortal" and dice.random() < 0.3:
            fate = "dies"
        size = dice.randrange(60_000) if kind == "large" else dice.choice((0, 10, 3000))
        parts = reply_of(execution, last, size)
        yield from parts[:last]
        if fate == "dies":
            threading.Event().wait(0.02)  # the parts are on their way
        note(descriptor, fate, execution, last)
        if fate == "failed":
            raise RemoteError(dice.choice(STATUSES), f"{execution} could not")
        if fate == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if last and dice.random() < 0.3:
            yield parts[last]
            return None  # a stream whose FINAL has nothing
        return parts[last]

    workers = [Worker(service, work, endpoint, jobs=JOBS, config=PATIENCE) for service in services]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # threads inherit it
    for each in workers:
        each.start()
    signal.sigwait({signal.SIGTERM})
    for each in workers:
        each.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
