"""Owners of requests, and refusals of users. Without access control there are no users, and none of this applies.

What a user may do is in titanic/protocol/permissions.py.
"""

from __future__ import annotations

import logging
import math
import threading
import time

from broker import User
from titanic.facts.audit import Audit
from titanic.logs import COUNTED, WINDOW, Throttle, event
from titanic.store import Page, ReadTransaction
from titanic.util.clock import Clock

log = logging.getLogger(__name__)

BLURRED = 4
"""Bytes of an id that `place_behind` leaves out."""

MOST_COUNTED = 1000
"""Pairs of user and action that are counted separately."""

OTHERS = ("(others)", "")
"""The key for all further ones."""


def is_hidden(transaction: ReadTransaction, user: User | None, uuid: bytes) -> bool:
    """Whether a request exists and the user may not see it. Unknown requests are not hidden."""
    if user is None or user.reads_all:
        return False
    owner = transaction.owner(uuid)
    return owner is not None and not user.reads(owner)


def is_kept(transaction: ReadTransaction, user: User | None, uuid: bytes) -> bool:
    """Whether a request exists and the user may not close it."""
    if user is None or user.admin:
        return False
    owner = transaction.owner(uuid)
    return owner is not None and not user.closes(owner)


def place_behind(page: Page, user: User | None, *, newest: bool = False) -> bytes | None:
    """Where the list continues after a page; None: it was the last. A page may end at another user's request: then the
    last half of the random part of its UUID is hidden, so that the next page starts a little before it and skips it
    once more. `newest`: the page lists the newest first."""
    place = page.next
    if place is None or user is None or user.reads_all or (page and page[-1].uuid == place):
        return place
    return place[:-BLURRED] + (b"\xff" if newest else b"\0") * BLURRED


class Refusals:
    """Counts refusals by user and action, and logs them without bodies and keys. Any thread may call it. An action is
    the name of the requested service."""

    def __init__(self, clock: Clock = time.monotonic, audit: Audit | None = None) -> None:
        """`audit`: remembers them by address."""
        self._audit = audit
        self._counts: dict[tuple[str, str], int] = {}
        self._throttle: Throttle[tuple[str, str], None] = Throttle(OTHERS)
        self._clock = clock
        self._lock = threading.Lock()

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """The number of refusals since the start, by user and action."""
        with self._lock:
            return dict(self._counts)

    def add(
        self, user: User, action: bytes, why: str, *, service: bytes = b"", uuid: bytes = b"", address: bytes = b""
    ) -> None:
        """Record a refusal. `service` and `uuid`: those of the request concerned. `address`: where it came from."""
        name = action.decode()
        if self._audit is not None:
            self._audit.refused(user.name, name, address.decode(errors="replace"))
        key = (user.name, name)
        with self._lock:
            if key not in self._counts and len(self._counts) >= MOST_COUNTED:
                key = OTHERS
            self._counts[key] = self._counts.get(key, 0) + 1
            now = self._clock()
            self._log_suppressed(now)
            _, held = self._throttle.take(key, None, now)
        if not held:
            fields = event("forbidden", uuid=uuid, service=service, user=user.name, action=name)
            log.warning("%s: %s", name, why, extra=fields | COUNTED)

    def tick(self, now: float) -> None:
        """Log how many refusals were suppressed, once their minute has passed. Called periodically."""
        with self._lock:
            self._log_suppressed(now)

    def finish(self) -> None:
        """Log all suppressed refusals at shutdown."""
        self.tick(math.inf)

    def _log_suppressed(self, now: float) -> None:
        for (name, what), more, _ in self._throttle.ended(now):
            text = f"user '{name}' was refused {what} {more} more times within {WINDOW:.0f} s"
            log.warning("%s", text, extra=event("forbidden", user=name, action=what) | COUNTED)


def not_owned(user: User, uuid: bytes) -> str:
    """The log text for another user's request."""
    return f"request {uuid.hex()} does not belong to user '{user.name}'"
