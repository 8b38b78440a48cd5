"""What `titanic check` and `titanic backup` cost: processor time for each request, of two trees in turns.

    PYTHONPATH=tests .venv/bin/python -m benchmarks.checks ../before . --rounds 5

The store has passed through a life: a third of its requests wait, a third have ended, a third are closed. One in a
hundred has a body of 10,000 bytes, the others of 100; every second has an idempotency key. Each turn runs the command
in a new process and counts the time of it and of its children, without that of its imports. `check-in-use` is a check
beside a process that has the store open.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import click
from benchmarks.in_turns import read_tree

from titanic.store import NewRequest, Status
from titanic.store.lmdb.store import LmdbStore

NOW = 1_795_258_520_106_479
AT_ONCE = 1000
SERVICES = [b"mail.welcome", b"resize", b"report", b"upper"]
ROWS = {"check": "check", "check-in-use": "check", "backup": "backup"}

PROGRAM = """
import os, resource, sys, tempfile
from titanic.cli.check_backup import backup, check
from titanic.store.lmdb import tools

def seconds():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

name, store = sys.argv[1:]
with tempfile.TemporaryDirectory(dir=os.path.dirname(store)) as folder:
    before = seconds()
    if name == "check":
        check.main(["--store", store], standalone_mode=False)
    else:
        backup.main([folder + "/copy", "--store", store], standalone_mode=False)
    print(seconds() - before)
"""


def fill(path: Path, count: int) -> None:
    """Make a store in which so many requests are or were."""
    with LmdbStore.open(path, capacity=2 << 30, durability="relaxed") as store:
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            with store.write() as transaction:
                requests = [_request(number) for number in numbers]
                uuids = [accepted.uuid for accepted in transaction.accept(requests, NOW + first)]
            with store.write() as transaction:
                for number, uuid in zip(numbers, uuids, strict=True):
                    if number % 3:
                        end = {"attempts": 1, "dispatched_at": NOW + first + 1, "finished_at": NOW + first + number}
                        transaction.finish(uuid, Status.DONE, [bytes(100)], **end)
            with store.write() as transaction:
                for number, uuid in zip(numbers, uuids, strict=True):
                    if number % 3 == 2:
                        transaction.close(uuid, NOW + first + 2)


def _request(number: int) -> NewRequest:
    body = [os.urandom(10_000 if number % 100 == 99 else 100)]
    service = SERVICES[number % len(SERVICES)]
    if number % 2:
        return NewRequest(service, body, key=b"order-%d" % number, key_until=NOW + 10**12 + number)
    return NewRequest(service, body)


@contextmanager
def _in_use(store: Path, row: str) -> Iterator[None]:
    if row != "check-in-use":
        yield
        return
    with LmdbStore.open(store):
        yield


def turn(tree: Path, row: str, store: Path) -> float:
    """The seconds of processors that the command takes with a tree."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": str(tree.resolve())}
    command = [sys.executable, "-P", "-c", PROGRAM, ROWS[row], str(store)]
    said = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(said.splitlines()[-1])


_TREE = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(help="Measure check and backup with two trees of this project in turns.")
@click.argument("before", type=_TREE, callback=read_tree)
@click.argument("after", type=_TREE, callback=read_tree)
@click.option("--requests", default=120_000, show_default=True, type=click.IntRange(1000))
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--row", "names", multiple=True, default=tuple(ROWS), type=click.Choice(list(ROWS)))
def main(before: Path, after: Path, requests: int, rounds: int, names: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        fill(store, requests)
        click.echo("| | before, µs a request | after | ratio |\n|---|--:|--:|--:|")
        for name in names:
            found: tuple[list[float], list[float]] = [], []
            with _in_use(store, name):
                for number in range(rounds):
                    for at in (0, 1) if number % 2 else (1, 0):
                        found[at].append(turn((before, after)[at], name, store) / requests * 1e6)
            ratio = median(new / old for old, new in zip(*found, strict=True))
            old, new = map(median, found)
            click.echo(f"| {name} | {old:.2f} | {new:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
