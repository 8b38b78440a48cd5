"""From the ring into the archive and back, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.archiving import Crash, content, crash_at, in_ring, rewrite, rows, run
from support.ring import fill, ring, wait_for_room
from support.torture import LONG

from titanic.store import open_store
from titanic_data.archive import (
    Archive,
    Entry,
    File,
    Queue,
    compact,
    restore_range,
    vacuum,
    verify,
)
from titanic_data.archive.archiver import POINTS
from titanic_data.archive.manifest import measure
from titanic_data.errors import ArchiveBusy, ArchiveError
from titanic_data.store_reader import forget
from titanic_data.tables import CLOSED


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return ring(tmp_path / "store", 300, step_us=1_200_000_000)  # over five days


def test_all_that_was_closed(store: Path, tmp_path: Path) -> None:
    added: list[Entry] = []
    summary = run(store, tmp_path / "archive", done=added.append)
    assert (summary.ranges, summary.rows) == (3, 300)
    assert [(entry.first, entry.last) for entry in added] == [(1, 100), (101, 200), (201, 300)]
    assert rows(tmp_path / "archive") == in_ring(store, 1, 300)
    archive = Archive.open(tmp_path / "archive")
    assert verify(archive) == []
    assert {file.parent.name for file in archive.files()} == {f"date=2023-11-{day}" for day in (14, 15, 16, 17, 18, 19)}
    assert Queue(store).progress()[:2] == (True, 300)
    assert run(store, tmp_path / "archive").rows == 0


def test_what_was_closed_since(store: Path, tmp_path: Path) -> None:
    run(store, tmp_path / "archive")
    forget(store)
    with open_store(store) as opened:
        fill(opened, 5, at=300)
    assert run(store, tmp_path / "archive").rows == 5
    assert len(rows(tmp_path / "archive")) == 305


def test_what_it_takes_the_store_does_not_lose(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relaxed server may not have synced it. A store that lost it would give out the numbers again."""
    happened: list[str] = []
    sync = os.fdatasync

    def note(descriptor: int) -> None:
        happened.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", note)
    run(store, tmp_path / "archive", reached=happened.append)
    assert happened.index("data.mdb") < happened.index("intended")


def test_ranges_are_bounded_in_bytes(store: Path, tmp_path: Path) -> None:
    assert run(store, tmp_path / "archive", rows=1000, max_bytes=400_000).ranges > 4
    assert verify(Archive.open(tmp_path / "archive")) == []


def test_the_ring_goes_on_when_it_is_archived(tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 300, capacity=16 << 20)
    run(store, tmp_path / "archive")
    forget(store)
    with open_store(store) as opened:
        wait_for_room(opened, 300)
    summary = run(store, tmp_path / "archive")
    assert summary.rows > 0
    assert verify(Archive.open(tmp_path / "archive")) == []


def test_the_archive_of_another_store(store: Path, tmp_path: Path) -> None:
    run(store, tmp_path / "archive")
    for count in (10, 300, 400):
        other = ring(tmp_path / f"other {count}", count)
        with pytest.raises(ArchiveError, match="is the archive of another store"):
            run(other, tmp_path / "archive")
        assert not Queue(other).progress().archived_upto


def test_one_archiver_at_a_time(store: Path, tmp_path: Path) -> None:
    archive = Archive.create(tmp_path / "archive")
    with archive.locked(), pytest.raises(ArchiveBusy, match="in use; by process"):
        run(store, tmp_path / "archive")


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("count", [1, 2])
def test_a_crash_anywhere(store: Path, tmp_path: Path, point: str, count: int) -> None:
    reached = crash_at(point, count)
    if count == 1 or point not in ("locked", "recovered"):
        with pytest.raises(Crash):
            run(store, tmp_path / "archive", reached=reached)
    before = Archive.open(tmp_path / "archive").head if (tmp_path / "archive").exists() else 0
    assert Queue(store).progress().archived_upto <= before
    run(store, tmp_path / "archive")
    assert rows(tmp_path / "archive") == in_ring(store, 1, 300)
    archive = Archive.open(tmp_path / "archive")
    assert verify(archive) == []
    assert sorted(archive.data.glob("*/*")) == sorted(archive.files())
    assert not archive.staging.exists()
    assert not (archive.path / "pending.json").exists()


def test_half_an_archive_of_an_older_crash(store: Path, tmp_path: Path) -> None:
    archive = Archive.create(tmp_path / "archive")
    (archive.path / "pending.json").write_text('{"first": 1, "last": 40}')
    (archive.data / "date=2023-11-14").mkdir()
    (archive.data / "date=2023-11-14" / "closed-1-40-9.parquet").write_text("half")
    run(store, archive.path)
    assert [entry.last for entry in Archive.open(archive.path).entries] == [40, 140, 240, 300]
    (archive.path / "pending.json").write_text("{")
    with pytest.raises(ArchiveError, match=r"pending.json is damaged; .*; remove it"):
        run(store, archive.path)
    (archive.path / "pending.json").write_text('{"first": 400, "last": 500}')
    with pytest.raises(ArchiveError, match="it has 400 to 500, the archive ends at 300"):
        run(store, archive.path)


def test_what_is_wrong_is_found_and_restored(store: Path, tmp_path: Path) -> None:
    run(store, tmp_path / "archive")
    archive = Archive.open(tmp_path / "archive")
    good = rows(archive.path)
    gone, cut, changed = (archive.data / entry.files[0].path for entry in archive.entries)
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    changed.write_bytes(b"?" + changed.read_bytes()[1:])
    faults = verify(archive)
    assert [fault.range for fault in faults] == [(1, 100), (101, 200), (201, 300)]
    assert [fault.what.split()[1] for fault in faults] == ["is", "has", "checksum"]
    for first, last in ((1, 100), (101, 200), (201, 300)):
        restore_range(Archive.open(archive.path), store, first, last)
    archive = Archive.open(archive.path)
    assert verify(archive) == []
    assert rows(archive.path) == good
    other = ring(tmp_path / "other", 300)
    with pytest.raises(ArchiveError, match="is another store"):
        restore_range(archive, other, 1, 100)
    with pytest.raises(ArchiveError, match="1 to 50 is not a range"):
        restore_range(archive, store, 1, 50)


def test_fewer_files(store: Path, tmp_path: Path) -> None:
    run(store, tmp_path / "archive", rows=20)
    archive = Archive.open(tmp_path / "archive")
    good, before = rows(archive.path), len(archive.files())
    (entry,) = compact(archive)
    assert (entry.first, entry.last, entry.rows) == (1, 300, 300)
    assert len(archive.files()) == 6 < before
    assert rows(archive.path) == good
    assert vacuum(archive).files == 0  # somebody may be reading them
    assert vacuum(archive, keep=0).files == before
    archive = Archive.open(archive.path)
    assert verify(archive) == []
    assert rows(archive.path) == good
    assert compact(archive) == []
    assert run(store, archive.path).rows == 0


def test_fewer_files_of_several_versions(store: Path, tmp_path: Path) -> None:
    """Columns may have been added: before `date`, which is in a folder's name."""
    archive = tmp_path / "archive"
    run(store, archive)
    good = rows(archive)
    rewrite(archive, lambda table: table.drop_columns(["schema_version", "reply_sizes"]), first=1)
    rewrite(archive, lambda table: table.append_column("region", pa.array(["north"] * len(table))), first=201)
    compact(Archive.open(archive))
    opened = Archive.open(archive)
    assert verify(opened) == []
    assert len(opened.entries) == 1
    found = {row["seq"]: row for file in opened.files() for row in pq.ParquetFile(file).read().to_pylist()}
    lost = {"schema_version": None, "reply_sizes": None}
    for row in good:
        number = int(str(row["seq"]))
        want = {key: value for key, value in row.items() if key != "date"} | (lost if number <= 100 else {})
        assert found[number] == want | {"region": "north" if number > 200 else None}
    forget(store)
    with open_store(store) as opened_store:
        fill(opened_store, 50, at=300, step_us=1_200_000_000)
    run(store, archive)
    assert len(compact(Archive.open(archive))) == 1
    assert rows(archive)[100:300] == good[100:300]


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from titanic_data.__main__ import run
run()
"""


@pytest.mark.torture(short=True)
def test_small_files_with_large_bodies(tmp_path: Path) -> None:
    """When LONG more than 2 GiB of bodies, which Arrow cannot hold in one column, and which fit into no memory."""
    archive, count, body = Archive.create(tmp_path / "archive"), 20_000 if LONG else 1000, b"x" * 60_000
    folder = archive.data / "date=2026-01-02"
    folder.mkdir()
    in_file = CLOSED.schema.remove(CLOSED.schema.get_field_index("date"))
    for first in (1, 1 + count):
        path = folder / f"closed-{first}-{first + count - 1}-0.parquet"
        with pq.ParquetWriter(path, in_file) as writer:
            for begin in range(first, first + count, 1000):
                rows = [
                    {"seq": n, "service": "report", "request": body, "request_bytes": len(body), "reply_bytes": 0}
                    for n in range(begin, begin + 1000)
                ]
                writer.write_table(pa.Table.from_pylist(rows, in_file))
        known = File(str(path.relative_to(archive.data)), count, *measure(path))
        archive.commit(Entry(first, first + count - 1, (known,), engine="pyarrow"))
    command = [sys.executable, "-c", LIMITED, "compact", "--archive", str(archive.path)]
    environment = {name: value for name, value in os.environ.items() if name != "TITANIC_TORTURE"}  # no option of it
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = Archive.open(archive.path).files()
    file, numbers = pq.ParquetFile(path), []
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, ["seq", "request"])
        assert table.nbytes < 64 << 20, "readers take whole row groups"
        assert set(table["request"].unique().to_pylist()) == {body}
        numbers += table["seq"].to_pylist()
    assert numbers == [*range(1, 2 * count + 1)]


def test_an_archive_from_before_there_were_owners_and_sources(store: Path, tmp_path: Path) -> None:
    """It is read, goes on, and is compacted with what came since."""
    archive = tmp_path / "archive"
    run(store, archive)
    good = rows(archive)
    for first in (1, 101, 201):
        rewrite(archive, lambda table: table.drop_columns(["owner", "source"]), first=first)
    old = [row | {"owner": None, "source": None} for row in good]
    assert rows(archive) == old
    assert verify(Archive.open(archive)) == []
    forget(store)
    with open_store(store) as opened:
        fill(opened, 50, at=300, step_us=1_200_000_000)
    assert run(store, archive).rows == 50
    assert verify(Archive.open(archive)) == []
    compact(Archive.open(archive))
    assert rows(archive) == old + in_ring(store, 301, 350)
    assert {row["owner"] for row in rows(archive)[300:]} == {None, "shop", "eve"}
    assert {row["source"] for row in rows(archive)[300:]} == {None, "192.0.2.7", "2001:db8::7"}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            lambda table: table.set_column(
                table.schema.get_field_index("attempts"), "attempts", pa.array(["many"] * len(table))
            ),
            "its column attempts is string, and int32 here",
        ),
        (
            lambda table: table.set_column(
                table.schema.get_field_index("schema_version"), "schema_version", pa.array([2] * len(table), pa.int32())
            ),
            "its rows have schema version 2; this version reads 1",
        ),
        (lambda table: table.drop_columns(["seq"]), "it has no column seq"),
    ],
)
def test_files_of_another_schema_are_refused(
    store: Path, tmp_path: Path, change: Callable[[pa.Table], pa.Table], fault: str
) -> None:
    archive = tmp_path / "archive"
    run(store, archive)
    rewrite(archive, change, first=101)
    before = content(archive)
    with pytest.raises(ArchiveError, match=f"closed-101-200-0.parquet cannot be compacted; {fault}"):
        compact(Archive.open(archive))
    assert content(archive) == before


def test_a_manifest_with_a_hole(store: Path, tmp_path: Path) -> None:
    run(store, tmp_path / "archive")
    archive = Archive.open(tmp_path / "archive")
    (archive.path / "manifest" / archive.entries[1].name).unlink()
    with pytest.raises(ArchiveError, match=r"0201-0+300\.json follows on number 100"):
        Archive.open(archive.path)


def test_what_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"is not an archive; it has no archive\.json"):
        Archive.open(tmp_path)
    (tmp_path / "precious").touch()
    with pytest.raises(ArchiveError, match="it holds 'precious'"):
        Archive.create(tmp_path)
    (tmp_path / "archive.json").write_text('{"format": 9}')
    with pytest.raises(ArchiveError, match="its format is 9; this version reads 1; upgrade"):
        Archive.open(tmp_path)
