"""The check in a process of its own, for a store that a server goes on using.

Its pages can't be verified first (structure.py), since they change. So it is another process that LMDB ends when it
meets damage, and this one says what happened. The other one runs `python -m titanic.store DIR` (__main__.py): on stdout
it names each database as it comes to it, and in the last line gives the result.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from titanic.errors import StoreCorrupt, StoreError
from titanic.store.check import check
from titanic.store.findings import Problem
from titanic.store.store import Store
from titanic.store.structure import SALVAGE


class Checked(NamedTuple):
    """What a check found, and how many requests and replies there are."""

    problems: list[Problem]
    requests: int
    replies: int


def check_apart(path: Path) -> Checked:
    """Check a store that another process has open.

    Raises StoreCorrupt when LMDB ended the process that looked, and what opening it for reading raises, as StoreError.
    """
    done = subprocess.run(
        [sys.executable, "-m", "titanic.store", str(path)], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    *before, last = done.stdout.decode(errors="replace").splitlines() or [""]
    said = (done.stderr.decode(errors="replace").splitlines() or [""])[-1]
    if done.returncode == 0:
        document = json.loads(last)
        if "error" in document:
            raise StoreError(document["error"])
        return Checked([Problem(*row) for row in document["problems"]], document["requests"], document["replies"])
    ended = f"code {done.returncode}" if done.returncode > 0 else signal.Signals(-done.returncode).name
    where = f"while it read '{last}'" if before or last else "while it was opened"
    raise StoreCorrupt(f"the store in {path} is damaged", f"LMDB gave up {where}, {ended} {said}".rstrip(), SALVAGE)


def main(path: Path) -> None:
    """What the other process does."""
    try:
        with Store.open_read_only(path) as store:
            problems = check(store, lambda name: print(name, flush=True))
            with store.read() as transaction:
                counts = transaction.counts()
        result = {"problems": problems, "requests": counts.requests, "replies": counts.replies}
    except StoreError as error:
        result = {"error": str(error)}
    print(json.dumps(result))
