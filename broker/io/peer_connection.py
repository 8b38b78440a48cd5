"""One connection of a server and its peer: what it may do, what it is owed, and when it was last heard."""

from __future__ import annotations

import socket as stream
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from broker.access.users import User
from broker.core.mdp import Peer
from broker.io.listeners import ListeningSocket, peer_ids
from broker.zmtp import Connection
from broker.zmtp.frames import Buffer

MIN_INFLOW = 1024
"""Bytes a second of a large message that show that its sender is alive."""

IPV4 = "::ffff:"
"""How IPv4 addresses begin at a socket of IPv6."""


MAX_DUE = 2
"""Connections that a round closes because their time is over, and as many handshakes that it begins after a wait."""


class PeerConnection:
    """A connection and its peer."""

    __slots__ = (
        "_before",
        "address",
        "counted",
        "descriptor",
        "ending_at",
        "heard_at",
        "here",
        "in_kernel",
        "ip",
        "key",
        "name",
        "open",
        "protocol",
        "received",
        "sent_at",
        "stream",
        "uid",
        "unsent",
        "unsent_bytes",
        "user",
        "waits_to_write",
    )

    def __init__(
        self, connected: stream.socket, address: Any, protocol: Connection, here: ListeningSocket, now: float
    ) -> None:
        self.stream = connected
        self.descriptor = connected.fileno()
        self.protocol = protocol
        self.here = here
        """Where it was accepted."""
        tcp = isinstance(address, tuple)
        self.ip = str(address[0]).removeprefix(IPV4) if tcp else ""
        """The IP address that it comes from; empty for ipc."""
        self.address = f"{self.ip}:{address[1]}" if tcp else here.endpoint
        _, self.uid = peer_ids(connected)
        """The system's user at the other end of an ipc connection; None: it is not known."""
        self.name = b""
        """Its routing id; empty: it has none."""
        self.open = False
        """Whether messages can be sent to it."""
        self.key = ""
        """Its public key in Z85; empty: it needs none, or has not proved it yet."""
        self.user: User | None = None
        """Its user; None: not known yet, or there is no access control."""
        self.counted = False
        """Whether it counts against its user's limit."""
        self.heard_at = now
        """When bytes were last received."""
        self.received = 0
        """Bytes received."""
        self.unsent: deque[Buffer] = deque()
        self.unsent_bytes = 0
        self.waits_to_write = False
        self.sent_at = now
        """When it last took something of what waits for it, or that began to wait."""
        self.in_kernel = 0
        """Bytes that the system had for it then."""
        self.ending_at: float | None = None
        """When it is closed at the latest; None: it is not ending."""
        self._before: tuple[float, int] | None = None

    def __str__(self) -> str:
        return self.address

    @property
    def peer(self) -> Peer:
        """The core's key for this peer: its routing id, which outlives the connection, or else the connection. No
        attribute: a connection that refers to itself is freed by the garbage collector only, which stops everything."""
        return self.name or self

    @property
    def share(self) -> str:
        """Whose limits it counts for: its user's, or before that is known its IP address's."""
        return self.ip if self.user is None else self.user.name

    def takes(self, now: float) -> None:
        """Note that it takes something of what waits for it, or that this begins to wait."""
        self.sent_at, self.in_kernel = now, self._unread()

    def has_stalled(self, now: float, patience: float) -> bool:
        """Return whether the peer has read nothing for `patience` seconds. The system is asked: it reports room only
        after much was read, and a loop that stood still has not heard of it."""
        if now - self.sent_at < patience:
            return False
        left = self._unread()
        if not left or left < self.in_kernel:
            self.sent_at, self.in_kernel = now, left
            return False
        return True

    def _unread(self) -> int:
        """Return how many bytes the system has for the peer; 1 if it does not say."""
        import fcntl  # rarely needed
        import termios

        try:
            return int.from_bytes(fcntl.ioctl(self.descriptor, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        except OSError:
            return 1

    def goes_on(self, now: float, patience: float) -> bool:
        """Return whether the peer sent enough since the last call, `patience` seconds ago, to count as alive, be it an
        incomplete message. At the first call: whether it sent anything."""
        before, self._before = self._before, (now, self.received)
        if now - self.heard_at >= patience:
            return False
        if before is None or now - before[0] > 2 * patience:  # the last call was about another message
            return True
        return self.received - before[1] >= MIN_INFLOW * (now - before[0])


class QueuedBytes:
    """Bytes that are queued for peers: of all, and of each user."""

    def __init__(self, most: int) -> None:
        """`most`: of all; one user gets half of it."""
        self.most = most
        self.total = 0
        self._of_user: dict[str, int] = {}

    def count(self, connection: PeerConnection, change: int) -> None:
        """Count bytes that are queued for a peer, or are not any more."""
        connection.unsent_bytes += change
        self.total += change
        if (user := connection.user) is not None:
            count = self._of_user.pop(user.name, 0) + change
            if count:
                self._of_user[user.name] = count

    def room(self, connection: PeerConnection) -> int:
        """Return how many bytes may be queued for a peer. Its user's half is there for it, whatever the others have."""
        if connection.user is None:
            return self.most - self.total
        return self.most // 2 - self._of_user.get(connection.user.name, 0)

    @contextmanager
    def moved(self, connection: PeerConnection) -> Iterator[None]:
        """Count what is queued for another user, if the connection has another one afterwards."""
        size = connection.unsent_bytes
        self.count(connection, -size)
        yield
        self.count(connection, size)


def of_largest_share(sizes: Mapping[PeerConnection, int]) -> list[PeerConnection]:
    """Return the connections of the user, or the IP address, with the most bytes."""
    shares: Counter[str] = Counter()
    for one, size in sizes.items():
        shares[one.share] += size
    ((most, _),) = shares.most_common(1)
    return [one for one in sizes if one.share == most]


def due(deadlines: dict[PeerConnection, float], now: float) -> list[tuple[PeerConnection, float]]:
    """Return the first connections past their deadline; the next round gets the others."""
    found: list[tuple[PeerConnection, float]] = []
    for connection, deadline in deadlines.items():  # in the order of the deadlines
        if deadline > now or len(found) == MAX_DUE:
            break
        found.append((connection, deadline))
    return found
