"""An open LMDB environment with all that its transactions share."""

from __future__ import annotations

from typing import NamedTuple

import lmdb

from titanic.ids import IdMaker
from titanic.store.schema import Databases


class Environment(NamedTuple):
    """`brim` is the size of the file, in bytes, from which nothing more is accepted (opening.py)."""

    env: lmdb.Environment
    databases: Databases
    capacity: int
    brim: int
    ids: IdMaker
