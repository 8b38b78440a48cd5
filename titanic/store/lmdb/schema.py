"""The databases of a store, their keys, and what a row costs.

    database   key                                        value
    meta       b"store_format"                            u32, FORMAT of opening.py
               b"capacity"                                u64, bytes, as the store was last opened
               b"sequence"                                u64, the last number given out in `closed`
               b"identity"                                16 random bytes: which store it is, also as a copy
               b"services"                                what is set for services: service_settings.py; servers that
                                                          do not know it ignore it
               b"archive"                                 u8 registered, u64 archived_upto
               b"archivist"                               the archive's owner, 16 bytes + its location, text
               b"charged"                                 u64: closed requests with higher numbers are counted for their
                                                          owners; no row when none are
               b"lost"                                    u64, closed requests of which no record was kept
               b"settled"                                 no meaning: written to have something to commit
               b"n" + service                             3 × u64: rows of `ready`; requests that have not ended,
                                                          and their bytes; no row instead of zeros
               b"o" + owner                               2 × u64: requests that have not ended; bytes of all that an
                                                          owner has in `requests`, `replies`, `keys`, their blobs, and
                                                          in `closed` while it waits for the archive; no row instead
                                                          of zeros, none for requests without an owner
    requests   uuid                                       request_record.py: header and body
    replies    uuid                                       outcome_record.py: how it ended, and the reply
    ready      service + 00 + (9 - priority) + uuid       nothing: what can be dispatched now
    later      due, u64 µs + uuid                         service + 00 + (9 - priority)
    retries    uuid                                       outcome_record.py: attempts, delay, last error
    keys       idempotency key, of those without an owner 2 × u64 µs, until when it counts, when it came + uuids
               FF + owner + FF + idempotency key          the same
               FF + owner + FF + FF + rule + hash         the same: a unique request (store/uniqueness.py)
    timers     b"E" + expires_at, u64 µs + uuid           nothing: a request that has not ended and can expire
               b"R" + finished_at, u64 µs + uuid          nothing: a reply (DONE, CANCELLED)
               b"D" + finished_at, u64 µs + uuid          nothing: a dead request (FAILED, EXPIRED)
               b"U" + until, u64 µs + uuid                nothing: one that ended, with an option of its own
               b"B" + until, u64 µs + uuid                nothing: the body of one that ended goes before the request
               b"K" + until, u64 µs + key in `keys`       nothing: a row of `keys`
    closed     sequence, u64                              closed_record.py: a closed request
    blobs      id, u64 + index, u32                       record.py: a piece of a body too large for its record
    graves     id, u64                                    u32 pieces: a blob that is to be deleted, bit by bit
    facts      kind, a letter + … + u8, number of piece   facts.py: what the server remembers of its work
    aside      what was repaired + its key                the damaged record, for people

Numbers in keys are big-endian, so that they sort; in values little-endian. A service's name has no NUL, so no
name is the beginning of another's rows, and the longest key is 9 + 34 + 255 bytes (LMDB takes 511). A row of
`later` holds the beginning of the key that it will have in `ready`: a request becomes ready without being
read.

The counts per service and owner in `meta` are there so that a start needs no scan, however many requests are
stored, and a limit per service or owner none either.

To change a key or the meaning of a database (changes inside a record don't need it, see record.py):
    1. Write down the new keys above.
    2. Add the step from N to N + 1 to STEPS in opening.py, from which FORMAT follows. It runs at opening, after all
       steps before it, in one transaction: a crash leaves the old store or the new one. Let it touch indexes and
       counters, not bodies.
    3. Pack a store of the new format: python -m support.store_formats, in tests/. The packed stores of earlier formats
       stay. test_formats.py opens each of them, checks it, and compares what is in it.
    4. Note the digest of the new layout in test_formats.py.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import lmdb

from titanic.errors import StoreCorrupt
from titanic.util.ids import SIZE

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
LOAD = struct.Struct("<QQQ")
OWNER_LOAD = struct.Struct("<QQ")
ARCHIVE = struct.Struct("<BQ")
_TIME = struct.Struct(">Q")
_TIMER = struct.Struct(">cQ")
TIME_SIZE = _TIME.size

FORMAT_KEY = b"store_format"
UNRELEASED_FORMAT_KEY = b"format"
"""What stores have that were written before the first release: they had formats 1 to 6 of their own."""
CAPACITY_KEY = b"capacity"
SEQUENCE_KEY = b"sequence"
ARCHIVE_KEY = b"archive"
ARCHIVIST_KEY = b"archivist"
IDENTITY_KEY = b"identity"
SERVICES_KEY = b"services"
LOST_KEY = b"lost"
CHARGED_KEY = b"charged"
SETTLED_KEY = b"settled"
LOAD_PREFIX = b"n"
OWNER_PREFIX = b"o"

EXPIRY = b"E"
REPLIED = b"R"
DEAD = b"D"
KEPT = b"U"
BODIES = b"B"
KEY = b"K"

MOST_BYTES = 1 << 46
"""A store of that size can't be mapped: such a capacity is damage."""
REPAIR = "stop the server and repair the store: titanic check --repair"
"""What to do about damage."""

PAGE = 4096
NODE_MAX = 2038
"""LMDB moves a value to pages of its own when 8 bytes, key and value together exceed this."""
INLINE = NODE_MAX - 8 - SIZE
"""The largest record that fits into its row; a larger one has its body in a blob."""


def unpack(layout: struct.Struct, value: bytes | memoryview, database: str, key: bytes | memoryview) -> tuple[int, ...]:
    """The numbers in the row `key`. Raises StoreCorrupt when `value` isn't as long as they are."""
    if len(value) != layout.size:
        raise odd_row(database, key, value)
    return layout.unpack(value)


def odd_row(database: str, key: bytes | memoryview, part: bytes | memoryview) -> StoreCorrupt:
    """The exception for a row of which a part, key or value, has a length that it can't have."""
    name = bytes(key)
    shown = name.decode() if name.isascii() and name.decode().isprintable() else name.hex()
    return StoreCorrupt("the store is damaged", f"{shown} in '{database}' has {len(part)} bytes", REPAIR)


class Databases(NamedTuple):
    """Handles of the databases, by name."""

    meta: lmdb._Database
    requests: lmdb._Database
    replies: lmdb._Database
    ready: lmdb._Database
    later: lmdb._Database
    retries: lmdb._Database
    keys: lmdb._Database
    timers: lmdb._Database
    closed: lmdb._Database
    blobs: lmdb._Database
    graves: lmdb._Database
    aside: lmdb._Database
    facts: lmdb._Database


@lru_cache(maxsize=4096)
def ready_prefix(service: bytes, priority: int) -> bytes:
    """The key in `ready` up to the id: oldest first within a priority, higher priorities before."""
    return b"%b\0%c" % (service, 9 - priority)


def service_of(prefix: bytes) -> bytes:
    """The service in what `ready_prefix` made."""
    return prefix[:-2]


def later_key(due: int, uuid: bytes) -> bytes:
    """The key in `later`; `due` in µs since the epoch."""
    return _TIME.pack(due) + uuid


def due_of(key: bytes | memoryview) -> int:
    """The time in a key of `later`, in µs since the epoch. Raises StoreCorrupt when the key is too short."""
    if len(key) < TIME_SIZE:
        raise odd_row("later", key, key)
    due: int = _TIME.unpack_from(key)[0]
    return due


def uuid_of(key: bytes) -> bytes:
    """The id at the end of a key of `ready`, `later` or `timers`."""
    return key[-SIZE:]


def timer_key(kind: bytes, time: int, subject: bytes) -> bytes:
    """The key in `timers`; `time` in µs since the epoch, `subject` a uuid or a key of `keys`."""
    return kind + _TIME.pack(time) + subject


def timer_of(key: bytes | memoryview) -> tuple[bytes, int, bytes]:
    """Kind, time and subject in a key of `timers`. Raises StoreCorrupt when the key is too short."""
    if len(key) < _TIMER.size:
        raise odd_row("timers", key, key)
    kind, time = _TIMER.unpack_from(key)
    return kind, time, bytes(key[_TIMER.size :])


def closed_key(sequence: int) -> bytes:
    """The key in `closed`."""
    return _TIME.pack(sequence)


def sequence_of(key: bytes | memoryview) -> int:
    """The number in a key of `closed`. Raises StoreCorrupt when the key has another length."""
    if len(key) != TIME_SIZE:
        raise odd_row("closed", key, key)
    sequence: int = _TIME.unpack(key)[0]
    return sequence


def cost(key_size: int, value_size: int) -> int:
    """Bytes of the file that a row is taken to need until it is there and its pages can be counted.

    A row in a page has 10 bytes of its own. A large one leaves a part of its page empty, a small one up to a
    sixteenth of its size.
    """
    row = key_size + value_size + 10
    return row + (row >> 4) if row < 500 else PAGE // (PAGE // (row + 8))
