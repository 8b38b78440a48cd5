"""Whether the database is away, in the log: one line when that begins, whoever finds it, and one when it is back.

Only servers say it, which go on. For everybody else the error is the message.
"""

from __future__ import annotations

import logging
import threading
import time

from titanic.errors import StoreAway

log = logging.getLogger(__name__)

EVERY = 300.0
"""Seconds from one line to the next while it lasts."""


class Outage:
    """Any thread may call it. Each pool of connections is `somebody`: it is over when all of them are well."""

    def __init__(self) -> None:
        self.told = False
        """Whether it is said in the log."""
        self._lock = threading.Lock()
        self._met: set[object] = set()
        self._said_at = 0.0
        """When it was said last; 0: it was not."""

    def met(self, somebody: object, error: StoreAway) -> None:
        """The database could not be used."""
        now = time.monotonic()
        with self._lock:
            self._met.add(somebody)
            if not self.told or (self._said_at and now < self._said_at + EVERY):
                return
            self._said_at = now
        log.error("cannot use the database: %s", error, extra={"event": "database-away"})

    def over(self, somebody: object) -> None:
        """It could be used."""
        with self._lock:
            self._met.discard(somebody)
            if self._met or not self._said_at:
                return
            self._said_at = 0.0
        log.info("can use the database again", extra={"event": "database-back"})

    def forget(self, somebody: object) -> None:
        """He does not want it any more."""
        with self._lock:
            self._met.discard(somebody)
