"""Copies of a store that are whole stores themselves, and reading a store that a server goes on using.

A copy is made next to where it is to be, under a temporary name, synced, opened and checked, and only then renamed. So
what has the name is good. LMDB copies one moment, page by page and without the free ones, while the store goes on
working. Pages that are freed meanwhile can't be used until the copy is done: it ends before these are too many.

Another process does the reading. The pages of a store in use can't be verified first (pages.py), since they change: so
it is that process that LMDB ends when it meets damage, and this one says what happened. And one that copies can be
ended at any moment, when what it pins is needed (readers.py). It runs `serve`: on stdout it says how far it is, and in
the last line gives the result.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from titanic.errors import NotAStore, StoreCorrupt, StoreError, StoreUnwritable
from titanic.store.lmdb.disk import disk_full, is_of_the_system, translate
from titanic.store.lmdb.free_space import may_be_pinned
from titanic.store.lmdb.opening import DATA, sync_directory
from titanic.store.lmdb.pages import SALVAGE, expect_sound
from titanic.store.lmdb.readers import CHECK, COPY, rename_process
from titanic.store.lmdb.schema import PAGE
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools.check import check, check_in_use
from titanic.store.lmdb.tools.findings import Finding
from titanic.store.moving import Progress
from titanic.util.text import counted

_EVERY = 0.1
LATER = "try again when the load is lower, or raise the capacity"


def backup(store: LmdbStore, dest: str | os.PathLike[str], progress: Progress | None = None) -> None:
    """Copy an open store into the new directory `dest`. `progress` is called during the copy and its check.

    Raises NotAStore when `dest` is there, StoreUnwritable, StoreError when it was ended because it kept room from the
    store, or StoreCorrupt when the copy isn't sound: then there is no `dest`.
    """
    target = Path(dest)
    _refuse_existing(target)
    partial = target.with_name(f".{target.name}.partial")
    try:
        if partial.exists():
            shutil.rmtree(partial)  # of one that was interrupted
        partial.mkdir(0o750, parents=True)
        try:
            _copy(store, partial, progress)
            _verify(partial, progress)
            partial.rename(target)
            sync_directory(target.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise StoreUnwritable(f"{target} can't be written", str(error), "check its owner and disk") from error


def restore(source: str | os.PathLike[str], dest: str | os.PathLike[str], progress: Progress | None = None) -> None:
    """Make the store `dest` from a backup, or from a store that no server has open; `source` stays as it is.

    Raises NotAStore when there is a store in `dest` or none in `source`, StoreCorrupt when `source` isn't sound.
    """
    target = Path(dest)
    _refuse_existing(target)
    if (Path(source) / DATA).exists():
        expect_sound(Path(source) / DATA)
    with LmdbStore.open_read_only(source) as store:
        _expect_sound(store, progress)
        backup(store, target, progress)


def _refuse_existing(target: Path) -> None:
    if (target / DATA).exists():
        raise NotAStore(f"cannot write to {target}", "it already has a store", "choose another directory, or move it")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise NotAStore(f"cannot write to {target}", "it exists and is not empty", "choose another directory")


def _copy(store: LmdbStore, directory: Path, progress: Progress | None) -> None:
    read_apart(COPY, copy, store.path, directory, progress=progress)
    with (directory / DATA).open("r+b") as file:
        os.fchmod(file.fileno(), 0o640)
        os.fsync(file.fileno())
    sync_directory(directory)


def copy(path: str, dest: str, *, progress: Progress) -> dict[str, Any]:
    """Copy the pages of a store, in a process of its own. Ends early when the store needs the room."""
    with LmdbStore.open_read_only(path) as store:
        env, data = store.environment.env, Path(dest) / DATA
        info = env.info()
        total = (info["last_pgno"] + 1) * PAGE
        copying = ThreadPoolExecutor(1, "copy").submit(env.copy, dest, compact=True)
        while wait([copying], _EVERY).not_done:
            if data.exists():
                progress("copying", data.stat().st_size, total)
            expect_room(store, info["last_txnid"])
        try:
            copying.result()
        except lmdb.Error as error:
            if is_of_the_system(error):
                raise OSError(disk_full(error, Path(dest)) or str(error)) from error
            raise translate(error, env, store.capacity) from error
    return {}


def _verify(directory: Path, progress: Progress | None) -> None:
    if progress is not None:
        progress("checking", 0, 0)
    expect_sound(directory / DATA)
    with LmdbStore.open_read_only(directory) as copy:
        _expect_sound(copy, progress)
    (directory / "lock.mdb").unlink(missing_ok=True)


def _expect_sound(store: LmdbStore, progress: Progress | None) -> None:
    def checked(name: str, done: int, total: int) -> None:
        if progress is not None:
            progress("checking", done, total)

    try:
        problems = check(store, checked)
    except StoreError as error:
        raise StoreCorrupt(f"the store in {store.path} is damaged", str(error), "restore another backup") from error
    if problems:
        fact = f"{counted(len(problems), 'problem')}, the first: {problems[0].where}: {problems[0].what}"
        raise StoreCorrupt(f"the store in {store.path} is damaged", fact, "repair it first")


# -- reading a store that a server uses, in a process of its own ------------------------------------------------


class Checked(NamedTuple):
    """What a check found, and how many requests and replies there are."""

    problems: list[Finding]
    requests: int
    replies: int


def check_apart(path: Path, progress: Progress | None = None) -> Checked:
    """Check a store that another process has open. `progress` as for check().

    Raises StoreCorrupt when LMDB ended the process that read it, and what opening it for reading raises, as StoreError.
    """
    found = read_apart(CHECK, _check, path, progress=progress)
    return Checked([Finding(*row) for row in found["problems"]], found["requests"], found["replies"])


def _check(path: str, *, progress: Progress) -> dict[str, Any]:
    with LmdbStore.open_read_only(path) as store:
        problems = check_in_use(store, progress, lambda since: expect_room(store, since))
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
    where, last = "while opening the store", ""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for last in process.stdout:
                if (found := re.fullmatch(r"(\w+) (\d+) (\d+)\n", last)) is not None:
                    where = f"while reading '{found[1]}'"
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
        fact = "the server kills readers that keep it from reusing pages that it needs"
        raise StoreError(f"the process reading the store in {path} was killed (SIGKILL)", fact, LATER)
    ended = f"code {code}" if code > 0 else signal.Signals(-code).name
    raise StoreCorrupt(f"the store in {path} is damaged", f"LMDB crashed {where}, {ended} {said}".rstrip(), SALVAGE)


def expect_room(store: LmdbStore, since: int) -> None:
    """Raise StoreError when reading since this transaction keeps room from the store that it needs."""
    with store.read() as transaction:
        room = transaction.room
        # The server ends what is still there when it needs `room.readers`.
        pinned, allowed = store.environment.readers.pinned_by(since), may_be_pinned(transaction) - room.readers // 2
    if pinned > allowed:
        fact = f"it kept {pinned >> 20} MiB of freed pages from being reused, and the store needs them"
        raise StoreError(f"the read of the store in {store.path} was stopped", fact, LATER)


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
