"""Who may connect, with access control: a key or a named endpoint makes a connection one of a user.

A key is admitted if a user has it. A connection to an endpoint that the access file names needs none, if its system
user is as the file says. All others get ERROR with the status 400 (RFC 27), and are gone.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

from zmq.utils import z85

from broker.access.authorization import Guard
from broker.access.users import NOBODY, Access, User
from broker.errors import EndpointError, UsageError
from broker.io.sockets import full, is_exposed
from broker.zmtp import PeerReady
from broker.zmtp.connection import Cipher

HANDSHAKE = 10.0
"""Seconds that a handshake may take."""

MAX_COMMAND = 8192
"""Bytes of a command: a handshake has less than a thousand."""

UNFINISHED_SHARE = 4
"""Share of the process's file descriptors for connections whose handshake is not over: one in so many."""

MAX_UNFINISHED = 10_000

RESERVED = 64
"""File descriptors reserved for the process itself: its store, log, health checks and metrics, and the connections of
administrators."""

REFUSED = b"400"


def connection_limits() -> tuple[int, int]:
    """How many handshakes may be under way, and how many connections may be open besides."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    unfinished = min(MAX_UNFINISHED, max(16, soft // UNFINISHED_SHARE))
    return unfinished, max(16, soft - unfinished - RESERVED)


class Member:
    """What access control knows of a connection."""

    def __init__(self, endpoint: str, key: str, uid: int | None, user: User) -> None:
        self.endpoint = endpoint
        self.key = key
        self.uid = uid
        self.user = user
        self.counted = False
        """Whether it is among the user's connections."""


class UserAdmission:
    """The users of connections, and how many each has."""

    def __init__(self, guard: Guard, encrypt: Callable[[], Cipher] | None) -> None:
        """`encrypt`: makes what encrypts a connection, with the server's keys; None: it has none."""
        self.guard = guard
        self.handshake = HANDSHAKE
        self.status = REFUSED
        self.max_unfinished, self._places = connection_limits()
        self._encrypt = encrypt
        self._counts: dict[str, int] = {}
        """Connections of each user."""
        self._taken = 0
        """Connections of all users but administrators."""

    def cipher_at(self, endpoint: str) -> Callable[[], Cipher] | None:
        """What encrypts connections to an endpoint; None: the access file says who comes by it. Raises EndpointError,
        UsageError."""
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

    def introduce(self, endpoint: str, uid: int | None, address: str, peer: PeerReady) -> Member | None:
        """Find the user of a new connection; None: it is refused, and counted."""
        key = z85.encode(peer.key).decode() if peer.key else ""
        member = Member(endpoint, key, uid, self._user(endpoint, key, uid))
        if member.user is NOBODY:
            self._refused(NOBODY, "connect", address, f"no user has the public key {key}" if key else "")
        elif peer.identity:
            self._refused(member.user, "name", address, "it gives itself a name, which access control does not allow")
        elif self._admit(member, address):
            return member
        return None

    def again(self, member: Member, address: str) -> bool:
        """Find the user of a connection in another access file; False: it has none any more, or too many."""
        member.user, member.counted = self._user(member.endpoint, member.key, member.uid), False
        if member.user is NOBODY:
            why = f"no user has the public key {member.key} any more" if member.key else ""
            self._refused(NOBODY, "connect", address, why)
            return False
        return self._admit(member, address)

    def swap(self, access: Access) -> None:
        """Another access file is in force; call `again` for each connection next, the oldest first."""
        self.guard.swap(access)
        self._counts.clear()
        self._taken = 0

    def left(self, member: Member) -> None:
        """A connection is gone."""
        if member.counted:
            member.counted = False
            self._count(member.user, -1)

    def failed(self, reason: str, address: str) -> None:
        """A handshake failed."""
        self._refused(NOBODY, "handshake", address, reason)

    def _user(self, endpoint: str, key: str, uid: int | None) -> User:
        access = self.guard.access
        if key:
            return access.keys.get(key, NOBODY)
        uids = access.uids.get(endpoint)
        return access.endpoints.get(endpoint, NOBODY) if uids is None or uid in uids else NOBODY

    def _admit(self, member: Member, address: str) -> bool:
        """Count a connection of its user, unless there are too many."""
        if why := self._too_many(member.user):
            self._refused(member.user, "connections", address, why)
            return False
        member.counted = True
        self._count(member.user, 1)
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
