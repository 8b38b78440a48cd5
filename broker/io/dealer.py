"""Sockets: the only place that opens them, and the fast way to move frames through them.

`zmq.Socket.recv_multipart` and `send_multipart` cost 5.4 and 5.3 µs for five frames; the backend's own methods,
used as here, 2.8 and 3.3: an echo ROUTER does 98,000 round trips a second instead of 39,000.
"""

from __future__ import annotations

import errno
import re
import socket as stream
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from errno import EMFILE, ENFILE, ENOMEM
from typing import Any

import zmq

from broker.core.endpoints import Health, Servers
from broker.core.mdp import Frames, Output
from broker.errors import EndpointError, OutOfSockets
from broker.io.incoming import Inflow

Socket = zmq.Socket[bytes]

DRAIN_LIMIT = 1000
"""Messages taken from a socket before anything else gets its turn."""

MOST_FRAMES = 100_000
"""Frames of a message."""

MOST_BODY_FRAMES = MOST_FRAMES - 100
"""Frames of a body. The rest is for what goes around it: addresses, header, command, and whatever is added by a
service that passes it on."""

UNACKNOWLEDGED = 15_000
"""Milliseconds in which the system at the other end acknowledges what was sent, or the connection is gone."""

UNHEARD = 60_000
"""The same for an answer by the program there, which comes behind the message that it is just sending: so no message
may take longer."""

LINGER = 2000
"""Milliseconds that a closed socket may still take to send a good-bye."""

_backend: Any = zmq.backend.Socket
_recv = _backend.recv
_send = _backend.send
_DONTWAIT = int(zmq.DONTWAIT)
_SNDMORE = int(zmq.SNDMORE)


_SCARCE = (EMFILE, ENFILE, ENOMEM)
"""No socket now, perhaps later."""


def receive(socket: Socket, look: Callable[[Any], None] | None = None) -> Frames | None:
    """One message, or None when there is none; `look` is called with its first frame. ZMQError when the socket is gone.

    Of a message with more than MOST_FRAMES frames only the first frame is returned: what is left of it makes no sense,
    and does not fill the memory. `skip` it before anything else is received.
    """
    try:
        frame = _recv(socket, _DONTWAIT, False)
    except zmq.Again:
        return None
    if look is not None:
        look(frame)
    frames = [frame.bytes]
    while frame.more:
        frame = _recv(socket, 0, False)
        frames.append(frame.bytes)
        if len(frames) > MOST_FRAMES:
            return frames[:1]
    return frames


def skip(socket: Socket, most: int = 1 << 62) -> bool:
    """Throw away what is left of a message, but not more than `most` frames; whether there is still more."""
    if not socket.rcvmore:
        return False
    while most and _recv(socket, 0, False).more:
        most -= 1
    return most == 0


def send(socket: Socket, frames: Frames) -> None:
    """One message, all or nothing, without waiting. Raises zmq.Again when the peer's queue is full."""
    last = len(frames) - 1
    for frame in frames[:last]:
        _send(socket, frame, _DONTWAIT | _SNDMORE)
    _send(socket, frames[last], _DONTWAIT)


def full(endpoint: str) -> str:
    """An endpoint with its protocol: `localhost:5555` is short for `tcp://localhost:5555`.

    Raises EndpointError for a TCP port that cannot be: libzmq would take it modulo 65536.
    """
    bare = re.fullmatch(r"([^:/\s]+|\[[^\]\s]+\]):(\d+|\*)", endpoint)
    whole = f"tcp://{endpoint}" if bare else endpoint
    match = re.fullmatch(r"tcp://.*:(\d+)", whole)
    if match is not None and int(match[1]) > 65535:
        raise EndpointError(f"no such port: {endpoint}; ports go up to 65535")
    return whole


def unreachable(endpoints: Iterable[str], patience: float = 0.5) -> str:
    """Why nobody can be connected to at any of these endpoints just now; empty when somebody may be there.

    Asks the system, for `patience` seconds each at most; ZeroMQ would only go on trying.
    """
    reasons: dict[str, list[str]] = {}
    for endpoint in endpoints:
        reason = _refusal(full(endpoint), patience)
        if not reason:
            return ""
        reasons.setdefault(reason, []).append(endpoint)
    return ", ".join(f"{reason} at {' and '.join(names)}" for reason, names in reasons.items())


def _refusal(endpoint: str, patience: float) -> str:
    tcp = re.fullmatch(r"tcp://(?:[^;]*;)?\[?([^;\]]+)\]?:(\d+)", endpoint)
    try:
        if tcp is not None:
            stream.create_connection((tcp[1], int(tcp[2])), patience).close()
        elif endpoint.startswith("ipc://"):
            with stream.socket(stream.AF_UNIX) as probe:
                probe.settimeout(patience)
                probe.connect(re.sub("^@", "\0", endpoint.removeprefix("ipc://")))
    except TimeoutError:
        return "no connection"
    except BlockingIOError:  # many others want to connect, too
        return ""
    except (OSError, OverflowError, UnicodeError) as error:
        fact = getattr(error, "strerror", None) or str(error)
        return fact[:1].lower() + fact[1:]
    return ""


def bind(socket: Socket, endpoint: str) -> str:
    """Bind and return the endpoint with the real port; EndpointError says why not."""
    try:
        socket.bind(full(endpoint))
    except zmq.ZMQError as error:
        raise EndpointError(f"cannot bind {endpoint}: {zmq.strerror(error.errno or 0)}; {_advice(error)}") from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def connect(socket: Socket, endpoint: str) -> None:
    """Connect; EndpointError says why not."""
    try:
        socket.connect(full(endpoint))
    except zmq.ZMQError as error:
        fact = zmq.strerror(error.errno or 0)  # that of pyzmq repeats the endpoint
        raise EndpointError(f"cannot connect to {endpoint}: {fact}; {_advice(error)}") from error


_ADVICE = {
    errno.EADDRINUSE: "is another one running? stop it, or choose another endpoint",
    errno.EADDRNOTAVAIL: "this machine has no such address: choose one that it has, or 0.0.0.0 for all of them",
    errno.ENODEV: "this machine has no such address: choose one that it has, or 0.0.0.0 for all of them",
    errno.ENOENT: "the folder of an ipc:// endpoint must be there: make it, or choose another endpoint",
    errno.EACCES: "choose a port above 1023, or a folder that may be written",
}


def _advice(error: zmq.ZMQError) -> str:
    return _ADVICE.get(error.errno or 0) or "an endpoint is like tcp://127.0.0.1:5555 or ipc:///run/titanic.sock"


def monitored_event(frames: Frames | None) -> int:
    """The event in a monitor's message, 0 if there is none.

    Its first frame is a u16 event and a u32 value, in the machine's order. (`zmq.utils.monitor` does the same, but
    brings asyncio with it: 34 ms of every command's start.)
    """
    return int.from_bytes(frames[0][:2], sys.byteorder) if frames else 0


class Dealer:
    """The numbered connections of a session: one DEALER socket at a time, a new one for each new number.

    Of several endpoints a new connection takes another one when the last was given up without an answer to what was
    sent there last, or broke.
    """

    def __init__(
        self, context: zmq.Context[Socket], endpoint: str | Sequence[str], *, watch: bool = False, hold: bool = False
    ) -> None:
        """`watch`: learn from the transport when the connection breaks (`broke` tells); of several endpoints, also
        that it cannot be made.

        `hold`: send nothing before somebody is there, and nothing to who may have taken their place: what is sent
        earlier waits here, and what is sent after the connection broke is dropped. This, too, makes `broke` tell,
        without the sockets that watching takes, but not if a new connection is there before anybody looks.
        """
        self.context = context
        self.servers = Servers(endpoint)
        self.server = self.servers.choose()
        """The endpoint of the present connection, or of the last one."""
        self.answered = False
        """Whether something came since something was sent."""
        self.number = 0
        self.socket: Socket | None = None
        self._watch = watch
        self._hold = hold
        self._held: list[Frames] = []
        """What waits for the connection to be made."""
        self.linked = False
        """Whether the present connection was made (only with `hold`)."""
        self.inflow: Inflow | None = None
        """What the system knows of the present connection, once something came by it."""
        self._monitor: Socket | None = None
        self._changed = False

    def send(self, output: Iterable[Output]) -> None:
        """Do what a session wants done.

        A connection that it gives up takes along what it has not got rid of yet: all that still matters is sent again
        on the next one, and a broker that comes back must not get both.
        """
        for number, frames in output:
            if frames is None:
                if number == self.number:
                    if not self.answered:
                        self.servers.failed(self.server)
                    self.close(linger=0)
                continue
            if self.socket is None or number != self.number:
                self._open(number)
            self.answered = False
            if self._hold and not self.linked:
                self._held.append(frames)
                continue
            try:
                self._transmit(frames)
            except zmq.Again:  # the broker is gone, or its queue is full as it does not read: the session sends again
                continue
        if self._held:
            self._release()

    @property
    def _writable(self) -> bool:
        assert self.socket is not None
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)

    def _release(self) -> None:
        """Send what was held, if somebody is there now."""
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
        self.inflow = Inflow(frame)

    def broke(self) -> bool:
        """Whether the connection that was there is gone (only when watched, or with `hold`)."""
        broken = self.linked and not self._writable
        while self._monitor is not None and self._monitor.poll(0):
            broken = bool(monitored_event(receive(self._monitor)) & self._breaks) or broken
        if broken:
            self.servers.failed(self.server)
        return broken

    @property
    def waits(self) -> bool:
        """Whether what is sent waits for the connection to be made."""
        return self._hold and not self.linked

    @property
    def hopeful(self) -> bool:
        """Whether a new connection would go to a server that is not known to be dead."""
        return self.servers.health(self.servers.choose()) is not Health.DEAD

    @property
    def _breaks(self) -> int:
        """The events to watch for."""
        return zmq.EVENT_DISCONNECTED | (zmq.EVENT_CONNECT_RETRIED if len(self.servers) > 1 else 0)

    def wait(self, milliseconds: int) -> None:
        """Wait until something comes."""
        if self._monitor is None:
            if self.socket is not None:
                self.socket.poll(milliseconds)
            return
        zmq.zmq_poll([(socket, zmq.POLLIN) for socket in (self.socket, self._monitor) if socket], milliseconds)

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
            self._held, self.linked, self.inflow = [], False, None

    def _choose(self) -> str:
        """Close the present connection; where the next one goes."""
        self.close()
        if self.answered:
            self.servers.answered(self.server)
        self.server = self.servers.choose()
        return self.server

    def _open(self, number: Any) -> None:
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
        socket.sndhwm = socket.rcvhwm = 0
        # A cut cable or a stopped machine sends no good-bye: let the transport find out, by what it sends and is not
        # acknowledged. An answer to that may wait behind a large message.
        socket.heartbeat_ivl = 5_000
        socket.heartbeat_timeout = UNHEARD
        socket.tcp_maxrt = UNACKNOWLEDGED
        socket.reconnect_ivl = 100
        socket.reconnect_ivl_max = 2_000
        socket.immediate = self._hold  # then a socket without a connection cannot be written to
        if self._watch:
            self._monitor = socket.get_monitor_socket(self._breaks)
