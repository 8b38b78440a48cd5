"""The check of `blobs`, `graves` and `meta`: what is there is counted, and what belongs to no record is found.

It comes last: only then is it known what the records refer to.
"""

from __future__ import annotations

from titanic.store.lmdb import blob
from titanic.store.lmdb.schema import (
    ARCHIVIST_KEY,
    CAPACITY_KEY,
    FORMAT,
    FORMAT_KEY,
    IDENTITY_KEY,
    LOAD,
    LOAD_PREFIX,
    LOST_KEY,
    MOST_BYTES,
    U32,
    U64,
)
from titanic.store.lmdb.tools.findings import Remedy, Verb, Walk
from titanic.util.ids import SIZE


def check_blobs(walk: Walk) -> None:
    found: dict[int, int] = {}
    for view in walk.each(walk.tx.raw.cursor(walk.tx.db.blobs).iternext(values=False)):
        if len(view) != blob.KEY_SIZE:
            _set_aside(walk, "blobs", bytes(view))
            continue
        blob_id = blob.id_of(view)
        found[blob_id] = found.get(blob_id, 0) + 1
        ref = walk.refs.get(blob_id)
        key = bytes(view)
        if ref is not None and key >= blob.key(blob_id, ref.pieces):
            what = f"it has only {ref.pieces} pieces"
            walk.report("blobs", key, what, Remedy(Verb.DELETE, "blobs", key))
    for view, value in walk.tx.raw.cursor(walk.tx.db.graves).iternext():
        if len(view) != blob.GRAVE_KEY_SIZE:
            _set_aside(walk, "graves", bytes(view))
            continue
        blob_id = blob.buried_id(view)
        pieces = U32.unpack(value)[0] if len(value) == U32.size else -1
        if blob_id in walk.refs:
            what = "a record refers to it"
            walk.report("graves", bytes(view), what, Remedy(Verb.DELETE, "graves", bytes(view)))
        elif found.pop(blob_id, 0) != pieces:
            what = f"it doesn't have {pieces} pieces" if pieces >= 0 else f"the row has {len(value)} bytes"
            walk.report("graves", bytes(view), what, Remedy(Verb.BURY, "blobs", bytes(view)))
    for blob_id in found.keys() - walk.refs.keys():
        key = blob.grave_key(blob_id)
        walk.report("blobs", key, "no record refers to it", Remedy(Verb.BURY, "blobs", key))


def check_meta(walk: Walk) -> None:
    _plain_meta(walk)
    counted: dict[bytes, tuple[int, ...] | str] = {}
    for view, value in walk.tx.raw.cursor(walk.tx.db.meta).iternext():
        if view[:1] == LOAD_PREFIX:
            load = LOAD.unpack(value) if len(value) == LOAD.size else f"{len(value)} bytes"
            counted[bytes(view[len(LOAD_PREFIX) :])] = load
    for service in counted.keys() | walk.loads.keys():
        ready, pending, size = walk.loads.get(service, (0, 0, 0))
        if counted.get(service) == ((ready, pending, size) if ready or pending else None):
            continue
        key = LOAD_PREFIX + service
        if pending:
            remedy = Remedy(Verb.PUT, "meta", key, LOAD.pack(ready, pending, size))
        else:
            remedy = Remedy(Verb.DELETE, "meta", key)
        what = f"{counted.get(service)} for {service!r}, there are {ready} ready of {pending}, {size} bytes"
        walk.report("meta", None, what, remedy)


def _plain_meta(walk: Walk) -> None:
    """The rows of `meta` that are no counts of what is stored."""
    right = U32.pack(FORMAT)
    value = walk.tx.raw.get(FORMAT_KEY, db=walk.tx.db.meta)
    if value is None or bytes(value) != right:
        what = "'format' " + ("is missing" if value is None else f"is {value.hex()}")
        walk.report("meta", None, what, Remedy(Verb.PUT, "meta", FORMAT_KEY, right))
    found, fault = walk.meta_number(CAPACITY_KEY, U64)
    if found is None or found[0] >= MOST_BYTES:
        right = U64.pack(walk.tx.environment.capacity)
        what = f"'capacity' {fault}" if found is None else f"'capacity' is {found[0]}"
        walk.report("meta", None, what, Remedy(Verb.PUT, "meta", CAPACITY_KEY, right))
    for key, least, most in ((IDENTITY_KEY, SIZE, SIZE), (ARCHIVIST_KEY, SIZE, 1 << 20)):
        value = walk.tx.raw.get(key, db=walk.tx.db.meta)
        if value is not None and not least <= len(value) <= most:
            what = f"'{key.decode()}' has {len(value)} bytes"
            walk.report("meta", None, what, Remedy(Verb.SET_ASIDE, "meta", key))
    _, fault = walk.meta_number(LOST_KEY, U64)
    if "bytes" in fault:
        walk.report("meta", None, f"'lost' {fault}", Remedy(Verb.SET_ASIDE, "meta", LOST_KEY))


def _set_aside(walk: Walk, name: str, key: bytes) -> None:
    walk.report(name, key, "the key has a wrong length", Remedy(Verb.SET_ASIDE, name, key))
