"""A worker as a process of its own: `python worker_process.py ENDPOINT SERVICE LOG MODE`.

Each request is noted in the file LOG, a line each, before it is worked on. MODE is `echo`, which replies with
`done:` and the body, or `hang`, which never does; `await` never does with five coroutines at a time. `poison` has four
jobs, and notes attempt and delivery, too: the process dies of a body that is `poison`, and what it does beside never
ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from broker import Worker, WorkerConfig, aio
from titanic import current

POISON_JOBS = 4

QUICK = WorkerConfig(heartbeat_interval=0.2, liveness=50, reconnect_first=0.05, reconnect_most=0.2)


def main(endpoint: str, service: str, log: str, mode: str) -> None:
    descriptor = os.open(Path(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(frames: list[bytes]) -> bytes:
        body = frames[0][:100]
        os.write(descriptor, body + b"\n")
        while mode == "hang":
            signal.pause()
        return b"done:" + frames[0]

    begun = threading.Semaphore(0)

    def handle_poison(frames: list[bytes]) -> bytes:
        request = current()
        os.write(descriptor, b"%b %d %d\n" % (frames[0], request.attempt, request.delivery))
        if frames[0] == b"poison":
            for _ in range(POISON_JOBS - 1 if request.delivery == 1 else 0):
                begun.acquire()
            os.kill(os.getpid(), signal.SIGKILL)
        if request.delivery == 1:
            begun.release()
            threading.Event().wait()
        return b"done:" + frames[0]

    async def hang(frames: list[bytes]) -> None:
        os.write(descriptor, frames[0][:100] + b"\n")
        await asyncio.Event().wait()

    if mode == "poison":
        Worker(service, handle_poison, endpoint, jobs=POISON_JOBS, config=QUICK).run()
    if mode == "await":
        asyncio.run(aio.Worker(service, hang, endpoint, jobs=5, config=QUICK).run())
    Worker(service, handle, endpoint, jobs=1 if mode == "hang" else 2, config=QUICK).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
