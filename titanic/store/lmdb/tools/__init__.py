"""LMDB's own tools: check, repair, salvage, backup."""

from titanic.store.lmdb.tools.apart import Checked, check_apart
from titanic.store.lmdb.tools.backup import backup, restore
from titanic.store.lmdb.tools.check import check
from titanic.store.lmdb.tools.findings import Problem, Progress
from titanic.store.lmdb.tools.repair import repair
from titanic.store.lmdb.tools.salvage import Salvaged, salvage

__all__ = [
    "Checked",
    "Problem",
    "Progress",
    "Salvaged",
    "backup",
    "check",
    "check_apart",
    "repair",
    "restore",
    "salvage",
]
