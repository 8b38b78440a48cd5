"""What lets somebody in: a bearer token, a certificate, or a session that began with a token. No clock is read here.

A grant knows the requests that go on by it. When it ends, so do they: an event stream would go on for hours.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Any

IDLE, LONGEST = 2 * 3600.0, 12 * 3600.0
"""Seconds after which a session ends: since its last request, and since its log-in."""

MOST, MOST_OF_USER = 10_000, 50
"""Sessions. With one more, that one ends which was not used for the longest time."""


class Kind(Enum):
    """What somebody has shown."""

    NOTHING = "nothing"
    TOKEN = "token"
    SESSION = "session"
    CERTIFICATE = "certificate"


@dataclass(slots=True, eq=False)
class Grant:
    """Somebody may come in as a user."""

    user: str
    kind: Kind
    proof: str = field(default="", repr=False)
    """The hash of the token or certificate; a session has that of the token that it began with."""
    csrf: str = field(default_factory=secrets.token_urlsafe, repr=False)
    began: float = 0.0
    seen: float = 0.0
    tasks: set[asyncio.Task[Any]] = field(default_factory=set, repr=False)
    """The requests that go on."""
    ended: bool = False

    def end(self) -> None:
        """End what goes on by it. To be called in the loop."""
        self.ended = True
        for task in list(self.tasks):
            task.cancel()


class Sessions:
    """The sessions of browsers, in memory: they do not outlive the process. They are found by the hash of their
    number, so that no comparison depends on the number itself."""

    def __init__(self, most: int = MOST, most_of_user: int = MOST_OF_USER) -> None:
        self._most = most
        self._most_of_user = most_of_user
        self._grants: dict[str, Grant] = {}

    def __len__(self) -> int:
        return len(self._grants)

    def __iter__(self) -> Iterator[Grant]:
        return iter(list(self._grants.values()))

    def begin(self, user: str, proof: str, now: float) -> str:
        """A new session of a user who has shown a token; its number, of 256 random bits."""
        self.sweep(now)
        own = [name for name, grant in self._grants.items() if grant.user == user]
        if len(own) >= self._most_of_user:
            self._end_oldest(own)
        elif len(self._grants) >= self._most:
            self._end_oldest(list(self._grants))
        number = secrets.token_urlsafe(32)
        self._grants[_hash(number)] = Grant(user, Kind.SESSION, proof, began=now, seen=now)
        return number

    def find(self, number: str, now: float) -> Grant | None:
        """The session of this number, which is used now; None when there is none, or not any more."""
        name = _hash(number)
        grant = self._grants.get(name)
        if grant is None:
            return None
        if _is_over(grant, now):
            self._end(name)
            return None
        grant.seen = now
        return grant

    def end(self, number: str) -> None:
        """Its user logs out."""
        self._end(_hash(number))

    def sweep(self, now: float) -> None:
        """End those whose time is over."""
        for name in [name for name, grant in self._grants.items() if grant.ended or _is_over(grant, now)]:
            self._end(name)

    def end_all(self) -> None:
        """End all of them."""
        for name in list(self._grants):
            self._end(name)

    def _end_oldest(self, names: list[str]) -> None:
        self._end(min(names, key=self._last_used))

    def _last_used(self, name: str) -> float:
        return self._grants[name].seen

    def _end(self, name: str) -> None:
        if (grant := self._grants.pop(name, None)) is not None:
            grant.end()


def _is_over(grant: Grant, now: float) -> bool:
    return now - grant.seen > IDLE or now - grant.began > LONGEST


def _hash(number: str) -> str:
    return sha256(number.encode(errors="replace")).hexdigest()
