"""Rows that are checked many at a time.

Nearly all rows are sound and plain: a record of one piece, with its index rows where they belong. For those a check
needs no objects, only sums and comparisons, which run in C over a whole batch: 1 to 2 µs a row instead of 5 to 15.

Each function takes a batch of rows of a database, adds up what is sound and plain, and returns the rows that are not.
Nothing of these is added up yet. Each is then examined by itself (check.py), which names what is wrong, if anything.
A row that is returned although it is sound costs time, nothing else; so whatever is rare or doubtful is returned.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from operator import itemgetter
from zlib import crc32

from titanic.protocol.submit_options import MAX_PRIORITY
from titanic.store.lmdb import outcome_record, request_record
from titanic.store.lmdb.closed_record import fields
from titanic.store.lmdb.record import BODY, FORMAT_1, PREFIX, header_reader
from titanic.store.lmdb.schema import DEAD, EXPIRY, KEY, REPLIED, TIME_SIZE, U64, ready_prefix, service_of, timer_key
from titanic.store.lmdb.tools.findings import Remedy, Row, Verb, Walk
from titanic.store.request import CLOSED_FORMAT, CLOSED_TEXTS, UNCLAIMED
from titanic.store.rules import MAX_OWNER
from titanic.store.states import Status
from titanic.util.ids import SIZE

_LENGTH = 4
_ENDS = {int(status): DEAD if status in (Status.FAILED, Status.EXPIRED) else REPLIED for status in Status}
"""The kind of timer for each way to end."""

_PRIORITIES = range(MAX_PRIORITY + 1)
_SIZES = [name for name, _ in request_record.LAYOUT if name.endswith("_size")]
_request = header_reader(
    request_record.LAYOUT, "format", "flags", "priority", "crc", "expires_at", "frame_count", *_SIZES
)  # of which key_size is before the checksum, and service_size behind expires_at
_outcome = struct.Struct("<BB2xI8xQII")
"""Of an outcome: format, status, checksum, finished_at, bytes of reason, number of frames (outcome_record.py)."""
_closed = fields(
    "format",
    "kind",
    "crc",
    "request_frames",
    "request_size",
    "reply_frames",
    "reply_size",
    "request_where",
    "reply_where",
    *(f"{name}_size" for name in CLOSED_TEXTS),
)
_OWNER = CLOSED_TEXTS.index("owner")

_rest = itemgetter(slice(BODY, None))
_heads = {size: struct.Struct(f"{size}s{PREFIX}s") for size in (SIZE, TIME_SIZE)}
"""A key of a size, and what stands in its record before the checksum."""


def _sums(keys: Sequence[bytes], records: Sequence[bytes]) -> Iterable[int]:
    """The checksums that the records should have (record.py)."""
    return map(crc32, map(_rest, records), map(crc32, map(_heads[len(keys[0])].pack, keys, records)))


def _are_frames(record: bytes, at: int, count: int, end: int) -> bool:
    """Whether so many frames stand in a record from `at` to `end`."""
    for _ in range(count):
        if at + _LENGTH > end:
            return False
        at += _LENGTH + int.from_bytes(record[at : at + _LENGTH], "little")
    return at == end


def requests(walk: Walk, rows: list[Row]) -> list[Row]:
    """Check rows of `requests`, and that each is in a queue or has ended, and expires."""
    uuids, records = zip(*rows, strict=True)
    first, last = uuids[0], uuids[-1]
    try:
        heads = list(map(_request.unpack_from, records))
    except struct.error:
        return rows
    ended = {uuid for uuid, _ in walk.between("replies", first, last)}
    if walk.light:
        return _count_requests(walk, rows, heads, ended)
    retried = {uuid for uuid, _ in walk.between("retries", first, last)}
    body_at = request_record.HEADER_SIZE
    prefixes = [
        ready_prefix(record[body_at : body_at + head[6]], head[2]) if head[2] in _PRIORITIES else b""
        for record, head in zip(records, heads, strict=True)
    ]
    ready: dict[bytes, bytes] = {}
    for prefix in set(prefixes):
        ready.update(walk.between("ready", prefix + first, prefix + last))
    odd: list[Row] = []
    waiting: dict[bytes, list[int]] = {}
    timers: list[bytes] = []
    for row, head, total, prefix in zip(rows, heads, _sums(uuids, records), prefixes, strict=True):
        uuid, record = row
        format_, flags, priority, key_size, crc, expires_at, service_size, *sizes, count = head
        owner_size = flags >> 1
        at = body_at + service_size + key_size + owner_size + sum(sizes)
        size = len(record)
        value = ready.get(prefix + uuid)
        is_ended = uuid in ended
        if (
            total != crc
            or format_ != FORMAT_1
            or flags & 1
            or priority not in _PRIORITIES
            or not service_size
            or owner_size > MAX_OWNER
            or (value is None) != is_ended
            or uuid in retried
            or (
                (count != 1 or int.from_bytes(record[at : at + _LENGTH], "little") != size - at - _LENGTH)
                and not _are_frames(record, at, count, size)
            )
        ):
            odd.append(row)
            continue
        if not is_ended:
            load = waiting.get(prefix)
            if load is None:
                load = waiting[prefix] = [0, 0, 0]
            load[0] += 1
            load[1] += size
            load[2] += value == b""
            if expires_at:
                timers.append(timer_key(EXPIRY, expires_at, uuid))
        if owner_size:
            walk.own(request_record.owner_in(record), size, pending=not is_ended)
    for prefix, (count, size, empty) in waiting.items():
        service = service_of(prefix)
        walk.load(service, count, size)
        walk.ready[service] += count
        walk.indexed["ready"] += empty
    for timer in walk.missing("timers", timers):
        walk.report("requests", timer[-SIZE:], "it would never expire", Remedy(Verb.PUT, "timers", timer))
    return odd


def _count_requests(walk: Walk, rows: list[Row], heads: list[tuple[int, ...]], ended: set[bytes]) -> list[Row]:
    """Only add up."""
    odd = []
    for row, head in zip(rows, heads, strict=True):
        uuid, record = row
        format_, flags, priority, key_size, _, _, service_size, *sizes, _ = head
        at = request_record.HEADER_SIZE + service_size
        size = len(record)
        least = at + key_size + (flags >> 1) + sum(sizes)
        owner_size = flags >> 1
        is_right = format_ == FORMAT_1 and priority in _PRIORITIES and service_size and owner_size <= MAX_OWNER
        if flags & 1 or not is_right or least > size:
            odd.append(row)
            continue
        if uuid not in ended:
            walk.load(record[request_record.HEADER_SIZE : at], 1, size)
        if owner_size:
            walk.own(request_record.owner_in(record), size, pending=uuid not in ended)
    return odd


def replies(walk: Walk, rows: list[Row]) -> list[Row]:
    """Check rows of `replies`, that the request of each is there, and that its retention ends."""
    uuids, records = zip(*rows, strict=True)
    try:
        heads = list(map(_outcome.unpack_from, records))
    except struct.error:
        return rows
    requests = walk.values("requests", uuids)
    sums = (head[2] for head in heads) if walk.light else _sums(uuids, records)
    odd: list[Row] = []
    timers: list[bytes] = []
    for row, head, total in zip(rows, heads, sums, strict=True):
        uuid, record = row
        format_, status, crc, finished_at, reason_size, count = head
        request, kind = requests.get(uuid), _ENDS.get(status)  # None if its frames are in a blob
        at, size = outcome_record.HEADER_SIZE + reason_size, len(record)
        is_plain = total == crc and format_ == FORMAT_1 and kind is not None and request is not None
        if not is_plain or not _are_frames(record, at, count, size):
            odd.append(row)
            continue
        assert kind is not None
        assert request is not None
        if b'"keep' in request:  # perhaps in its options
            odd.append(row)
            continue
        timers.append(timer_key(kind, finished_at, uuid))
        if request[1:2] > b"\1":
            walk.own(request_record.owner_in(request), size)
    for timer in () if walk.light else walk.missing("timers", timers):
        walk.report("replies", timer[-SIZE:], "its retention would never end", Remedy(Verb.PUT, "timers", timer))
    return odd


def keys(walk: Walk, rows: list[Row]) -> list[Row]:
    """Check rows of `keys`, that each is forgotten, and that its request has this key."""
    if walk.light:
        for key, row in rows:
            walk.own(request_record.owner_of_key(key), len(key) + len(row))
        return []
    plain_size = request_record.PLAIN_HOLDER_SIZE
    requests = walk.values("requests", [row[-SIZE:] for _, row in rows if len(row) == plain_size])
    odd: list[Row] = []
    timers: list[bytes] = []
    for pair in rows:
        key, row = pair
        request = requests.get(row[-SIZE:])
        if len(row) != plain_size or (request is not None and request_record.row_key_in(request) != key):
            odd.append(pair)
            continue
        timers.append(timer_key(KEY, U64.unpack_from(row)[0], key))
        if key[:1] == b"\xff":
            walk.own(request_record.owner_of_key(key), len(key) + len(row))
    for timer in walk.missing("timers", timers):
        key = timer[1 + TIME_SIZE :]
        walk.report("keys", key, "it would never be forgotten", Remedy(Verb.PUT, "timers", timer))
    return odd


def closed(walk: Walk, rows: list[Row], charged: int) -> set[bytes]:
    """Check rows of `closed`, and return the keys of those that are to be examined. `charged`: the number above which
    they count for their owners."""
    numbers, records = zip(*rows, strict=True)
    try:
        heads = list(map(_closed.unpack_from, records))
    except struct.error:
        return set(numbers)
    sums = (head[2] for head in heads) if walk.light else _sums(numbers, records)
    since = charged.to_bytes(TIME_SIZE, "big")
    odd: set[bytes] = set()
    for (key, record), head, total in zip(rows, heads, sums, strict=True):
        format_, kind, crc, count, size, reply_count, reply_size, where, reply_where, *sizes = head
        at = _closed.size + sum(sizes)
        if (
            total != crc
            or format_ != CLOSED_FORMAT
            or kind & ~UNCLAIMED not in _ENDS
            or where
            or reply_where
            or at + size + reply_size != len(record)
            or not _are_frames(record, at, count, at + size)
            or not _are_frames(record, at + size, reply_count, len(record))
        ):
            odd.add(key)
        elif key > since:
            owner_at = _closed.size + sum(sizes[:_OWNER])
            walk.own(record[owner_at : owner_at + sizes[_OWNER]], len(record))
    return odd
