"""Processor time and switches of processes, from Linux' proc(5)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def processor_seconds(*pids: int) -> float:
    """What these processes, all below them, and those of them that have ended have used of the processors."""
    processes: dict[int, tuple[int, int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            processes[int(file.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    found = set(pids) & processes.keys()
    while more := {pid for pid, (parent, _) in processes.items() if parent in found} - found:
        found |= more
    return sum(processes[pid][1] for pid in found) / os.sysconf("SC_CLK_TCK")


def switches(pid: int) -> int:
    """How often a thread of this process has given up its processor, or has lost it."""
    return sum(
        int(line.split()[1])
        for status in _texts(Path(f"/proc/{pid}/task").glob("*/status"))
        for line in status.splitlines()
        if "ctxt_switches" in line
    )


def _texts(files: Iterable[Path]) -> Iterable[str]:
    for file in files:
        with suppress(OSError):
            yield file.read_text()
