"""Which services have workers, in the server's log: when the first one is there, and when the last one has gone."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from titanic.logs import event
from titanic.util.text import one_line

log = logging.getLogger(__name__)

MOST_TEXT = 200
"""Characters of a name: it may be anything."""


class PresenceLog:
    """Used in one thread, which looks now and then: who came and went between two looks was never there."""

    def __init__(self) -> None:
        self._present: set[bytes] = set()

    def look(self, workers: Mapping[bytes, int]) -> None:
        """These services have workers now, and how many."""
        for name in sorted(self._present - workers.keys()):
            log.warning("%s has no worker any more", _shown(name), extra=event("no-worker", service=name))
        for name in sorted(workers.keys() - self._present):
            log.info("%s has a worker", _shown(name), extra=event("worker", service=name))
        self._present = set(workers)


def _shown(name: bytes) -> str:
    return one_line(name.decode(errors="replace"), MOST_TEXT)
