"""Generaldomo on the wire: Majordomo over CLIENT and SERVER sockets, which carry single frames only.

The frames of a message of MDP 0.1 (`broker.core.mdp`), without the `''` in front, are packed into one, as CZMQ's
`zmsg_encode` does:

    each frame          size  data
    size below 255      one byte
    size of 255 or more FF, and four bytes big-endian

Messages with an address stack, and those of MDP 0.2, which have no `''` in front, are packed as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from broker.core.mdp import CLIENT_01, WORKER_01, Frames

_LONG = struct.Struct(">BI")

MOST_FRAMES = 100_000
"""Frames of a message."""


def pack(frames: Iterable[bytes]) -> bytes:
    """Many frames as one."""
    parts: list[bytes] = []
    for frame in frames:
        size = len(frame)
        parts.append(bytes((size,)) if size < 255 else _LONG.pack(255, size))
        parts.append(frame)
    return b"".join(parts)


def unpack(data: bytes) -> Frames | None:
    """The frames; None when it is no packed message."""
    frames: Frames = []
    at, end = 0, len(data)
    while at < end:
        size = data[at]
        at += 1
        if size == 255:
            if at + 4 > end:
                return None
            size = int.from_bytes(data[at : at + 4])
            at += 4
        if at + size > end or len(frames) == MOST_FRAMES:
            return None
        frames.append(data[at : at + size])
        at += size
    return frames or None


def pack_mdp(frames: Frames) -> bytes:
    """A message of MDP."""
    return pack(frames[1:] if frames[0] == b"" else frames)


def unpack_mdp(data: bytes) -> Frames | None:
    """A message of MDP; None when it is none."""
    frames = unpack(data)
    if frames is not None and frames[0] in (CLIENT_01, WORKER_01):
        return [b"", *frames]
    return frames
