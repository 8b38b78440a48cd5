"""Ports of this machine for what is started again at the same place."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress

PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
"""The number of this test process."""


def free_port() -> int:
    """A port below those that the system gives away, so that nobody gets it while its server is down. Test processes
    have different ones: two could find the same one free before either server is there."""
    while True:
        port = random.randrange(20_000 + PROCESS % 12, 32_000, 12)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)) as free:
            return int(free.getsockname()[1])
