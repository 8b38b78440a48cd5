"""Waiting for something to become true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from broker import EndpointError

Found = TypeVar("Found")
PATIENCE = 90.0
"""Seconds after which something that should happen has not, on a busy machine; only tests that fail take as long."""


def until(condition: Callable[[], Found], timeout: float = PATIENCE, *, every: float = 0.005) -> Found:
    """What `condition` returns as soon as that is true; an AssertionError when it never is. One that is dear, or has
    not been true for long, is asked less often, and leaves the processor to others."""
    start = now = time.monotonic()
    end = now + timeout
    while not (found := condition()):
        before, now = now, time.monotonic()
        assert now < end, f"not within {timeout:g} s; it is {found!r}"
        time.sleep(max(every, min(5 * (now - before), 0.05), min((now - start) / 20, 0.05)))
        now = time.monotonic()
    return found


def again(bind: Callable[[str], str], endpoint: str) -> None:
    """Bind where something has just ended: ZeroMQ closes its sockets a little later than they are closed."""

    def bound() -> bool:
        try:
            return bind(endpoint) == endpoint
        except EndpointError:
            return False

    until(bound)
