"""A request as it is handed in, as it is stored, and as it is read back.

The record, little-endian, in database `requests` under the request's id. It is written once.

    offset  size  field
         0     1  record format, 1
         1     1  flags, 0
         2     1  priority, 0 (last) … 9 (first)
         3     1  reserved, 0
         4     4  CRC-32 (record.py)
         8     8  submitted_at, µs since the epoch
        16     8  not_before, µs since the epoch, 0 = none
        24     8  expires_at, µs since the epoch, 0 = never
        32     2  max_attempts, 0 = the server's default
        34     2  s: bytes in the service's name, 1 … 255
        36     4  o: bytes of options, a JSON object or nothing
        40     4  number of frames
        44     s  service
      44+s     o  options
    44+s+o        frames of the body (record.py)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from titanic.errors import InvalidRequest, RecordCorrupt
from titanic.store.record import BODY, join_frames, seal, split_frames, verify

DATABASE = "requests"
DEFAULT_PRIORITY = 4
MAX_PRIORITY = 9
MAX_SERVICE = 255

_FORMAT = 1
_PREFIX = [bytes((_FORMAT, 0, priority, 0)) for priority in range(MAX_PRIORITY + 1)]
_HEADER = struct.Struct("<BBBBIQQQHHII")
_REST = struct.Struct("<QQQHHII")  # the header from BODY on
_pack_rest = _REST.pack


class NewRequest(NamedTuple):
    """A request to be accepted. Times are µs since the epoch."""

    service: bytes
    body: Sequence[bytes]
    priority: int = DEFAULT_PRIORITY
    not_before: int = 0
    expires_at: int = 0
    max_attempts: int = 0
    options: bytes = b""


class Header(NamedTuple):
    """All of a stored request but its body; `body_at` is where that begins in the record."""

    service: bytes
    priority: int
    submitted_at: int
    not_before: int
    expires_at: int
    max_attempts: int
    options: bytes
    frame_count: int
    body_at: int


class Request(NamedTuple):
    """A stored request. Times are µs since the epoch, 0 = none."""

    uuid: bytes
    service: bytes
    body: list[bytes]
    priority: int
    submitted_at: int
    not_before: int
    expires_at: int
    max_attempts: int
    options: bytes


@lru_cache(maxsize=4096)
def check_service(service: bytes) -> None:
    """Raise InvalidRequest unless `service` is 1 … 255 bytes of printable UTF-8 (which excludes NUL)."""
    if not 1 <= len(service) <= MAX_SERVICE:
        raise InvalidRequest("the service's name has a wrong length", f"{len(service)} bytes", "use 1 to 255")
    try:
        printable = service.decode().isprintable()
    except UnicodeDecodeError:
        printable = False
    if not printable:
        raise InvalidRequest("the service's name isn't printable UTF-8", repr(service[:40]), "choose another")


def encode(uuid: bytes, request: NewRequest, submitted_at: int) -> bytes:
    """The record of a request. Raises InvalidRequest when a field can't be written."""
    service, body, priority, not_before, expires_at, max_attempts, options = request
    check_service(service)
    if not 0 <= priority <= MAX_PRIORITY:
        raise InvalidRequest("no such priority", str(priority), "use 0 to 9")
    try:
        rest = _pack_rest(submitted_at, not_before, expires_at, max_attempts, len(service), len(options), len(body))
        frames = join_frames(body)
    except struct.error as error:
        raise InvalidRequest("a number or size in the request is out of range", str(error)) from error
    return seal(uuid, _PREFIX[priority], b"".join((rest, service, options, frames)))


def decode_header(uuid: bytes, record: memoryview) -> Header:
    """All but the body. The checksum is not looked at: that would read every page of a large body.

    Raises RecordCorrupt when it makes no sense.
    """
    if len(record) < _HEADER.size:
        raise RecordCorrupt(uuid, DATABASE, f"it has {len(record)} bytes")
    fields = _HEADER.unpack_from(record)
    format_, _, priority, _, _, submitted_at, not_before, expires_at, max_attempts = fields[:9]
    service_size, options_size, frame_count = fields[9:]
    options_at = _HEADER.size + service_size
    body_at = options_at + options_size
    if format_ != _FORMAT:
        raise RecordCorrupt(uuid, DATABASE, f"record format {format_} is unknown")
    if body_at > len(record) or priority > MAX_PRIORITY or not service_size:
        raise RecordCorrupt(uuid, DATABASE, "its header makes no sense")
    service = bytes(record[_HEADER.size : options_at])
    options = bytes(record[options_at:body_at])
    return Header(
        service,
        priority,
        submitted_at,
        not_before,
        expires_at,
        max_attempts,
        options,
        frame_count,
        body_at,
    )


def decode(uuid: bytes, record: memoryview) -> Request:
    """The whole request. Raises RecordCorrupt when the checksum is wrong."""
    verify(uuid, record, DATABASE)
    header = decode_header(uuid, record)
    try:
        body = split_frames(record, header.body_at, header.frame_count)
    except ValueError as error:
        raise RecordCorrupt(uuid, DATABASE, str(error)) from error
    return Request(uuid, header.service, body, *header[1:7])


assert _REST.size == _HEADER.size - BODY
