"""Ports of this machine for what is started again at the same place."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import cycle
from random import Random

FIRST, LAST = 16_000, 32_000
"""Below the ports that the system gives away, so that nobody gets one while its server is down."""
_process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_processes = max(12, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
OWN = range(FIRST + _process, LAST, _processes)
"""Those of this process."""
_ports = cycle(Random().sample(OWN, len(OWN)))


def free_port() -> int:
    """A port for a server that is started later. No other test process chooses it, and this one chooses all
    its others first: until the server is there, the port looks free."""
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", next(_ports))) as free:
            return int(free.getsockname()[1])
