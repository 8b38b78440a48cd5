"""LMDB's own tools: check, repair, salvage, backup."""

from titanic.store.lmdb.tools.backup import Checked, backup, check_apart, restore
from titanic.store.lmdb.tools.check import check
from titanic.store.lmdb.tools.findings import Finding
from titanic.store.lmdb.tools.repair import Salvaged, repair, salvage
from titanic.store.moving import Progress

__all__ = [
    "Checked",
    "Finding",
    "Progress",
    "Salvaged",
    "backup",
    "check",
    "check_apart",
    "repair",
    "restore",
    "salvage",
]
