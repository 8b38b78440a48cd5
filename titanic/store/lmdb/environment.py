"""An open LMDB environment with all that its transactions share."""

from __future__ import annotations

from typing import NamedTuple

import lmdb

from titanic.store.lmdb.capacity import Room
from titanic.store.lmdb.schema import Databases
from titanic.util.ids import IdMaker


class Settings(NamedTuple):
    """How the store was asked to behave.

    `keep_closed`: whether closed requests are remembered in `closed`. `closed_body_limit`: the largest request and the
    largest reply that is remembered with its frames, in bytes. `drop_unarchived`: whether entries that the archive has
    not got yet make way when the store is full.
    """

    keep_closed: bool = True
    closed_body_limit: int = 64 << 10
    drop_unarchived: bool = False


class Pace:
    """What the next write transaction should know of the one before. Only the writer touches it.

    `freed` are the pages that it freed, which can't be used yet. `wanted` are the bytes that were refused for want of
    room that can be made. `disk_refused` is what the disk had left, in bytes, when it had no room for the last
    transaction; None when that was committed. (Any thread may read it.)
    """

    def __init__(self) -> None:
        self.freed = 0
        self.wanted = 0
        self.disk_refused: int | None = None


class Environment(NamedTuple):
    """What a transaction works on."""

    env: lmdb.Environment
    databases: Databases
    room: Room
    settings: Settings
    ids: IdMaker
    pace: Pace

    @property
    def capacity(self) -> int:
        """In bytes."""
        return self.room.capacity
