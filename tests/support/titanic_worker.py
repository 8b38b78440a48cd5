"""A worker as a process of its own: `python titanic_worker.py ENDPOINT SERVICE LOG MODE`.

Each request is noted in the file LOG, a line each, before it is worked on. MODE is `echo`, which replies with
`done:` and the body; `hang`, which never does; or `journal`, which echoes, and notes the ends as well (journal.py).

What begins with `fail.` fails the first time that a worker sees it, what begins with `never.` every time, and what
begins with `slow.` takes a while.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

from support.journal import note

from broker import RemoteError, Worker, WorkerConfig

LIVENESS = 50
"""Heartbeats that a worker with a journal may miss: a busy machine is no death."""

QUICK = WorkerConfig(heartbeat_interval=0.2, reconnect_first=0.05, reconnect_most=0.2)


def main(endpoint: str, service: str, log: str, mode: str) -> None:
    failed: set[bytes] = set()
    descriptor = os.open(Path(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def work(body: bytes) -> bytes:
        if body.startswith(b"never.") or (body.startswith(b"fail.") and body not in failed):
            failed.add(body)
            raise RemoteError(500, "not the first time" if body.startswith(b"fail.") else "never")
        if body.startswith(b"slow."):
            threading.Event().wait(0.1)
        return b"done:" + body

    def handle(frames: list[bytes]) -> bytes:
        body = frames[0][:100]
        if mode != "journal":
            os.write(descriptor, body + b"\n")
            while mode == "hang":
                signal.pause()
            return work(frames[0])
        note(descriptor, "begin", body)
        try:
            reply = work(frames[0])
        except RemoteError:
            note(descriptor, "failed", body)
            raise
        note(descriptor, "end", body)
        return reply

    config = replace(QUICK, liveness=LIVENESS) if mode == "journal" else QUICK
    Worker(service, handle, endpoint, jobs=1 if mode == "hang" else 2, config=config).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
