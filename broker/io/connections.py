"""The connections of a server: ZMTP in the loop's thread. One `recv` reads many messages, and one `send` writes
everything that a peer gets in a round.

accept ──▶ handshake ──PeerReady──▶ open ──┬── closed by the peer ──▶ closed
              │                            └── fault, or `end` ──────▶ ending: flush the queue, discard input ──▶ closed
              └── timeout ──▶ closed

Limits: `MessageLimits` for what a peer sends, `max_bytes` for what is queued or half received of all, timeouts for the
handshake and for closing.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket as stream
import time
from contextlib import suppress
from operator import attrgetter

from broker.access.users import NOBODY, Access
from broker.core.mdp import Frames, Peer
from broker.core.requests import footprint
from broker.core.throttle import Throttle
from broker.core.timers import earliest
from broker.io.admission import REFUSED, UserAdmission
from broker.io.listeners import ListeningSocket
from broker.io.loop import Channel, Loop
from broker.io.peer_connection import PeerConnection, QueuedBytes, due, of_largest_share
from broker.zmtp import (
    Connection,
    ConnectionFailed,
    ConnectionState,
    Failure,
    MessageLimits,
    OversizedMessage,
    PeerReady,
)
from broker.zmtp.connection import MakeCipher
from broker.zmtp.frames import ZmtpFault

log = logging.getLogger(__name__)

MAX_READ = 256 << 10
"""Bytes read from one connection in a round: many small messages, which are then stored by one commit, or as much of a
large one as Linux keeps for a local socket."""

MAX_READ_LARGE = 1 << 20
"""The same while a large message is received, which takes little work."""

MAX_EVENTS = 1000
"""Messages and commands of one connection in a round: a few milliseconds of work, however small they are."""

MIN_HELD = 16 << 10
"""Bytes of an incomplete message from which they count."""

MAX_WRITE = 1 << 20
"""Bytes written to one connection in a round."""

MAX_JOINED = 1 << 16
"""Bytes of a queued message up to which it is one buffer."""

MAX_BUFFERS = 256
"""Buffers sent by one call; every system allows more."""

MAX_MESSAGES = 1000
"""Messages after which a round ends, so that answers go out; what is left comes first in the next one."""

HANDSHAKE_TIMEOUT = 30.0
"""Seconds for a handshake without access control."""

MAX_HANDSHAKE_TIME = 0.0001
"""Seconds spent in a round on accepting connections, and as many on handshakes; at least one of each is served, and the
next round goes on. A CURVE handshake takes a quarter of a millisecond."""

LATE = 1.0
"""Seconds after a deadline from which its time is given again: the loop stood still."""

LINGER = 2.0
"""Seconds in which an ended connection is flushed."""

MAX_HANDSHAKES = 100
"""CURVE handshakes started for one IP address in `HANDSHAKE_INTERVAL`; the others wait."""

HANDSHAKE_INTERVAL = 0.1
"""Seconds. It is short so that few are under way at once: each poll reports all of those."""

ACCEPT_INTERVAL = 0.25
"""Seconds between attempts to accept when file descriptors or memory have run out."""

STALLED = 2.0
"""Seconds in which a peer that reads takes something of what waits for it."""

MAX_QUEUED = 16 << 20
"""Queued bytes from which no large answers are produced for a peer."""

PEERS = (b"REQ", b"DEALER", b"ROUTER")
"""Socket types that may connect."""

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class PeerGone(Exception):
    """A message cannot be sent: the peer is disconnected, or its queue is full."""


Arrival = tuple[PeerConnection, Frames | OversizedMessage | None]
"""A connection and a message from it; None: the connection has ended."""


class Connections:
    """Listening sockets and their connections."""

    def __init__(
        self,
        loop: Loop,
        channel: Channel,
        *,
        limits: MessageLimits,
        send_queue: int = 10_000,
        max_bytes: int = 1 << 30,
        admission: UserAdmission | None = None,
        identity: bytes = b"",
        named: bool = False,
    ) -> None:
        """`channel`: the loop drains it when there is input. `send_queue`: maximum messages queued for one peer.
        `max_bytes`: maximum bytes queued for all peers, and of all incomplete messages. `identity`: the routing id that
        this end asks for. `named`: give a routing id to each peer that asks for none, as a ROUTER does: to be passed on
        to others."""
        self._loop = loop
        self._channel = channel
        self._limits = limits
        self._identity = identity
        self._named = named
        self._admission = admission
        self._handshake = HANDSHAKE_TIMEOUT if admission is None else admission.handshake
        self._ciphers: dict[ListeningSocket, MakeCipher | None] = {}
        self._send_queue = send_queue
        self._max_bytes = max_bytes
        self._listeners: dict[int, ListeningSocket] = {}
        self._connections: dict[int, PeerConnection] = {}
        self._names: dict[Peer, PeerConnection] = {}
        """Connections by the routing id that their peer asked for."""
        self._handshaking: dict[PeerConnection, float] = {}
        """Connections in their handshake and its deadline, oldest first."""
        self._delayed: dict[PeerConnection, float] = {}
        """Connections with a waiting handshake, and when it begins."""
        self._begun: dict[str, int] = {}
        self._begun_until = 0.0
        """Handshakes started for each IP address in this interval, and its end."""
        self._ending: dict[PeerConnection, float] = {}
        self._dirty: dict[PeerConnection, None] = {}
        """Connections with output."""
        self._arrived: list[Arrival] = []
        self._buffer = memoryview(bytearray(MAX_READ_LARGE))
        """For all reads: `recv` would allocate as much for each, however little comes."""
        self.ready: dict[int, int] = {}
        """Descriptors with input or room for output, and these events; `take` handles them."""
        self._paused = False
        self._accept_at: float | None = None
        """When to accept connections again; None: now."""
        self._starved = False
        """Whether the last attempt to accept failed for lack of file descriptors or memory."""
        self.queued = QueuedBytes(max_bytes)
        self._look_at = 0.0
        """When to search for peers that read nothing again, after none were found."""
        self._receiving: dict[PeerConnection, int] = {}
        """Connections with a large part of an incomplete message, and its bytes."""
        self.receiving = 0
        """Their bytes."""
        self._throttle: Throttle[Failure, str] = Throttle(lines=1, window=1.0, most=100)

    def __len__(self) -> int:
        """Return the number of connections, handshakes included."""
        return len(self._connections)

    def bind(self, endpoint: str) -> str:
        """Listen; the endpoint with its real port comes back. Raises EndpointError."""
        cipher = None if self._admission is None else self._admission.cipher_at(endpoint)
        listener = ListeningSocket(endpoint)
        self._ciphers[listener] = cipher
        descriptor = listener.stream.fileno()
        self._listeners[descriptor] = listener
        self._watch(descriptor, _READ)
        return listener.endpoint

    # -- input -----------------------------------------------------------------------------------------------

    def take(self, now: float) -> list[Arrival]:
        """Read what has come. Return messages and ended connections in order."""
        ready = [*self.ready.items()]
        self.ready.clear()
        handshaking, accepting = [], []
        for at, (descriptor, events) in enumerate(ready):
            if len(self._arrived) >= MAX_MESSAGES:
                again = [*self.ready.items()]  # these had a turn in this round
                self.ready.clear()
                self.ready.update([*ready[at:], *again])
                for unread, _ in ready[at:]:
                    if (connection := self._connections.get(unread)) is not None:
                        connection.heard_at = now  # it is not silent
                break
            connection = self._connections.get(descriptor)
            if connection is None:
                if (listener := self._listeners.get(descriptor)) is not None:
                    accepting.append(listener)
                continue
            if events & _WRITE:
                self._write(connection)
            if events & _READ:
                if connection in self._handshaking:
                    handshaking.append(connection)
                else:
                    self._read(connection, now)
        if handshaking:  # after open connections; the next poll reports those that are left
            end = time.monotonic() + MAX_HANDSHAKE_TIME
            for connection in handshaking:
                self._read(connection, now)
                if time.monotonic() >= end:
                    break
        for listener in accepting:
            self._accept(listener, now)
            self._close_oldest()
        arrived, self._arrived = self._arrived, []
        return arrived

    def pause(self, paused: bool) -> None:
        """Read nothing and accept no connections, until this is called with False."""
        if paused is self._paused:
            return
        self._paused = paused
        self.ready.clear()
        for descriptor in self._listeners:
            self._watch(descriptor, _READ)
        for connection in self._connections.values():
            self._watch_connection(connection)
            if not paused and connection.protocol.has_more:
                self.ready[connection.descriptor] = _READ
                self._loop.drain_again(self._channel)

    def _watch(self, descriptor: int, events: int) -> None:
        """Wait for events of a descriptor; while paused, not for input."""
        if self._paused:
            events &= ~_READ
        if events:
            self._loop.watch(descriptor, self._channel, self.ready, events)
        else:
            self._loop.unwatch(descriptor)

    def _watch_connection(self, connection: PeerConnection) -> None:
        if connection not in self._delayed:
            self._watch(connection.descriptor, _READ | _WRITE if connection.waits_to_write else _READ)

    def _accept(self, listener: ListeningSocket, now: float) -> None:
        end = time.monotonic() + MAX_HANDSHAKE_TIME
        while True:
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
            protocol = Connection(
                peers=PEERS,
                identity=self._identity,
                curve=None if cipher is None else cipher(),
                limits=self._limits,
            )
            try:
                connection = PeerConnection(connected, address, protocol, listener, now)
            except OSError:  # closed by the peer already
                connected.close()
            else:
                self._connections[connection.descriptor] = connection
                self._handshaking[connection] = now + self._handshake
                if cipher is None or self._may_begin(connection, now):
                    self._watch_connection(connection)
                    self._dirty[connection] = None
            if time.monotonic() >= end:
                return

    def _may_begin(self, connection: PeerConnection, now: float) -> bool:
        """Count a handshake for its address; False: it has to wait."""
        if now >= self._begun_until:
            self._begun.clear()
            self._begun_until = now + HANDSHAKE_INTERVAL
        started = self._begun.get(connection.ip, 0)
        if started >= MAX_HANDSHAKES:
            self._delayed[connection] = self._begun_until
            return False
        self._begun[connection.ip] = started + 1
        return True

    def _close_oldest(self) -> None:
        """With access control: keep the numbers of unfinished handshakes, and of ending connections, in their limit."""
        if self._admission is not None:
            while len(self._handshaking) > self._admission.max_unfinished:
                oldest = next(iter(self._handshaking))
                del self._handshaking[oldest]
                self._admission.guard.refused(NOBODY, "silent", b"", oldest.address)
                self._close(oldest)
            while len(self._ending) > self._admission.max_unfinished:
                self._close(next(iter(self._ending)))

    def _pause(self, error: OSError, now: float) -> None:
        """Stop accepting for a moment."""
        if not self._starved:
            self._starved = True
            log.warning("cannot accept connections: %s; retrying every %g s", error.strerror, ACCEPT_INTERVAL)
        self._accept_at = now + ACCEPT_INTERVAL
        for descriptor in self._listeners:
            self._loop.unwatch(descriptor)

    def _read(self, connection: PeerConnection, now: float) -> None:
        protocol = connection.protocol
        data = b""
        if connection.ending_at is not None or not protocol.has_more:
            try:
                size = MAX_READ_LARGE if connection in self._receiving else MAX_READ
                count = connection.stream.recv_into(self._buffer, size)
                data = bytes(self._buffer[:count])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                pass
            if not data:
                self._close(connection)
                return
        connection.heard_at = now
        connection.received += len(data)
        if connection.ending_at is not None:
            return
        self._receive(connection, data, now)
        if protocol.has_more:
            self.ready[connection.descriptor] = _READ
        held = protocol.held
        if held > MIN_HELD or connection in self._receiving:
            self._hold(connection, held, now)
        if protocol.output:
            if connection.unsent_bytes > MAX_QUEUED:  # answers to PINGs of a peer that reads nothing
                self._close(connection)
            else:
                self._dirty[connection] = None

    def _receive(self, connection: PeerConnection, data: bytes, now: float) -> None:
        for event in connection.protocol.receive(data, MAX_EVENTS):
            if isinstance(event, list | OversizedMessage):
                self._arrived.append((connection, event))
            elif isinstance(event, PeerReady):
                self._handshake_done(connection, event, now)
            elif isinstance(event, ConnectionFailed):
                self._failed(connection, event, now)

    def _hold(self, connection: PeerConnection, held: int, now: float) -> None:
        """Note the bytes of an incomplete message. If there are too many in all, a connection of the user, or the IP
        address, with the most of them ends: the one that was silent the longest."""
        self.receiving += held - self._receiving.pop(connection, 0)
        if held:
            self._receiving[connection] = held
        while self.receiving > self._max_bytes and len(self._receiving) > 1:
            silent = min(of_largest_share(self._receiving), key=attrgetter("heard_at"))
            self._log(silent, Failure.TOO_LARGE, "too many large messages are partly received", now)
            self._close(silent)

    def _handshake_done(self, connection: PeerConnection, peer: PeerReady, now: float) -> None:
        """Admit or refuse the peer. A routing id in use is handed over to the new connection, as by ROUTER_HANDOVER."""
        if self._admission is not None:
            with self.queued.moved(connection):
                known = self._admission.authenticate(connection, peer)
            if not known:
                connection.protocol.refuse(REFUSED)
                self.end(connection, now)
                return
            del self._handshaking[connection]
            if not self._admission.admit(connection):  # no ERROR: libzmq would not connect again
                self._close(connection)
                return
        else:
            del self._handshaking[connection]
        name = peer.identity
        if self._named and not name:  # peers' own names do not begin with a zero
            while (name := b"\0" + os.urandom(4)) in self._names:
                pass
        if name:
            if (former := self._names.get(name)) is not None:
                self.end(former, now)
            self._names[name] = connection
            connection.name = name
        connection.open = True
        connection.protocol.accept()
        self._receive(connection, b"", now)

    def _log(self, connection: PeerConnection, failure: Failure, reason: str, now: float) -> None:
        """Log why a connection ends, once a second for each failure."""
        for _, more, last in self._throttle.ended(now):
            log.info("%d more connections were closed within a second; the last one: %s", more, last)
        if not self._throttle.take(failure, reason, now)[1]:
            log.info("the connection from %s was closed: %s", connection.address, reason)

    def _failed(self, connection: PeerConnection, fault: ConnectionFailed, now: float) -> None:
        self._log(connection, fault.failure, fault.reason, now)
        if self._admission is not None and connection in self._handshaking:
            self._admission.failed(fault.reason, connection)
        self.end(connection, now)

    def swap(self, access: Access, now: float) -> None:
        """Apply another access file: close the connections of removed users, and the newest ones of users over their
        limit."""
        assert self._admission is not None
        self._admission.swap(access)
        for connection in [*self._connections.values()]:
            if connection.open:
                with self.queued.moved(connection):
                    known = self._admission.readmit(connection)
                if not known:
                    self._close(connection)

    # -- output ----------------------------------------------------------------------------------------------

    def of(self, peer: Peer) -> PeerConnection | None:
        """Return the connection of a peer; None: this routing id is not connected. Any thread may call this."""
        return peer if isinstance(peer, PeerConnection) else self._names.get(peer)

    def send(self, peer: Peer, frames: Frames) -> None:
        """Queue a message; `flush` sends it. Raises PeerGone."""
        connection = self.of(peer)
        if connection is None or not connection.open:
            raise PeerGone
        if connection.unsent_bytes:
            size = footprint(frames)
            self._make_room(connection, size)
            if len(connection.unsent) >= self._send_queue or size > self.queued.room(connection) or not connection.open:
                raise PeerGone
        try:
            connection.protocol.send(frames)
        except ZmtpFault:  # all nonces are used
            self._close(connection)
            raise PeerGone from None
        if connection.unsent:
            self._collect(connection)
        elif connection.protocol.output_bytes > MAX_WRITE:
            self._write(connection)
        else:
            self._dirty[connection] = None

    def full(self, peer: Peer) -> bool:
        """Return whether a peer should get no more large answers for now. Any thread may call this."""
        connection = self.of(peer)
        return connection is not None and connection.unsent_bytes > MAX_QUEUED

    def flush(self) -> list[Arrival]:
        """Write the output of all connections. Return those that ended since `take`."""
        dirty, self._dirty = self._dirty, {}
        for connection in dirty:
            if not connection.waits_to_write:
                self._write(connection)
            else:
                self._collect(connection)
        ended, self._arrived = self._arrived, []
        return ended

    def _collect(self, connection: PeerConnection) -> None:
        output = connection.protocol.take_output()
        if len(output) > 1 and sum(map(len, output)) <= MAX_JOINED:
            output = [b"".join(output)]
        connection.unsent.extend(output)
        self.queued.count(connection, sum(map(len, output)))
        self._make_room(connection)

    def _make_room(self, connection: PeerConnection, more: int = 0) -> None:
        """If too much is unread, of a peer's user or in all, disconnect peers that read nothing: those with the most,
        of the user, or the IP address, with the most. If no other peer waits, it may keep its message. `more`: bytes
        for the peer."""
        queued = self.queued
        while (over := queued.total + more > queued.most) or queued.room(connection) < more:
            if (now := time.monotonic()) < self._look_at:
                return
            share = None if over else connection.share
            waiting = [one for one in self._connections.values() if one.waits_to_write and share in (None, one.share)]
            unread = {one: one.unsent_bytes for one in waiting if one.has_stalled(now, STALLED)}
            if not unread or len(waiting) < 2:
                self._look_at = now + STALLED / 20
                return
            slow = max(of_largest_share(unread), key=attrgetter("unsent_bytes"))
            self._log(slow, Failure.TOO_LARGE, "too much of what was sent is unread", now)
            self._close(slow)

    def _write(self, connection: PeerConnection) -> None:
        if connection.protocol.output:
            if not connection.unsent:
                output = connection.protocol.take_output()
                if len(output) > 1 and sum(map(len, output)) <= MAX_WRITE:
                    output = [b"".join(output)]
                if len(output) == 1:  # usually written at once
                    try:
                        sent = connection.stream.send(output[0])
                    except (BlockingIOError, InterruptedError):
                        sent = 0
                    except OSError:
                        self._close(connection)
                        return
                    if sent == len(output[0]):
                        if connection.ending_at is not None:
                            self._shut_down(connection)
                        return
                    output = [memoryview(output[0])[sent:]]
                connection.unsent.extend(output)
                self.queued.count(connection, sum(map(len, output)))
            else:
                self._collect(connection)
        unsent, left, before = connection.unsent, MAX_WRITE, connection.unsent_bytes
        while unsent and left > 0:
            try:
                sent = connection.stream.sendmsg([unsent[at] for at in range(min(len(unsent), MAX_BUFFERS))])
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._close(connection)
                return
            left -= sent
            self.queued.count(connection, -sent)
            while sent:
                first = unsent[0]
                if sent < len(first):
                    unsent[0] = memoryview(first)[sent:]
                    break
                sent -= len(first)
                unsent.popleft()
        waits = bool(unsent)
        if waits and (connection.unsent_bytes < before or not connection.waits_to_write):
            connection.takes(time.monotonic())
        if waits is not connection.waits_to_write:
            connection.waits_to_write = waits
            self._watch_connection(connection)
        if waits:
            self._make_room(connection)
        elif connection.ending_at is not None:
            self._shut_down(connection)

    # -- closing ---------------------------------------------------------------------------------------------

    def end(self, connection: PeerConnection, now: float) -> None:
        """End a connection. Its queue is flushed, for a moment."""
        if connection.ending_at is not None:
            return
        self._ended(connection)
        connection.ending_at = self._ending[connection] = now + LINGER
        self._dirty[connection] = None
        if not connection.unsent and not connection.protocol.output:
            self._shut_down(connection)

    @staticmethod
    def _shut_down(connection: PeerConnection) -> None:
        """Signal the end of the output. The input is read until the peer closes: closing a socket with unread input
        resets the connection, and the peer could lose the last messages."""
        with suppress(OSError):
            connection.stream.shutdown(stream.SHUT_WR)

    def _ended(self, connection: PeerConnection) -> None:
        """Note that a connection delivers no more messages."""
        connection.open = False
        handshaking = self._handshaking.pop(connection, None) is not None
        if self._admission is not None:
            self._admission.left(connection)
            if handshaking and connection.protocol.state is not ConnectionState.CLOSED:
                self._admission.guard.count(NOBODY, "handshake")  # or a probe of the port
        if self._names.get(connection.name) is connection:
            del self._names[connection.name]
        self._arrived.append((connection, None))

    def _close(self, connection: PeerConnection) -> None:
        """Close a connection at once."""
        if self._connections.get(connection.descriptor) is not connection:  # closed before, its descriptor used again
            return
        del self._connections[connection.descriptor]
        self._loop.unwatch(connection.descriptor)
        connection.stream.close()
        if connection.ending_at is None:
            self._ended(connection)
            connection.ending_at = 0.0
        self._ending.pop(connection, None)
        self._delayed.pop(connection, None)
        self.receiving -= self._receiving.pop(connection, 0)
        self._dirty.pop(connection, None)
        self.queued.count(connection, -connection.unsent_bytes)
        connection.unsent.clear()
        connection.protocol.take_output()  # nothing of it is queued any more
        connection.waits_to_write = False

    def tick(self, now: float) -> None:
        """Close connections past their deadline, and accept again."""
        for connection, end in due(self._handshaking, now):
            if now - end > LATE:  # this process was paused, not the peer
                del self._handshaking[connection]
                self._handshaking[connection] = now + self._handshake
            else:
                self._close(connection)
        for connection, _ in due(self._ending, now):
            self._close(connection)
        for connection, _ in due(self._delayed, now):
            del self._delayed[connection]
            if self._may_begin(connection, now):
                self._watch_connection(connection)
                self._dirty[connection] = None
        if self._accept_at is not None and self._accept_at <= now:
            self._accept_at = None
            for descriptor in self._listeners:
                self._watch(descriptor, _READ)

    def next_deadline(self) -> float | None:
        """Return when `tick` is due."""
        waiting = (self._handshaking, self._ending, self._delayed)  # each in the order of its deadlines
        if not any(waiting):
            return self._accept_at
        return earliest(self._accept_at, *(next(iter(times.values()), None) for times in waiting))

    def close(self) -> None:
        """Close everything, after flushing for a moment."""
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
            with selectors.DefaultSelector() as poll:
                for connection in slow:
                    poll.register(connection.descriptor, _WRITE)
                poll.select(left)
            for connection in slow:
                self._write(connection)
        for connection in [*self._connections.values()]:
            self._shut_down(connection)
            with suppress(OSError):  # see _shut_down
                connection.stream.recv(MAX_READ)
            connection.stream.close()
        self._connections.clear()
