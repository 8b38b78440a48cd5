"""A request as it is handed in, as it is stored, and as it is read back; and its idempotency key.

The record, little-endian, in database `requests` under the request's id. Only `changed` makes another one of it.

    offset  size  field
         0     1  record format: 129 (record.py)
         1     1  1 = the body is in a blob; + 2 w: bytes of owner, 0 … 32
         2     1  priority, 0 (last) … 9 (first)
         3     1  k: bytes of idempotency key, 0 = none
         4     4  CRC-32 (record.py)
         8     8  submitted_at, µs since the epoch
        16     8  not_before, µs since the epoch, 0 = none
        24     8  expires_at, µs since the epoch, 0 = never
        32     2  max_attempts, 0 = the server's default
        34     1  s: bytes in the service's name, 1 … 255
        35     1  a: bytes of source
        36     4  o: bytes of options, a JSON object or nothing
        40     4  number of frames
        44     s  service
      44+s     k  idempotency key, UTF-8
    44+s+k     w  owner: the user that submitted it
  44+s+k+w     a  source: the IP address that it was submitted from
44+s+k+w+a     o  options
  then            body: frames, or a reference to them (record.py)

*Idempotency keys*: one request per key, or one message of several, however often it is submitted.

The row, little-endian, in database `keys` under the key (`row_key`), or under the name of a unique request
(store/uniqueness.py). It outlives its request: a client that repeats a
submission after the reply was fetched and the request closed still gets the first id.

    offset  size  field
         0     8  until, µs since the epoch: when the key is forgotten
         8     8  given, µs since the epoch: when it came; 0 = unknown
        16  16 n  id of the request that had it first; of a message of n requests, the ids of all; of unique requests
                  the newest first
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from titanic.errors import InvalidRequest, RecordCorrupt
from titanic.protocol.submit_options import MAX_PRIORITY, MOST_TOGETHER
from titanic.store.lmdb.record import (
    BODY,
    FORMAT_1,
    REF_SIZE,
    FetchBlob,
    PutBlob,
    Ref,
    join_frames,
    read_frames,
    refuse_blob,
    seal,
    unpack_ref,
    verify,
)
from titanic.store.lmdb.schema import INLINE
from titanic.store.request import NewRequest, RequestFields, StoredRequest, values_of
from titanic.store.rules import MAX_OPTIONS, MAX_OWNER, check_owner, check_service
from titanic.store.uniqueness import NAMES
from titanic.util.ids import SIZE

DATABASE = "requests"

_IN_BLOB = 1
_PREFIX = [bytes((FORMAT_1, 0, priority, 0)) for priority in range(MAX_PRIORITY + 1)]
LAYOUT = (
    ("format", "B"),
    ("flags", "B"),
    ("priority", "B"),
    ("key_size", "B"),
    ("crc", "I"),
    ("submitted_at", "Q"),
    ("not_before", "Q"),
    ("expires_at", "Q"),
    ("max_attempts", "H"),
    ("service_size", "B"),
    ("source_size", "B"),
    ("options_size", "I"),
    ("frame_count", "I"),
)
"""The header. The sizes of further texts are between those of the service and the number of frames.

There is room for two more: `options_size` needs 16 bits (MAX_OPTIONS), and the other 16 are 0 in all records. So all
can be read with `("options_size", "H"), ("tenant_size", "B"), ("", "x")` and the text behind the options: neither
HEAD_SIZE nor a reader changes. Earlier versions would find damage: the store's format rises (STEPS in opening.py:
`_nothing`)."""
_HEADER = struct.Struct("<" + "".join(code for _, code in LAYOUT))
HEADER_SIZE = _HEADER.size
_REST = struct.Struct("<" + "".join(code for _, code in LAYOUT[5:]))  # the header from BODY on
_MAX_REST = INLINE - BODY
SERVICE_SIZE_AT = 34
SERVICE_GAP = _HEADER.size - SERVICE_SIZE_AT - 1
"""Bytes between the size of the service's name and the name."""
_pack_rest = _REST.pack
_TIMES = struct.Struct("<QQ")
_U64 = struct.Struct("<Q")
_NOT_BEFORE_AT = 16
PLAIN_HOLDER_SIZE = _TIMES.size + SIZE
"""Bytes of the row of one request."""


class RequestHeader(RequestFields, kw_only=True):  # which mypyc ignores: so each field needs a default
    """All of a stored request but its body, which is in the record from `body_at` on, or at `ref`."""

    frame_count: int = 0
    body_at: int = 0
    body_size: int = 0  # with the frames' lengths
    ref: Ref | None = None

    @property
    def size(self) -> int:
        """Bytes of the request, for the loads of its service and its owner."""
        return self.body_at + self.body_size


def encode(uuid: bytes, request: NewRequest, submitted_at: int, put_blob: PutBlob | None = None) -> bytes:
    """The record of a request. Raises InvalidRequest when a field can't be written.

    A body that is too large for the row is given to `put_blob`.
    """
    service, body, priority, not_before, expires_at, max_attempts, options, key, _, together, owner, source, *_ = (
        request
    )
    if together:
        key = b""
    check_service(service)
    if not 0 <= priority <= MAX_PRIORITY:
        raise InvalidRequest("the priority is invalid", str(priority), "use 0 to 9")
    if options and len(options) > MAX_OPTIONS:
        raise InvalidRequest("the options are too long", f"{len(options)} bytes", f"use at most {MAX_OPTIONS}")
    prefix = _PREFIX[priority]
    try:
        sizes = len(service), len(source), len(options), len(body)
        rest = _pack_rest(submitted_at, not_before, expires_at, max_attempts, *sizes)
        if key:
            prefix = bytes((FORMAT_1, 0, priority, len(key)))
        if owner:
            check_owner(owner)
            prefix = bytes((FORMAT_1, len(owner) << 1, priority, len(key)))
        frames = join_frames(body)
    except (struct.error, ValueError) as error:
        raise InvalidRequest("a number or size in the request is out of range", str(error)) from error
    rest = b"".join((rest, service, key, owner, source, options, frames))
    if len(rest) > _MAX_REST and put_blob is not None:
        rest = rest[: len(rest) - len(frames)] + put_blob(frames).pack()
        prefix = bytes((prefix[0], prefix[1] | _IN_BLOB)) + prefix[2:]
    return seal(uuid, prefix, rest)


def changed(uuid: bytes, record: memoryview | bytes, priority: int, not_before: int) -> bytes:
    """The record with another priority and time."""
    prefix, at = bytes((record[0], record[1], priority, record[3])), _NOT_BEFORE_AT
    return seal(uuid, prefix, b"".join((record[BODY:at], _U64.pack(not_before), record[at + _U64.size :])))


def is_of(record: memoryview | bytes, service: bytes) -> bool:
    """Whether it is a request of this service. Nothing else of the record is read."""
    at, size = _HEADER.size, len(service)
    return len(record) >= at and record[SERVICE_SIZE_AT] == size and record[at : at + size] == service


def decode_header(uuid: bytes, record: memoryview | bytes) -> RequestHeader:
    """All but the body. The checksum is not verified: that would read every page of a large body.

    Raises RecordCorrupt when it makes no sense.
    """
    if len(record) < _HEADER.size:
        raise RecordCorrupt(uuid, DATABASE, f"it has {len(record)} bytes")
    fields = _HEADER.unpack_from(record)
    format_, flags, priority, key_size, _, submitted_at, not_before, expires_at, max_attempts = fields[:9]
    service_size, source_size, options_size, frame_count = fields[9:]
    key_at = _HEADER.size + service_size
    owner_at = key_at + key_size
    owner_size = flags >> 1
    source_at = owner_at + owner_size
    options_at = source_at + source_size
    body_at = options_at + options_size
    ref_size = REF_SIZE if flags & _IN_BLOB else 0
    if format_ != FORMAT_1:
        raise RecordCorrupt(uuid, DATABASE, f"record format {format_} is unknown")
    if body_at + ref_size > len(record) or priority > MAX_PRIORITY or not service_size or owner_size > MAX_OWNER:
        raise RecordCorrupt(uuid, DATABASE, "its header is invalid")
    ref = unpack_ref(record, body_at) if ref_size else None
    return RequestHeader(
        uuid,
        submitted_at,
        priority,
        bytes(record[_HEADER.size : key_at]),
        bytes(record[key_at:owner_at]) if key_size else b"",
        bytes(record[owner_at:source_at]) if owner_size else b"",
        bytes(record[source_at:options_at]) if source_size else b"",
        not_before,
        expires_at,
        max_attempts,
        bytes(record[options_at:body_at]) if options_size else b"",
        frame_count=frame_count,
        body_at=body_at,
        body_size=ref.size if ref else len(record) - body_at,
        ref=ref,
    )


def decode(uuid: bytes, record: memoryview | bytes, fetch: FetchBlob = refuse_blob) -> StoredRequest:
    """The whole request. Raises RecordCorrupt when a checksum is wrong."""
    verify(uuid, record, DATABASE)
    header = decode_header(uuid, record)
    return StoredRequest(*values_of(header), body=decode_body(uuid, record, header, fetch))


def service_in(record: memoryview | bytes) -> bytes:
    """The service, without reading the rest; empty when the record is damaged."""
    if len(record) < _HEADER.size:
        return b""
    return bytes(record[_HEADER.size : _HEADER.size + record[SERVICE_SIZE_AT]])


def owner_in(record: memoryview | bytes) -> bytes:
    """The owner, without reading the rest; empty when the record is damaged."""
    if len(record) < _HEADER.size or record[0] != FORMAT_1:
        return b""
    at = _HEADER.size + record[SERVICE_SIZE_AT] + record[3]
    size = record[1] >> 1
    return bytes(record[at : at + size]) if size <= MAX_OWNER and at + size <= len(record) else b""


def row_key_in(record: memoryview | bytes) -> bytes:
    """The key in `keys` of its idempotency key, without reading the rest; empty when it has none. What it says of a
    damaged record is not to be relied on."""
    if len(record) < _HEADER.size or not record[3]:
        return b""
    at = _HEADER.size + record[SERVICE_SIZE_AT]
    owner_at = at + record[3]
    return row_key(bytes(record[at:owner_at]), bytes(record[owner_at : owner_at + (record[1] >> 1)]))


def decode_body(uuid: bytes, record: memoryview | bytes, header: RequestHeader, fetch: FetchBlob) -> list[bytes]:
    """The body, when the header was decoded and the checksum verified before. Raises RecordCorrupt."""
    return read_frames(uuid, DATABASE, record, header.body_at, header.frame_count, header.ref, fetch)


# -- idempotency keys ----------------------------------------------------------------------------------------------


def row_key(key: bytes, owner: bytes) -> bytes:
    """The key of the row. Those of an owner are apart from all others: FF is in no UTF-8, so in no key and no owner.

    A key without an owner that begins with FF is stored under an empty owner, which no user has.
    """
    return b"\xff%b\xff%b" % (owner, key) if owner or key[:1] == b"\xff" else key


def is_unique(key: bytes) -> bool:
    """Whether the row is that of a unique request."""
    return key[:1] == b"\xff" and key[1:].partition(b"\xff")[2][:1] == NAMES


def owner_of_key(key: bytes) -> bytes:
    """The owner in the key of a row; empty when it has none."""
    return key[1:].partition(b"\xff")[0] if key[:1] == b"\xff" else b""


class KeyRecord(NamedTuple):
    """The requests that have a key, until when it counts, and when it was given (µs since the epoch)."""

    until: int
    ids: bytes  # concatenated
    given: int = 0

    @property
    def uuid(self) -> bytes:
        """The first request."""
        return self.ids[:SIZE]

    @property
    def requests(self) -> int:
        """How many there are."""
        return len(self.ids) // SIZE

    @property
    def uuids(self) -> list[bytes]:
        """All of them."""
        return [self.at(n) for n in range(self.requests)]

    def at(self, index: int) -> bytes:
        """The request at a place."""
        return self.ids[index * SIZE : (index + 1) * SIZE]


def encode_key_record(holder: KeyRecord) -> bytes:
    """The row."""
    return _TIMES.pack(holder.until, holder.given) + holder.ids


def decode_key_record(row: memoryview | bytes) -> KeyRecord | None:
    """The row, decoded; None when it is damaged."""
    ids, rest = divmod(len(row) - _TIMES.size, SIZE)
    if rest or not 1 <= ids <= MOST_TOGETHER:
        return None
    until, given = _TIMES.unpack_from(row)
    return KeyRecord(until, bytes(row[_TIMES.size :]), given)


assert _REST.size == _HEADER.size - BODY
