"""Access control at the broker's sockets: who gets in, whose each connection is, and what is logged of refusals."""

from __future__ import annotations

import resource
from collections.abc import Callable

import zmq

from broker.access.keys import Keys
from broker.access.rules import Guard
from broker.access.users import NOBODY, Access
from broker.io.access_log import AccessLog
from broker.io.handshakes import Handshakes
from broker.io.sockets import Socket, full
from broker.io.user_connections import UserConnections
from broker.io.zap import ZapHandler, enforce, secure

SILENT_SHARE = 4
"""One of so many file descriptors of the process may belong to a connection that has not said anything."""

MOST_SILENT = 10_000

RESERVED = 64
"""File descriptors that users' connections leave for the process itself: its store, its log, health and metrics, and
the connections of administrators."""


class AccessControl:
    """The ZAP handler in a context of its own, and the connections that it let in."""

    def __init__(self, guard: Guard, keys: Keys | None, settle: Callable[[], None]) -> None:
        """`settle`: see `UserConnections`."""
        self.guard = guard
        self.context: zmq.Context[Socket] = zmq.Context()
        self._keys = keys
        self.connections = UserConnections(guard, settle, *_places())
        self.zap = ZapHandler(self.context, guard.access, self._stranger, self.connections.asked)
        self.handshakes = Handshakes(self.connections)
        self.log = AccessLog(guard)

    def prepare(self, socket: Socket, endpoint: str) -> None:
        """Set security for the endpoint that a socket is bound to next. Raises EndpointError, UsageError."""
        enforce(socket)
        secure(socket, endpoint, self.guard.access, self._keys)

    def bound(self, endpoint: str, real: str) -> None:
        """The socket listens there now; `real` has the real port."""
        self.connections.bound(real, keyed=full(endpoint) not in self.guard.access.endpoints)

    def swap(self, access: Access) -> None:
        """From now on this holds; who is not known any more is disconnected."""
        self.guard.swap(access)
        self.zap.swap(access)
        self.connections.swap()

    def close(self) -> None:
        """Close the handler and the context, behind the other sockets. What was sent may still go out for a moment."""
        self.zap.close()
        self.context.term()

    def _stranger(self, address: str, key: str) -> None:
        self.guard.refused(NOBODY, "connect", b"", address, f"no user has the public key {key}" if key else "")


def _places() -> tuple[int, int]:
    """How many connections may be open that have said nothing, and how many that have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    silent = min(MOST_SILENT, max(16, soft // SILENT_SHARE))
    return silent, max(16, soft - silent - RESERVED)
