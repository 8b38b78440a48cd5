"""Which user each connection belongs to, as its messages tell; connections that are not allowed are closed."""

from __future__ import annotations

import os
import socket as stream
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from broker.access.rules import Guard
from broker.access.users import NOBODY, User
from broker.io.zap import user_of

_SRCFD = int(zmq.SRCFD)

Ends = tuple[Any, Any]
"""The addresses of both ends of a connection."""

_NO_ENDS: Ends = ("", "")


@dataclass(slots=True, eq=False)
class UserConnection:
    """A connection that has said something: a peer of the core. Who takes its name over is another one."""

    sender: bytes
    user_id: str
    """What the ZAP handler said."""
    user: User
    descriptor: int
    ends: Ends
    there: bool
    """Whether something can be sent to it."""
    admitted: bool = True
    """Whether what it says is read."""

    @property
    def address(self) -> str:
        """Where it comes from; for ipc, where it has come to."""
        peer = self.ends[1] or self.ends[0]
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)


class UserConnections:
    """Connections by the names of their senders and by their file descriptors.

    ZeroMQ tells of a message whose connection it came by. That is asked for every message, for names are not to be
    trusted: a peer may call itself what the ROUTER has called another. Who gives himself a name is not admitted. One
    that begins with a zero byte, as the ROUTER's do, cannot be told from those; so who has the name of a connection
    that is gone is another peer, and gets nothing that was meant for that one.
    """

    def __init__(self, guard: Guard, settle: Callable[[], None], most_silent: int, places: int) -> None:
        """`settle` is called for a new connection: it tells of all that have `ended`, for one of them may have had the
        descriptor. `most_silent`: connections that have not said anything. `places`: for those that have; one user may
        have a share of them, unless the access file has another limit, and those of administrators do not count."""
        self.speaker = UserConnection(b"", "", NOBODY, -1, _NO_ENDS, there=False, admitted=False)
        """By which the message came that was looked at last."""
        self._guard = guard
        self._settle = settle
        self._most_silent = most_silent
        self._places = places
        self._silent: dict[int, None] = {}
        self.unfinished: dict[int, None] = {}
        """Those of them that may not have been let in yet."""
        self._asked = 0
        """How many of those had a handshake that came as far as to the ZAP handler."""
        self._ended: dict[int, bool] = {}
        """Gone; but what was said on them may not be read yet. Whether `forget_ended` was called since."""
        self._reused: dict[int, bool] = {}
        """The same of descriptors that new connections have by now: a message by such a number may be of either."""
        self._by_sender: dict[bytes, UserConnection] = {}
        self._by_descriptor: dict[int, UserConnection] = {}
        self._counts: dict[str, int] = {}
        """Connections of each user."""
        self._taken = 0
        """Connections of all users but administrators."""
        self._ports: set[Any] = set()
        self._keyed: set[int] = set()
        """TCP ports where a key is wanted."""

    def __len__(self) -> int:
        return len(self._by_sender)

    def look(self, sender: bytes, frame: Any) -> bool:
        """Whether a message may be read of which this is a frame; `speaker` is who sent it."""
        user_id = _user_id(frame)
        connection = self._by_sender.get(sender)
        if connection is None or connection.user_id != user_id:
            connection = self._new(sender, user_id, frame)
        self.speaker = connection
        return connection.admitted

    def bound(self, endpoint: str, *, keyed: bool = True) -> None:
        """The broker listens there. `keyed`: who connects needs a key."""
        protocol, _, address = endpoint.partition("://")
        port = int(address.rpartition(":")[2]) if protocol == "tcp" else address
        self._ports.add(port)
        if keyed and isinstance(port, int):
            self._keyed.add(port)

    def accepted(self, descriptor: int) -> None:
        """There is a new connection. If too many have not said anything, the one that was first ends."""
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
        """One that was not let in yet has said more than a handshake has. Where no key is wanted, that is a message."""
        here, there = self._ends(descriptor)
        if isinstance(here, tuple) and here[1] in self._keyed:
            self._guard.refused(NOBODY, "handshake", b"", f"{there[0]}:{there[1]}")
            self._shut(descriptor, (here, there))
            self._asked += 1  # else it would be counted once more when it has ended
            self._leaves_silent(descriptor)

    def ended(self, descriptor: int) -> None:
        """A connection is gone."""
        if self._leaves_silent(descriptor):  # from where, nobody knows; and it may only have looked if we are there
            self._guard.count(NOBODY, "handshake")
        self._ended[descriptor] = False

    def asked(self) -> None:
        """The ZAP handler was asked whether a new connection may be."""
        self._asked += 1

    @property
    def ends(self) -> bool:
        """Whether there are connections that have ended, and are to be forgotten."""
        return bool(self._ended or self._reused)

    def forget_ended(self) -> None:
        """There is nothing to read now. What has just ended may still bring something: it is told before that is."""
        for descriptor, before in [*self._ended.items()]:
            if before:
                self._close(descriptor)
            else:
                self._ended[descriptor] = True
        self._reused = {descriptor: True for descriptor, before in self._reused.items() if not before}

    def swap(self) -> None:
        """The guard has other users: who is none any more is disconnected, and of who has more connections than he may
        those that spoke last."""
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
        self._settle()  # behind: if these are the ends of another one, it is told now that the former has ended
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
        """End a connection whose user is none, or has enough of them, or which would be one too many."""
        user = connection.user
        if user is NOBODY:
            self._refuse(connection, "connect")
        elif why := self._too_many(user):
            self._refuse(connection, "connections", why)

    def _too_many(self, user: User) -> str:
        """Why a user may not have one connection more; empty: it may."""
        count, most = self._counts.get(user.name, 0), user.limits.connections
        if most and count >= most:
            return f"{user} has limits.connections = {most} already"
        if user.admin:
            return ""
        if not most and count >= (share := self._guard.share(self._places)):
            fact = f"{user} has {count} connections; of {self._places} one user may have {share}"
            return f"{fact}: set limits.connections, or allow the server more file descriptors"
        if self._taken >= self._places:
            return f"{self._taken} connections are open; allow the server more file descriptors"
        return ""

    def _close(self, descriptor: int) -> None:
        """Forget what is known of a connection by this number."""
        self._leaves_silent(descriptor)
        self._ended.pop(descriptor, None)
        connection = self._by_descriptor.pop(descriptor, None)
        if connection is not None:
            connection.there = False
            del self._by_sender[connection.sender]
            self._count(connection, -1)

    def _leaves_silent(self, descriptor: int) -> bool:
        """A connection speaks, or ends. Whether it has said nothing, and the ZAP handler was not asked about it: then
        its handshake failed. Which ones it was asked about is not known, only how many; so that may be told of another
        one, but the sum is right."""
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
        """End a connection to here, if it has these ends still: its number may be another's by now."""
        try:
            with stream.socket(fileno=os.dup(descriptor)) as connection:
                found = connection.getsockname(), connection.getpeername()
                if found == ends or (ends is None and self._is_here(found[0])):
                    connection.shutdown(stream.SHUT_RDWR)
        except OSError:
            return

    def _ends(self, descriptor: int) -> Ends:
        """The ends of a connection to here; _NO_ENDS when it is gone."""
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
    """Why a connection is refused, in words."""
    if action == "name":
        return "it gives itself a name, which access control does not allow"
    return "" if " " in connection.user_id else f"no user has the public key {connection.user_id} any more"


def _is_named(sender: bytes, frame: Any) -> bool:
    """Whether a peer has given itself a name. Of two that it gives, ZeroMQ takes the last and tells of the first: so
    the name that it got is looked at as well. The ROUTER makes names of a 0 and four bytes."""
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
