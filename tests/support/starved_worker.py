"""A worker in a process that can have no more files for a while:

    python starved_worker.py ENDPOINT SERVICE start|run

From SIGUSR1 to SIGUSR2 none can be opened. What the worker logs is on stdout.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys

from broker import Worker, WorkerConfig

NO_MORE = 3
"""A file gets the lowest free number below the limit, and stdin, stdout and stderr have the first three. What is open
already stays open. (poll() takes no more files than this either: the worker's loop has two.)"""


def main(endpoint: str, service: str, how: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)

    def starve(*_: object) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (NO_MORE, most))
        os.write(1, b"no more files\n")  # print() may be interrupted by itself

    def feed(*_: object) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))

    signal.signal(signal.SIGUSR1, starve)
    signal.signal(signal.SIGUSR2, feed)
    config = WorkerConfig(heartbeat_interval=0.5, liveness=100, reconnect_first=0.05, reconnect_most=0.2)
    worker = Worker(service, lambda frames: frames, endpoint, config=config)
    if how == "run":
        worker.run()
    worker.start()
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
