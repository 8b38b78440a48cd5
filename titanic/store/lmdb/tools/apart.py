"""Reading a store that a server goes on using, in a process of its own.

Its pages can't be verified first (pages.py), since they change. So it is another process that LMDB ends when it meets
damage, and this one says what happened. And one that copies can be ended at any moment, when what it pins is needed
(readers.py).

The other one runs `serve`: on stdout it says how far it is, and in the last line gives the result.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from titanic.errors import StoreCorrupt, StoreError
from titanic.store.lmdb.free_space import may_be_pinned
from titanic.store.lmdb.pages import SALVAGE
from titanic.store.lmdb.readers import CHECK, rename_process
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools.check import check_in_use
from titanic.store.lmdb.tools.findings import Problem, Progress

LATER = "try again when less is going on, or raise the capacity"


class Checked(NamedTuple):
    """What a check found, and how many requests and replies there are."""

    problems: list[Problem]
    requests: int
    replies: int


def check_apart(path: Path, progress: Progress | None = None) -> Checked:
    """Check a store that another process has open. `progress` as for check().

    Raises StoreCorrupt when LMDB ended the process that read it, and what opening it for reading raises, as StoreError.
    """
    found = read_apart(CHECK, _check, path, progress=progress)
    return Checked([Problem(*row) for row in found["problems"]], found["requests"], found["replies"])


def _check(path: str, *, progress: Progress) -> dict[str, Any]:
    with LmdbStore.open_read_only(path) as store:
        problems = check_in_use(store, progress, partial(expect_room, store))
        with store.read() as transaction:
            counts = transaction.counts()
    return {"problems": problems, "requests": counts.requests, "replies": counts.replies}


def read_apart(
    name: str, function: Callable[..., dict[str, Any]], path: Path, *arguments: Path, progress: Progress | None
) -> dict[str, Any]:
    """What a function of a module returns that reads the store in `path`, called in a process with this name.

    Raises what it raises, as StoreError or OSError; StoreCorrupt when LMDB ended the process.
    """
    program = f"from {__name__} import serve; serve()"
    command: list[str | Path] = [
        sys.executable,
        "-c",
        program,
        name,
        function.__module__,
        function.__name__,
        path,
        *arguments,
    ]
    where, last = "while it was opened", ""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for last in process.stdout:
                if (found := re.fullmatch(r"(\w+) (\d+) (\d+)\n", last)) is not None:
                    where = f"while it read '{found[1]}'"
                    if progress is not None:
                        progress(found[1], int(found[2]), int(found[3]))
            said = (process.stderr.read().splitlines() or [""])[-1]
        except BaseException:
            process.kill()
            raise
    code = process.returncode
    if code == 0:
        document: dict[str, Any] = json.loads(last)
        if "error" in document:
            raise (OSError if document["of_the_system"] else StoreError)(document["error"])
        return document
    if code == -signal.SIGKILL:
        fact = "the server ends a reader that keeps it from using pages again which it needs"
        raise StoreError(f"reading the store in {path} was ended by SIGKILL", fact, LATER)
    ended = f"code {code}" if code > 0 else signal.Signals(-code).name
    raise StoreCorrupt(f"the store in {path} is damaged", f"LMDB gave up {where}, {ended} {said}".rstrip(), SALVAGE)


def expect_room(store: LmdbStore, since: int) -> None:
    """Raise StoreError when reading since this transaction keeps room from the store that it needs."""
    with store.read() as transaction:
        room = transaction.room
        # The server ends what is still there when it needs `room.readers`.
        pinned, allowed = store.environment.readers.pinned_by(since), may_be_pinned(transaction) - room.readers // 2
    if pinned > allowed:
        fact = f"{pinned >> 20} MiB that were freed meanwhile could not be used again, and the store needs them"
        raise StoreError(f"reading the store in {store.path} was ended", fact, LATER)


def serve() -> None:
    """Call the function that the arguments name, print how far it is, and in the last line what it returns."""
    name, module, function, *arguments = sys.argv[1:]
    rename_process(name)
    try:
        progress: Progress = lambda *facts: print(*facts, flush=True)  # noqa: E731
        result = getattr(import_module(module), function)(*arguments, progress=progress)
    except (StoreError, OSError) as error:
        result = {"error": str(error), "of_the_system": isinstance(error, OSError)}
    print(json.dumps(result), flush=True)
    os._exit(0)  # a copy that is to end may go on in a thread
