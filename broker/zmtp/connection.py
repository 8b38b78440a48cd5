"""One connection of ZMTP 3.1, 3.0 or 2.0 (RFC 37, 23, 15), at the end that accepts it.

connection = Connection()
events = connection.receive(data)
for event in events:
    match event:
        case PeerReady():                  # the last event until accept or refuse is called
            connection.accept()            # or connection.refuse(b"400")
        case list() as frames:             # a message
            connection.send([b"hello"])
        case ConnectionFailed():           # the last event: send the output, and close
            ...
socket.sendmsg(connection.take_output())

state         the peer may send                        then
GREETING      a greeting of 3.x, 64 bytes              READY, with CURVE HELLO
              a greeting of 2.0: number of its socket  PeerReady, DECISION
              type, identity
HELLO         HELLO                                    WELCOME is sent, INITIATE
INITIATE      INITIATE with this connection's cookie   PeerReady, DECISION
READY         READY                                    PeerReady, DECISION
DECISION      anything; it is read after `accept`      `accept` sends READY: OPEN. `refuse` sends ERROR: CLOSED
OPEN          messages                                 a list of frames each
              a message over the MessageLimits         OversizedMessage with its first frames; the rest is discarded
              PING                                     PONG is sent, Ping
              PONG, SUBSCRIBE, CANCEL, unknown ones    ignored
all but GREETING, DECISION: ERROR                      ConnectionFailed, CLOSED
CLOSED        anything                                 not read

What a state does not allow causes ConnectionFailed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from broker.zmtp.frames import (
    COMMAND,
    FRAME_MEMORY,
    FRAMES,
    HEAD,
    MORE,
    Buffer,
    Failure,
    FrameReader,
    MessageLimits,
    OversizedMessage,
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

DEFAULT_LIMITS = MessageLimits()

MAX_IDENTITY = 255
MAX_PING_CONTEXT = 16
MAX_REASON = 255

INNER_COMMAND = 2
"""CURVE: the flag inside a MESSAGE that marks a command. MORE has the same value as outside."""


class ConnectionState(Enum):
    GREETING = auto()
    """Waiting for the peer's greeting."""
    HELLO = auto()
    """CURVE: waiting for HELLO."""
    INITIATE = auto()
    """CURVE: waiting for INITIATE."""
    READY = auto()
    """NULL: waiting for READY."""
    DECISION = auto()
    """The handshake is complete; waiting for a call of `accept` or `refuse`."""
    OPEN = auto()
    """Both ends may send messages."""
    CLOSED = auto()
    """Nothing more is read or sent."""


class PeerReady(NamedTuple):
    """The peer's part of the handshake is complete."""

    version: tuple[int, int]
    socket_type: bytes
    identity: bytes
    """The routing id that the peer asks for; empty: none."""
    key: bytes
    """CURVE: the peer's long-term public key; the handshake proves that it has the secret one. NULL: empty."""
    metadata: dict[bytes, bytes]
    """All properties that the peer sent, by name in lower case."""


class Ping(NamedTuple):
    """The peer sent PING; the PONG is in the output."""

    ttl: float
    """Seconds of silence after which the peer asks for the connection to be closed; 0: never."""


class ConnectionFailed(NamedTuple):
    """The connection has ended."""

    failure: Failure
    reason: str


Event = list[bytes] | OversizedMessage | PeerReady | Ping | ConnectionFailed
"""A list is a message: its frames."""


class Cipher(Protocol):
    """The server's half of CURVE for one connection: `broker.zmtp.encryption.CurveSession`. Methods raise ZmtpFault."""

    def welcome(self, hello: bytes) -> bytes:
        """The data of WELCOME, for that of HELLO."""

    def initiate(self, data: bytes) -> tuple[bytes, bytes]:
        """The client's long-term key and its metadata, for the data of INITIATE."""

    def ready(self, metadata: bytes) -> bytes:
        """The data of READY."""

    def seal(self, frames: Sequence[Buffer]) -> bytes:
        """The frames of a message as they are sent."""

    def seal_command(self, flags: int, body: bytes) -> bytes:
        """A command as it is sent."""

    def open(self, body: bytes) -> bytes:
        """The flags and the body that are in a MESSAGE."""


MakeCipher = Callable[[], Cipher]
"""Creates the encryption of one connection."""


class Connection:
    """One connection, without a socket, a clock or a thread."""

    def __init__(
        self,
        socket_type: bytes = b"ROUTER",
        peers: Collection[bytes] = (b"REQ", b"DEALER", b"ROUTER"),
        *,
        identity: bytes = b"",
        curve: Cipher | None = None,
        limits: MessageLimits = DEFAULT_LIMITS,
    ) -> None:
        """`socket_type`, `identity`: of this end. `peers`: the socket types that may connect. `curve`: the
        encryption; None: the mechanism is NULL."""
        self.state = ConnectionState.GREETING
        self.version = (3, 0)
        """Of the protocol, once the peer's greeting has come."""
        self._socket_type = socket_type
        self._identity = identity
        self._peers = peers
        self._curve = curve
        self._limits = limits
        self.output: list[Buffer] = [b"\xff" + bytes(8) + b"\x7f\x03"]
        """What `take_output` returns."""
        self.output_bytes = 0
        """Bytes of messages in it."""
        self._greeting = b""
        """The part of the peer's greeting that was received."""
        self._greeted = False
        """Whether the rest of our greeting was sent; it depends on the peer's version."""
        self._reader = FrameReader(limits, commands=True)
        self.has_more = False
        """Whether `receive(b"")` may return more of what was received."""
        self._sealed: list[bytes] = []
        self._size = 0
        """CURVE: the decrypted frames of the incomplete message, and their bytes."""
        self._skipped = 0
        """CURVE: discarded frames of an oversized message; 0: none is being discarded."""

    # -- what is sent ----------------------------------------------------------------------------------------

    def take_output(self) -> list[Buffer]:
        """Return the buffers to send, in this order. Large bodies are not copied."""
        output, self.output = self.output, []
        self.output_bytes = 0
        return output

    def accept(self) -> None:
        """Admit the peer. Call `receive(b"")` next: the peer may have sent messages already."""
        self._require(ConnectionState.DECISION)
        self.state = ConnectionState.OPEN
        self._reader.is_open = True
        if self.version < (3, 0):
            return
        metadata = encode_metadata(((b"Socket-Type", self._socket_type), (b"Identity", self._identity)))
        self._send_handshake(b"READY", metadata if self._curve is None else self._curve.ready(metadata))

    def refuse(self, reason: bytes) -> None:
        """Send ERROR with a reason, such as a ZAP status (RFC 27), and close. ZMTP 2.0 has no ERROR."""
        self._require(ConnectionState.DECISION)
        self.state = ConnectionState.CLOSED
        if self.version >= (3, 0):
            reason = reason[:MAX_REASON]
            self._send_handshake(b"ERROR", bytes((len(reason),)) + reason)

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send a message. Raises ZmtpFault when an encrypted connection has used all its nonces."""
        self._require(ConnectionState.OPEN)
        if self._curve is None:
            buffers = encode(frames)
            for buffer in buffers:
                self.output_bytes += len(buffer)
            self.output += buffers
            return
        sealed = self._curve.seal(frames)
        self.output_bytes += len(sealed)
        self.output.append(sealed)

    def ping(self, ttl: float = 0.0, context: bytes = b"") -> bool:
        """Send PING; False if the version of the protocol has none. `ttl`: seconds, see `Ping`."""
        self._require(ConnectionState.OPEN)
        if self.version < (3, 1):
            return False
        self._send_traffic(b"PING", int(ttl * 10).to_bytes(2, "big") + context)
        return True

    def _require(self, state: ConnectionState) -> None:
        if self.state is not state:
            raise ValueError(f"the connection is in state {self.state.name}, not {state.name}")

    def _send_handshake(self, name: bytes, data: bytes) -> None:
        body = command_body(name, data)
        self.output.append(header(COMMAND, len(body)) + body)

    def _send_traffic(self, name: bytes, data: bytes) -> None:
        """Send a command after the handshake."""
        if self._curve is None:
            self._send_handshake(name, data)
        else:
            sealed = self._curve.seal_command(INNER_COMMAND, command_body(name, data))
            self.output_bytes += len(sealed)
            self.output.append(sealed)

    # -- what is received ------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Bytes of memory that an incomplete message takes."""
        reader = self._reader
        return reader.size + reader.large + self._size + FRAME_MEMORY * (len(reader.frames) + len(self._sealed))

    def receive(self, data: bytes, most: int = sys.maxsize) -> list[Event]:
        """Return the events in these bytes. The chunks may be split anywhere. After `most` messages and commands it
        stops; see `has_more`."""
        events: list[Event] = []
        try:
            if self.state is ConnectionState.GREETING:
                data = self._greet(data, events)
            if self.state is ConnectionState.GREETING or self.state is ConnectionState.CLOSED:
                return events
            self._reader.feed(data)
            self.has_more = False
            left = most
            while self.state is not ConnectionState.DECISION:
                if left <= 0:
                    self.has_more = True
                    return events
                messages: list[list[bytes]] = []
                frame = None
                try:
                    frame = self._reader.take(messages, left)
                finally:  # messages before a fault are still delivered
                    if self._curve is None:
                        events += messages
                    else:
                        self._open_all(messages, events)
                left -= len(messages) + 1
                if isinstance(frame, OversizedMessage):
                    events.append(frame)
                elif frame is not None:
                    left -= len(self._reader.frames) // FRAMES  # it may come between those of a message
                    self._command(frame.flags, frame.body, events)
                elif left >= 0:
                    self.has_more = self._reader.has_more
                    return events
        except ZmtpFault as fault:
            self.state = ConnectionState.CLOSED
            self._greeting = b""
            self._reader = FrameReader(self._limits, commands=True)
            self.has_more = False
            self._sealed = []
            events.append(ConnectionFailed(fault.failure, str(fault)))
        return events

    def _greet(self, data: bytes, events: list[Event]) -> bytes:
        """Read the greeting and return the bytes after it. Faults are found at the earliest byte."""
        data = self._greeting = self._greeting + data
        if data[:1] not in (b"", b"\xff") or (len(data) > 9 and not data[9] & 1):
            raise ZmtpFault(Failure.NOT_ZMTP, "the greeting has no signature of ZMTP 2.0 or later")
        if len(data) < 11:
            return b""
        if not data[10]:
            raise ZmtpFault(Failure.NOT_ZMTP, "the greeting is that of ZMTP 1.0")
        rest = self._greet_2(data, events) if data[10] < 3 else self._greet_3(data)
        if self.state is not ConnectionState.GREETING:
            self._greeting = b""
        return rest

    def _greet_2(self, data: bytes, events: list[Event]) -> bytes:
        """RFC 15: the number of the socket's type, and the identity as a frame."""
        if self._curve is not None:
            raise ZmtpFault(Failure.MECHANISM, "ZMTP 2.0 has no CURVE")
        self.version = (2, 0)
        if not self._greeted:
            self._greeted = True
            introduction = bytes((SOCKET_TYPES.index(self._socket_type), 0, len(self._identity)))
            self.output.append(introduction + self._identity)
        if len(data) > 12 and data[12]:
            raise ZmtpFault(Failure.HANDSHAKE, "the identity is not a short frame")
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
            self.output.append(b"\x01" + mechanism.ljust(20, b"\0") + bytes((as_server,)) + bytes(31))
        if len(data) < GREETING_SIZE:
            return b""
        # With a later version, use the highest that both ends know.
        self.version = (3, min(data[11], 1) if data[10] == 3 else 1)
        if (theirs := data[12:32].rstrip(b"\0")) != mechanism:
            wanted = theirs.decode(errors="backslashreplace")
            raise ZmtpFault(Failure.MECHANISM, f"the peer uses {wanted!r}, this end {mechanism.decode()}")
        if self._curve is None:
            self.state = ConnectionState.READY
        elif data[32]:
            raise ZmtpFault(Failure.MECHANISM, "both ends are CURVE servers")
        else:
            self.state = ConnectionState.HELLO
        return data[GREETING_SIZE:]

    def _introduce(
        self, socket_type: bytes, identity: bytes, key: bytes, metadata: dict[bytes, bytes], events: list[Event]
    ) -> None:
        if socket_type not in self._peers:
            theirs = socket_type.decode(errors="backslashreplace")
            raise ZmtpFault(Failure.SOCKET_TYPE, f"a {theirs!r} cannot talk to a {self._socket_type.decode()}")
        if len(identity) > MAX_IDENTITY or identity.startswith(b"\0"):
            raise ZmtpFault(Failure.HANDSHAKE, "an identity has at most 255 bytes, and does not begin with a zero")
        self.state = ConnectionState.DECISION
        events.append(PeerReady(self.version, socket_type, identity, key, metadata))

    def _command(self, flags: int, body: bytes, events: list[Event]) -> None:
        """Execute a command frame."""
        if not flags & COMMAND:
            raise ZmtpFault(Failure.HANDSHAKE, "a message arrived before the end of the handshake")
        if (found := split_command(body)) is None:
            raise ZmtpFault(Failure.MALFORMED, "a command has no name")
        name, data = found
        if self._curve is not None and self.state is ConnectionState.OPEN:
            raise ZmtpFault(Failure.MALFORMED, "an unencrypted command arrived on an encrypted connection")
        self._execute(name, data, events)

    def _execute(self, name: bytes, data: bytes, events: list[Event]) -> None:
        execute = COMMANDS.get((self.state, name))
        if execute is not None:
            execute(self, data, events)
        elif self.state is not ConnectionState.OPEN:
            shown = name.decode(errors="backslashreplace")
            raise ZmtpFault(Failure.HANDSHAKE, f"received {shown!r}, expected {self.state.name}")

    def _open_all(self, sealed: list[list[bytes]], events: list[Event]) -> None:
        """CURVE: decrypt frames, assemble messages, and execute commands."""
        assert self._curve is not None
        for frames in sealed:
            for frame in frames:
                plain = self._curve.open(frame)
                flags, body = plain[0], plain[1:]
                if flags & INNER_COMMAND:
                    if (found := split_command(body)) is None:
                        raise ZmtpFault(Failure.MALFORMED, "a command has no name")
                    self._execute(*found, events)
                    continue
                if self._skipped:
                    self._skipped = self._limits.skip(self._skipped, flags)
                    continue
                self._size += len(body)
                if self._size > self._limits.max_message or len(self._sealed) >= self._limits.max_frames:
                    events.append(OversizedMessage(self._sealed[:HEAD]))
                    self._sealed, self._size = [], 0
                    self._skipped = self._limits.skip(self._skipped, flags)
                    continue
                self._sealed.append(body)
                if not flags & MORE:
                    events.append(self._sealed)
                    self._sealed, self._size = [], 0

    def _ready(self, data: bytes, events: list[Event]) -> None:
        self._properties(data, b"", events)

    def _hello(self, data: bytes, events: list[Event]) -> None:
        assert self._curve is not None
        self._send_handshake(b"WELCOME", self._curve.welcome(data))
        self.state = ConnectionState.INITIATE

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
        raise ZmtpFault(Failure.PEER, repr(reason.decode(errors="backslashreplace")))

    def _ping(self, data: bytes, events: list[Event]) -> None:
        if len(data) < 2 or len(data) > 2 + MAX_PING_CONTEXT:
            raise ZmtpFault(Failure.MALFORMED, "malformed PING")
        self._send_traffic(b"PONG", data[2:])
        events.append(Ping(int.from_bytes(data[:2], "big") / 10))


COMMANDS: dict[tuple[ConnectionState, bytes], Callable[[Connection, bytes, list[Event]], None]] = {
    (ConnectionState.READY, b"READY"): Connection._ready,
    (ConnectionState.HELLO, b"HELLO"): Connection._hello,
    (ConnectionState.INITIATE, b"INITIATE"): Connection._initiate,
    **{
        (state, b"ERROR"): Connection._error
        for state in (ConnectionState.READY, ConnectionState.HELLO, ConnectionState.INITIATE, ConnectionState.OPEN)
    },
    (ConnectionState.OPEN, b"PING"): Connection._ping,
}
"""The command table. Other commands are a fault in the handshake, and ignored after it (PONG, SUBSCRIBE, CANCEL, …)."""
