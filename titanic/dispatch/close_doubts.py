"""Closes that are not answered yet, because a worker may still be given the requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from titanic.dispatch.core import DispatchCore
from titanic.services.ask import CloseDoubt


@dataclass(slots=True)
class _Doubt:
    """Closed requests that a worker may still get, and what to call when none can."""

    left: set[bytes]
    then: Callable[[], None]

    def over(self, uuid: bytes) -> None:
        self.left.discard(uuid)
        if not self.left:
            self.then()


class PendingCloses:
    """Those of this node's dispatcher. Methods are called in the loop's thread."""

    def __init__(self, core: DispatchCore) -> None:
        self._core = core
        self._doubts: dict[bytes, list[_Doubt]] = {}

    def add(self, closed: CloseDoubt) -> None:
        """The core knows that these are closed. What is not in flight now never will be: the store has it no more."""
        about, then = closed
        doubt = _Doubt({uuid for uuid in about if self._core.in_doubt(uuid)}, then)
        for uuid in doubt.left:
            self._doubts.setdefault(uuid, []).append(doubt)
        if not doubt.left:
            then()

    def over(self, uuid: bytes) -> None:
        """No worker of this node can be given this one any more."""
        for doubt in self._doubts.pop(uuid, ()):
            doubt.over(uuid)
