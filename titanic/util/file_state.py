"""Whether a file is another one than before, and on which file system one is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

IN_MEMORY = ("tmpfs", "ramfs")
"""File systems in RAM."""

MOUNTS = Path("/proc/self/mountinfo")


def state_of(path: str | Path | None) -> tuple[int, ...]:
    """What is different when a file has changed; empty without one, or when it cannot be looked at."""
    if path is None:
        return ()
    try:
        found = Path(path).stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode


def file_system(directory: Path) -> str:
    """The kind of file system on which a directory is, which need not exist yet."""
    device = 0
    for there in (directory.absolute(), *directory.absolute().parents):
        with suppress(OSError):
            device = there.stat().st_dev
            break
    wanted = f"{os.major(device)}:{os.minor(device)}"
    found = "an unknown file system"
    if MOUNTS.exists():
        for line in MOUNTS.read_text(errors="replace").splitlines():
            # 25 24 0:23 / /dev/shm rw,relatime shared:3 - tmpfs tmpfs rw,size=65536k
            before, _, after = line.partition(" - ")
            if before.split(" ", 3)[2] == wanted:
                found = after.split(" ", 1)[0]
    return found
