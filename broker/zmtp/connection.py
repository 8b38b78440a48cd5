"""One connection of ZMTP 3.1, 3.0 or 2.0 (RFC 37, 23, 15), at the end that accepts it. README.md shows the states.

connection = Connection()
events = connection.receive(data)
for event in events:
    match event:
        case PeerReady():                  # the last event until one of these is called
            connection.accept()            # or connection.refuse(b"400")
        case list() as frames:             # a message
            connection.send([b"hello"])
        case Failed():                     # the last event: send the output, and close
            ...
socket.sendmsg(connection.take_output())
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from broker.zmtp.frames import (
    COMMAND,
    HEAD,
    MORE,
    SKIPPED,
    Buffer,
    Failure,
    FrameReader,
    Limits,
    TooLarge,
    ZmtpFault,
    command_body,
    encode,
    encode_metadata,
    header,
    parse_metadata,
    split_command,
)

GREETING_SIZE = 64
"""Bytes of a greeting of ZMTP 3: signature, version, mechanism, as-server, filler."""

SOCKET_TYPES = (b"PAIR", b"PUB", b"SUB", b"REQ", b"REP", b"DEALER", b"ROUTER", b"PULL", b"PUSH")
"""In the order of their numbers in ZMTP 2.0."""

DEFAULT_LIMITS = Limits()

MAX_IDENTITY = 255
MAX_PING_CONTEXT = 16
MAX_REASON = 255

INNER_COMMAND = 2
"""CURVE: the flag inside of a MESSAGE that says that it is a command. MORE is as outside."""


class State(Enum):
    GREETING = auto()
    """The peer's greeting is to come."""
    HELLO = auto()
    """CURVE: HELLO is to come."""
    INITIATE = auto()
    """CURVE: INITIATE is to come."""
    READY = auto()
    """NULL: READY is to come."""
    DECISION = auto()
    """The peer has said who it is; `accept` or `refuse` is to be called."""
    OPEN = auto()
    """Messages go both ways."""
    CLOSED = auto()
    """Nothing is read or sent any more."""


class PeerReady(NamedTuple):
    """The peer has said who it is."""

    version: tuple[int, int]
    socket_type: bytes
    identity: bytes
    """What it wants to be called; empty: it leaves that to us."""
    key: bytes
    """CURVE: its lasting public key, which it has proved to have. Empty under NULL."""
    metadata: dict[bytes, bytes]
    """All properties that it sent, by their names in lower case."""


class Ping(NamedTuple):
    """The peer has sent PING; PONG is in the output."""

    ttl: float
    """Seconds of silence after which the peer wants the connection to end; 0: never."""


class Failed(NamedTuple):
    """The connection has ended."""

    failure: Failure
    reason: str


Event = list[bytes] | TooLarge | PeerReady | Ping | Failed
"""A list is a message: its frames."""


class Cipher(Protocol):
    """The server's half of CURVE for one connection: `broker.zmtp.curve.CurveSession`. Each raises ZmtpFault."""

    def welcome(self, hello: bytes) -> bytes:
        """The data of WELCOME, for that of HELLO."""

    def initiate(self, data: bytes) -> tuple[bytes, bytes]:
        """The client's lasting key and its metadata, for the data of INITIATE."""

    def ready(self, metadata: bytes) -> bytes:
        """The data of READY."""

    def seal(self, flags: int, body: Buffer) -> bytes:
        """The body of a MESSAGE."""

    def open(self, body: bytes) -> bytes:
        """The flags and the body that are in a MESSAGE."""


class Connection:
    """One connection, without a socket, a clock or a thread."""

    def __init__(
        self,
        socket_type: bytes = b"ROUTER",
        peers: Collection[bytes] = (b"REQ", b"DEALER", b"ROUTER"),
        *,
        curve: Cipher | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """`socket_type`: of this end. `peers`: the socket types that may connect. `curve`: encrypts, with
        the keys of this end; None: the mechanism is NULL."""
        self.state = State.GREETING
        self.version = (3, 0)
        """Of the protocol, once the peer's greeting has come."""
        self._socket_type = socket_type
        self._peers = peers
        self._curve = curve
        self._limits = limits
        self._output: list[Buffer] = [b"\xff" + bytes(8) + b"\x7f\x03"]
        self._greeting = b""
        """What has come of the peer's."""
        self._greeted = False
        """Whether the rest of our greeting was sent; it depends on the peer's version."""
        self._reader = FrameReader(limits, commands=True)
        self._sealed: list[bytes] = []
        self._size = 0
        """CURVE: the frames that were opened of the message that is coming, and their bytes."""
        self._skipped = 0
        """CURVE: frames that were thrown away of a message that broke the limits; 0: there is none."""

    # -- what is sent ----------------------------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._output)

    def take_output(self) -> list[Buffer]:
        """What is to be sent, in this order. Large bodies are not copied."""
        output, self._output = self._output, []
        return output

    def accept(self) -> None:
        """Let the peer in. `receive`, with no bytes if there are none, goes on with what it has sent already."""
        self._require(State.DECISION)
        self.state = State.OPEN
        self._reader.is_open = True
        if self.version < (3, 0):
            return
        metadata = encode_metadata(((b"Socket-Type", self._socket_type), (b"Identity", b"")))
        self._send_handshake(b"READY", metadata if self._curve is None else self._curve.ready(metadata))

    def refuse(self, reason: bytes) -> None:
        """Send ERROR with a reason, such as a status of ZAP (RFC 27), and end. ZMTP 2.0 has no ERROR."""
        self._require(State.DECISION)
        self.state = State.CLOSED
        if self.version >= (3, 0):
            reason = reason[:MAX_REASON]
            self._send_handshake(b"ERROR", bytes((len(reason),)) + reason)

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send a message. Raises ZmtpFault when an encrypted connection has sent all that it may."""
        self._require(State.OPEN)
        if self._curve is None:
            self._output += encode(frames)
            return
        last = len(frames) - 1
        for at, frame in enumerate(frames):
            self._send_sealed(0 if at == last else MORE, frame)

    def ping(self, ttl: float = 0.0, context: bytes = b"") -> bool:
        """Send PING; False if the version of the protocol has none. `ttl`: seconds, see `Ping`."""
        self._require(State.OPEN)
        if self.version < (3, 1):
            return False
        self._send_traffic(b"PING", int(ttl * 10).to_bytes(2, "big") + context)
        return True

    def _require(self, state: State) -> None:
        if self.state is not state:
            raise ValueError(f"the connection is in state {self.state.name}, not {state.name}")

    def _send_handshake(self, name: bytes, data: bytes) -> None:
        body = command_body(name, data)
        self._output.append(header(COMMAND, len(body)) + body)

    def _send_traffic(self, name: bytes, data: bytes) -> None:
        """Send a command after the handshake."""
        if self._curve is None:
            self._send_handshake(name, data)
        else:
            self._send_sealed(INNER_COMMAND, command_body(name, data))

    def _send_sealed(self, flags: int, body: Buffer) -> None:
        assert self._curve is not None
        sealed = self._curve.seal(flags, body)
        self._output.append(header(0, len(sealed)) + sealed)

    # -- what is received ------------------------------------------------------------------------------------

    @property
    def lacks_much(self) -> bool:
        """Whether a large frame is coming in."""
        return self._reader.lacks_much

    def receive(self, data: bytes) -> list[Event]:
        """What the bytes say that have come, however they were cut."""
        events: list[Event] = []
        try:
            if self.state is State.GREETING:
                data = self._greet(data, events)
            if self.state is State.GREETING or self.state is State.CLOSED:
                return events
            self._reader.feed(data)
            while self.state is not State.DECISION:
                messages: list[list[bytes]] = []
                frame = None
                try:
                    frame = self._reader.take(messages)
                finally:  # what stood before a fault counts
                    if self._curve is None:
                        events += messages
                    else:
                        self._open_all(messages, events)
                if frame is None:
                    return events
                if isinstance(frame, TooLarge):
                    events.append(frame)
                    continue
                self._command(frame.flags, frame.body, events)
        except ZmtpFault as fault:
            self.state = State.CLOSED
            self._reader = FrameReader(self._limits, commands=True)
            self._sealed = []
            events.append(Failed(fault.failure, str(fault)))
        return events

    def _greet(self, data: bytes, events: list[Event]) -> bytes:
        """Read the greeting; what stands behind it. Faults are found as early as they can be."""
        data = self._greeting = self._greeting + data
        if data[:1] not in (b"", b"\xff") or (len(data) > 9 and not data[9] & 1):
            raise ZmtpFault(Failure.NOT_ZMTP, "the greeting has no signature of ZMTP 2.0 or later")
        if len(data) < 11:
            return b""
        if not data[10]:
            raise ZmtpFault(Failure.NOT_ZMTP, "the greeting is that of ZMTP 1.0")
        rest = self._greet_2(data, events) if data[10] < 3 else self._greet_3(data)
        if self.state is not State.GREETING:
            self._greeting = b""
        return rest

    def _greet_2(self, data: bytes, events: list[Event]) -> bytes:
        """RFC 15: the number of the socket's type, and the identity as a frame."""
        if self._curve is not None:
            raise ZmtpFault(Failure.MECHANISM, "ZMTP 2.0 has no CURVE")
        self.version = (2, 0)
        if not self._greeted:
            self._greeted = True
            self._output.append(bytes((SOCKET_TYPES.index(self._socket_type), 0, 0)))
        if len(data) > 12 and data[12]:
            raise ZmtpFault(Failure.HANDSHAKE, "the identity is no short frame")
        if len(data) < 14 or len(data) < 14 + data[13]:
            return b""
        end = 14 + data[13]
        known = data[11] < len(SOCKET_TYPES)
        self._reader = FrameReader(self._limits, commands=False)
        self._introduce(SOCKET_TYPES[data[11]] if known else b"%d" % data[11], data[14:end], b"", {}, events)
        return data[end:]

    def _greet_3(self, data: bytes) -> bytes:
        """RFC 23 and 37: minor version, mechanism, as-server."""
        mechanism = b"NULL" if self._curve is None else b"CURVE"
        as_server = self._curve is not None
        if not self._greeted:
            self._greeted = True
            self._output.append(b"\x01" + mechanism.ljust(20, b"\0") + bytes((as_server,)) + bytes(31))
        if len(data) < GREETING_SIZE:
            return b""
        # A version that is not known here speaks the highest that both know.
        self.version = (3, min(data[11], 1) if data[10] == 3 else 1)
        if (theirs := data[12:32].rstrip(b"\0")) != mechanism:
            wanted = theirs.decode(errors="backslashreplace")
            raise ZmtpFault(Failure.MECHANISM, f"the peer uses {wanted!r}, this end {mechanism.decode()}")
        if self._curve is None:
            self.state = State.READY
        elif data[32]:
            raise ZmtpFault(Failure.MECHANISM, "both ends are servers of CURVE")
        else:
            self.state = State.HELLO
        return data[GREETING_SIZE:]

    def _introduce(
        self, socket_type: bytes, identity: bytes, key: bytes, metadata: dict[bytes, bytes], events: list[Event]
    ) -> None:
        if socket_type not in self._peers:
            theirs = socket_type.decode(errors="backslashreplace")
            raise ZmtpFault(Failure.SOCKET_TYPE, f"a {theirs!r} cannot talk to a {self._socket_type.decode()}")
        if len(identity) > MAX_IDENTITY or identity.startswith(b"\0"):
            raise ZmtpFault(Failure.HANDSHAKE, "an identity has at most 255 bytes, and does not begin with a zero")
        self.state = State.DECISION
        events.append(PeerReady(self.version, socket_type, identity, key, metadata))

    def _command(self, flags: int, body: bytes, events: list[Event]) -> None:
        """Obey a command, by the table."""
        if not flags & COMMAND:
            raise ZmtpFault(Failure.HANDSHAKE, "a message came before the handshake was over")
        if (found := split_command(body)) is None:
            raise ZmtpFault(Failure.MALFORMED, "a command has no name")
        name, data = found
        if self._curve is not None and self.state is State.OPEN:
            raise ZmtpFault(Failure.MALFORMED, "a command came in clear on an encrypted connection")
        self._obey(name, data, events)

    def _obey(self, name: bytes, data: bytes, events: list[Event]) -> None:
        obey = COMMANDS.get((self.state, name))
        if obey is not None:
            obey(self, data, events)
        elif self.state is not State.OPEN:
            shown = name.decode(errors="backslashreplace")
            raise ZmtpFault(Failure.HANDSHAKE, f"{shown!r} came where {self.state.name} is to come")

    def _open_all(self, sealed: list[list[bytes]], events: list[Event]) -> None:
        """CURVE: open frames, put messages together, and obey commands."""
        assert self._curve is not None
        for frames in sealed:
            for frame in frames:
                plain = self._curve.open(frame)
                flags, body = plain[0], plain[1:]
                if flags & INNER_COMMAND:
                    if (found := split_command(body)) is None:
                        raise ZmtpFault(Failure.MALFORMED, "a command has no name")
                    self._obey(*found, events)
                    continue
                if self._skipped:
                    self._skip(flags)
                    continue
                self._size += len(body)
                if self._size > self._limits.max_message or len(self._sealed) >= self._limits.max_frames:
                    events.append(TooLarge(self._sealed[:HEAD]))
                    self._sealed, self._size = [], 0
                    self._skip(flags)
                    continue
                self._sealed.append(body)
                if not flags & MORE:
                    events.append(self._sealed)
                    self._sealed, self._size = [], 0

    def _skip(self, flags: int) -> None:
        """CURVE: throw a frame away."""
        self._skipped = self._skipped + 1 if flags & MORE else 0
        if self._skipped > SKIPPED * self._limits.max_frames:
            raise ZmtpFault(Failure.TOO_LARGE, f"a message of more than {self._skipped} frames")

    def _ready(self, data: bytes, events: list[Event]) -> None:
        self._properties(data, b"", events)

    def _hello(self, data: bytes, events: list[Event]) -> None:
        assert self._curve is not None
        self._send_handshake(b"WELCOME", self._curve.welcome(data))
        self.state = State.INITIATE

    def _initiate(self, data: bytes, events: list[Event]) -> None:
        assert self._curve is not None
        key, metadata = self._curve.initiate(data)
        self._properties(metadata, key, events)

    def _properties(self, data: bytes, key: bytes, events: list[Event]) -> None:
        if (metadata := parse_metadata(data)) is None:
            raise ZmtpFault(Failure.HANDSHAKE, "malformed metadata")
        self._introduce(metadata.get(b"socket-type", b""), metadata.get(b"identity", b""), key, metadata, events)

    def _error(self, data: bytes, events: list[Event]) -> None:
        reason = data[1 : 1 + data[0]] if data else b""
        raise ZmtpFault(Failure.PEER, reason.decode(errors="backslashreplace"))

    def _ping(self, data: bytes, events: list[Event]) -> None:
        if len(data) < 2 or len(data) > 2 + MAX_PING_CONTEXT:
            raise ZmtpFault(Failure.MALFORMED, "malformed PING")
        self._send_traffic(b"PONG", data[2:])
        events.append(Ping(int.from_bytes(data[:2], "big") / 10))


COMMANDS: dict[tuple[State, bytes], Callable[[Connection, bytes, list[Event]], None]] = {
    (State.READY, b"READY"): Connection._ready,
    (State.HELLO, b"HELLO"): Connection._hello,
    (State.INITIATE, b"INITIATE"): Connection._initiate,
    **{(state, b"ERROR"): Connection._error for state in (State.READY, State.HELLO, State.INITIATE, State.OPEN)},
    (State.OPEN, b"PING"): Connection._ping,
}
"""What is done with a command. Others end a handshake; after it they are ignored (PONG, SUBSCRIBE, CANCEL, …)."""
