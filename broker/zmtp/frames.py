"""Frames and commands as ZMTP 2.0 and 3.x write them (RFC 15, 23 and 37: "Framing").

frame    = flags size body       flags: 1 more frames of this message follow, 2 eight bytes of size, 4 a command
command  = a frame whose body is: length name data
metadata = *(length name size value), in the data of READY and INITIATE
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

MORE = 1
LONG = 2
COMMAND = 4

SHORT_SIZE = 255
"""The largest body with a size of one byte."""

_SHORT_MORE = [bytes((MORE, size)) for size in range(SHORT_SIZE + 1)]
_SHORT_LAST = [bytes((0, size)) for size in range(SHORT_SIZE + 1)]

LARGE = 1 << 14
"""Bytes from which an incomplete frame counts as large: its parts are collected and joined once."""

Buffer = bytes | bytearray | memoryview


class Failure(Enum):
    """Why a connection ended."""

    NOT_ZMTP = "not ZMTP 2.0 or later"
    MECHANISM = "another mechanism"
    HANDSHAKE = "malformed handshake"
    KEYS = "wrong keys"
    SOCKET_TYPE = "a socket type that cannot talk to this one"
    TOO_LARGE = "larger than the limit"
    MALFORMED = "malformed frame or command"
    PEER = "error reported by the peer"


class ZmtpFault(Exception):
    """The peer violated the protocol or a limit; its connection ends."""

    def __init__(self, failure: Failure, reason: str) -> None:
        super().__init__(reason)
        self.failure = failure


class MessageLimits(NamedTuple):
    """Limits of what a peer may send."""

    max_message: int = 64 << 20
    """Bytes of all frames of a message."""
    max_frames: int = 100_000
    """Frames of a message."""
    max_command: int = 8192
    """Bytes of a command."""

    def skip(self, skipped: int, flags: int) -> int:
        """Discard a frame, after `skipped` others of a message; return how many these are, 0 after the last one."""
        skipped = skipped + 1 if flags & MORE else 0
        if skipped > SKIPPED * self.max_frames:
            raise ZmtpFault(Failure.TOO_LARGE, f"a message of more than {skipped} frames")
        return skipped


class Frame(NamedTuple):
    flags: int
    body: bytes


class OversizedMessage(NamedTuple):
    """A message exceeds the limits. Its remaining frames are discarded."""

    head: list[bytes]
    """Its first frames."""


FRAME_MEMORY = 64
"""Bytes of memory that a frame takes besides its content, roughly, as in `broker.core.requests.footprint`."""

HEAD = 32
"""Frames of an oversized message that are reported."""

FRAMES = 10
"""Frames that are read in a round for each message of it: more than one usually has."""

SKIPPED = 64
"""An oversized message may have so many times `max_frames`; then its connection ends."""


class FrameReader:
    """Splits a byte stream into frames and assembles messages. It holds no more than the limits allow."""

    def __init__(self, limits: MessageLimits, *, commands: bool) -> None:
        """`commands`: whether command frames are legal; ZMTP 2.0 has none."""
        self.is_open = False
        """Whether messages are expected; before, each frame is returned singly and `max_command` applies."""
        self._limits = limits
        self._highest = LONG | COMMAND if commands else LONG | MORE
        self._data = b""
        self._at = 0
        """Received bytes, and where the unread ones begin."""
        self._parts: list[bytes] = []
        self._missing = 0
        """A large frame: the received parts of its body, and the missing bytes."""
        self._flags = 0
        """Flags of that frame."""
        self.has_more = False
        """Whether `take` stopped before it had read all frames."""
        self.large = 0
        """The received bytes of its body."""
        self.frames: list[bytes] = []
        """Received frames of the incomplete message."""
        self.size = 0
        """Their bytes."""
        self._skipped = 0
        """Discarded frames of an oversized message; 0: none is being discarded."""

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if self._missing:
            part = data[: self._missing]
            self._parts.append(part)
            self._missing -= len(part)
            self.large += len(part)
            self._data, self._at = data, len(part)
        elif self._at < len(self._data):
            self._data, self._at = self._data[self._at :] + data, 0
        else:
            self._data, self._at = data, 0

    def take(self, messages: list[list[bytes]], most: int) -> Frame | OversizedMessage | None:
        """Append complete messages to the list, `most` of them or up to a command or an oversized message, which is
        returned. None with fewer than `most`: nothing more is complete, or `has_more`. Raises ZmtpFault."""
        if self._parts:
            if self._missing:
                return None
            flags, body = self._flags, b"".join(self._parts)
            self._parts, self.large = [], 0
            if flags & COMMAND or not self.is_open:
                return Frame(flags, body)
            self._add(flags, body, messages)
        data, at, end = self._data, self._at, len(self._data)
        frames, size, left = self.frames, self.size, FRAMES * most
        self.has_more = False
        max_message, max_frames = self._limits.max_message, self._limits.max_frames
        try:
            while end - at >= 2 and len(messages) < most and left:
                left -= 1
                flags = data[at]
                if flags & LONG:
                    if end - at < 9:
                        return None
                    length = int.from_bytes(data[at + 1 : at + 9], "big")
                    begin = at + 9
                else:
                    length = data[at + 1]
                    begin = at + 2
                if flags > LONG | MORE and (flags > self._highest or flags & MORE):
                    raise ZmtpFault(Failure.MALFORMED, f"a frame has the flags {flags:#x}")
                stop = begin + length
                if flags & COMMAND or not self.is_open:
                    if length > self._limits.max_command:
                        raise ZmtpFault(
                            Failure.TOO_LARGE, f"a command of {length} bytes; the limit is {self._limits.max_command}"
                        )
                    if stop > end:
                        return None
                    at = stop
                    return Frame(flags, data[begin:stop])
                if length > max_message:
                    raise ZmtpFault(Failure.TOO_LARGE, f"a frame of {length} bytes; the limit is {max_message}")
                if not self._skipped and (size + length > max_message or len(frames) >= max_frames):
                    self._skipped = 1
                    head, frames, size = frames[:HEAD], [], 0
                    return OversizedMessage(head)
                if stop > end:
                    if length > LARGE:
                        self._flags, self._parts, self._missing = flags, [data[begin:]], stop - end
                        self.large = end - begin
                        at = end
                    return None
                at = stop
                if self._skipped:
                    self._skipped = self._limits.skip(self._skipped, flags)
                    continue
                frames.append(data[begin:stop])
                if flags & MORE:
                    size += length
                else:
                    messages.append(frames)
                    frames, size = [], 0
            self.has_more = not left
            return None
        finally:
            self._data, self._at = (data, at) if at < end else (b"", 0)  # an idle connection keeps no data
            self.frames, self.size = frames, size

    def _add(self, flags: int, body: bytes, messages: list[list[bytes]]) -> None:
        if self._skipped:
            self._skipped = self._limits.skip(self._skipped, flags)
            return
        self.frames.append(body)
        self.size += len(body)
        if not flags & MORE:
            messages.append(self.frames)
            self.frames, self.size = [], 0


def header(flags: int, size: int) -> bytes:
    """Return the header of a frame with a body of `size` bytes."""
    if size <= SHORT_SIZE:
        return _SHORT_LAST[size] if not flags else bytes((flags, size))
    return bytes((flags | LONG,)) + size.to_bytes(8, "big")


def encode(frames: Sequence[Buffer], copied: int = 1 << 14) -> list[Buffer]:
    """Encode a message as buffers to send in order. Bodies of more than `copied` bytes are not copied; everything else
    is joined."""
    parts: list[Buffer] = []
    whole: list[Buffer] = []
    last = len(frames) - 1
    for at, body in enumerate(frames):
        size = len(body)
        if size <= SHORT_SIZE:
            parts.append(_SHORT_LAST[size] if at == last else _SHORT_MORE[size])
        else:
            parts.append(header(0 if at == last else MORE, size))
        if size > copied:
            whole += (b"".join(parts), body)
            parts = []
        else:
            parts.append(body)
    if parts:
        whole.append(b"".join(parts))
    return whole


def command_body(name: bytes, data: bytes = b"") -> bytes:
    return bytes((len(name),)) + name + data


def split_command(body: bytes) -> tuple[bytes, bytes] | None:
    """Return the name and the data of a command; None: malformed."""
    size = body[0] if body else 0
    if not size or len(body) <= size:
        return None
    return body[1 : 1 + size], body[1 + size :]


def encode_metadata(properties: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value for name, value in properties)


def parse_metadata(data: bytes) -> dict[bytes, bytes] | None:
    """Return the properties by name in lower case (names have no case); None: malformed, or a name occurs twice."""
    found: dict[bytes, bytes] = {}
    at, end = 0, len(data)
    while at < end:
        value = at + 1 + data[at] + 4
        if not data[at] or value > end:
            return None
        name = data[at + 1 : value - 4].lower()
        stop = value + int.from_bytes(data[value - 4 : value], "big")
        if stop > end or name in found:
            return None
        found[name] = data[value:stop]
        at = stop
    return found
