"""Whose a request is, and what users were refused. Without access control there are no users: nothing of this is done.

What a user may do is in titanic/protocol/permissions.py.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from broker import User
from titanic.logs import COUNTED, WINDOW, Throttle, event
from titanic.store import Page, ReadTransaction

log = logging.getLogger(__name__)

BLURRED = 4
"""Bytes of an id that `place_behind` leaves out."""

MOST_COUNTED = 1000
"""Users and actions that are counted apart."""

OTHERS = ("(others)", "")
"""What is counted beyond that."""


def is_hidden(transaction: ReadTransaction, user: User | None, uuid: bytes) -> bool:
    """Whether there is such a request and the user may not know of it. What is unknown is not hidden."""
    if user is None or user.reads_all:
        return False
    owner = transaction.owner(uuid)
    return owner is not None and not user.reads(owner)


def is_kept(transaction: ReadTransaction, user: User | None, uuid: bytes) -> bool:
    """Whether there is such a request and the user may not close it."""
    if user is None or user.admin:
        return False
    owner = transaction.owner(uuid)
    return owner is not None and not user.closes(owner)


def place_behind(page: Page, user: User | None, *, newest: bool = False) -> bytes | None:
    """Where the list goes on behind a page; None: it was the last. A page may end at somebody else's request: then its
    place is given without the last half of its random part, a little before it. It is passed over once more. `newest`:
    the page has the newest first."""
    place = page.next
    if place is None or user is None or user.reads_all or (page and page[-1].uuid == place):
        return place
    return place[:-BLURRED] + (b"\xff" if newest else b"\0") * BLURRED


class Refusals:
    """What users were refused: counted by user and action, and logged, with neither bodies nor keys. Any thread may
    call it. An action is the name of the service that was asked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._throttle: Throttle[tuple[str, str], None] = Throttle(OTHERS)
        self._clock = clock
        self._lock = threading.Lock()

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """How often a user was refused an action since the start."""
        with self._lock:
            return dict(self._counts)

    def add(self, user: User, action: bytes, why: str, *, service: bytes = b"", uuid: bytes = b"") -> None:
        """A user asked for something and was refused. `service` and `uuid`: of the request that it was about."""
        name = action.decode()
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
        """Tell how many were left out, when their minute is over. To be called now and then: nothing may follow."""
        with self._lock:
            self._log_suppressed(now)

    def finish(self) -> None:
        """Tell it now: this is the end."""
        self.tick(math.inf)

    def _log_suppressed(self, now: float) -> None:
        for (name, what), more, _ in self._throttle.ended(now):
            text = f"user '{name}' was refused {what} {more} more times within {WINDOW:.0f} s"
            log.warning("%s", text, extra=event("forbidden", user=name, action=what) | COUNTED)


def not_owned(user: User, uuid: bytes) -> str:
    """What the log says of a request that belongs to somebody else."""
    return f"request {uuid.hex()} is not one of user '{user.name}'"
