"""What a process has used of the machine, as Linux tells it (proc(5)); elsewhere nothing is known."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_UTIME, _STIME = 11, 12
"""Fields of /proc/PID/stat behind the name of the command."""


def cpu_seconds(pid: int) -> float | None:
    """Processor time of a process, all its threads together."""
    with suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[_UTIME]) + int(fields[_STIME])) / os.sysconf("SC_CLK_TCK")
    return None


def memory_bytes(pid: int) -> int | None:
    """Memory of its own, without files that are mapped: the store's pages belong to the system's cache."""
    with suppress(OSError, IndexError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return None
