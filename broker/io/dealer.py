"""A session's connections: one DEALER socket at a time, and what the system knows of what comes in on it.

A program that was killed is known to be gone at once: the system closes its connections. A stopped program and a cut
cable are not reported. Where there is another endpoint to go to, a connection has 3 seconds to be made and for ZeroMQ's
handshake. A client that waits for an answer then also wants to know that the program at the other end runs (`Pulse`):
ZeroMQ's heartbeats go out each second, and are answered by a thread there that nothing else keeps busy. So a program
that only takes long for its answer is not left.
"""

from __future__ import annotations

import os
import socket as stream
import struct
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from errno import EMFILE, ENFILE, ENOMEM
from typing import Any

import zmq

from broker.core.endpoints import Health, Servers, named
from broker.core.mdp import Frames, Output
from broker.errors import EndpointError, OutOfSockets
from broker.io.curve import Curve, KeyProbe
from broker.io.sockets import LINGER, Socket, connect, full, monitored_event, receive, send, skip

SILENCE = 3.0
"""Seconds in which a connection is made, and in which something comes by it or is acknowledged, where there is another
endpoint to go to."""

BEAT = 1.0
"""Seconds between ZeroMQ's heartbeats then."""

LEAST = 1024
"""Bytes a second that must come in. ZeroMQ's own heartbeats are less, and go on when the peer's program hangs."""

_U32 = struct.Struct("=I")
_LAST_DATA_AT = 52  # in Linux' struct tcp_info: tcpi_last_data_recv, milliseconds
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128  # tcpi_bytes_received
_LAST_ACK_AT = 56  # tcpi_last_ack_recv, milliseconds
_UNACKNOWLEDGED_AT = 24  # tcpi_unacked, segments
_UNSENT_AT = 144  # tcpi_notsent_bytes


class TcpConnection:
    """One TCP connection of a socket of ZeroMQ. Of any other connection, and of those of other systems than Linux,
    nothing is known."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: its number, negative if it is not known."""
        self._descriptor = descriptor if sys.platform == "linux" and hasattr(stream, "TCP_INFO") else -1
        self._ends: tuple[Any, Any] | None = None
        self._ends = self._look(_ends)

    def _look(self, at: Any) -> Any:
        """Something of the connection, if it is there still: its number may be another's by now, which has not the same
        ends."""
        if self._descriptor < 0:
            return None
        try:
            with stream.socket(fileno=os.dup(self._descriptor)) as connection:
                if connection.family not in (stream.AF_INET, stream.AF_INET6):
                    return None
                return at(connection) if self._ends in (None, _ends(connection)) else None
        except OSError:
            return None


class TcpInflow(TcpConnection):
    """What comes in on one TCP connection, whole messages or not.

    ZeroMQ hands out a message when all of it is there, and what its peer says next waits behind it: while a large one
    comes over a slow line, its sender is silent. The system knows better. It counts the bytes that come in on a
    connection, and ZeroMQ reports which connection a message came by. So a peer that seems dead is checked once more
    here.
    """

    def __init__(self, frame: Any) -> None:
        """`frame`: of a message that came by this connection."""
        try:
            descriptor: int = frame.get(zmq.SRCFD)
        except zmq.ZMQError:  # inproc
            descriptor = -1
        self._before: tuple[float, int] | None = None
        super().__init__(descriptor)

    def goes_on(self, now: float, patience: float) -> bool:
        """Whether enough came in since this was last asked, `patience` seconds ago; at first, whether anything did."""
        figures = self._look(_figures)
        if figures is None:
            return False
        silence, received = figures
        before, self._before = self._before, (now, received)
        if silence >= patience:
            return False
        if before is None or now - before[0] > 2 * patience:  # asked about another message then
            return True
        return bool(received - before[1] >= LEAST * (now - before[0]))


class Pulse(TcpConnection):
    """Whether the program at the other end of a TCP connection runs, of which ZeroMQ wants to hear each second.

    What comes in is a sign of life, a whole message or not. While a large message goes out, a heartbeat waits behind
    it; then it is one that the system there acknowledges what it gets.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._asked_at = float("-inf")
        self._alive_at = 0.0

    def beats(self, now: float) -> bool:
        """Whether there was a sign of life within SILENCE seconds. Ask at least each second: after a longer pause
        nothing is known, for this process may have been stopped itself."""
        pause = now - self._asked_at
        if pause < BEAT / 2:
            return True
        self._asked_at = now
        silence = self._look(_silence) if pause <= 2 * BEAT else None
        self._alive_at = now if silence is None else max(self._alive_at, now - silence)
        return now - self._alive_at < SILENCE


def _ends(connection: stream.socket) -> tuple[Any, Any]:
    return connection.getsockname(), connection.getpeername()


def _figures(connection: stream.socket) -> tuple[float, int] | None:
    """Seconds since data came in last, and the bytes that came in all."""
    info = connection.getsockopt(stream.IPPROTO_TCP, stream.TCP_INFO, 256)
    if len(info) < _RECEIVED_AT + _RECEIVED.size:  # a kernel of before 2015
        return None
    return _U32.unpack_from(info, _LAST_DATA_AT)[0] / 1000, _RECEIVED.unpack_from(info, _RECEIVED_AT)[0]


def _silence(connection: stream.socket) -> float | None:
    """Seconds since the last sign of life."""
    info = connection.getsockopt(stream.IPPROTO_TCP, stream.TCP_INFO, 256)
    if len(info) < _UNSENT_AT + _U32.size:  # a kernel of before 2016
        return None
    at = [_LAST_DATA_AT]
    if _U32.unpack_from(info, _UNACKNOWLEDGED_AT)[0] or _U32.unpack_from(info, _UNSENT_AT)[0]:
        at.append(_LAST_ACK_AT)
    return float(min(_U32.unpack_from(info, where)[0] for where in at)) / 1000


UNACKNOWLEDGED = 15_000
"""Milliseconds in which the system at the other end acknowledges what was sent, or the connection is gone."""

UNHEARD = 60_000
"""The same for an answer by the program there, which comes behind the message that it is just sending: so no message
may take longer."""

_get: Any = zmq.backend.Socket.get
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_POLLOUT = int(zmq.POLLOUT)

_SCARCE = (EMFILE, ENFILE, ENOMEM)
"""No socket now, perhaps later."""


class Dealer:
    """The numbered connections of a session: one DEALER socket at a time, a new one for each new number.

    Of several endpoints a new connection takes another one when the last was given up without an answer to what was
    sent there last, or broke, or its server said that it is about to end.
    """

    def __init__(
        self,
        context: zmq.Context[Socket],
        endpoint: str | Sequence[str],
        *,
        watch: bool = False,
        hold: bool = False,
        curve: Curve | None = None,
        spread: bool = False,
    ) -> None:
        """`watch`: learn from the transport when the connection breaks (`broke` reports it); of several endpoints, also
        that it cannot be made.

        `hold`: send nothing before the connection is made, and nothing to a peer that may have taken its place: what is
        sent earlier waits here, and what is sent after the connection broke is dropped. This also makes `broke` report
        it, without the sockets that watching takes, but not a break that was repaired before `broke` was called.

        `curve`: keys, for a server that wants some; of several endpoints all have the same one.

        `spread`: try several endpoints in random order, so that not all clients go to the first.
        """
        self.context = context
        self.curve = curve
        names = named(endpoint)
        self.servers = Servers(names, shuffled(names) if spread and len(names) > 1 else ())
        self.has_other_endpoints = len(names) > 1
        self.server = self.servers.choose()
        """The endpoint of the present connection, or of the last one."""
        self.answered = False
        """Whether something came since something was sent."""
        self.returns = False
        """Whether the next connection goes to the same server, although this one broke."""
        self.number = 0
        self.socket: Socket | None = None
        self._watch = watch
        self.hold = hold
        """Whether the next connection is one of that kind, and the present one, if there is one."""
        self._held: list[Frames] = []
        """What waits for the connection to be made."""
        self.linked = False
        """Whether the present connection was made (only with `hold`)."""
        self.inflow: TcpInflow | None = None
        """What the system knows of the present connection, once something came by it."""
        self._monitor: Socket | None = None
        self._pulse: Pulse | None = None
        """Whether the program at the other end runs; None: this is not watched."""
        self._changed = False

    def send(self, output: Iterable[Output]) -> None:
        """Do what a session wants done.

        A connection that it gives up takes along what it has not got rid of yet: all that still matters is sent again
        on the next one, and a broker that comes back must not get both.
        """
        for number, frames in output:
            if frames is None:
                if number == self.number:
                    if not (self.answered or self.returns):
                        self.servers.failed(self.server)
                    self.close(linger=0)
                continue
            if self.socket is None or number != self.number:
                self.open(number)
            self.answered = False
            if self.hold and not self.linked:
                self._held.append(frames)
                continue
            try:
                self._transmit(frames)
            except zmq.Again:  # the broker is gone, or its queue is full as it does not read: the session sends again
                continue
        if self._held or (self.hold and not self.linked and self.socket is not None):
            self._release()

    @property
    def _writable(self) -> bool:
        return bool(_get(self.socket, _EVENTS) & _POLLOUT)

    @property
    def has_input(self) -> bool:
        """Whether a message has come. A `receive` that finds none costs three times as much as this."""
        return self.socket is not None and bool(_get(self.socket, _EVENTS) & _POLLIN)

    def _release(self) -> None:
        """Send held messages, if there is a connection now."""
        if self._writable:
            held, self._held, self.linked = self._held, [], True
            with suppress(zmq.Again):  # gone again
                for frames in held:
                    self._transmit(frames)

    def _transmit(self, frames: Frames) -> None:
        assert self.socket is not None
        send(self.socket, frames)

    def receive(self) -> Frames | None:
        """One message of the present connection."""
        if self.socket is None:
            return None
        frames = receive(self.socket, None if self.inflow is not None else self._look)
        if frames is not None:
            self.answered = True
            if len(frames) == 1:
                skip(self.socket)
        return frames

    def _look(self, frame: Any) -> None:
        self.inflow = TcpInflow(frame)

    def broke(self, *, returns: bool = False) -> bool:
        """Whether the connection that was there is gone (only when watched, or with `hold`). `returns`: the next one
        goes to the same server, if this one was made."""
        broken = self.linked and not self._writable
        while self._monitor is not None and self._monitor.poll(0):
            frames = receive(self._monitor)
            event = monitored_event(frames)
            if frames and event == zmq.EVENT_CONNECTED:
                self._pulse = Pulse(int.from_bytes(frames[0][2:6], sys.byteorder))
            broken = bool(event & self._breaks) or broken
        if self._pulse is not None and not broken:
            broken = not self._pulse.beats(time.monotonic())
        if broken and returns and self.linked:
            self.returns = True
        elif broken:
            self.failed()
        return broken

    def failed(self) -> None:
        """The server is gone, or is about to end: a new connection goes to another one."""
        self.servers.failed(self.server)
        self.answered = self.returns = False

    @property
    def waits(self) -> bool:
        """Whether what is sent waits for the connection to be made."""
        return self.hold and not self.linked

    @property
    def hopeful(self) -> bool:
        """Whether a new connection would go to a server that is not known to be dead."""
        return self.servers.health(self.servers.choose()) is not Health.DEAD

    @property
    def has_other(self) -> bool:
        """Whether there is another server than the present one that is not known to be dead."""
        return self.has_other_endpoints and self.servers.has_other(self.server)

    def key_probe(self, when: float) -> KeyProbe:
        """To find out, from then on, whether the servers refuse the key."""
        return KeyProbe(self.servers.names, self.curve, when)

    @property
    def _breaks(self) -> int:
        """The events that mean that there is no connection."""
        return zmq.EVENT_DISCONNECTED | (zmq.EVENT_CONNECT_RETRIED if self.has_other_endpoints else 0)

    def wait(self, milliseconds: int, others: Iterable[Socket] = ()) -> None:
        """Wait until something comes, here or at other sockets."""
        sockets = [(socket, _POLLIN) for socket in others]
        if self.socket is not None:
            sockets.append((self.socket, _POLLIN))
        if self._monitor is not None:
            sockets.append((self._monitor, _POLLIN))
        zmq.zmq_poll(sockets, milliseconds)

    def sockets(self) -> list[Socket]:
        """What to poll."""
        self._changed = False
        return [socket for socket in (self.socket, self._monitor) if socket is not None]

    def changed(self) -> bool:
        """Whether `sockets` has changed since it was asked."""
        return self._changed

    def close(self, linger: int = LINGER) -> None:
        """Close the present connection; what was sent may still go out, for `linger` milliseconds."""
        if self.socket is not None:
            if self._monitor is not None:
                self.socket.disable_monitor()
                self._monitor.close(0)
                self._monitor = None
            self.socket.close(linger)
            self.socket = None
            self._changed = True
            self._held, self.linked, self.inflow, self._pulse = [], False, None, None

    def _choose(self) -> str:
        """Close the present connection; where the next one goes."""
        self.close()
        if self.answered or self.returns:
            self.servers.answered(self.server)
        self.returns = False
        self.server = self.servers.choose()
        return self.server

    def open(self, number: Any) -> None:
        """Make a connection, and say nothing yet."""
        endpoint = self._choose()
        full(endpoint)  # complains, before there is a socket
        try:
            self._make_socket()
        except zmq.ZMQError as error:
            self.close(linger=0)
            if error.errno not in _SCARCE:
                raise
            text = f"cannot connect to {endpoint}: {error.strerror}; a larger limit (ulimit -n) may help"
            raise OutOfSockets(text) from error
        assert self.socket is not None
        try:
            connect(self.socket, endpoint)
        except EndpointError:
            self.close()
            raise
        self.number, self._changed = number, True

    def _make_socket(self) -> None:
        socket = self.socket = self.context.socket(zmq.DEALER)
        socket.linger = LINGER
        if self.curve is not None:
            self.curve.apply(socket)
        socket.sndhwm = socket.rcvhwm = 0
        # A cut cable or a stopped machine sends no good-bye: let the transport find out, by what it sends and is not
        # acknowledged. An answer to that may wait behind a large message.
        socket.heartbeat_ivl = 5_000
        socket.heartbeat_timeout = UNHEARD
        socket.tcp_maxrt = UNACKNOWLEDGED
        socket.reconnect_ivl = 100
        socket.reconnect_ivl_max = 2_000
        socket.immediate = self.hold  # then a socket without a connection cannot be written to
        if not self._watch:
            return
        events = self._breaks
        if self.has_other_endpoints:
            socket.connect_timeout = socket.handshake_ivl = int(SILENCE * 1000)
            if not self.hold:  # a holding session has its own heartbeats
                socket.heartbeat_ivl = int(BEAT * 1000)
                events |= zmq.EVENT_CONNECTED
        self._monitor = socket.get_monitor_socket(events)


def shuffled(names: Sequence[str]) -> list[str]:
    """The same in random order. (The module `random` would take milliseconds of every command's start.)"""
    return [name for _, name in sorted((os.urandom(8), name) for name in names)]
