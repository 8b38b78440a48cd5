"""What the parent and a child of the pool say to each other, by a pair of sockets: for each message four bytes with its
length, then MessagePack.

    parent → child   Begin      execute this request
                     Cancel     its reply is no longer wanted
    child → parent   Part       a part of the reply
                     Final      the (rest of the) reply
                     Progress   how far the request is
                     Beat       a sign of life of its loop

The parent closes its side when a child is to end. Then the child has nothing in hand, unless the parent has died.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

_LENGTH = 4


class Begin(msgspec.Struct, array_like=True, tag=1):
    """Execute this request."""

    number: int
    client: bytes
    """As of `broker.Job`: it contains the context."""
    service: bytes
    joined: bool
    """Whether the parts of the reply go out in one message."""
    body: list[bytes]


class Cancel(msgspec.Struct, array_like=True, tag=2):
    """Its reply is no longer wanted."""

    number: int


class Part(msgspec.Struct, array_like=True, tag=3):
    """A part of its reply."""

    number: int
    body: list[bytes]


class Final(msgspec.Struct, array_like=True, tag=4):
    """The (rest of the) reply."""

    number: int
    body: list[bytes]


class Progress(msgspec.Struct, array_like=True, tag=5):
    """How far it is."""

    number: int
    said: bytes


class Beat(msgspec.Struct, array_like=True, tag=6):
    """A sign of life."""

    memory: int
    """Bytes of memory of the process; 0: unknown."""


ToChild = Begin | Cancel
ToParent = Part | Final | Progress | Beat

Message = TypeVar("Message")

_encode = msgspec.msgpack.Encoder().encode


def encode(message: ToChild | ToParent) -> bytes:
    """A message with its length."""
    said = _encode(message)
    return len(said).to_bytes(_LENGTH, "little") + said


class MessageReader(Generic[Message]):
    """Reads messages from a stream."""

    def __init__(self, kind: type[Message]) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete now. Raises msgspec.MsgspecError for what is no message."""
        rest = self._rest
        rest += data
        at, messages = 0, []
        while len(rest) >= at + _LENGTH:
            begin = at + _LENGTH
            end = begin + int.from_bytes(rest[at:begin], "little")
            if len(rest) < end:
                break
            messages.append(self._decode(bytes(rest[begin:end])))
            at = end
        del rest[:at]
        return messages
