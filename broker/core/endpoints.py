"""Several servers that do the same, and which of them to talk to (Freelance; Guide, chapter 4).

    server     answered   failed    chosen
    ---------  ---------  --------  ----------------------------------------------------
    untried    live       dead      when none is live, in the order they were given in
    live       live       dead      first: the one that was chosen last, else the next
    dead       live       dead      when all are, the one that failed longest ago

A client stays with a server until it fails. It does not go back to the first one just because that is there again:
all clients would move twice. When all have failed, the caller waits a while and then tries all of them again
(`forgive`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum

from broker.errors import UsageError

_NEXT = re.compile(r"\s*,\s*(?=(?:tcp|ipc|inproc)://|(?:[^:/,\s]+|\[[^\]]+\]):\d+(?:,|\s|$))")
"""A comma before another endpoint. Any other may belong to the name of a file."""


def named(endpoints: str | Iterable[str]) -> tuple[str, ...]:
    """Endpoints that were given as one, as several in a text with commas, or in a list of either; each once."""
    texts = (endpoints,) if isinstance(endpoints, str) else endpoints
    return tuple(dict.fromkeys(name for text in texts for name in (_NEXT.split(text) if "," in text else (text,))))


class Health(IntEnum):
    """What is known of a server; the better ones are smaller."""

    LIVE = 0
    UNTRIED = 1
    DEAD = 2


class Servers:
    """One client's opinion of its servers."""

    def __init__(self, names: str | Iterable[str], order: Sequence[str] = ()) -> None:
        """`names`: of one server or of several, as endpoints usually. `order`: the same names, to be tried in this
        order."""
        self.names = named(names)
        if not self.names:
            raise UsageError("no endpoint given; give at least one")
        self._health = dict.fromkeys(order or self.names, Health.UNTRIED)
        """In the order in which they are chosen."""

    def __len__(self) -> int:
        return len(self.names)

    def __str__(self) -> str:
        return " or ".join(self.names)

    def health(self, name: str) -> Health:
        """What is known of one."""
        return self._health[name]

    def choose(self, avoid: str | None = None) -> str:
        """The server to talk to. Asked again it is the same one, unless something has become known meanwhile.

        `avoid`: one to take only if no other is as healthy.
        """
        return min(self._health, key=lambda name: (self._health[name], name == avoid))

    def has_other(self, name: str) -> bool:
        """Whether another server is not known to be dead."""
        return any(health is not Health.DEAD for other, health in self._health.items() if other != name)

    def live(self, avoid: str | None = None) -> str | None:
        """The same, but only if it is known to live."""
        name = self.choose(avoid)
        return name if self._health[name] is Health.LIVE else None

    def answered(self, name: str) -> None:
        """A server lives; whether another one was preferred doesn't change."""
        self._health[name] = Health.LIVE

    def failed(self, name: str) -> None:
        """A server is gone, or silent, or sends its peers away: all others come before it."""
        del self._health[name]
        self._health[name] = Health.DEAD

    def forgive(self) -> None:
        """All that failed may be there again: they are to be tried, those that failed longest ago first."""
        for name, health in self._health.items():
            if health is Health.DEAD:
                self._health[name] = Health.UNTRIED
