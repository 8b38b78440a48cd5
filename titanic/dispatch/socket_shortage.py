"""When the process may have no more sockets or files: what wants one goes on without it for a while, then tries again.

The broker is no less there than before, and what is in flight on other connections goes on.
"""

from __future__ import annotations

import logging

from broker import OutOfSockets
from titanic.logs import Trouble

log = logging.getLogger(__name__)

PAUSE = 0.5
"""Seconds until it is tried again."""


class Shortage:
    """Of one socket. `trouble` tells of all of them together: many connections want one at the same time."""

    trouble = Trouble(log, "reach the broker")

    def __init__(self) -> None:
        self.ends: float | None = None
        """When to try again; None: there is a socket, or none was asked for."""

    def lasts(self, now: float) -> bool:
        """Whether it makes no sense to try."""
        return self.ends is not None and now < self.ends

    def met(self, error: OutOfSockets, now: float) -> None:
        """There was none."""
        self.trouble.met(error)
        self.ends = now + PAUSE

    def over(self) -> None:
        """There is one, or none is needed."""
        if self.ends is not None:
            self.ends = None
            self.trouble.over()


def first(*times: float | None) -> float | None:
    """The first of some deadlines."""
    return min((time for time in times if time is not None), default=None)
