"""The user of each connection, by its messages; connections that are not allowed are closed."""

from __future__ import annotations

import os
import socket as stream
from dataclasses import dataclass
from typing import Any, Protocol

import zmq

from broker.access.authorization import Guard
from broker.access.users import NOBODY, User
from broker.io.router import IPV4
from broker.io.zap import user_of

_SRCFD = int(zmq.SRCFD)

Ends = tuple[Any, Any]
"""The addresses of both ends of a connection."""

_NO_ENDS: Ends = ("", "")


@dataclass(slots=True, eq=False)
class UserConnection:
    """A connection that has sent a message: a peer of the core. A connection that takes its name over is another
    one."""

    sender: bytes
    user_id: str
    """As the ZAP handler set it."""
    user: User
    descriptor: int
    ends: Ends
    there: bool
    """Whether messages can be sent to it."""
    admitted: bool = True
    """Whether its messages are read."""

    @property
    def ip(self) -> str:
        """The IP address it comes from; empty for ipc."""
        return str(self.ends[1][0]).removeprefix(IPV4) if isinstance(self.ends[1], tuple) else ""

    @property
    def address(self) -> str:
        """Return the remote address; for ipc, the local one."""
        peer = self.ends[1] or self.ends[0]
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)


class ConnectionsOwner(Protocol):
    """What watches the connections of a socket."""

    def settle(self) -> None:
        """Report all connections that have `ended`, since a new one may have the descriptor of one of them."""


class UserConnections:
    """Connections by the names of their senders and by their file descriptors.

    ZeroMQ reports the connection that a message came by. This is checked for every message, since names cannot be
    trusted: a peer may give itself the name that the ROUTER has given to another. A peer that names itself is not
    admitted. A name that begins with a zero byte, as the ROUTER's do, cannot be distinguished from those; so a
    connection that has the name of an earlier one is another peer, and gets nothing that was meant for the earlier one.
    """

    def __init__(self, guard: Guard, owner: ConnectionsOwner, most_silent: int, places: int) -> None:
        """`most_silent`: connections that have not sent a message. `places`: for those that have; a user may
        have a share of them, unless the access file sets another limit. Connections of administrators do not count."""
        self.speaker = UserConnection(b"", "", NOBODY, -1, _NO_ENDS, there=False, admitted=False)
        """The connection of the last message passed to `look`."""
        self._guard = guard
        self._owner = owner
        self._most_silent = most_silent
        self._places = places
        self._silent: dict[int, None] = {}
        self.unfinished: dict[int, None] = {}
        """Silent connections whose handshake may not be complete."""
        self._asked = 0
        """How many silent connections have a handshake that reached the ZAP handler."""
        self._ended: dict[int, bool] = {}
        """Connections that ended, with messages perhaps unread. Whether `forget_ended` was called since."""
        self._reused: dict[int, bool] = {}
        """The same for descriptors that new connections have reused: a message by such a number may belong to
        either."""
        self._by_sender: dict[bytes, UserConnection] = {}
        self._by_descriptor: dict[int, UserConnection] = {}
        self._counts: dict[str, int] = {}
        """Connections of each user."""
        self._taken = 0
        """Connections of all users but administrators."""
        self._ports: set[Any] = set()
        self._keyed: set[int] = set()
        """TCP ports that require a key."""

    def __len__(self) -> int:
        return len(self._by_sender)

    def look(self, sender: bytes, frame: Any) -> bool:
        """Return whether a message may be read, by one of its frames. Its connection becomes `speaker`."""
        user_id = _user_id(frame)
        connection = self._by_sender.get(sender)
        if connection is None or connection.user_id != user_id:
            connection = self._new(sender, user_id, frame)
        self.speaker = connection
        return connection.admitted

    def bound(self, endpoint: str, *, keyed: bool = True) -> None:
        """Note an endpoint that the broker listens on. `keyed`: connections need a key."""
        protocol, _, address = endpoint.partition("://")
        port = int(address.rpartition(":")[2]) if protocol == "tcp" else address
        self._ports.add(port)
        if keyed and isinstance(port, int):
            self._keyed.add(port)

    def accepted(self, descriptor: int) -> None:
        """Note a new connection. If too many are silent, end the oldest of them."""
        if descriptor in self._ended:
            self._reused[descriptor] = False
        self._close(descriptor)
        self._silent[descriptor] = self.unfinished[descriptor] = None
        if len(self._silent) > self._most_silent:
            oldest = next(iter(self._silent))
            self._leaves_silent(oldest)
            self._guard.refused(NOBODY, "silent", b"", "")
            self._shut(oldest, None)

    def end_handshake(self, descriptor: int) -> None:
        """End a connection whose handshake is too large. Where no key is required, that may be an ordinary message."""
        here, there = self._ends(descriptor)
        if isinstance(here, tuple) and here[1] in self._keyed:
            self._guard.refused(NOBODY, "handshake", b"", f"{there[0]}:{there[1]}")
            self._shut(descriptor, (here, there))
            self._asked += 1  # else it would be counted once more when it has ended
            self._leaves_silent(descriptor)

    def ended(self, descriptor: int) -> None:
        """Note the end of a connection."""
        if self._leaves_silent(descriptor):  # from where, nobody knows; and it may only have looked if we are there
            self._guard.count(NOBODY, "handshake")
        self._ended[descriptor] = False

    def asked(self) -> None:
        """Note that the ZAP handler was asked about a new connection."""
        self._asked += 1

    @property
    def ends(self) -> bool:
        """Whether `forget_ended` has something to forget."""
        return bool(self._ended or self._reused)

    def forget_ended(self) -> None:
        """Forget ended connections; call this when there is nothing to read. One that has just ended may still have a
        message, which the end precedes: it is kept until the next call."""
        for descriptor, before in [*self._ended.items()]:
            if before:
                self._close(descriptor)
            else:
                self._ended[descriptor] = True
        self._reused = {descriptor: True for descriptor, before in self._reused.items() if not before}

    def swap(self) -> None:
        """Apply the guard's new users: disconnect removed users, and the newest connections of users over their
        limit."""
        access = self._guard.access
        self._counts.clear()
        self._taken = 0
        for connection in self._by_sender.values():  # in the order in which they spoke first
            connection.user = user_of(connection.user_id, access)
            if connection.admitted:
                self._admit(connection)
            self._count(connection, 1)

    def _new(self, sender: bytes, user_id: str, frame: Any) -> UserConnection:
        descriptor: int = frame.get(_SRCFD)
        ends = self._ends(descriptor)
        self._owner.settle()  # behind: if these are the ends of another one, it is told now that the former has ended
        if descriptor in self._ended:
            self._close(descriptor)
            ends = _NO_ENDS
        user = user_of(user_id, self._guard.access)
        connection = UserConnection(sender, user_id, user, descriptor, ends, there=ends is not _NO_ENDS)
        if user is not NOBODY and _is_named(sender, frame):
            self._refuse(connection, "name")
        else:
            self._admit(connection)
        if connection.there:  # else nobody would tell when it is gone
            self._close(descriptor)
            if (former := self._by_sender.get(sender)) is not None:
                self._close(former.descriptor)
            self._by_sender[sender] = self._by_descriptor[descriptor] = connection
            self._count(connection, 1)
        return connection

    def _admit(self, connection: UserConnection) -> None:
        """End a connection of no user, of a user at its limit, or beyond the limit of all."""
        user = connection.user
        if user is NOBODY:
            self._refuse(connection, "connect")
        elif why := self._too_many(user):
            self._refuse(connection, "connections", why)

    def _too_many(self, user: User) -> str:
        """Return why a user may not have another connection; empty: it may."""
        count, most = self._counts.get(user.name, 0), user.limits.connections
        if most and count >= most:
            return f"{user} already has {most} connections, its limits.connections"
        if user.admin:
            return ""
        if not most and count >= (share := self._guard.share(self._places)):
            fact = f"{user} has {count} connections; one user may have {share} of {self._places}"
            return f"{fact}: set limits.connections, or allow the server more file descriptors"
        if self._taken >= self._places:
            return f"{self._taken} connections are open; allow the server more file descriptors"
        return ""

    def _close(self, descriptor: int) -> None:
        """Forget the connection of a descriptor."""
        self._leaves_silent(descriptor)
        self._ended.pop(descriptor, None)
        connection = self._by_descriptor.pop(descriptor, None)
        if connection is not None:
            connection.there = False
            del self._by_sender[connection.sender]
            self._count(connection, -1)

    def _leaves_silent(self, descriptor: int) -> bool:
        """Note that a connection sends a message or ends. Return whether it was silent and the ZAP handler was not
        asked about it: then its handshake failed. Only the number of such questions is known, not their connections; a
        failure may be attributed to the wrong one, but the sum is right."""
        if descriptor not in self._silent:
            return False
        del self._silent[descriptor]
        self.unfinished.pop(descriptor, None)
        if not self._asked:
            return True
        self._asked -= 1
        return False

    def _refuse(self, connection: UserConnection, action: str, why: str = "") -> None:
        connection.admitted = False
        if connection.descriptor in self._reused:  # these may be the ends of somebody who has done nothing
            connection.ends, connection.there = _NO_ENDS, False
        self._guard.refused(connection.user, action, b"", connection, why or _why(connection, action))
        self._shut(connection.descriptor, connection.ends)

    def _count(self, connection: UserConnection, change: int) -> None:
        if connection.admitted:
            name = connection.user.name
            self._counts[name] = self._counts.get(name, 0) + change
            if not connection.user.admin:
                self._taken += change
            if not self._counts[name]:
                del self._counts[name]

    def _shut(self, descriptor: int, ends: Ends | None) -> None:
        """End a connection if it still has these ends: its descriptor may belong to another by now."""
        try:
            with stream.socket(fileno=os.dup(descriptor)) as connection:
                found = connection.getsockname(), connection.getpeername()
                if found == ends or (ends is None and self._is_here(found[0])):
                    connection.shutdown(stream.SHUT_RDWR)
        except OSError:
            return

    def _ends(self, descriptor: int) -> Ends:
        """Return the ends of a connection to the broker; _NO_ENDS when it is gone."""
        try:
            with stream.socket(fileno=os.dup(descriptor)) as connection:
                ends = connection.getsockname(), connection.getpeername()
        except OSError:
            return _NO_ENDS
        return ends if self._is_here(ends[0]) else _NO_ENDS

    def _is_here(self, address: Any) -> bool:
        if isinstance(address, tuple):
            return address[1] in self._ports
        name = address.decode(errors="replace") if isinstance(address, bytes) else address
        return name.replace("\0", "@", 1) in self._ports


def _why(connection: UserConnection, action: str) -> str:
    """Describe why a connection is refused."""
    if action == "name":
        return "it sets its own name, which access control does not allow"
    return "" if " " in connection.user_id else f"no user has the public key {connection.user_id} any more"


def _is_named(sender: bytes, frame: Any) -> bool:
    """Return whether a peer has named itself. Of two names ZeroMQ uses the last and reports the first, so the name in
    use is checked as well. The ROUTER's own names are a zero byte and four more."""
    if len(sender) != 5 or sender[0] != 0:
        return True
    try:
        return bool(frame.get("Identity"))
    except UnicodeDecodeError:  # pyzmq takes it for text
        return True
    except zmq.ZMQError:  # it has not said anything of a name, which ZMTP allows
        return False


def _user_id(frame: Any) -> str:
    try:
        value: str = frame.get("User-Id")
        return value
    except zmq.ZMQError:  # never, of a connection that was let in; a value that nobody has
        return "?"
