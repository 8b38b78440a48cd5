"""How a request ended.

The record, little-endian, in database `replies` under the request's id. It is written once.

    offset  size  field
         0     1  record format, 1
         1     1  status (state.Status)
         2     2  attempts made
         4     4  CRC-32 (record.py)
         8     8  dispatched_at, µs since the epoch, of the last attempt; 0 = never
        16     8  finished_at, µs since the epoch
        24     4  r: bytes of reason
        28     4  number of frames
        32     r  reason, UTF-8, for people; empty when DONE
      32+r        frames of the reply (record.py)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from titanic.errors import RecordCorrupt
from titanic.store.record import join_frames, seal, split_frames, verify
from titanic.store.state import State, Status

DATABASE = "replies"

_FORMAT = 1
_HEADER = struct.Struct("<BBHIQQII")
_PREFIX = struct.Struct("<BBH")
_REST = struct.Struct("<QQII")


class Outcome(NamedTuple):
    """The end of a request. Times are µs since the epoch."""

    status: Status
    frames: list[bytes]
    reason: str
    attempts: int
    dispatched_at: int
    finished_at: int


class Pending(NamedTuple):
    """The request is known and has not ended: `state` is WAITING or DELAYED."""

    state: State


class Header(NamedTuple):
    """An outcome without its frames; `frames_at` is where they begin in the record."""

    status: Status
    attempts: int
    dispatched_at: int
    finished_at: int
    reason: str
    frame_count: int
    frames_at: int


def encode(uuid: bytes, outcome: Outcome) -> bytes:
    """The record of an outcome. Attempts beyond 65535 are written as 65535."""
    status, frames, reason, attempts, dispatched_at, finished_at = outcome
    text = reason.encode(errors="replace")
    prefix = _PREFIX.pack(_FORMAT, status, min(attempts, 0xFFFF))
    return seal(uuid, prefix, _rest(dispatched_at, finished_at, text, frames))


def _rest(dispatched_at: int, finished_at: int, reason: bytes, frames: Sequence[bytes]) -> bytes:
    return _REST.pack(dispatched_at, finished_at, len(reason), len(frames)) + reason + join_frames(frames)


def decode_header(uuid: bytes, record: memoryview) -> Header:
    """All but the frames, without looking at the checksum. Raises RecordCorrupt when it makes no sense."""
    if len(record) < _HEADER.size:
        raise RecordCorrupt(uuid, DATABASE, f"it has {len(record)} bytes")
    format_, status, attempts, _, dispatched_at, finished_at, size, frame_count = _HEADER.unpack_from(record)
    frames_at = _HEADER.size + size
    if format_ != _FORMAT:
        raise RecordCorrupt(uuid, DATABASE, f"record format {format_} is unknown")
    if frames_at > len(record) or status not in Status.__members__.values():
        raise RecordCorrupt(uuid, DATABASE, "its header makes no sense")
    reason = bytes(record[_HEADER.size : frames_at]).decode(errors="replace")
    return Header(Status(status), attempts, dispatched_at, finished_at, reason, frame_count, frames_at)


def decode(uuid: bytes, record: memoryview) -> Outcome:
    """The whole outcome. Raises RecordCorrupt when the checksum is wrong."""
    verify(uuid, record, DATABASE)
    header = decode_header(uuid, record)
    try:
        frames = split_frames(record, header.frames_at, header.frame_count)
    except ValueError as error:
        raise RecordCorrupt(uuid, DATABASE, str(error)) from error
    return Outcome(header.status, frames, header.reason, header.attempts, header.dispatched_at, header.finished_at)
