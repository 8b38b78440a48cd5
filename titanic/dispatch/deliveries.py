"""What workers have that return with their requests, or come with them to another node.

Of a store on this machine there are notes in a file beside it: after a restart, these workers return with their
requests. A note is written before the request leaves, and erased when the outcome of its attempt is on disk. It is in
the kernel's memory then: the death of this process takes nothing, a power cut perhaps the last notes. A note that is
damaged, or is of another store, counts as none.

    slot 0          MAGIC, and the identity of the store
    further slots   zeros, or: CRC-32 of the rest; length of `keeper`; µs since the epoch; UUID; delivery; `keeper`

The delivery is a number of 8 bytes and a secret of 16, as in the worker's `client` frame.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from titanic.logs import Incident
from titanic.util.files import take_room

log = logging.getLogger(__name__)

FILE = "deliveries"

MAGIC = b"titanic deliveries 1"

SLOT = 256
_HEADER = struct.Struct("<20s16s")
_NOTE = struct.Struct("<BQ16s24s")
_CRC = struct.Struct("<I")
MAX_KEEPER = SLOT - _CRC.size - _NOTE.size
"""Bytes of a `keeper`."""

_EMPTY = bytes(SLOT)

FIRST_SLOTS = 256
MAX_SLOTS = 1 << 17
"""Of more requests in the hands of workers there are no notes."""

_DELIVERY = 24
"""Bytes of the delivery, which is in hexadecimal in a worker's `client` frame."""

_CONTEXT = b'{"uuid":"'
"""What follows it there: the UUID is next."""


class Note(NamedTuple):
    """A worker had this request when the server ended. `delivery` and `keeper`: as in `broker.core.missing`."""

    uuid: bytes
    delivery: bytes
    keeper: bytes
    sent_us: int


class Deliveries:
    """What such workers have, in memory. Methods are called in the loop's thread."""

    def __init__(self) -> None:
        self._slots: dict[bytes, int] = {}
        """Where the note of each request is, by UUID."""

    def __contains__(self, uuid: object) -> bool:
        return uuid in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    def read(self) -> list[Note]:
        """Return the notes of the last run. Those that are not dropped stay."""
        return []

    def given(self, token: bytes, keeper: bytes) -> None:
        """Note that a worker gets a request. `token`: its `client` frame. Without a keeper it does not keep it."""
        number, _, context = token.partition(_CONTEXT)
        try:
            uuid, delivery = bytes.fromhex(context[:32].decode()), bytes.fromhex(number.decode())
        except ValueError:
            return
        if len(uuid) == 16 and not keeper:
            self.drop(uuid)
        elif len(uuid) == 16 and len(delivery) == _DELIVERY:
            self.note(uuid, delivery, keeper)

    def note(self, uuid: bytes, delivery: bytes, keeper: bytes) -> None:
        """Note that a worker has a request."""
        self._slots[uuid] = 0

    def drop(self, uuid: bytes) -> None:
        """Forget a request: its attempt has ended."""
        self._slots.pop(uuid, None)

    def close(self) -> None:
        """Close the file, if there is one; the notes stay."""


class DeliveryNotes(Deliveries):
    """The notes of a server, in a file. `read` comes first."""

    def __init__(self, folder: Path, identity: bytes, now_us: Callable[[], int]) -> None:
        """`identity`: that of the store in this folder."""
        super().__init__()
        self._now_us = now_us
        self._path = folder / FILE
        self._head = _HEADER.pack(MAGIC, identity)
        self._incident = Incident(log, "note what workers have")
        self._map: mmap.mmap | None = None
        self._free: list[int] = []

    def read(self) -> list[Note]:
        try:
            size = self._path.stat().st_size // SLOT * SLOT
            if size <= SLOT:
                return []
            with self._path.open("rb+") as file:
                self._map = mmap.mmap(file.fileno(), size)
        except OSError:
            return []
        if self._map[: _HEADER.size] != self._head:  # a copy, or of another version
            self._map[:] = bytes(size)
            self._map[: _HEADER.size] = self._head
        notes: dict[bytes, Note] = {}
        for slot in range(1, size // SLOT):
            note = self._read(slot)
            if note is not None and note.uuid not in notes:
                notes[note.uuid] = note
                self._slots[note.uuid] = slot
            else:
                self._erase(slot)
        return list(notes.values())

    def note(self, uuid: bytes, delivery: bytes, keeper: bytes) -> None:
        if len(keeper) > MAX_KEEPER:
            return
        slot = self._slots.get(uuid)
        if slot is None:
            if not self._free and not self._grow():
                return
            slot = self._slots[uuid] = self._free.pop()
        said = _NOTE.pack(len(keeper), self._now_us(), uuid, delivery) + keeper
        said = _CRC.pack(crc32(said)) + said
        assert self._map is not None
        self._map[slot * SLOT : slot * SLOT + len(said)] = said

    def drop(self, uuid: bytes) -> None:
        slot = self._slots.pop(uuid, None)
        if slot is not None:
            self._erase(slot)

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
        self._slots.clear()
        self._free.clear()

    def _read(self, slot: int) -> Note | None:
        assert self._map is not None
        said = self._map[slot * SLOT : (slot + 1) * SLOT]
        length, sent_us, uuid, delivery = _NOTE.unpack_from(said, _CRC.size)
        end = _CRC.size + _NOTE.size + length
        if not sent_us or end > SLOT or crc32(said[_CRC.size : end]) != _CRC.unpack_from(said)[0]:
            return None
        return Note(uuid, delivery.hex().encode(), said[end - length : end], sent_us)

    def _erase(self, slot: int) -> None:
        if self._map is not None:
            if self._map[slot * SLOT : (slot + 1) * SLOT] != _EMPTY:
                self._map[slot * SLOT : (slot + 1) * SLOT] = _EMPTY
            self._free.append(slot)

    def _grow(self) -> bool:
        """Double the file. All of it is taken from the disk: a write into what is not there would kill this process."""
        before = 0 if self._map is None else len(self._map) // SLOT
        slots = before * 2 or FIRST_SLOTS
        if slots > MAX_SLOTS:
            self._incident.failed(f"workers have more than {MAX_SLOTS // 2} requests")
            return False
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                take_room(descriptor, before * SLOT, (slots - before) * SLOT)
                grown = mmap.mmap(descriptor, slots * SLOT)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._incident.failed(error)
            return False
        if self._map is None:
            grown[:] = bytes(len(grown))
            grown[: _HEADER.size] = self._head
        else:
            self._map.close()
        self._map = grown
        self._free += range(slots - 1, max(before, 1) - 1, -1)
        self._incident.recovered()
        return True
