"""Authentication of connections: a key or a named endpoint identifies the user of a connection. The log of refusals.

A key is admitted if a user has it that has not expired. A connection to an endpoint that the access file names needs
none, if its system user is as the file says. All others get ERROR with status 400 (RFC 27), and are closed.
"""

from __future__ import annotations

import logging
import math
import resource
import time

from zmq.utils import z85

from broker.access.authorization import AccessRefusal, Guard
from broker.access.users import NOBODY, Access, User
from broker.core.throttle import COUNTED, Throttle
from broker.errors import EndpointError, UsageError
from broker.io.loop import Channel
from broker.io.peer_connection import PeerConnection
from broker.io.sockets import full, is_exposed
from broker.zmtp import PeerReady
from broker.zmtp.connection import MakeCipher

log = logging.getLogger("broker.access")

HANDSHAKE = 10.0
"""Seconds that a handshake may take."""

UNFINISHED_SHARE = 4
"""One in so many of the process's file descriptors may be a connection in its handshake."""

MAX_UNFINISHED = 10_000

RESERVED = 64
"""File descriptors reserved for the process itself: its store, log, health checks and metrics, and the connections of
administrators."""

REFUSED = b"400"
"""The status in ERROR."""

LINE_EVERY = 1.0
"""Seconds in which one refusal of a user and action is logged and the others are counted."""

MOST_KINDS = 1_000_000
"""More users and actions than an access file has."""


def connection_limits() -> tuple[int, int]:
    """Return the maximum number of connections in their handshake, and of others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    unfinished = min(MAX_UNFINISHED, max(16, soft // UNFINISHED_SHARE))
    return unfinished, max(16, soft - unfinished - RESERVED)


def server_cipher(public: bytes, secret: bytes) -> MakeCipher:
    """Return what creates the encryption of a connection, with the server's keys in Z85."""
    from broker.zmtp.encryption import CurveServer  # loads libsodium

    return CurveServer(z85.decode(public), z85.decode(secret)).session


class UserAdmission:
    """Finds the users of connections, and limits the connections of each user."""

    def __init__(self, guard: Guard, encrypt: MakeCipher | None) -> None:
        """`encrypt`: creates the encryption of a connection; None: the server has no keys."""
        self.guard = guard
        self.handshake = HANDSHAKE
        self.max_unfinished, self._places = connection_limits()
        self._encrypt = encrypt
        self._counts: dict[str, int] = {}
        """Connections of each user."""
        self._taken = 0
        """Connections of all users but administrators."""

    def cipher_at(self, endpoint: str) -> MakeCipher | None:
        """Return what creates the encryption of connections to an endpoint; None: the access file names the endpoint's
        user. Raises EndpointError, UsageError."""
        whole = full(endpoint)
        if not whole.startswith(("tcp://", "ipc://")):
            raise EndpointError(
                f"cannot bind {endpoint} with access control: this transport identifies no users; use tcp:// or ipc://"
            )
        if whole in self.guard.access.endpoints:
            if is_exposed(whole):
                raise EndpointError(
                    f"cannot bind {endpoint} without keys, as the access file says: other machines can reach it;"
                    " bind ipc:// instead"
                )
            return None
        if self._encrypt is None:
            raise UsageError(f"{endpoint} needs a server key: give `keys`, or list the endpoint in [endpoints]")
        return self._encrypt

    def authenticate(self, connection: PeerConnection, peer: PeerReady) -> bool:
        """Find the user of a new connection; False: it is refused, and counted as such."""
        connection.key = z85.encode(peer.key).decode() if peer.key else ""
        if not self._identify(connection, ""):
            return False
        if peer.identity and connection.user is not None:
            why = "it sets its own routing id, which access control does not allow"
            self._refused(connection.user, "name", connection, why)
            return False
        return True

    def _identify(self, connection: PeerConnection, since: str) -> bool:
        """Find the user of a connection. `since`: for the log."""
        user = connection.user = self._user(connection)
        if user is NOBODY:
            why = f"no user has the public key {connection.key}{since}" if connection.key else ""
            if (known := self.guard.access.keys.get(connection.key)) is not None:
                why = f"the keys of user '{known.name}' have expired; set expires to a later time"
            self._refused(NOBODY, "connect", connection, why)
        return user is not NOBODY

    def admit(self, connection: PeerConnection) -> bool:
        """Count a connection of its user; False: there are too many, and it is refused."""
        assert connection.user is not None
        if why := self._too_many(connection.user):
            self._refused(connection.user, "connections", connection, why)
            return False
        connection.counted = True
        self._count(connection.user, 1)
        return True

    def readmit(self, connection: PeerConnection) -> bool:
        """Find the user of an open connection in the new access file; False: it has no user, or its user too many
        connections."""
        connection.counted = False
        return self._identify(connection, " any more") and self.admit(connection)

    def swap(self, access: Access) -> None:
        """Apply another access file; call `readmit` for each connection next, oldest first."""
        self.guard.swap(access)
        self._counts.clear()
        self._taken = 0

    def left(self, connection: PeerConnection) -> None:
        """Note that a connection has ended."""
        if connection.counted and connection.user is not None:
            connection.counted = False
            self._count(connection.user, -1)

    def failed(self, reason: str, connection: PeerConnection) -> None:
        """Count a failed handshake."""
        self._refused(NOBODY, "handshake", connection, reason)

    def _user(self, connection: PeerConnection) -> User:
        access, endpoint = self.guard.access, connection.here.asked
        if connection.key:
            user = access.keys.get(connection.key, NOBODY)
            return NOBODY if user.is_expired(time.time()) else user
        uids = access.uids.get(endpoint)
        return access.endpoints.get(endpoint, NOBODY) if uids is None or connection.uid in uids else NOBODY

    def _too_many(self, user: User) -> str:
        """Return why a user may not have another connection; empty: it may."""
        count, most = self._counts.get(user.name, 0), user.limits.connections
        if most and count >= most:
            return f"{user} already has {most} connections, the maximum (limits.connections)"
        if user.admin:
            return ""
        if not most and count >= (share := self.guard.share(self._places)):
            fact = f"{user} has {count} connections; of {self._places} one user may have {share}"
            return f"{fact}: set limits.connections, or allow the server more file descriptors"
        if self._taken >= self._places:
            return f"{self._taken} connections are open; allow the server more file descriptors"
        return ""

    def _count(self, user: User, change: int) -> None:
        self._counts[user.name] = self._counts.get(user.name, 0) + change
        if not user.admin:
            self._taken += change
        if not self._counts[user.name]:
            del self._counts[user.name]

    def _refused(self, user: User, action: str, connection: PeerConnection, why: str) -> None:
        self.guard.refused(user, action, b"", connection.address, why)


class AccessLog(Channel):
    """Logs refusals: user, action, address and reason, never a body.

    For each user and action one line goes out. Those that follow within a second are counted in another, with the last
    of them.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._throttle: Throttle[tuple[str, str], AccessRefusal] = Throttle(lines=1, window=LINE_EVERY, most=MOST_KINDS)

    def flush(self, now: float) -> None:
        self._log_counts(now)
        for report in self._guard.take_reports():
            kind = (report.first.user, report.first.action)
            _, held = self._throttle.take(kind, report.first, now)
            if not held:
                self._write(report.first)
            if report.count > 1:
                self._throttle.take(kind, report.last, now, report.count - 1)

    def next_deadline(self) -> float | None:
        """Return when the next count is due."""
        return self._throttle.next_end

    def close(self) -> None:
        """Log all counts; nothing follows."""
        self.flush(time.monotonic())
        self._log_counts(math.inf)

    def _log_counts(self, now: float) -> None:
        """Log the counts of seconds that are over."""
        for _, more, last in self._throttle.ended(now):
            self._write(last, f" (the last of {more} more within {LINE_EVERY:g} s)")

    def _write(self, refusal: AccessRefusal, counted: str = "") -> None:
        peer = getattr(refusal.peer, "address", refusal.peer)
        log.warning(
            "refused: user %r, %s%s, from %s%s; %d so far%s",
            refusal.user,
            refusal.action,
            f" {refusal.service!r}" if refusal.service not in ("", refusal.action) else "",
            peer or "?",
            "; " + refusal.why.removeprefix("forbidden: ") if refusal.why else "",
            self._guard.refusals.get((refusal.user, refusal.action), 0),
            counted,
            extra={
                "event": "forbidden",
                "user": refusal.user,
                "action": refusal.action,
                "service": refusal.service,
                "peer": peer,
                **COUNTED,
            },
        )
