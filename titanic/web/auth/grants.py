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

from titanic.web.auth.session_secret import SessionSecret

LONGEST = 12 * 3600
"""Seconds after its log-in after which a session ends."""

AHEAD = 300
"""Seconds that the clock of another gateway may be ahead."""

MOST = 10_000
"""Sessions that are known to be good. What goes on by others than these is looked at again."""


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
    csrf: str = field(default="", repr=False)
    """What its forms carry."""
    began: float = 0.0
    tasks: set[asyncio.Task[Any]] = field(default_factory=set, repr=False)
    """The requests that go on."""
    ended: bool = False

    def end(self) -> None:
        """End what goes on by it. To be called in the loop."""
        self.ended = True
        for task in list(self.tasks):
            task.cancel()


class Sessions:
    """The sessions of browsers. The cookie of one says whose it is, when it began and by which token, and is signed: so
    it outlives the process, and is good at all gateways with the same secret. Here is what goes on by each."""

    def __init__(self, secret: SessionSecret, most: int = MOST) -> None:
        self._secret = secret
        self._most = most
        self._grants: dict[str, tuple[Grant, bytes]] = {}
        """By the hashes of cookies, so that no comparison depends on a cookie itself; and what has signed it."""

    def __len__(self) -> int:
        return len(self._grants)

    def __iter__(self) -> Iterator[Grant]:
        return iter([grant for grant, _ in self._grants.values()])

    def begin(self, user: str, proof: str, now: float) -> str:
        """The cookie of a new session, of a user who has shown a token."""
        said = f"{user}:{int(now)}:{proof}:{secrets.token_urlsafe(16)}"
        return f"{said}:{self._secret.sign(f'session:{said}')}"

    def find(self, cookie: str, now: float) -> Grant | None:
        """The session of this cookie; None when there is none, or not any more."""
        name = _hash(cookie)
        found = self._grants.get(name) or self._read(cookie)
        if found is None or found[0].ended or name in self._secret.ended or _is_over(found[0], now):
            return None
        if name not in self._grants:
            if len(self._grants) >= self._most:
                self._make_room()
            self._grants[name] = found
        return found[0]

    def end(self, cookie: str, now: float) -> None:
        """Its user logs out."""
        if (grant := self.find(cookie, now)) is not None:
            self._secret.end(_hash(cookie), int(grant.began) + LONGEST, now)
            grant.end()

    def sweep(self, now: float) -> None:
        """End those whose time is over, that were logged out of elsewhere, or whose secret is no longer valid."""
        for name, (grant, key) in list(self._grants.items()):
            if _is_over(grant, now) or name in self._secret.ended or key not in self._secret.keys:
                del self._grants[name]
                grant.end()

    def _read(self, cookie: str) -> tuple[Grant, bytes] | None:
        said, _, signature = cookie.rpartition(":")
        if (key := self._secret.signer(f"session:{said}", signature)) is None:
            return None
        user, began, proof, _ = said.split(":")
        csrf = self._secret.sign(f"csrf:{said}", key)
        return Grant(user, Kind.SESSION, proof, csrf, float(began)), key

    def _make_room(self) -> None:
        """Forget one by which nothing goes on; those that have ended are remembered as long as possible."""
        idle = (name for name, (grant, _) in self._grants.items() if not grant.tasks)
        forgotten = min(idle, key=self._has_ended, default="")
        self._grants.pop(forgotten, None)

    def _has_ended(self, name: str) -> bool:
        return self._grants[name][0].ended


def _is_over(grant: Grant, now: float) -> bool:
    return not -AHEAD <= now - grant.began <= LONGEST


def _hash(cookie: str) -> str:
    return sha256(cookie.encode(errors="replace")).hexdigest()
