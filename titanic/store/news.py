"""What nodes that share a store tell each other.

News are a courtesy: they make things quick, and nothing depends on them. Whoever has heard nothing finds everything by
looking, which each node does every second or two (sharing.py). So news may be lost, may come twice, too late or in any
order. They go through the database: no node needs to reach another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class Topic(Enum):
    """What news are about."""

    ARRIVED = "arrived"
    ENDED = "ended"
    CLOSED = "closed"
    CERTAIN = "certain"
    SETTINGS = "settings"


@dataclass(slots=True)
class News:
    """What has happened at a node, and is committed.

    `arrived`: these services have something more to be claimed, the highest priority of which is given. `ended`: these
    requests have ended or are closed, for those who wait for their replies. `closed`: these are closed, and the
    incarnation that had claimed each is to take it back. `certain`: no worker at the node can be given these any more.
    `progress`: how far the workers at the node are with these, a JSON object each, empty when an attempt is over.
    `look`: there is more about these than is said here. Empty news say that a node is there.
    """

    arrived: set[bytes] = field(default_factory=set)
    ended: set[bytes] = field(default_factory=set)
    closed: dict[bytes, int] = field(default_factory=dict)
    certain: set[bytes] = field(default_factory=set)
    look: set[Topic] = field(default_factory=set)
    progress: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, more: News) -> None:
        """These have happened as well."""
        self.arrived |= more.arrived
        self.ended |= more.ended
        self.closed |= more.closed
        self.certain |= more.certain
        self.look |= more.look
        self.progress |= more.progress


class NewsLine(Protocol):
    """Carries news between the nodes of a store."""

    alone: bool
    """Whether no other node lives, as far as is known: then nothing is sent. Who has looked sets it; who hears of
    another node is not alone."""

    def start(self, heard: Callable[[News], None]) -> None:
        """Listen from now on. `heard` is called in a thread of its own, also when the connection is a new one: then
        with all topics to `look` at, because something may have been missed."""

    def publish(self, news: News) -> None:
        """Tell the other nodes soon. Any thread may call it, after the commit; it waits for nothing."""

    def stop(self) -> None:
        """Send what is left, if that is quick, and end."""
