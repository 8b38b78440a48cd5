"""Several servers that do the same, and which of them to talk to (Freelance; Guide, chapter 4).

    server     answered   failed    chosen
    ---------  ---------  --------  ----------------------------------------------------
    untried    live       dead      when none is live, in the order they were given in
    live       live       dead      first: the one that was chosen last, else the next
    dead       live       dead      when all are, the one that failed longest ago

A client stays with a server until it fails. It does not go back to the first one just because that is there again:
all clients would move twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from broker.errors import UsageError


class Health(IntEnum):
    """What is known of a server; the better ones are smaller."""

    LIVE = 0
    UNTRIED = 1
    DEAD = 2


class Servers:
    """One client's opinion of its servers."""

    def __init__(self, names: str | Iterable[str]) -> None:
        """`names`: of one server or of several, as endpoints usually."""
        self.names = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
        if not self.names:
            raise UsageError("no server is named; at least one endpoint is needed")
        self._health = dict.fromkeys(self.names, Health.UNTRIED)
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

    def live(self, avoid: str | None = None) -> str | None:
        """The same, but only if it is known to live."""
        name = self.choose(avoid)
        return name if self._health[name] is Health.LIVE else None

    def answered(self, name: str) -> None:
        """A server lives; whether another one was preferred doesn't change."""
        self._health[name] = Health.LIVE

    def failed(self, name: str) -> None:
        """A server is gone, or silent: all others come before it."""
        del self._health[name]
        self._health[name] = Health.DEAD
