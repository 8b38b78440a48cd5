"""Ctrl-C as a request to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C as a request to end, and not as an exception in the middle of something.

    While the block runs, the first SIGINT calls `stop`; the second raises KeyboardInterrupt, as always.

    A program that has a handler of its own keeps it. Outside the main thread, where Python handles no signals, nothing
    is changed.
    """
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, usual)
        stop()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
