"""How a dispatcher ends: what the thread that stops it waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

DISMISS_MOST = 2.0
"""Seconds that the reader has to look for the replies of clients that came last to wait."""

GRACE_LOOK = 0.5
"""Seconds between looks whether it still makes sense to wait for what is in flight."""


class Shutdown:
    """`settled`: nothing is in flight, nor on its way to the store. `dismissed`: all clients that waited have their
    answers."""

    def __init__(self) -> None:
        self.settled = threading.Event()
        self.dismissed = threading.Event()

    def wait_settled(self, grace: float, sensible: Callable[[], bool]) -> None:
        """Wait so many seconds at most, and only as long as it is `sensible`."""
        until = time.monotonic() + grace
        while sensible() and (left := until - time.monotonic()) > 0:
            if self.settled.wait(min(left, GRACE_LOOK)):
                return

    def wait_dismissed(self) -> None:
        """Wait for a while."""
        self.dismissed.wait(DISMISS_MOST)

    def over(self) -> None:
        """Nothing more is to be waited for."""
        self.settled.set()
        self.dismissed.set()
