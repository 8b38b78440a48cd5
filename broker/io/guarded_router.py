"""The ROUTER of a pattern's server: for peers with one of some keys, or, without keys, for this machine only.

Patterns have keys but no users: every key may do everything. The broker's access control is used with one user that has
all keys: the ZAP handler, the bounds of handshakes, the refusal of peers that name themselves, the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import zmq

from broker.access.authorization import Guard
from broker.access.keys import Keys, load_secret, public_key
from broker.access.users import Access, User
from broker.errors import Means, UsageError
from broker.io.access_control import AccessControl
from broker.io.loop import Channel, Loop
from broker.io.router import ConnectionCount, Router
from broker.io.sockets import protect


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

    @property
    def access(self) -> Access:
        """The keys, as an access file with one user."""
        known = User("known")
        return Access([known], dict.fromkeys(self.allowed, known))


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
            "there are allowed keys, but the server has no key of its own; give its secret key file as well"
            " (--key-file, in Python key); `titanic keys server` creates one"
        )
    if key is not None and not allowed:
        raise UsageError(
            "the server has a key, but no allowed keys; give the public keys of its clients and workers (--allow, in"
            " Python allow)"
        )
    return ServerKeys(None if key is None else load_secret(key), allowed, open)


class GuardedRouter(Channel):
    """A ROUTER with keys. It adds itself to a loop, which closes it. Its `router` may receive an empty message: of a
    peer whose messages are not read."""

    def __init__(self, loop: Loop, keys: ServerKeys) -> None:
        self._keys = keys
        self._access: AccessControl | None = None
        self._peers: ConnectionCount | None = None
        self.rests = keys.own is None
        if keys.own is None:
            self.router = Router(zmq.Context.instance())
        else:
            access = self._access = AccessControl(Guard(keys.access), keys.own, self)
            connections = access.connections
            self.router = Router(access.context, look=connections.look, distrust=True)
            self._peers = ConnectionCount(self.router.socket, self._connected, connections.ended, connections.accepted)
            for channel in (access.zap, access.handshakes, access.log, self._peers):
                loop.add(channel)
        loop.add(self)

    def bind(self, endpoint: str) -> str:
        """Listen; the endpoint with its real port comes back. Raises EndpointError."""
        self._keys.protect(endpoint)
        if self._access is None:
            return self.router.bind(endpoint)
        self._access.prepare(self.router.socket, endpoint)
        bound = self.router.bind(endpoint)
        self._access.bound(endpoint, bound)
        return bound

    def flush(self, now: float) -> None:
        if self._access is not None and self._access.connections.ends and not self.router.readable:
            self._access.connections.forget_ended()

    def close(self) -> None:
        if self._peers is not None:
            self._peers.close()  # first: it looks at the other
        self.router.close()
        if self._access is not None:
            self._access.close()

    def _connected(self, peers: int) -> None:
        """Ignore the number of connections."""

    def settle(self) -> None:
        """Process the ends of connections."""
        while self._peers is not None and self._peers.drain(0.0):
            pass
