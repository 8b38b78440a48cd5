"""What the services are asked, where the answers go, and who wants to know what was done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from titanic.protocol.tsp import Frames


class Ask(Protocol):
    """A request to one of Titanic's services: a broker's, or a lane's."""

    body: Frames

    @property
    def peer(self) -> object:
        """Who asked."""


Answers = Sequence[tuple[Any, Frames]]
Answer = Callable[[Answers], None]
"""Sends answers to asks. It is called in another thread than the one that asked."""


Doubt = tuple[Sequence[bytes], Callable[[], None]]
"""Closed requests that a worker may be about to get, and what to call when none can get any of them any more; another
thread calls it."""


class Watcher(Protocol):
    """Who wants to know at once what was committed: the dispatcher. Any thread may call."""

    def arrived(self, services: Mapping[bytes, int]) -> None:
        """These services have new requests to be dispatched, the highest priority of which is given."""

    def returned(self, services: Collection[bytes]) -> None:
        """These services have requests again that were there before."""

    def due_at(self, when_us: int) -> None:
        """Something was stored that is due then (µs since the epoch), and nothing that is due earlier."""

    def closed(self, uuids: Sequence[bytes], services: Collection[bytes], doubts: Sequence[Doubt]) -> None:
        """These requests are closed: do not dispatch them, drop their replies. `services`: where some waited."""

    def stats(self) -> dict[str, Any]:
        """What is going on, for titanic.stats."""

    def running(self) -> Collection[bytes]:
        """The requests that are with a worker now, or whose outcome is on its way to the disk."""
