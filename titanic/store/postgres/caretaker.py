"""A thread of the store's own for what must be done now and then, whatever its user does: partitions, dead nodes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from titanic.errors import StoreError

EVERY = 1.0
"""Seconds from one round to the next."""

_PATIENCE = 2.0
"""Seconds that `stop` gives a round that has begun."""


class Caretaker:
    """Calls functions. While the database is away they fail, which others report."""

    def __init__(self, chores: Sequence[Callable[[], None]]) -> None:
        self._chores = chores
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-caretaker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Do nothing more."""
        self._ended.set()
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while not self._ended.wait(EVERY):
            for chore in self._chores:
                with contextlib.suppress(StoreError):
                    chore()
