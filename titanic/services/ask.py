"""What the services are asked, where their answers go, and what they tell the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from titanic.protocol.tsp import Frames


class Ask(Protocol):
    """A request to one of Titanic's services, from the integrated broker or from a lane."""

    body: Frames

    @property
    def peer(self) -> object:
        """Who asked."""


Answers = Sequence[tuple[Any, Frames]]
"""Asks, each with the body of its answer."""

SendAnswers = Callable[[Answers], None]
"""Sends answers to those who asked. Another thread than the one that asked calls it."""

HandleBatch = Callable[[bytes, Sequence[Ask]], None]
"""Takes a batch of asks for the service of that name. One thread calls it."""

CloseDoubt = tuple[Sequence[bytes], Callable[[], None]]
"""Closed requests that a worker may still get, and what to call when none can get any of them any more; another thread
calls it."""


class DispatcherInbox(Protocol):
    """What the services tell the dispatcher. Any thread may call."""

    def arrived(self, services: Mapping[bytes, int]) -> None:
        """These services have new requests on disk, the highest priority of which is given."""

    def returned(self, services: Collection[bytes]) -> None:
        """These services have requests again that were there before."""

    def due_at(self, when_us: int) -> None:
        """Something was stored that is due then (µs since the epoch), and nothing that is due earlier."""

    def closed(self, uuids: Sequence[bytes], services: Collection[bytes], doubts: Sequence[CloseDoubt]) -> None:
        """These requests are closed: do not dispatch them, drop their replies. `services`: where some waited."""

    def wait_for_replies(self, asks: Sequence[Ask]) -> None:
        """These asks for titanic.wait have come. The dispatcher answers them."""

    def stats(self) -> dict[str, Any]:
        """What is going on, for titanic.stats."""

    def running(self) -> Collection[bytes]:
        """The requests that are with a worker now, or whose outcome is on its way to the disk."""
