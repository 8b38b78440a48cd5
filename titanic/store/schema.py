"""The databases of a store, their keys, and what a row costs.

    database   key                                        value
    meta       b"format"                                  u32, FORMAT
               b"capacity"                                u64, bytes, as the store was last opened
               b"used"                                    u64, sum of `cost` over all rows outside meta
               b"n" + service                             u64, rows of `ready` for it; no row instead of 0
    requests   uuid                                       request.py: header and body
    replies    uuid                                       outcome.py: how it ended, and the reply
    ready      service + 00 + (9 - priority) + uuid       nothing: what can be dispatched now
    later      due, u64 µs + uuid                         service + 00 + (9 - priority)
    retries    uuid                                       retry.py: attempts, delay, last error
    keys       (reserved: idempotency keys)
    closed     (reserved: the lives of closed requests)

Numbers in keys are big-endian, so that they sort; in values little-endian. A service's name has no NUL, so no
name is the beginning of another's rows, and the longest key is 255 + 2 + 16 bytes (LMDB takes 511). A row of
`later` holds the beginning of the key that it will have in `ready`: a request becomes ready without being
looked at.

The counts per service in `meta` are there so that a start needs no scan, however many requests are stored.

To change a key or the meaning of a database: raise FORMAT and convert the store, in one transaction, when an
older one is opened. Changes inside a record don't need that (record.py).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import lmdb

from titanic.ids import SIZE

FORMAT = 1

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
_DUE = struct.Struct(">Q")
DUE_SIZE = _DUE.size

FORMAT_KEY = b"format"
CAPACITY_KEY = b"capacity"
USED_KEY = b"used"
WAITING_PREFIX = b"n"

PAGE = 4096
_NODE_MAX = 2038  # LMDB moves a value to pages of its own when 8 bytes, key and value together exceed this
_ROW_OVERHEAD = 32
_PAGE_HEADER = 16


class Databases(NamedTuple):
    """Handles of the databases, by name."""

    meta: lmdb._Database
    requests: lmdb._Database
    replies: lmdb._Database
    ready: lmdb._Database
    later: lmdb._Database
    retries: lmdb._Database
    keys: lmdb._Database
    closed: lmdb._Database


@lru_cache(maxsize=4096)
def ready_prefix(service: bytes, priority: int) -> bytes:
    """The key in `ready` up to the id: oldest first within a priority, higher priorities before."""
    return b"%b\0%c" % (service, 9 - priority)


def service_of(prefix: bytes) -> bytes:
    """The service in what `ready_prefix` made."""
    return prefix[:-2]


def later_key(due: int, uuid: bytes) -> bytes:
    """The key in `later`; `due` in µs since the epoch."""
    return _DUE.pack(due) + uuid


def due_of(key: bytes | memoryview) -> int:
    """The time in a key of `later`, in µs since the epoch."""
    due: int = _DUE.unpack_from(key)[0]
    return due


def uuid_of(key: bytes) -> bytes:
    """The id at the end of a key of `ready` or `later`."""
    return key[-SIZE:]


def cost(key_size: int, value_size: int) -> int:
    """Bytes of the file that a row is taken to need.

    A row in a page has 10 bytes of its own, and pages are never quite full (rows of `ready` arrive in the
    middle of the tree and split pages in two): 32 in all. That comes within a few per cent of the real file for
    small rows. A large value has whole pages to itself.
    """
    if key_size + value_size + 8 <= _NODE_MAX:
        return key_size + value_size + _ROW_OVERHEAD
    pages = (value_size + _PAGE_HEADER + PAGE - 1) // PAGE
    return pages * PAGE + key_size + _ROW_OVERHEAD
