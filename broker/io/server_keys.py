"""The keys of a pattern's server, and its connections: from peers with one of some keys, or, without keys, from this
machine only.

Patterns have keys but no users: every key may do everything. The broker's access control is used with one user that has
all keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from broker.access.authorization import Guard
from broker.access.keys import Keys, load_secret, public_key
from broker.access.users import Access, User
from broker.errors import Means, UsageError
from broker.io.admission import AccessLog, UserAdmission, server_cipher
from broker.io.connections import Connections
from broker.io.loop import Channel, Loop
from broker.io.sockets import MOST_FRAMES, protect
from broker.zmtp import MessageLimits

MAX_MESSAGE = 128 << 20
"""Bytes of a message."""


class ServerKeys(NamedTuple):
    """The key of a pattern's server and the public keys that it admits; or neither."""

    own: Keys | None
    allowed: frozenset[str]
    open: bool
    """Whether other machines may connect without keys."""

    def protect(self, endpoint: str) -> None:
        """Check an endpoint before the server listens there. Raises Unprotected if other machines could reach it, there
        are no keys, and it is not meant to be open."""
        if self.own is None:
            protect(endpoint, open=self.open, by=Means.KEYS)

    def connections(self, loop: Loop, channel: Channel, *, identity: bytes = b"", named: bool = False) -> Connections:
        """Make the connections of a server; with keys, only for peers that have one of them. `identity`, `named`: as of
        `Connections`."""
        admission = None
        if self.own is not None:
            known = User("known")
            guard = Guard(Access([known], dict.fromkeys(self.allowed, known)))
            admission = UserAdmission(guard, server_cipher(self.own.public, self.own.secret))
            loop.add(AccessLog(guard))
        limits = MessageLimits(max_message=MAX_MESSAGE, max_frames=MOST_FRAMES)
        return Connections(loop, channel, limits=limits, admission=admission, identity=identity, named=named)


ServerKey = str | Path | ServerKeys | None
"""A server's secret key file, or all keys at once."""


def server_keys(key: ServerKey, allow: Iterable[str | Path] = (), *, open: bool = False) -> ServerKeys:
    """Load the keys of a server: its secret key file and the public keys that it admits, as files or in Z85.
    `ServerKeys` are returned as they are.

    Raises UsageError for one without the other, and for files without such a key.
    """
    if isinstance(key, ServerKeys):
        return key
    allowed = frozenset(public_key(one) for one in ((allow,) if isinstance(allow, str | Path) else allow))
    if key is None and allowed:
        raise UsageError(
            "allowed keys are given, but the server has no key of its own; give its secret key file as well"
            " (--key-file, in Python key); `titanic keys server` creates one"
        )
    if key is not None and not allowed:
        raise UsageError(
            "the server has a key, but no allowed keys; give the public keys of its clients and workers (--allow, in"
            " Python allow)"
        )
    return ServerKeys(None if key is None else load_secret(key), allowed, open)
