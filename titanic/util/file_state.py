"""Whether a file is another one than before."""

from __future__ import annotations

from pathlib import Path


def state_of(path: str | Path | None) -> tuple[int, ...]:
    """What is different when a file has changed; empty without one, or when it cannot be looked at."""
    if path is None:
        return ()
    try:
        found = Path(path).stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
