"""A worker that takes a request and never answers: python stuck_worker.py ENDPOINT SERVICE. It prints what it got."""

import sys
import threading

from broker import Worker, WorkerConfig


def hang(frames: list[bytes]) -> None:
    print(frames[0].decode(), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    Worker(sys.argv[2], hang, sys.argv[1], config=WorkerConfig(heartbeat_interval=0.1, liveness=50)).run()
