"""A worker as a process of its own: `python titanic_worker.py ENDPOINT SERVICE LOG MODE`.

Each request is noted in the file LOG, a line each, before it is worked on. MODE is `echo`, which replies with
`done:` and the body, or `hang`, which never does. What begins with `fail.` fails the first time that a worker sees it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from broker import RemoteError, Worker, WorkerConfig

QUICK = WorkerConfig(heartbeat_interval=0.2, reconnect_first=0.05, reconnect_most=0.2)


def main(endpoint: str, service: str, log: str, mode: str) -> None:
    failed: set[bytes] = set()
    descriptor = os.open(Path(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(frames: list[bytes]) -> bytes:
        os.write(descriptor, frames[0][:100] + b"\n")
        while mode == "hang":
            signal.pause()
        if frames[0].startswith(b"fail.") and frames[0] not in failed:
            failed.add(frames[0])
            raise RemoteError(500, "not the first time")
        return b"done:" + frames[0]

    Worker(service, handle, endpoint, jobs=2 if mode == "echo" else 1, config=QUICK).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
