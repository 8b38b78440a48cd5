"""A queue at a broker apart, in a process that can have no more files for a while:

    python starved_queue.py ENDPOINT STORE

From SIGUSR1 to SIGUSR2 none can be opened. SIGTERM stops it as it should be stopped. What it logs is on stdout.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
from pathlib import Path

from broker import WorkerConfig
from titanic import Server, ServerConfig


def main(endpoint: str, store: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM})  # threads inherit it
    worker = WorkerConfig(heartbeat_interval=0.2, liveness=50, reconnect_first=0.05, reconnect_most=0.2)
    server = Server(ServerConfig(store=Path(store), broker=endpoint, lanes=4, worker=worker)).start()
    while (number := signal.sigwait({signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM})) != signal.SIGTERM:
        if number == signal.SIGUSR1:
            top = max(int(file.name) for file in Path("/proc/self/fd").iterdir())
            while (last := os.dup(0)) < top:  # a file gets the lowest number that is free
                held.append(last)
            os.close(last)
            resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1, most))  # what is open stays open
            os.write(1, b"no more files\n")
        else:
            resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))
            while held:
                os.close(held.pop())
    assert server.alive
    server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
