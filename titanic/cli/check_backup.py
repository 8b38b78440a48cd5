"""`titanic check`, `backup` and `restore`: commands on the store's files, with or without a server."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

import click

from titanic.cli.options import command, configured, json_flag, option
from titanic.cli.printing import Bar, print_json, say, size
from titanic.cli.running import EXIT_FAILED
from titanic.cli.store_files import expect_readable, expect_store, may_write, place_option, store_option
from titanic.errors import StoreCorrupt, StoreLocked
from titanic.facts.audit import record_offline
from titanic.facts.reading import faults
from titanic.facts.recorder import TOTALS
from titanic.store import Store, expect_psycopg
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import Checked, Finding, Progress, Salvaged, check_apart, salvage
from titanic.store.lmdb.tools import backup as copy_store
from titanic.store.lmdb.tools import check as check_store
from titanic.store.lmdb.tools import repair as repair_store
from titanic.store.lmdb.tools import restore as restore_store
from titanic.util.text import counted


@command()
@json_flag
@option(
    "--repair",
    is_flag=True,
    help="Repair what can be repaired; stop the server first, unless the store is in PostgreSQL.",
)
@place_option
@configured
def check(store: Path | str, repair: bool, as_json: bool) -> None:
    """Check every record, reference and count of a store, even while a server uses it.

    Prints each problem, where it is, and what --repair would do about it. Exits with 1 if there is a problem; with
    --repair, if a problem remains.

    If pages of the file are damaged, --repair copies everything readable into a new file. This needs disk space; the
    damaged file is kept next to the new one.

    For a store in PostgreSQL, the tables are checked against each other; this also works on a standby. --repair
    releases requests claimed by a server that no longer exists and corrects counts, even while servers use the store.
    For other problems, restore a backup.

    --json prints {requests, replies, problems: [{where, what, repair}], left}.

    \b
    Example:
      titanic check --store /var/lib/titanic/store
      titanic check --store /var/lib/titanic/store --repair
    """
    saved, place = None, str(store)
    if not isinstance(store, str):
        expect_store(store)
    with Bar("reading") as bar:
        if isinstance(store, str):
            place, (problems, requests, replies), left = _check_database(store, bar, repair)
        elif repair:
            saved, (problems, requests, replies), left = _repair(store, bar)
        else:
            problems, requests, replies = _check(store, bar)
            left = len(problems)
    if as_json:
        rows = [problem._asdict() for problem in problems]
        print_json({"requests": requests, "replies": replies, "problems": rows, "left": left})
    else:
        for problem in problems:
            click.echo(f"{problem.where}: {problem.what}" + (f" → {problem.repair}" if problem.repair else ""))
        verdict = counted(len(problems), "problem") if problems else "no problems"
        if problems and repair:
            verdict += f", {left} left after the repair"
        counts = counted(requests, "request") + ", " + ("1 reply" if replies == 1 else f"{replies} replies")
        click.echo(f"{place}: {counts}: {verdict}")
    if saved:
        say(f"the damaged file is kept as {saved.damaged}")
    if left:
        sys.exit(EXIT_FAILED)


@command()
@click.argument("dest", type=click.Path(path_type=Path))
@json_flag
@store_option
@configured
def backup(dest: Path, store: Path, as_json: bool) -> None:
    """Copy the store to the new directory DEST, even while a server uses it. The copy is a consistent, compacted
    snapshot.

    The copy is synced and verified before it is renamed to DEST: if DEST exists, it is a complete backup.

    --json prints {path, bytes}.

    \b
    Example:
      titanic backup /backup/titanic-monday --store /var/lib/titanic/store
    """
    expect_store(store)
    with _open(store) as opened, Bar("copying") as bar:
        began = time.time()
        copy_store(opened, dest, bar.update)
        try:
            opened.note_backup(began)
        except OSError as error:
            say(f"the server's metrics will not show this backup: {error}")
    _print(dest, as_json)


@command()
@click.argument("source", type=click.Path(path_type=Path))
@json_flag
@store_option
@configured
def restore(source: Path, store: Path, as_json: bool) -> None:
    """Create a store from the backup SOURCE. There must be no store at --store yet; the backup is not changed.

    --json prints {path, bytes}.

    \b
    Example:
      titanic restore /backup/titanic-monday --store /var/lib/titanic/store
    """
    expect_store(source)
    with Bar("reading") as bar:
        restore_store(source, store, bar.update)
    with LmdbStore.open(store, verified=True) as made:
        record_offline(made, "restore", f"from {source.absolute()}")
    _print(store, as_json)


def _print(path: Path, as_json: bool) -> None:
    count = (path / "data.mdb").stat().st_size
    if as_json:
        print_json({"path": str(path), "bytes": count})
    else:
        click.echo(f"{path}: {size(count)}, checked")


def _checking(bar: Bar) -> Progress:
    return lambda name, done, total: bar.update(f"checking {name}", done, total)


def _check(path: Path, bar: Bar) -> Checked:
    """Check a store. If no other process has it open, open it for writing, which converts an older format."""
    if not may_write(path):
        expect_readable(path)
        return check_apart(path, _checking(bar))
    try:
        with LmdbStore.open(path, to_repair=True, verified=True) as store:
            return _with_facts(store, Checked(check_store(store, _checking(bar)), *_counts(store)))
    except StoreLocked:
        found = check_apart(path, _checking(bar))
        with LmdbStore.open_read_only(path) as store:
            return _with_facts(store, found)


def _with_facts(store: Store, found: Checked) -> Checked:
    """Add what is wrong with the counts of what the server has done."""
    with store.read() as transaction:
        rows = [(f"facts {key.hex()}" if key else "facts", fact) for key, fact in faults(transaction)]
    return found._replace(problems=[*found.problems, *(Finding(where, fact, _COUNTED) for where, fact in rows)])


_COUNTED = "delete these counts"


def _forget_counts(store: Store) -> None:
    """Delete damaged counts; the next start of a server begins the totals with what is stored."""
    with store.write() as transaction:
        for key, _ in faults(transaction):
            keys = [key] if key else [key for key, _ in transaction.facts(TOTALS)]
            transaction.put_facts((key, None) for key in keys)


def _check_database(url: str, bar: Bar, repair: bool) -> tuple[str, Checked, int]:
    """Where the store is, without a password, what is found in it, and how many problems are left."""
    expect_psycopg()
    from titanic.store.postgres.store import (
        PostgresStore,
        ReadOnlyPostgresStore,  # only this command needs these
    )
    from titanic.store.postgres.tools import check as check_tables
    from titanic.store.postgres.tools import repair as repair_tables

    with ReadOnlyPostgresStore.open_read_only(url) as store:
        problems = [Finding(*problem) for problem in check_tables(store, _checking(bar))]
        found = _with_facts(store, Checked(problems, *_counts(store)))
        if repair and found.problems:
            with PostgresStore.open(url) as changing:
                repair_tables(changing)
                _forget_counts(changing)
                record_offline(changing, "repair", counted(len(found.problems), "problem"))
            return store.place, found, len(check_tables(store))
        return store.place, found, len(found.problems)


def _repair(path: Path, bar: Bar) -> tuple[Salvaged | None, Checked, int]:
    """What was salvaged, if that was necessary, what was found, and how many problems are left."""
    saved = None
    try:
        with LmdbStore.open(path, to_repair=True, verified=True) as store:
            problems = _with_facts(store, Checked(repair_store(store, progress=_checking(bar)), 0, 0)).problems
            _forget_counts(store)
            if problems:
                record_offline(store, "repair", counted(len(problems), "problem"))
            return saved, Checked(problems, *_counts(store)), len(check_store(store, _checking(bar)))
    except StoreCorrupt as damage:
        saved = salvage(path)
        found = [Finding("data.mdb", damage.fact, "copy what can be read to a new file"), *saved.problems]
    with LmdbStore.open(path, to_repair=True, verified=True) as store:
        problems = found + repair_store(store, progress=_checking(bar))
        record_offline(store, "repair", counted(len(problems), "problem"))
        return saved, Checked(problems, *_counts(store)), len(check_store(store, _checking(bar)))


def _counts(store: Store) -> tuple[int, int]:
    with store.read() as transaction:
        counts = transaction.counts()
    return counts.requests, counts.replies


def _open(path: Path) -> LmdbStore:
    """Open the store: for writing if no other process has it open, as for a check."""
    if may_write(path):
        with suppress(StoreLocked):
            return LmdbStore.open(path, verified=True)
    expect_readable(path)
    return LmdbStore.open_read_only(path)
