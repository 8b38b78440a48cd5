"""A store's workload under strace: killed or failed at any system call, and its writes recorded for power cuts.

LMDB writes pages with pwrite64 and (after lseek) writev, makes them last with fdatasync, and then writes the page that
says where the trees begin through a second descriptor, opened with O_DSYNC, which makes that write last by itself; in a
`relaxed` store through the first one, so that it lasts from the next fdatasync on.
"""

from __future__ import annotations

import random
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.processes import fork
from support.store_workload import read_ledger

CALLS = "pwrite64,pwritev,writev,fdatasync"
SECTOR = 512
PAGE = 4096
META = 120
"""Bytes that LMDB writes when it writes a meta page; the last eight are the transaction's number."""
_NUMBER = struct.Struct("<Q")


KILLED = "+++ killed by SIGKILL +++"
INJECTED = "(INJECTED)"


_WAITS = """
import ctypes, sys
from importlib import import_module
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))  # PR_SET_PTRACER: a process beside it may trace it, too
main = import_module(sys.argv[1]).main
print("ready", flush=True)
input()
main(*sys.argv[2:])
"""


class Traced(NamedTuple):
    """What came of a process: its exit status, strace's log, and what it said on stderr."""

    status: int
    log: str
    said: str


class Run(NamedTuple):
    """What came of a workload: its exit status, strace's log, and the ledger."""

    status: int
    log: str
    ledger: list[dict[str, Any]]


def trace(log: Path, options: Sequence[str | Path], module: str, *arguments: str | Path) -> Traced:
    """Run a module of `support` under strace with these options, from when Python has imported what it needs."""
    with fork("-c", _WAITS, f"support.{module}", *arguments) as process:
        assert process.stdout is not None
        next(process.stdout)
        command = ["strace", "-f", "-o", log, *options, "-p", str(process.pid)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            assert strace.stderr is not None
            attached = strace.stderr.readline()
            _, said = process.communicate("\n")
            assert attached.endswith(" attached\n"), attached
    return Traced(process.returncode, log.read_text(), said)


def run(path: Path, seed: int, steps: int, *options: str, durability: str = "synced") -> Run:
    """Run the workload on the store `path` under strace with these options."""
    ledger = path.with_suffix(".ledger")
    ledger.unlink(missing_ok=True)
    workload = "store_workload", path, ledger, str(seed), str(steps), durability
    done = trace(path.with_suffix(".strace"), options, *workload)
    return Run(done.status, done.log, read_ledger(ledger) if ledger.exists() else [])


def calls(path: Path, seed: int, steps: int, durability: str = "synced") -> list[tuple[str, int]]:
    """The calls on the data file that a whole run makes, in order: by name, and which of that name."""
    done = run(path, seed, steps, "-P", str(path / "data.mdb"), "-e", f"trace={CALLS}", durability=durability)
    assert done.status == 0, done.log
    names = re.findall(rf"^\d+ +({CALLS.replace(',', '|')})\(", done.log, re.MULTILINE)
    count: Counter[str] = Counter()
    found = []
    for name in names:
        count[name] += 1
        found.append((name, count[name]))
    return found


class Write(NamedTuple):
    """Bytes written to the data file. `lasts`: through a descriptor that syncs by itself."""

    offset: int
    data: bytes
    lasts: bool

    @property
    def number(self) -> int:
        """Of the transaction that writes its meta page; 0 for what is no meta page."""
        return _NUMBER.unpack(self.data[-8:])[0] if len(self.data) == META else 0


class Sync(NamedTuple):
    """All earlier writes last."""


class FailedSync(NamedTuple):
    """Of the writes before it, the disk may have taken any part, and later syncs do not make up for that."""


class Acknowledged(NamedTuple):
    """So many lines of the ledger were written."""

    lines: int


Recorded = Write | Sync | FailedSync | Acknowledged

_OPENED = re.compile(r'openat\(.*"(?P<path>.*)", (?P<flags>[A-Z_|]+).*\) = (?P<fd>\d+)')
_CALL = re.compile(r"^\d+ +(?P<name>\w+)\((?P<fd>\d+)(?:, (?P<rest>.*))?\) += (?P<result>\d+)")


RECORDING = ("-xx", "-s", str(1 << 24), "-e", f"trace={CALLS},openat,close,lseek,write,fsync,ftruncate,msync")


def record(path: Path, seed: int, steps: int, *options: str, durability: str = "synced") -> list[Recorded]:
    """What a run does to the data file, in order, and when it acknowledges."""
    done = run(path, seed, steps, *RECORDING, *options, durability=durability)
    assert done.status == 0, done.log[-2000:]
    return read_record(done.log, path)


def read_record(log: str, path: Path) -> list[Recorded]:
    """The same of any log that was made with the options RECORDING."""
    data, ledger = str(path / "data.mdb"), str(path.with_suffix(".ledger"))
    opened: dict[str, tuple[str, bool]] = {}
    position: dict[str, int] = {}
    events: list[Recorded] = []
    lines = 0
    for line in log.splitlines():
        if match := _OPENED.search(line):
            name = unescaped(match["path"]).decode(errors="replace")
            opened[match["fd"]] = name, "O_DSYNC" in match["flags"]
            continue
        match = _CALL.match(line)
        if match is None or match["fd"] not in opened:
            if "fdatasync(" in line and INJECTED in line:
                events.append(FailedSync())
            continue
        name, lasts = opened[match["fd"]]
        rest = match["rest"] or ""
        if match["name"] == "close":
            del opened[match["fd"]]
        elif name == ledger and match["name"] == "write":
            lines += 1
            events.append(Acknowledged(lines))
        elif name != data:
            continue
        elif match["name"] == "lseek":
            position[match["fd"]] = int(match["result"])
        elif match["name"] in ("fdatasync", "fsync"):
            events.append(Sync())
        else:
            chunks = b"".join(unescaped(text) for text in re.findall(r'"([^"]*)"', rest))
            assert len(chunks) == int(match["result"]), f"not all of it is in the log: {line[:100]}"
            if match["name"] == "pwrite64":
                offset = int(rest.rsplit(", ", 1)[1])
            else:
                assert match["name"] == "writev", match["name"]
                offset = position[match["fd"]]
                position[match["fd"]] += len(chunks)
            events.append(Write(offset, chunks, lasts))
    return events


def unescaped(text: str) -> bytes:
    """A string as strace prints it with `-xx`."""
    return bytes.fromhex(text.replace("\\x", ""))


def power_cut(before: bytes, events: list[Recorded], rng: random.Random) -> tuple[bytes, int]:
    """The data file after the power failed behind the last of `events`, and the lines of the ledger written till then.

    What was synced is there. Of what came after the last sync, the disk has taken any part: whole writes, or sectors.
    """
    image = bytearray(before)
    lines = 0
    pending: list[Write] = []
    for n, event in enumerate(events):
        if isinstance(event, Acknowledged):
            lines = event.lines
        elif isinstance(event, Sync):
            for write in pending:
                _apply(image, write.offset, write.data)
            pending = []
        elif isinstance(event, FailedSync):
            _take_part(image, pending, rng)
            pending = []
        elif event.lasts and n < len(events) - 1:
            _apply(image, event.offset, event.data)
        else:
            pending.append(event)
    _take_part(image, pending, rng)
    return bytes(image), lines


def _take_part(image: bytearray, writes: list[Write], rng: random.Random) -> None:
    mood = rng.choice(("none", "all", "writes", "sectors"))
    for write in writes:
        if mood == "all" or (mood == "writes" and rng.random() < 0.5):
            _apply(image, write.offset, write.data)
        elif mood == "sectors":
            for at in range(0, len(write.data), SECTOR):
                if rng.random() < 0.5:
                    _apply(image, write.offset + at, write.data[at : at + SECTOR])


def last_number(image: bytes) -> int:
    """The number of the last transaction in a data file."""
    return max(_NUMBER.unpack_from(image, page + 32 + META - 8)[0] for page in (0, PAGE))


def left_of(image: bytes, events: list[Recorded], lines: int) -> tuple[int, int]:
    """How many commits of those in `events` a data file does not have, and how many lines of the ledger tell of the
    others."""
    number, missing, seen = last_number(image), 0, 0
    for event in events:
        if isinstance(event, Acknowledged):
            seen = event.lines
        elif isinstance(event, Write) and event.number > number:
            lines = min(lines, seen)
            missing += 1
    return missing, lines


def _apply(image: bytearray, offset: int, data: bytes) -> None:
    if len(image) < offset + len(data):
        image.extend(bytes(offset + len(data) - len(image)))
    image[offset : offset + len(data)] = data
