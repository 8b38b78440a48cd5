"""The lock that lets one process at a time open a store.

LMDB itself would let several in, but two Titanics would dispatch every request twice. The lock is an flock() on
`titanic.lock`: the kernel drops it when the process ends, however it ends, so nobody has to clear it.
The text in the file is for people only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path

from titanic.errors import StoreLocked

FILE = "titanic.lock"


def acquire(directory: Path) -> int:
    """Take the lock and return the descriptor that holds it. Raises StoreLocked, or OSError."""
    descriptor = os.open(directory / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        os.close(descriptor)
        pid = re.match(r"pid (\d+)", holder)
        raise StoreLocked(
            f"the store in {directory} is in use",
            f"it is open in the process with {holder or 'an unknown pid'}",
            "stop that process, or choose another directory",
            pid=int(pid[1]) if pid else None,
        ) from error
    except OSError:
        os.close(descriptor)
        raise
    if not os.fstat(descriptor).st_nlink:  # its holder has removed it: others would lock another file
        os.close(descriptor)
        return acquire(directory)
    since = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with contextlib.suppress(OSError):  # a full disk, on which there may yet be a store to be read and emptied
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} since {since}\n".encode(), 0)
    return descriptor


def release(descriptor: int) -> None:
    """Give the lock back. The file stays."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def remove(directory: Path) -> None:
    """Remove the file where no store is. Who does so holds the lock."""
    (directory / FILE).unlink(missing_ok=True)
