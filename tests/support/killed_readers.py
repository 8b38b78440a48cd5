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
    """Begin a read transaction and never end it."""
    env = lmdb.open(path, readonly=True, create=False, max_dbs=16)
    while True:
        try:
            transaction = env.begin()
            break
        except lmdb.MapResizedError:  # the server's file has grown since it was opened
            env.set_mapsize(0)
    os.write(ready, b".")
    while transaction:
        signal.pause()


def main(path: str, rounds: str, each: str) -> None:
    for _ in range(int(rounds)):
        input()
        children = {}
        for _ in range(int(each)):
            readable, writable = os.pipe()
            child = os.fork()
            if child == 0:
                read(path, writable)
            os.close(writable)
            children[child] = readable
        for child, readable in children.items():
            if os.read(readable, 1) != b".":
                sys.exit(f"reader {child} ended before it began a transaction")
            os.close(readable)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        print("killed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
