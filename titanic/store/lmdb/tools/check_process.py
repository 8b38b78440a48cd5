"""The check in a process of its own, for a store that a server goes on using.

Its pages can't be verified first (pages.py), since they change. So it is another process that LMDB ends when it
meets damage, and this one says what happened. The other one runs `report`: on stdout it says how far it is in which
database, and in the last line gives the result.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from titanic.errors import StoreCorrupt, StoreError
from titanic.store.lmdb.pages import SALVAGE
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools.check import check
from titanic.store.lmdb.tools.findings import Problem, Progress


class Checked(NamedTuple):
    """What a check found, and how many requests and replies there are."""

    problems: list[Problem]
    requests: int
    replies: int


def check_apart(path: Path, tell: Progress | None = None) -> Checked:
    """Check a store that another process has open. `tell` as for check().

    Raises StoreCorrupt when LMDB ended the process that looked, and what opening it for reading raises, as StoreError.
    """
    program = f"import sys; from {__name__} import report; report(sys.argv[1])"
    command = [sys.executable, "-c", program, str(path)]
    where, last = "while it was opened", ""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for last in process.stdout:
            if (found := re.fullmatch(r"(\w+) (\d+) (\d+)\n", last)) is not None:
                where = f"while it read '{found[1]}'"
                if tell is not None:
                    tell(found[1], int(found[2]), int(found[3]))
        said = (process.stderr.read().splitlines() or [""])[-1]
    code = process.returncode
    if code == 0:
        document = json.loads(last)
        if "error" in document:
            raise StoreError(document["error"])
        return Checked([Problem(*row) for row in document["problems"]], document["requests"], document["replies"])
    ended = f"code {code}" if code > 0 else signal.Signals(-code).name
    raise StoreCorrupt(f"the store in {path} is damaged", f"LMDB gave up {where}, {ended} {said}".rstrip(), SALVAGE)


def report(path: str) -> None:
    """Check a store for the process that started this one: print how far it is, and in the last line the result."""
    try:
        with LmdbStore.open_read_only(path) as store:
            problems = check(store, lambda *progress: print(*progress, flush=True))
            with store.read() as transaction:
                counts = transaction.counts()
        result = {"problems": problems, "requests": counts.requests, "replies": counts.replies}
    except StoreError as error:
        result = {"error": str(error)}
    print(json.dumps(result))
