"""Folders in memory: where nothing waits for a disk, as stores do with each commit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def in_memory(room: int) -> Path | None:
    """Where files are kept in memory, if there is `room` for so many bytes."""
    folder = Path("/dev/shm")
    there = folder.is_dir() and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > room
    return folder if there else None
