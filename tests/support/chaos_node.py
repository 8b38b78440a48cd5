"""`titanic serve` whose clock of the wall can be moved, and which waits less long for others than it would in earnest:

    python chaos_node.py CLOCK SECONDS ARGUMENT…

CLOCK is a file with the microseconds by which its wall clock is wrong, 8 bytes; SECONDS is how long its lease is. The
rest is the command line of `titanic`.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from dataclasses import astuple

REAL_NS = time.time_ns


def wrong_clock(path: str) -> None:
    """From now on this process has the wall clock that the file says."""
    descriptor = os.open(path, os.O_RDONLY)
    offset = mmap.mmap(descriptor, 8, prot=mmap.PROT_READ)

    def time_ns() -> int:
        return REAL_NS() + int(struct.unpack("q", offset[:8])[0]) * 1000

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


def short_lease(seconds: float) -> None:
    """The lease, and what a node waits for the database, in proportion."""
    from titanic.cluster import claims_core
    from titanic.store.postgres import connection_pool, database_session

    connection_pool.AGAIN = 0.3
    database_session.PATIENCE = max(2.0, seconds)
    usual = claims_core.LeaseConfig()
    part = seconds / usual.lease
    claims_core.LeaseConfig.__init__.__defaults__ = tuple(one * part for one in astuple(usual))


if __name__ == "__main__":
    wrong_clock(sys.argv[1])
    short_lease(float(sys.argv[2]))
    del sys.argv[1:3]
    from titanic.cli.main import main

    main(prog_name="titanic")
