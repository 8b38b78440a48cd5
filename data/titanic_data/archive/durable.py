"""Files that are there, whole, after a power cut."""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32


def sync_directory(directory: Path) -> None:
    """Make the names in a directory last."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(file: Path) -> tuple[int, int]:
    """Make a file's content last; its bytes and their CRC-32."""
    size = total = 0
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            size += len(piece)
            total = crc32(piece, total)
        os.fsync(opened.fileno())
    return size, total


def checksum(file: Path) -> int:
    """The CRC-32 of a file."""
    total = 0
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            total = crc32(piece, total)
    return total


def write_whole(file: Path, text: str, *, new: bool = False) -> None:
    """Write a file so that it is there wholly or, after a crash, as it was before.

    With `new` there must be none of that name: FileExistsError otherwise, also when another process was quicker.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with draft.open("w") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    try:
        if new:
            os.link(draft, file)
        else:
            draft.rename(file)
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(file.parent)


def make_directory(directory: Path) -> None:
    """Make a directory that lasts, with those above it."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)
