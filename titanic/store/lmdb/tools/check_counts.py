"""The check of `blobs`, `graves` and `meta`: what is there is counted, and what belongs to nobody is found.

It comes last: only then is it known what the records refer to.
"""

from __future__ import annotations

from titanic.store.lmdb import blob
from titanic.store.lmdb.read import ReadTransaction
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
from titanic.store.lmdb.tools.findings import Findings, Remedy, Verb
from titanic.util.ids import SIZE


class CountFindings(Findings):
    """The walk through what is counted. `_loads` are the loads of the services, as they have been found."""

    def __init__(self, txn: ReadTransaction) -> None:
        super().__init__(txn)
        self._loads: dict[bytes, list[int]] = {}

    def _blobs(self) -> None:
        found: dict[int, int] = {}
        for view in self._each(self._txn.cursor(self._db.blobs).iternext(values=False)):
            if len(view) != blob.KEY_SIZE:
                self._set_aside("blobs", bytes(view))
                continue
            blob_id = blob.id_of(view)
            found[blob_id] = found.get(blob_id, 0) + 1
            ref = self._refs.get(blob_id)
            key = bytes(view)
            if ref is not None and key >= blob.key(blob_id, ref.pieces):
                what = f"it has only {ref.pieces} pieces"
                self._report("blobs", key, what, Remedy(Verb.DELETE, "blobs", key))
        for view, value in self._txn.cursor(self._db.graves).iternext():
            if len(view) != blob.GRAVE_KEY_SIZE:
                self._set_aside("graves", bytes(view))
                continue
            blob_id = blob.buried_id(view)
            pieces = U32.unpack(value)[0] if len(value) == U32.size else -1
            if blob_id in self._refs:
                what = "a record refers to it"
                self._report("graves", bytes(view), what, Remedy(Verb.DELETE, "graves", bytes(view)))
            elif found.pop(blob_id, 0) != pieces:
                what = f"it doesn't have {pieces} pieces" if pieces >= 0 else f"the row has {len(value)} bytes"
                self._report("graves", bytes(view), what, Remedy(Verb.BURY, "blobs", bytes(view)))
        for blob_id in found.keys() - self._refs.keys():
            key = blob.grave_key(blob_id)
            self._report("blobs", key, "no record refers to it", Remedy(Verb.BURY, "blobs", key))

    def _meta(self) -> None:
        self._plain_meta()
        counted: dict[bytes, tuple[int, ...] | str] = {}
        for view, value in self._txn.cursor(self._db.meta).iternext():
            if view[:1] == LOAD_PREFIX:
                load = LOAD.unpack(value) if len(value) == LOAD.size else f"{len(value)} bytes"
                counted[bytes(view[len(LOAD_PREFIX) :])] = load
        for service in counted.keys() | self._loads.keys():
            ready, pending, size = self._loads.get(service, (0, 0, 0))
            if counted.get(service) == ((ready, pending, size) if ready or pending else None):
                continue
            key = LOAD_PREFIX + service
            if pending:
                remedy = Remedy(Verb.PUT, "meta", key, LOAD.pack(ready, pending, size))
            else:
                remedy = Remedy(Verb.DELETE, "meta", key)
            what = f"{counted.get(service)} for {service!r}, there are {ready} ready of {pending}, {size} bytes"
            self._report("meta", None, what, remedy)

    def _plain_meta(self) -> None:
        """The rows of `meta` that are no counts of what is stored."""
        right = U32.pack(FORMAT)
        value = self._txn.get(FORMAT_KEY, db=self._db.meta)
        if value is None or bytes(value) != right:
            what = "'format' " + ("is missing" if value is None else f"is {value.hex()}")
            self._report("meta", None, what, Remedy(Verb.PUT, "meta", FORMAT_KEY, right))
        found, fault = self._meta_number(CAPACITY_KEY, U64)
        if found is None or found[0] >= MOST_BYTES:
            right = U64.pack(self._environment.capacity)
            what = f"'capacity' {fault}" if found is None else f"'capacity' is {found[0]}"
            self._report("meta", None, what, Remedy(Verb.PUT, "meta", CAPACITY_KEY, right))
        for key, least, most in ((IDENTITY_KEY, SIZE, SIZE), (ARCHIVIST_KEY, SIZE, 1 << 20)):
            value = self._txn.get(key, db=self._db.meta)
            if value is not None and not least <= len(value) <= most:
                what = f"'{key.decode()}' has {len(value)} bytes"
                self._report("meta", None, what, Remedy(Verb.SET_ASIDE, "meta", key))
        _, fault = self._meta_number(LOST_KEY, U64)
        if "bytes" in fault:
            self._report("meta", None, f"'lost' {fault}", Remedy(Verb.SET_ASIDE, "meta", LOST_KEY))

    def _set_aside(self, name: str, key: bytes) -> None:
        self._report(name, key, "the key has a wrong length", Remedy(Verb.SET_ASIDE, name, key))
