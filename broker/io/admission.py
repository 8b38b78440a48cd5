"""Authentication of connections: a key or a named endpoint identifies the user of a connection.

A key is admitted if a user has it. A connection to an endpoint that the access file names needs none, if its system
user is as the file says. All others get ERROR with status 400 (RFC 27), and are closed.
"""

from __future__ import annotations

import resource

from zmq.utils import z85

from broker.access.authorization import Guard
from broker.access.users import NOBODY, Access, User
from broker.errors import EndpointError, UsageError
from broker.io.sockets import full, is_exposed
from broker.zmtp import PeerReady
from broker.zmtp.connection import MakeCipher

HANDSHAKE = 10.0
"""Seconds that a handshake may take."""

UNFINISHED_SHARE = 4
"""One in so many of the process's file descriptors may be a connection in its handshake."""

MAX_UNFINISHED = 10_000

RESERVED = 64
"""File descriptors reserved for the process itself: its store, log, health checks and metrics, and the connections of
administrators."""

REFUSED = b"400"


def connection_limits() -> tuple[int, int]:
    """Return the maximum number of connections in their handshake, and of others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    unfinished = min(MAX_UNFINISHED, max(16, soft // UNFINISHED_SHARE))
    return unfinished, max(16, soft - unfinished - RESERVED)


class AdmittedPeer:
    """How a connection was authenticated."""

    def __init__(self, endpoint: str, key: str, uid: int | None, user: User) -> None:
        self.endpoint = endpoint
        self.key = key
        self.uid = uid
        self.user = user
        self.counted = False
        """Whether it counts against the user's limit."""


class UserAdmission:
    """Finds the users of connections, and limits the connections of each user."""

    def __init__(self, guard: Guard, encrypt: MakeCipher | None) -> None:
        """`encrypt`: creates the encryption of a connection; None: the server has no keys."""
        self.guard = guard
        self.handshake = HANDSHAKE
        self.status = REFUSED
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
                f"cannot bind {endpoint} with access control: nobody is asked there; use tcp:// or ipc://"
            )
        if whole in self.guard.access.endpoints:
            if is_exposed(whole):
                raise EndpointError(
                    f"cannot bind {endpoint} without keys, as the access file says: other machines reach it"
                )
            return None
        if self._encrypt is None:
            raise UsageError(f"{endpoint} takes a key of the server: give `keys`, or name it in [endpoints]")
        return self._encrypt

    def authenticate(self, endpoint: str, uid: int | None, address: str, peer: PeerReady) -> AdmittedPeer | None:
        """Authenticate a new connection; None: refused, and counted as such."""
        key = z85.encode(peer.key).decode() if peer.key else ""
        admitted = AdmittedPeer(endpoint, key, uid, self._user(endpoint, key, uid))
        if admitted.user is NOBODY:
            self._refused(NOBODY, "connect", address, f"no user has the public key {key}" if key else "")
        elif peer.identity:
            self._refused(admitted.user, "name", address, "it gives itself a name, which access control does not allow")
        elif self._admit(admitted, address):
            return admitted
        return None

    def authenticate_again(self, admitted: AdmittedPeer, address: str) -> bool:
        """Find the user of an open connection in the new access file; False: it has no user, or its user too many
        connections."""
        admitted.user, admitted.counted = self._user(admitted.endpoint, admitted.key, admitted.uid), False
        if admitted.user is NOBODY:
            why = f"no user has the public key {admitted.key} any more" if admitted.key else ""
            self._refused(NOBODY, "connect", address, why)
            return False
        return self._admit(admitted, address)

    def swap(self, access: Access) -> None:
        """Apply another access file; call `authenticate_again` for each connection next, oldest first."""
        self.guard.swap(access)
        self._counts.clear()
        self._taken = 0

    def left(self, admitted: AdmittedPeer) -> None:
        """Count a connection that was closed."""
        if admitted.counted:
            admitted.counted = False
            self._count(admitted.user, -1)

    def failed(self, reason: str, address: str) -> None:
        """Count a failed handshake."""
        self._refused(NOBODY, "handshake", address, reason)

    def _user(self, endpoint: str, key: str, uid: int | None) -> User:
        access = self.guard.access
        if key:
            return access.keys.get(key, NOBODY)
        uids = access.uids.get(endpoint)
        return access.endpoints.get(endpoint, NOBODY) if uids is None or uid in uids else NOBODY

    def _admit(self, admitted: AdmittedPeer, address: str) -> bool:
        """Count a connection of its user, unless there are too many."""
        if why := self._too_many(admitted.user):
            self._refused(admitted.user, "connections", address, why)
            return False
        admitted.counted = True
        self._count(admitted.user, 1)
        return True

    def _too_many(self, user: User) -> str:
        """Return why a user may not have another connection; empty: it may."""
        count, most = self._counts.get(user.name, 0), user.limits.connections
        if most and count >= most:
            return f"{user} has limits.connections = {most} already"
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

    def _refused(self, user: User, action: str, address: str, why: str) -> None:
        self.guard.refused(user, action, b"", address, why)
