"""Processes that read the store, and the pages that they keep from being used again.

A read transaction sees the store as it was when it began. So LMDB does not use a page again that was freed since: the
page is *pinned*. That matters only when a reader takes long, such as a copy onto a disk that hangs. What such readers
pin counts as taken (free_space.py). A process of Titanic that only reads ends when it pins more than it may
(capacity.py), by itself (tools/backup.py) or by SIGKILL: one that is stopped can't end itself. It ends as well when
requests have been refused because of it for GRACE.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import lmdb

from titanic.store.lmdb.pages import freed_since
from titanic.store.lmdb.schema import PAGE
from titanic.store.records import StoreReader

log = logging.getLogger(__name__)

COPY, CHECK = "titanic-copy", "titanic-check"
"""The names of the processes of Titanic that only read, as the kernel knows them."""

GRACE = 5.0
"""Seconds for which requests may be refused because of a process of Titanic that only reads."""

_LONG = 0.5
"""Seconds; a reader of this process that takes longer counts, and one of another process is shown."""
_MOST_SHOWN = 200

_Row = tuple[int, str, int]  # pid, thread, transaction


class Readers:
    """The readers of an LMDB environment. Any thread may use it."""

    def __init__(self, env: lmdb.Environment) -> None:
        self._env = env
        self._data = Path(env.path()) / "data.mdb"
        self._seen: dict[_Row, float] = {}
        self._refused_since: float | None = None
        self._counted = (-1, -1, 0)  # from which transaction on pages were counted, up to which, and how many

    def _counted_ones(self) -> list[_Row]:
        """Those of other processes, and those of this one that take long; the oldest first."""
        now, found = time.monotonic(), {}
        for line in self._env.readers().splitlines()[1:]:
            pid, thread, transaction = line.split()
            if transaction != "-":
                row = (int(pid), thread, int(transaction))
                found[row] = self._seen.get(row, now)
        self._seen = found
        own = os.getpid()
        rows = (row for row, since in found.items() if row[0] != own or now - since >= _LONG)
        return sorted(rows, key=lambda row: row[2])

    def list(self) -> list[StoreReader]:
        """Those that take long, the oldest first."""
        rows, now = self._counted_ones(), time.monotonic()
        ages = {row: now - self._seen.get(row, now) for row in rows}
        return [
            StoreReader(row[0], _command(row[0]), age, self.pinned_by(row[2]))
            for row, age in ages.items()
            if age >= _LONG
        ]

    def pinned(self) -> int:
        """Bytes that cannot be used again because of readers."""
        rows = self._counted_ones()
        if not rows:
            self._refused_since = None
            return 0
        since = rows[0][2]
        first, upto, pages = self._counted
        if first != since:
            upto, pages = since - 1, 0
        # Nothing changes in what a reader pins, so it is counted once.
        more, upto = freed_since(self._data, upto + 1)
        self._counted = (since, upto, pages + more)
        return (pages + more) * PAGE

    def pinned_by(self, transaction: int) -> int:
        """Bytes that cannot be used again because of a reader that sees the store as this transaction left it."""
        return freed_since(self._data, transaction)[0] * PAGE

    def refused(self) -> None:
        """Something was refused that would have been taken without readers."""
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        elif now - self._refused_since > GRACE:
            self.end_ours()

    def end_ours(self) -> None:
        """End the processes of Titanic that only read."""
        for pid in {row[0] for row in self._counted_ones()}:
            if _name(pid) in (COPY, CHECK):
                with suppress(OSError):  # it has ended, or is another user's
                    os.kill(pid, signal.SIGKILL)
                    log.warning("killed process %d (%s): the store needs the pages that it pinned", pid, _name(pid))
        self._env.reader_check()


def rename_process(name: str) -> None:
    """Give this process one of the names above."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _command(pid: int) -> str:
    """The command of a process; its name when that is all there is, nothing when it cannot be read."""
    name = _name(pid)
    if name not in (COPY, CHECK):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            return words.strip()[:_MOST_SHOWN] or name
    return name
