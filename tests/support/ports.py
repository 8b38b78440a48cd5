"""Ports of this machine for what is started again at the same place."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """A port below those that the system gives away, so that nobody gets it while its server is down."""
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", random.randrange(20_000, 32_000))) as free:
            return int(free.getsockname()[1])
