"""What the parent and a child of the pool say to each other, by a pair of sockets: for each message four bytes with its
length, then MessagePack.

    parent → child   BeginJob      execute this request
                     CancelJob     its reply is no longer wanted
    child → parent   JobPart       a part of the reply
                     JobFinal      the (rest of the) reply
                     JobProgress   how far the request is
                     ChildBeat     a sign of life of its loop

The parent closes its side when a child is to end. Then the child has nothing in hand, unless the parent has died.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

_LENGTH = 4

CHUNK = 262_144
"""Bytes that are read at once."""


class BeginJob(msgspec.Struct, array_like=True, tag=1):
    """Execute this request."""

    number: int
    client: bytes
    """As of `broker.Job`: it contains the context."""
    service: bytes
    joined: bool
    """Whether the parts of the reply go out in one message."""
    body: list[bytes]


class CancelJob(msgspec.Struct, array_like=True, tag=2):
    """Its reply is no longer wanted."""

    number: int


class JobPart(msgspec.Struct, array_like=True, tag=3):
    """A part of its reply."""

    number: int
    body: list[bytes]


class JobFinal(msgspec.Struct, array_like=True, tag=4):
    """The (rest of the) reply."""

    number: int
    body: list[bytes]


class JobProgress(msgspec.Struct, array_like=True, tag=5):
    """How far it is."""

    number: int
    said: bytes


class ChildBeat(msgspec.Struct, array_like=True, tag=6):
    """A sign of life."""

    memory: int
    """Bytes of memory of the process; 0: unknown."""


ToChild = BeginJob | CancelJob
ToParent = JobPart | JobFinal | JobProgress | ChildBeat

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
