"""`titanic-data archive`, and the commands that check and maintain an archive."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from titanic.cli.options import json_flag, option, seconds
from titanic.cli.options import size as size_option
from titanic.cli.printing import Bar, print_done, print_json, size
from titanic.cli.running import EXIT_FAILED
from titanic.util.text import counted
from titanic_data import archive as archives
from titanic_data.archive import ENGINES, Archive, Archiver, Engine, Entry, PyArrowEngine, Queue, SparkEngine
from titanic_data.archive.archiver import BYTES, ROWS
from titanic_data.archive.maintenance import KEEP
from titanic_data.archive.manifest import expect_sizes
from titanic_data.cli.options import archive_option, command, endpoint_option, key_options, store_option


@command()
@json_flag
@option(
    "--allow-gap",
    is_flag=True,
    help="Continue if the archive lacks requests that may have left the ring, and record them as a gap.",
)
@size_option(
    "--bytes-per-range",
    default=f"{BYTES >> 20}MiB",
    help="Bytes of bodies archived at a time. Memory use is 200 MiB plus 2.5 times this.",
)
@option(
    "--rows-per-range",
    type=click.IntRange(1),
    metavar="N",
    default=ROWS,
    help="Maximum number of rows archived at a time.",
)
@option("--engine", type=click.Choice(ENGINES), default="pyarrow", help="Library that writes Parquet.")
@endpoint_option
@key_options
@archive_option
@store_option
def archive(
    store: Path,
    archive: Path,
    endpoint: str,
    keys: dict[str, Any],
    engine: str,
    rows_per_range: int,
    bytes_per_range: int,
    allow_gap: bool,
    as_json: bool,
) -> None:
    """Copy requests closed since the last run from the ring of a store to an archive, which is created if needed.

    The ring holds the closed requests. After the first run it keeps them until they are archived: run this often, or
    detach the archive with `titanic-data unregister`. A second archive is refused until the first is detached.
    The command can be killed and rerun at any time: nothing is lost or archived twice. If the server is running, the
    command reports progress to it at --endpoint.

    On one machine, pyarrow is faster than Spark and needs no Java.

    \b
    Example:
      titanic-data archive --store /var/lib/titanic/store --archive /archive
    """
    total = 0
    queue = Queue(store, endpoint, **keys)
    progress = queue.progress()  # raises an error without a store, before anything is made
    writer = _engine(engine)  # raises an error without Java
    made = Archive.create(archive)
    wanted = progress.last - made.head

    def done(entry: Entry) -> None:
        nonlocal total
        total += entry.rows
        shown.update("archiving", total, wanted)

    with Bar("archiving") as shown:
        archiver = Archiver(
            made,
            queue,
            writer,
            rows=rows_per_range,
            max_bytes=bytes_per_range,
            allow_gap=allow_gap,
            done=done,
        )
        summary = archiver.run()
    if as_json:
        print_json({**asdict(summary), "head": made.head})
    else:
        written = f", {size(summary.bytes)}" if summary.rows else ""
        written += f", {counted(summary.acts, 'act')} of users" if summary.acts else ""
        there = f"complete up to number {made.head}{_but(made)}"
        click.echo(f"{archive}: {counted(summary.rows, 'row')} added{written}; {there}")


def _but(archive: Archive) -> str:
    gaps = sum(entry.gap for entry in archive.entries)
    return f" except for {counted(gaps, 'gap')}" if gaps else ""


def _engine(name: str) -> Engine:
    if name == "pyarrow":
        return PyArrowEngine()
    from titanic_data.session import session

    return SparkEngine(session(quick=True))


@command()
@json_flag
@archive_option
def verify(archive: Path, as_json: bool) -> None:
    """Read and verify all of an archive.

    An archive is intact if each file has the size, checksum and row count in its manifest, and each request number from
    1 to the last occurs once. Faults are printed with the commands that repair them, and the exit code is 1. Allowed
    gaps are printed too, but are not faults.

    --json prints {rows, files, gaps: [[first, last]], faults: [{where, what, range}]}.

    \b
    Example:
      titanic-data verify --archive /archive
    """
    opened = Archive.open(archive)
    with Bar("verifying") as shown:
        faults = archives.verify(opened, shown.count)
    rows = sum(entry.rows for entry in opened.entries)
    gaps = [(entry.first, entry.last) for entry in opened.entries if entry.gap]
    files = len(opened.files())
    if as_json:
        print_json({"rows": rows, "files": files, "gaps": gaps, "faults": [fault._asdict() for fault in faults]})
    else:
        for fault in faults:
            first, last = fault.range or (0, 0)
            click.echo(f"{fault.where}: {fault.what} → titanic-data restore-range {first} {last} --archive {archive}")
        for first, last in gaps:
            click.echo(f"{first} to {last}: never archived; they had already left the ring")
        checked = f"{counted(files, 'file')} read, {counted(rows, 'row')}"
        if faults:
            click.echo(f"{archive} is damaged: {counted(len(faults), 'fault')}; {checked}")
        elif not opened.head:
            click.echo(f"{archive} is intact: nothing has been archived yet")
        else:
            click.echo(f"{archive} is intact{_but(opened)}: {checked}, numbers 1 to {opened.head}")
    if faults:
        sys.exit(EXIT_FAILED)


@command()
@json_flag
@archive_option
def compact(archive: Path, as_json: bool) -> None:
    """Merge small files: consecutive ranges become one, with one file per day.

    Each run of `titanic-data archive` adds at least one file; queries are faster with fewer. A range gets up to a
    million rows or 64 MiB. No row is changed. Active readers continue with the old files, which stay until `vacuum`. If
    a file is damaged, the command names it and changes nothing. Memory use is about 500 MB, whatever the size of the
    bodies.

    --json prints {made, files, ranges}: the number of ranges created, and the archive's totals.

    \b
    Example:
      titanic-data compact --archive /archive && titanic-data vacuum --archive /archive
    """
    opened = Archive.open(archive)
    before, ranges = len(opened.files()), len(opened.entries)
    with Bar("compacting") as shown:
        made = archives.compact(opened, done=lambda entry: shown.update("compacting", entry.last, opened.head))
    if as_json:
        print_json({"made": len(made), "files": len(opened.files()), "ranges": len(opened.entries)})
    elif not made:
        click.echo(f"{archive}: nothing to do, {counted(before, 'file')} in {counted(ranges, 'range')}")
    else:
        now = f"{counted(len(opened.files()), 'file')} in {counted(len(opened.entries), 'range')}"
        was = f"{counted(before, 'file')} in {counted(ranges, 'range')}"
        click.echo(f"{archive}: {was} became {now}; titanic-data vacuum deletes the old files")


@command()
@json_flag
@seconds("--keep", least=0, default=KEEP, help="Keep files newer than this, which may still be in use.")
@archive_option
def vacuum(archive: Path, keep: float, as_json: bool) -> None:
    """Delete files that are no longer part of the archive: compacted ones, and leftovers of crashes.

    --json prints {files, bytes, kept_files, kept_bytes}: what was deleted, and what was kept because of --keep.

    \b
    Example:
      titanic-data vacuum --archive /archive --keep 86400
    """
    done = archives.vacuum(Archive.open(archive), keep=keep)
    if as_json:
        print_json(done._asdict())
        return
    kept = f"{counted(done.kept_files, 'file')}, {size(done.kept_bytes)}, kept: superseded less than {keep:g} s ago"
    deleted = f"{counted(done.files, 'file')} deleted, {size(done.bytes)}"
    click.echo(f"{archive}: {deleted}{f'; {kept}' if done.kept_files else ''}")


@command("restore-range")
@click.argument("first", type=click.IntRange(1))
@click.argument("last", type=click.IntRange(1))
@json_flag
@archive_option
@store_option
def restore_range(first: int, last: int, store: Path, archive: Path, as_json: bool) -> None:
    """Rewrite the files of request numbers FIRST to LAST from a store that still has them, or from its backup.

    The range must be one of the archive's; `titanic-data verify` names damaged ones.

    --json prints {rows}.

    \b
    Example:
      titanic-data restore-range 500001 1000000 --store /backup/titanic-monday --archive /archive
    """
    entry = archives.restore_range(Archive.open(archive), store, first, last)
    print_done({"rows": entry.rows}, f"{archive}: {counted(entry.rows, 'row')} rewritten", as_json)


@command("rebuild-manifest")
@json_flag
@option("--allow-gap", is_flag=True, help="If numbers are in no intact file, record them as a gap and continue.")
@archive_option
@option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The archived store, to restore the ids in archive.json; required if that file is lost.",
)
def rebuild_manifest(archive: Path, store: Path | None, allow_gap: bool, as_json: bool) -> None:
    """Rebuild a lost manifest from the files of the archive.

    All other commands refuse an archive with files that are not in its manifest. Prefer a backup of the `manifest`
    directory: the files alone do not show whether a byte has changed, nor which gaps were allowed. Existing entries are
    kept. The files of all other ranges are read, and a range gets an entry if each of its numbers occurs once.

    No data file is changed. With --allow-gap, numbers that are in no intact file become a gap: `restore-range` can fill
    it, and `vacuum` deletes the remains of their files.

    --json prints {ranges, rows, head}: those rebuilt, and the archive's last number.

    \b
    Example:
      titanic-data rebuild-manifest --archive /archive && titanic-data verify --archive /archive
    """
    with Bar("reading") as shown:
        made = archives.rebuild_manifest(archive, store=store, allow_gap=allow_gap, progress=shown.count)
    opened = Archive.open(archive)
    noted = [entry for entry in made if not entry.gap]
    rows = sum(entry.rows for entry in noted)
    said = f"{counted(len(noted), 'range')} rebuilt, {counted(rows, 'row')}"
    there = f"complete up to number {opened.head}{_but(opened)}" if opened.head else "there are no files"
    text = f"{archive}: {said if made else 'nothing was missing'}; {there}"
    print_done({"ranges": len(noted), "rows": rows, "head": opened.head}, text, as_json)


@command()
@endpoint_option
@key_options
@store_option
def unregister(store: Path, endpoint: str, keys: dict[str, Any]) -> None:
    """Detach a store from its archive: closed requests may leave its ring before they are archived.

    A new archive can then begin, with everything still in the ring. The old one stays readable, but gets no more rows.

    \b
    Example, to begin a new archive:
      titanic-data archive --store /var/lib/titanic/store --archive /archive
      titanic-data unregister --store /var/lib/titanic/store
      titanic-data archive --store /var/lib/titanic/store --archive /archive-2
    """
    Queue(store, endpoint, **keys).unregister()
    click.echo(f"{store}: the ring no longer waits for an archive")


@command()
@json_flag
@archive_option
def files(archive: Path, as_json: bool) -> None:
    """Print the paths of an archive's files, one per line, for DuckDB, Polars and other readers of Parquet.

    Fails when a file is missing or has the wrong size; `titanic-data verify` also reads the files. --json prints a list
    of {path, rows, bytes}.

    \b
    Example:
      titanic-data files --archive /archive

    \b
    In Python, with DuckDB:
      from titanic_data.archive import Archive
      files = [str(file) for file in Archive.open(Path("/archive")).files()]
      duckdb.sql(f"SELECT status, count(*) FROM read_parquet({files}, union_by_name=true) GROUP BY ALL")
    """
    opened = Archive.open(archive)
    expect_sizes(opened)
    if as_json:
        found = (file for entry in opened.entries for file in entry.files)
        print_json([{"path": str(opened.data / one.path), "rows": one.rows, "bytes": one.bytes} for one in found])
        return
    for file in opened.files():
        click.echo(str(file))
