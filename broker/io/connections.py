"""The connections of a server: ZMTP in the loop's own thread. Many messages come by one `recv`, and all that a peer
gets in a round leaves by one `send`.

accept ──▶ handshake ──PeerReady──▶ open ──┬── the peer has closed it ──▶ gone
              │                            └── a fault, or it was ended ──▶ ending: what is queued goes out, what
              └── too slow, a fault ──────────────────────────────────────▶         still comes is thrown away

What a peer may occupy is bounded: a message that comes by `Limits`, what is queued for it by `send_bytes`, a handshake
and an ending by their time.
"""

from __future__ import annotations

import errno
import logging
import select
import socket as stream
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from broker.access.users import NOBODY, Access, User
from broker.core.mdp import Frames, Peer
from broker.core.requests import footprint
from broker.core.throttle import Throttle
from broker.io.admission import Member, UserAdmission
from broker.io.listeners import Listener, user_id
from broker.io.loop import Channel, Loop
from broker.zmtp import Connection, Failed, Failure, Limits, PeerReady, State, TooLarge
from broker.zmtp.connection import Cipher
from broker.zmtp.frames import Buffer

log = logging.getLogger(__name__)

READ = 16 << 10
"""Bytes that one connection may say in a round: a few milliseconds of work, however small its messages are."""

READ_LARGE = 1 << 20
"""The same while a large frame comes in, which is no work."""

WRITE = 1 << 20
"""Bytes that one connection gets in a round."""

BUFFERS = 256
"""Buffers that are sent by one call, fewer than any system's limit."""

ACCEPTED_AT_ONCE = 64

HANDSHAKE = 30.0
"""Seconds that a handshake may take."""

SHAKING = 0.002
"""Seconds that handshakes may take in a round; one under CURVE costs a quarter of a millisecond."""

LINGER = 2.0
"""Seconds for which an ended connection may go on reading its last messages."""

RETRY_ACCEPT = 0.25
"""Seconds until connections are accepted again when the system had no room."""

ENOUGH = 16 << 20
"""Queued bytes from which a peer has enough to read."""

HEAD = 32
"""Frames that identify a message: addresses, header, command, service."""

LEAST = 1024
"""Bytes a second that must come in of a large message: less is no sign that the peer's program runs."""

IPV4 = "::ffff:"
"""How IPv4 addresses begin at a socket of IPv6."""

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class PeerGone(Exception):
    """A message cannot be sent: the peer is gone, or does not read."""


class PeerConnection:
    """A connection, and the peer at its other end. It is a peer of the core."""

    __slots__ = (
        "_before",
        "address",
        "descriptor",
        "ending_at",
        "heard_at",
        "here",
        "identity",
        "ip",
        "member",
        "opened_at",
        "protocol",
        "received",
        "stream",
        "uid",
        "unsent",
        "unsent_bytes",
        "waits_to_write",
    )

    def __init__(
        self, connected: stream.socket, address: Any, protocol: Connection, here: Listener, now: float
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
        self.uid = user_id(connected)
        """The system's user at the other end of an ipc connection; None: it is not known."""
        self.identity = b""
        """What the peer wants to be called."""
        self.member: Member | None = None
        """What access control knows of it; None: there is none, or it is not admitted."""
        self.opened_at = now
        self.heard_at = now
        """When bytes came in last."""
        self.received = 0
        """Bytes that came in."""
        self.unsent: deque[Buffer] = deque()
        self.unsent_bytes = 0
        self.waits_to_write = False
        self.ending_at: float | None = None
        """When it is closed at last; None: it is not ending."""
        self._before: tuple[float, int] | None = None

    def __str__(self) -> str:
        return self.address

    @property
    def peer(self) -> Peer:
        """What the core knows it as: its name, which outlives the connection, or the connection itself."""
        return self.identity or self

    @property
    def user(self) -> User | None:
        """Its user; None: there is no access control."""
        return None if self.member is None else self.member.user

    @property
    def there(self) -> bool:
        """Whether messages can be sent to it."""
        return self.protocol.state is State.OPEN and self.ending_at is None

    def goes_on(self, now: float, patience: float) -> bool:
        """Whether enough came in since this was last asked, `patience` seconds ago; at first, whether anything did. A
        message that has not come as a whole is a sign of life, too."""
        before, self._before = self._before, (now, self.received)
        if now - self.heard_at >= patience:
            return False
        if before is None or now - before[0] > 2 * patience:  # asked about another message then
            return True
        return self.received - before[1] >= LEAST * (now - before[0])


Arrival = tuple[PeerConnection, Frames | TooLarge | None]
"""A message and the connection it came by; None: the connection has ended."""


class Connections:
    """Listeners and their connections. They are read by `take`, in the order in which messages came."""

    def __init__(
        self,
        loop: Loop,
        channel: Channel,
        *,
        limits: Limits,
        send_queue: int = 10_000,
        send_bytes: int = 1 << 30,
        admission: UserAdmission | None = None,
    ) -> None:
        """`channel`: is drained when something came. `send_queue`: messages that may be queued for one peer.
        `send_bytes`: bytes that may be queued for all of them."""
        self._loop = loop
        self._channel = channel
        self._limits = limits
        self._admission = admission
        self._handshake = HANDSHAKE if admission is None else admission.handshake
        self._ciphers: dict[Listener, Callable[[], Cipher] | None] = {}
        self._send_queue = send_queue
        self._send_bytes = send_bytes
        self._listeners: dict[int, Listener] = {}
        self._connections: dict[int, PeerConnection] = {}
        self._names: dict[bytes, PeerConnection] = {}
        """Connections of peers that have named themselves."""
        self._shaking: dict[PeerConnection, float] = {}
        """Connections whose handshake is not over, with its end; the oldest first."""
        self._ending: dict[PeerConnection, float] = {}
        self._dirty: dict[PeerConnection, None] = {}
        """Connections with something to send."""
        self._arrived: list[Arrival] = []
        self._accept_at: float | None = None
        """When connections are accepted again; None: now."""
        self._starved = False
        """Whether the system had no room for the last connection."""
        self.total = 0
        """Bytes that are queued for all peers."""
        self._throttle: Throttle[Failure, str] = Throttle(lines=1, window=1.0, most=100)
        self.failed: dict[Failure, int] = {}
        """Connections that ended by a fault of the peer."""

    def __len__(self) -> int:
        """The number of connections, in a handshake or not."""
        return len(self._connections)

    def bind(self, endpoint: str) -> str:
        """Listen; the endpoint with its real port comes back. Raises EndpointError."""
        cipher = None if self._admission is None else self._admission.cipher_at(endpoint)
        listener = Listener(endpoint)
        self._ciphers[listener] = cipher
        descriptor = listener.stream.fileno()
        self._listeners[descriptor] = listener
        self._loop.watch(descriptor, self._channel)
        return listener.endpoint

    # -- what comes ------------------------------------------------------------------------------------------

    def take(self, ready: Iterable[tuple[int, int]], now: float) -> list[Arrival]:
        """What has come by these descriptors, each with the events that were found, and who has gone."""
        shaking = []
        for descriptor, events in ready:
            connection = self._connections.get(descriptor)
            if connection is None:
                if (listener := self._listeners.get(descriptor)) is not None:
                    self._accept(listener, now)
                continue
            if events & select.EPOLLOUT:
                self._write(connection)
            if events & ~select.EPOLLOUT:
                if connection in self._shaking:
                    shaking.append(connection)
                else:
                    self._read(connection, now)
        if shaking:  # strangers wait for those who are in; what is left is reported again
            end = time.monotonic() + SHAKING
            for connection in shaking:
                self._read(connection, now)
                if time.monotonic() >= end:
                    break
        arrived, self._arrived = self._arrived, []
        return arrived

    def _accept(self, listener: Listener, now: float) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted = listener.accept()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._pause(error, now)
                return
            if accepted is None:
                return
            self._starved = False
            connected, address = accepted
            cipher = self._ciphers[listener]
            protocol = Connection(curve=None if cipher is None else cipher(), limits=self._limits)
            try:
                connection = PeerConnection(connected, address, protocol, listener, now)
            except OSError:  # it is gone
                connected.close()
                continue
            self._connections[connection.descriptor] = connection
            self._shaking[connection] = now + self._handshake
            self._loop.watch(connection.descriptor, self._channel)
            self._dirty[connection] = None
        if self._admission is not None:
            while len(self._shaking) > self._admission.max_unfinished:
                oldest = next(iter(self._shaking))
                self._admission.guard.refused(NOBODY, "silent", b"", "")
                self._gone(oldest)

    def _pause(self, error: OSError, now: float) -> None:
        """Accept nothing for a moment: the system has no room."""
        if not self._starved:
            self._starved = True
            log.warning("cannot accept connections: %s; trying again every %g s", error.strerror, RETRY_ACCEPT)
        self._accept_at = now + RETRY_ACCEPT
        for descriptor in self._listeners:
            self._loop.unwatch(descriptor)

    def _read(self, connection: PeerConnection, now: float) -> None:
        protocol = connection.protocol
        try:
            data = connection.stream.recv(READ_LARGE if protocol.lacks_much else READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._gone(connection)
            return
        connection.heard_at = now
        connection.received += len(data)
        if connection.ending_at is not None:
            return
        for event in protocol.receive(data):
            if isinstance(event, list | TooLarge):
                self._arrived.append((connection, event))
            elif isinstance(event, PeerReady):
                self._introduced(connection, event, now)
            elif isinstance(event, Failed):
                self._fault(connection, event, now)
        if protocol.has_output:
            if connection.unsent_bytes > ENOUGH:  # answers to heartbeats that nobody reads
                self._gone(connection)
            else:
                self._queue(connection)

    def _introduced(self, connection: PeerConnection, peer: PeerReady, now: float) -> None:
        """The peer has said who it is: let it in. A name that another has is taken over, as ROUTER_HANDOVER does."""
        if self._admission is not None:
            where = connection.here.asked
            connection.member = self._admission.introduce(where, connection.uid, connection.address, peer)
            if connection.member is None:
                connection.protocol.refuse(self._admission.status)
                self.end(connection, now)
                return
        del self._shaking[connection]
        if peer.identity:
            if (former := self._names.get(peer.identity)) is not None:
                self.end(former, now)
            self._names[peer.identity] = connection
            connection.identity = peer.identity
        connection.protocol.accept()
        for event in connection.protocol.receive(b""):
            if isinstance(event, list | TooLarge):
                self._arrived.append((connection, event))
            elif isinstance(event, Failed):
                self._fault(connection, event, now)

    def _fault(self, connection: PeerConnection, fault: Failed, now: float) -> None:
        self.failed[fault.failure] = self.failed.get(fault.failure, 0) + 1
        for _, more, last in self._throttle.ended(now):
            log.info("%d more connections ended within a second; the last one: %s", more, last)
        if not self._throttle.take(fault.failure, fault.reason, now)[1]:
            log.info("the connection from %s ends: %s", connection.address, fault.reason)
        if self._admission is not None and connection in self._shaking:
            self._admission.failed(fault.reason, connection.address)
        self.end(connection, now)

    def swap(self, access: Access, now: float) -> None:
        """Another access file is in force: end the connections of removed users, and the newest ones of users that have
        too many."""
        assert self._admission is not None
        self._admission.swap(access)
        for connection in [*self._connections.values()]:
            member = connection.member
            if (
                member is not None
                and connection.ending_at is None
                and not self._admission.again(member, connection.address)
            ):
                self._gone(connection)

    # -- what goes -------------------------------------------------------------------------------------------

    def of(self, peer: Peer) -> PeerConnection | None:
        """The connection of a peer; None: a peer with this name is not connected. Any thread may ask."""
        return peer if isinstance(peer, PeerConnection) else self._names.get(peer)  # type: ignore[call-overload]

    def send(self, peer: Peer, frames: Frames) -> None:
        """Queue a message; `flush` sends it. Raises PeerGone when the peer is gone, or its queue is full."""
        connection = self.of(peer)
        if connection is None:
            raise PeerGone
        if connection.protocol.state is not State.OPEN or connection.ending_at is not None:
            raise PeerGone
        if connection.unsent_bytes and (
            len(connection.unsent) >= self._send_queue or footprint(frames) > self._send_bytes - self.total
        ):
            raise PeerGone
        connection.protocol.send(frames)
        self._queue(connection)

    def full(self, peer: Peer) -> bool:
        """Return whether a peer has enough to read. Any thread may ask."""
        connection = self.of(peer)
        return connection is not None and connection.unsent_bytes > ENOUGH

    def _queue(self, connection: PeerConnection) -> None:
        """Take over what the protocol wants to send."""
        self._dirty[connection] = None

    def flush(self, now: float) -> None:
        """Send what is queued."""
        dirty, self._dirty = self._dirty, {}
        for connection in dirty:
            if not connection.waits_to_write:
                self._write(connection)
            else:
                self._collect(connection)

    def _collect(self, connection: PeerConnection) -> None:
        output = connection.protocol.take_output()
        size = sum(map(len, output))
        connection.unsent.extend(output)
        connection.unsent_bytes += size
        self.total += size

    def _write(self, connection: PeerConnection) -> None:
        if connection.protocol.has_output:
            if not connection.unsent:
                output = connection.protocol.take_output()
                if len(output) > 1 and sum(map(len, output)) <= WRITE:
                    output = [b"".join(output)]
                if len(output) == 1:  # mostly all of it leaves at once
                    try:
                        sent = connection.stream.send(output[0])
                    except (BlockingIOError, InterruptedError):
                        sent = 0
                    except OSError:
                        self._gone(connection)
                        return
                    if sent == len(output[0]):
                        return
                    output = [memoryview(output[0])[sent:]]
                connection.unsent.extend(output)
                size = sum(map(len, output))
                connection.unsent_bytes += size
                self.total += size
            else:
                self._collect(connection)
        unsent, left = connection.unsent, WRITE
        while unsent and left > 0:
            try:
                sent = connection.stream.sendmsg([unsent[at] for at in range(min(len(unsent), BUFFERS))])
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._gone(connection)
                return
            left -= sent
            connection.unsent_bytes -= sent
            self.total -= sent
            while sent:
                first = unsent[0]
                if sent < len(first):
                    unsent[0] = memoryview(first)[sent:]
                    break
                sent -= len(first)
                unsent.popleft()
        waits = bool(unsent)
        if waits is not connection.waits_to_write:
            connection.waits_to_write = waits
            self._loop.watch(connection.descriptor, self._channel, write=waits)
        if not waits and connection.ending_at is not None:
            self._say_good_bye(connection)

    # -- the end ---------------------------------------------------------------------------------------------

    def end(self, connection: PeerConnection, now: float) -> None:
        """End a connection. What is queued for its peer goes out, for a moment."""
        if connection.ending_at is not None:
            return
        self._forget(connection)
        connection.ending_at = self._ending[connection] = now + LINGER
        self._dirty[connection] = None
        if not connection.unsent and not connection.protocol.has_output:
            self._say_good_bye(connection)

    @staticmethod
    def _say_good_bye(connection: PeerConnection) -> None:
        """Tell the peer that nothing follows. It is read on until the peer closes, too: a connection that is closed
        with bytes unread takes back what the peer has not read yet."""
        with suppress(OSError):
            connection.stream.shutdown(stream.SHUT_WR)

    def _forget(self, connection: PeerConnection) -> None:
        """No more messages come by it or go."""
        shaking = self._shaking.pop(connection, None) is not None
        if self._admission is not None:
            if connection.member is not None:
                self._admission.left(connection.member)
            elif shaking and connection.protocol.state is not State.CLOSED:
                self._admission.guard.count(NOBODY, "handshake")  # it may only have looked if we are there
        if self._names.get(connection.identity) is connection:
            del self._names[connection.identity]
        self._arrived.append((connection, None))

    def _gone(self, connection: PeerConnection) -> None:
        """Close a connection at once."""
        if self._connections.pop(connection.descriptor, None) is None:
            return
        self._loop.unwatch(connection.descriptor)
        connection.stream.close()
        if connection.ending_at is None:
            self._forget(connection)
            connection.ending_at = 0.0
        self._ending.pop(connection, None)
        self._dirty.pop(connection, None)
        self.total -= connection.unsent_bytes
        connection.unsent_bytes = 0
        connection.unsent.clear()

    def gone(self) -> list[Arrival]:
        """Who has gone since `take`."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def tick(self, now: float) -> None:
        """End what has taken too long, and accept again."""
        for waiting in (self._shaking, self._ending):
            for connection in [one for one, end in waiting.items() if end <= now]:
                self._gone(connection)
        if self._accept_at is not None and self._accept_at <= now:
            self._accept_at = None
            for descriptor in self._listeners:
                self._loop.watch(descriptor, self._channel)

    def next_deadline(self) -> float | None:
        """When `tick` is due."""
        first = self._accept_at
        for waiting in (self._shaking, self._ending):
            for end in waiting.values():
                if first is None or end < first:
                    first = end
                break  # they are in the order of their ends
        return first

    def close(self) -> None:
        """Close all; what is queued goes out, for a moment."""
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        for connection in [*self._connections.values()]:
            self._write(connection)
        end = time.monotonic() + LINGER
        while (left := end - time.monotonic()) > 0:
            slow = [connection for connection in self._connections.values() if connection.unsent]
            if not slow:
                break
            poll = select.poll()
            for connection in slow:
                poll.register(connection.descriptor, select.POLLOUT)
            poll.poll(left * 1000)
            for connection in slow:
                self._write(connection)
        for connection in [*self._connections.values()]:
            self._say_good_bye(connection)
            with suppress(OSError):  # with bytes unread the peer would lose what it has not read
                connection.stream.recv(READ_LARGE)
            connection.stream.close()
        self._connections.clear()
