"""Readers of a store that are killed while they read: `python killed_readers.py STORE ROUNDS EACH`.

EACH of them read at the same time, and are killed with SIGKILL in the middle of it. Before each round it reads a line
from stdin; after it, it prints one.
"""

from __future__ import annotations

import os
import signal
import sys

import lmdb


def read(path: str, ready: int) -> None:
    """Begin to read, and never end."""
    env = lmdb.open(path, readonly=True, create=False, max_dbs=16)
    transaction = env.begin()
    os.write(ready, b".")
    while transaction:
        signal.pause()


def main(path: str, rounds: str, each: str) -> None:
    ready, tell = os.pipe()
    for _ in range(int(rounds)):
        input()
        children = []
        for _ in range(int(each)):
            child = os.fork()
            if child == 0:
                read(path, tell)
            children.append(child)
        for _ in children:
            os.read(ready, 1)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        print("killed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
