"""Waiting for something to become true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def eventually(condition: Callable[[], Value], timeout: float = 30.0, *, every: float = 0.005) -> Value:
    """What `condition` returns as soon as that is true; an AssertionError when it never is."""
    until = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"not within {timeout:g} s; it is {value!r}"
        time.sleep(every)
