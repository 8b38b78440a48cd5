"""Processes that read the store, and the pages that they keep from being used again.

A read transaction sees the store as it was when it began. So LMDB does not use a page again that was freed since: the
page is *pinned*. That matters only when a reader takes long, such as a copy onto a disk that hangs. What such readers
pin counts as taken (free_space.py). A process of Titanic that only reads ends when it pins more than it may
(capacity.py), by itself (tools/apart.py) or by SIGKILL: one that is stopped can't end itself. It ends as well when
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
"""Seconds; a reader that takes longer is one that counts."""
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

    def _long(self) -> list[_Row]:
        """Those that take long, the oldest first."""
        now, found = time.monotonic(), {}
        for line in self._env.readers().splitlines()[1:]:
            pid, thread, transaction = line.split()
            if transaction != "-":
                row = (int(pid), thread, int(transaction))
                found[row] = self._seen.get(row, now)
        self._seen = found
        return sorted((row for row, since in found.items() if now - since >= _LONG), key=lambda row: row[2])

    def list(self) -> list[StoreReader]:
        """Those that take long, the oldest first."""
        rows, now = self._long(), time.monotonic()
        return [
            StoreReader(row[0], _command(row[0]), now - self._seen.get(row, now), self.pinned_by(row[2]))
            for row in rows
        ]

    def pinned(self) -> int:
        """Bytes that cannot be used again because of readers that take long."""
        rows = self._long()
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
        """End the processes of Titanic that only read and take long."""
        for pid in {row[0] for row in self._long()}:
            if _name(pid) in (COPY, CHECK):
                with suppress(OSError):  # it has ended, or is another user's
                    os.kill(pid, signal.SIGKILL)
                    log.warning("ended process %d (%s): the store needs the pages that it pinned", pid, _name(pid))
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
