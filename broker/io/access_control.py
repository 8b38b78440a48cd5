"""Access control at the broker's sockets: who gets in, whose each connection is, and what the log says of refusals."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable

import zmq

from broker.access.keys import Keys
from broker.access.rules import Guard, Refusal
from broker.access.users import NOBODY, Access
from broker.io.handshakes import Handshakes
from broker.io.sockets import Socket, full
from broker.io.user_connections import Connection, UserConnections
from broker.io.zap import ZapHandler, enforce, secure

log = logging.getLogger("broker.access")

SILENT_SHARE = 4
"""One of so many file descriptors of the process may belong to a connection that has not said anything."""

MOST_SILENT = 10_000

LINE_EVERY = 1.0
"""Seconds between two lines of the log on refusals of one kind to one user."""

MOST_THROTTLED = 1000


class AccessControl:
    """The ZAP handler in a context of its own, and the connections that it let in."""

    def __init__(self, guard: Guard, keys: Keys | None, settle: Callable[[], None]) -> None:
        """`settle`: see `UserConnections`."""
        self.guard = guard
        self.context: zmq.Context[Socket] = zmq.Context()
        self._keys = keys
        self.connections = UserConnections(guard, settle, _most_silent())
        self.zap = ZapHandler(self.context, guard.access, self._stranger, self.connections.asked)
        self.handshakes = Handshakes(self.connections)
        self._throttled: dict[tuple[str, str], float] = {}

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

    def report(self, now: float) -> None:
        """Log the refusals since the last call; a line a second for each kind of each user."""
        for refusal in self.guard.take_reports():
            kind = (refusal.user, refusal.action)
            if now < self._throttled.get(kind, now):
                continue
            if len(self._throttled) >= MOST_THROTTLED:
                self._throttled.clear()
            self._throttled[kind] = now + LINE_EVERY
            self._write(refusal)

    def close(self) -> None:
        """Close the handler and the context, behind the other sockets. What was sent may still go out for a moment."""
        self.zap.close()
        self.context.term()

    def _write(self, refusal: Refusal) -> None:
        peer = refusal.peer.address if isinstance(refusal.peer, Connection) else refusal.peer
        log.warning(
            "refused: user %r, %s%s, from %s%s; %d so far",
            refusal.user,
            refusal.action,
            f" {refusal.service!r}" if refusal.service not in ("", refusal.action) else "",
            peer or "?",
            "; " + refusal.why.removeprefix("forbidden: ") if refusal.why else "",
            self.guard.refusals.get((refusal.user, refusal.action), 0),
            extra={
                "event": "forbidden",
                "user": refusal.user,
                "action": refusal.action,
                "service": refusal.service,
                "peer": peer,
            },
        )

    def _stranger(self, address: str, key: str) -> None:
        self.guard.refused(NOBODY, "connect", b"", address, f"no user has the public key {key}" if key else "")


def _most_silent() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_SILENT if soft == resource.RLIM_INFINITY else min(MOST_SILENT, max(16, soft // SILENT_SHARE))
