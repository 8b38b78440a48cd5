"""A worker as a process of its own: `python worker_process.py ENDPOINT SERVICE LOG MODE`.

Each request is noted in the file LOG, a line each, before it is worked on. MODE is `echo`, which replies with
`done:` and the body, or `hang`, which never does; `await` never does with five coroutines at a time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from broker import Worker, WorkerConfig, aio

QUICK = WorkerConfig(heartbeat_interval=0.2, liveness=50, reconnect_first=0.05, reconnect_most=0.2)


def main(endpoint: str, service: str, log: str, mode: str) -> None:
    descriptor = os.open(Path(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(frames: list[bytes]) -> bytes:
        body = frames[0][:100]
        os.write(descriptor, body + b"\n")
        while mode == "hang":
            signal.pause()
        return b"done:" + frames[0]

    async def hang(frames: list[bytes]) -> None:
        os.write(descriptor, frames[0][:100] + b"\n")
        await asyncio.Event().wait()

    if mode == "await":
        asyncio.run(aio.Worker(service, hang, endpoint, jobs=5, config=QUICK).run())
    Worker(service, handle, endpoint, jobs=1 if mode == "hang" else 2, config=QUICK).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
