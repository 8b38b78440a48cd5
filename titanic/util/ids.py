"""Request ids: UUID version 7 (RFC 9562) as 16 bytes, strictly increasing.

     0                   1                   2                   3
    +---------------------------------------------------------------+
    | milliseconds since the epoch, 48 bits                         |
    +                               +-------+-----------------------+
    |                               | 0111  | fraction of ms, 12    |
    +-----+-------------------------+-------+-----------------------+
    | 10  | random, 62 bits                                         |
    +-----+                                                         +
    |                                                               |
    +---------------------------------------------------------------+

The store appends at the head of its B+tree, so each new id has to be above every id in it: above those of
the same batch, above those made before the clock was set back, and above those of the process before a
restart. Milliseconds and fraction together are one 60-bit *tick* of 1/4096 ms (RFC 9562, section 6.2,
method 3). A batch gets one tick of its own, at least one above the batch before; within the batch the random
tails are sorted. So the ids run ahead of the clock only if batches come faster than four per microsecond,
and a million ids of one batch still carry the time at which it was made. (`uuid6.uuid7()` adds a
millisecond per id instead: in bulk its clock runs ahead, and after a restart new ids would sort before old.)
"""

from __future__ import annotations

import binascii
import os
import re
import struct

from titanic.util.clock import LATEST_US

SIZE = 16
"""Bytes in an id."""

_TICKS_PER_MS = 4096
_TAIL_MASK = (1 << 62) - 1
_VARIANT = 2 << 62
_DASHED = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PAIR = struct.Struct(">QQ")


class IdMaker:
    """Makes ids above `last`, the highest that is already in use (None: there is none)."""

    def __init__(self, last: bytes | None) -> None:
        self._tick = -1 if last is None else _tick_of(last)

    def make(self, n: int, now_us: int) -> list[bytes]:
        """Return `n` new ids in ascending order, all above every id made before.

        `now_us` is the wall clock in microseconds since the epoch; it may go back, and be anything. After it was far
        ahead the ids stay there, and count on from the last one.
        """
        if n <= 0:
            return []
        self._tick = tick = max(min(now_us, LATEST_US) * _TICKS_PER_MS // 1000, self._tick + 1)
        head, pack = _head(tick), _PAIR.pack
        return [pack(head, tail) for tail in _tails(n)]


def before(time_us: int) -> bytes:
    """What is below all ids that are made at this time or later."""
    return _PAIR.pack(_head(max(0, min(time_us, LATEST_US)) * _TICKS_PER_MS // 1000), 0)


def time_of(uuid: bytes) -> int:
    """When the id was made, in microseconds since the epoch."""
    from uuid6 import UUID  # only a server needs it: a client starts faster without

    fraction = int.from_bytes(uuid[6:8]) & 0xFFF
    return UUID(bytes=uuid).time * 1000 - (-fraction * 1000 // _TICKS_PER_MS)


def may_be_after(uuid: bytes, now_us: int) -> bool:
    """Whether something with this id may have come after a time by a clock that was set since; never wrongly False.

    The id is not below the time at which it was made, and may be above: then ids were ahead already.
    """
    return (int.from_bytes(uuid[:6]) + 1) * 1000 > now_us


def parse(text: bytes) -> bytes | None:
    """The id written as exactly 32 hex digits in either case; None for anything else, whatever it is."""
    if len(text) != 2 * SIZE:
        return None
    try:
        return binascii.unhexlify(text)
    except ValueError:
        return None


def plain(text: str) -> str:
    """What people write, as it goes on the wire: without the dashes of the form 8-4-4-4-12. Anything else stays."""
    return text.replace("-", "") if _DASHED.fullmatch(text) else text


def text(uuid: bytes) -> bytes:
    """The id as it goes on the wire: 32 lower-case hex digits. (`uuid.hex()` gives the same as `str`.)"""
    return binascii.hexlify(uuid)


def _head(tick: int) -> int:
    return (tick >> 12) << 16 | 0x7000 | (tick & 0xFFF)


def _tick_of(uuid: bytes) -> int:
    high = int.from_bytes(uuid[:8])
    return (high >> 16) << 12 | (high & 0xFFF)


def _tails(n: int) -> list[int]:
    """`n` different 62-bit random numbers with the variant bits set, ascending."""
    while True:
        draw = struct.unpack(f"={n}Q", os.urandom(8 * n))
        tails = {_VARIANT | (number & _TAIL_MASK) for number in draw}
        if len(tails) == n:
            return sorted(tails)
