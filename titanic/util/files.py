"""The limit of open files, changes of a file, and the kind of a file system."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from titanic.errors import CallerError

MOST = 1 << 20
"""The most that is asked for when the system has no limit."""


def raise_open_files_limit() -> None:
    """Raise the limit as far as the system lets us: the usual one is too low for a server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else hard
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def require_open_files(count: int, what: str) -> None:
    """Raise CallerError when fewer than `count` are allowed, at the start and not in the middle of the work."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        raise CallerError(
            "too few file descriptors",
            f"{what} may need {count}, and the limit is {soft}",
            "raise it (ulimit -n, or LimitNOFILE= of a systemd unit), or use fewer --lanes",
        )


BLOCK = 1 << 20


def take_room(descriptor: int, offset: int, size: int) -> None:
    """Take the disk's room for a part of a file, so that it cannot be missing later. What is there stays."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, offset, size)
        return
    at = max(offset, os.fstat(descriptor).st_size)
    while at < offset + size:
        at += os.pwrite(descriptor, bytes(min(BLOCK, offset + size - at)), at)


def sync_data(descriptor: int) -> None:
    """Sync a file's data to the disk; on macOS also the disk's own cache, as LMDB does."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        getattr(os, "fdatasync", os.fsync)(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time change the files of a folder. Names that were changed are on disk at the end."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
        os.fsync(file)
    finally:
        os.close(file)


IN_MEMORY = ("tmpfs", "ramfs")
"""File systems in RAM."""

MOUNTS = Path("/proc/self/mountinfo")


def state_of(path: str | Path | None) -> tuple[int, ...]:
    """What is different when a file has changed; empty without one, or when it cannot be read."""
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
