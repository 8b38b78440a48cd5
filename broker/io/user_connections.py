"""Whose each connection is, told by its messages, and ending those that may not be."""

from __future__ import annotations

import os
import socket as stream
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from broker.access.rules import Guard
from broker.access.users import NOBODY, User

_SRCFD = int(zmq.SRCFD)

Ends = tuple[Any, Any]
"""The addresses of both ends of a connection."""


@dataclass(slots=True, eq=False)
class Connection:
    """A connection that has said something."""

    sender: bytes
    user_id: str
    """What the ZAP handler said: a public key, or the name of the user that an endpoint stands for."""
    user: User
    descriptor: int
    ends: Ends
    admitted: bool

    @property
    def address(self) -> str:
        """Where it comes from, or to, if there is no telling: ipc."""
        peer = self.ends[1] or self.ends[0]
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)


class UserConnections:
    """Connections by the names of their senders and by their file descriptors.

    ZeroMQ tells of a message whose connection it came by. That is asked for every message, for names are not to be
    trusted: a peer may call itself what the ROUTER called another. Who gives himself any name is not admitted.
    """

    def __init__(self, guard: Guard, settle: Callable[[], None], most_silent: int) -> None:
        """`settle` is called for a new connection: connections that have ended are to be `closed` before it returns,
        for one of them may have had its descriptor. `most_silent`: connections that have not said anything."""
        self.user = NOBODY
        """Who sent the message that was looked at last."""
        self._guard = guard
        self._settle = settle
        self._most_silent = most_silent
        self._silent: dict[int, None] = {}
        self._by_sender: dict[bytes, Connection] = {}
        self._by_descriptor: dict[int, Connection] = {}
        self._counts: dict[str, int] = {}
        """Connections of each user."""
        self._users: dict[str, User] = {}
        self._ports: set[Any] = set()
        self.swap()

    def __len__(self) -> int:
        return len(self._by_sender)

    def look(self, sender: bytes, frame: Any) -> bool:
        """Whether a message may be read of which this is a frame; then `user` is whose it is."""
        user_id = _user_id(frame)
        connection = self._by_sender.get(sender)
        if connection is None or connection.user_id != user_id:
            connection = self._new(sender, user_id, frame)
        self.user = connection.user
        return connection.admitted

    def bound(self, endpoint: str) -> None:
        """The broker listens there."""
        protocol, _, address = endpoint.partition("://")
        self._ports.add(int(address.rpartition(":")[2]) if protocol == "tcp" else address)

    def accepted(self, descriptor: int) -> None:
        """There is a new connection. If too many have not said anything, the one that was first ends."""
        self._silent.pop(descriptor, None)
        self._silent[descriptor] = None
        if len(self._silent) > self._most_silent:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            self._shut(oldest, None)
            self._guard.refused(NOBODY, "silent", b"", "")

    def closed(self, descriptor: int) -> None:
        """A connection is gone."""
        self._silent.pop(descriptor, None)
        connection = self._by_descriptor.pop(descriptor, None)
        if connection is not None:
            self._forget(connection)

    def swap(self) -> None:
        """The guard has other users: who is none any more is disconnected."""
        access = self._guard.access
        self._users = {user.name: user for user in access.endpoints.values()} | access.keys
        for connection in self._by_sender.values():
            self._count(connection, -1)
            connection.user = self._users.get(connection.user_id, NOBODY)
            if connection.user is NOBODY and connection.admitted:
                self._refuse(connection, "connect")
            self._count(connection, 1)

    def whose(self, sender: Any) -> User:
        """Who is connected by this name now."""
        connection = self._by_sender.get(sender)
        return connection.user if connection is not None and connection.admitted else NOBODY

    def address(self, sender: Any) -> str:
        """Where a sender is connected from; empty when he is gone."""
        connection = self._by_sender.get(sender)
        return connection.address if connection is not None else ""

    def _new(self, sender: bytes, user_id: str, frame: Any) -> Connection:
        descriptor: int = frame.get(_SRCFD)
        self._settle()
        connection = Connection(
            sender, user_id, self._users.get(user_id, NOBODY), descriptor, self._ends(descriptor) or ("", ""), True
        )
        most = connection.user.limits.connections
        if connection.user is NOBODY:
            self._refuse(connection, "connect")
        elif _is_named(sender, frame):
            self._refuse(connection, "name")
        elif most and self._counts.get(connection.user.name, 0) >= most:
            self._refuse(connection, "connections")
        if connection.ends != ("", ""):  # else it has gone, and nobody would tell that it has
            self.closed(descriptor)
            if (former := self._by_sender.pop(sender, None)) is not None:
                del self._by_descriptor[former.descriptor]
                self._count(former, -1)
            self._by_sender[sender] = self._by_descriptor[descriptor] = connection
            self._count(connection, 1)
        return connection

    def _refuse(self, connection: Connection, action: str) -> None:
        connection.admitted = False
        self._shut(connection.descriptor, connection.ends)
        self._guard.refused(connection.user, action, b"", connection.address)

    def _forget(self, connection: Connection) -> None:
        del self._by_sender[connection.sender]
        self._count(connection, -1)

    def _count(self, connection: Connection, change: int) -> None:
        if connection.admitted:
            name = connection.user.name
            self._counts[name] = self._counts.get(name, 0) + change
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

    def _ends(self, descriptor: int) -> Ends | None:
        """The ends of a connection to here; None when it is gone."""
        try:
            with stream.socket(fileno=os.dup(descriptor)) as connection:
                ends = connection.getsockname(), connection.getpeername()
        except OSError:
            return None
        return ends if self._is_here(ends[0]) else None

    def _is_here(self, address: Any) -> bool:
        if isinstance(address, tuple):
            return address[1] in self._ports
        name = address.decode(errors="replace") if isinstance(address, bytes) else address
        return name.replace("\0", "@", 1) in self._ports


def _is_named(sender: bytes, frame: Any) -> bool:
    """Whether a peer has given itself a name. Of two that it gives, ZeroMQ takes the last and tells of the first: so
    the name that it got is looked at as well. The ROUTER makes names of a 0 and four bytes."""
    if len(sender) != 5 or sender[0] != 0:
        return True
    try:
        return bool(frame.get("Identity"))
    except zmq.ZMQError:  # it has not said anything of a name, which ZMTP allows
        return False


def _user_id(frame: Any) -> str:
    try:
        value: str = frame.get("User-Id")
        return value
    except zmq.ZMQError:  # never, of a connection that was let in; a value that nobody has
        return "?"
