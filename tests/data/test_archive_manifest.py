"""An archive whose manifest is lost, or behind its files or its store: refused by all, and rebuilt on request."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.archiving import Crash, content, crash_at, in_ring, rows, run
from support.cli_data import titanic_data
from support.ring import fill, ring, wait_for_room

from titanic.store import open_store
from titanic_data.archive import Archive, Queue, compact, rebuild_manifest, vacuum, verify
from titanic_data.errors import ArchiveError, ArchiveGap
from titanic_data.store_reader import closed_range, forget


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return ring(tmp_path / "store", 300, step_us=1_200_000_000)  # over five days


@pytest.fixture
def archive(store: Path, tmp_path: Path) -> Path:
    run(store, tmp_path / "archive")
    return tmp_path / "archive"


def all_of_it(archive: Path) -> None:
    shutil.rmtree(archive / "manifest")


def its_content(archive: Path) -> None:
    for file in (archive / "manifest").iterdir():
        file.unlink()


def its_end(archive: Path) -> None:
    max((archive / "manifest").iterdir()).unlink()


def a_middle(archive: Path) -> None:
    sorted((archive / "manifest").iterdir())[1].unlink()


def the_text_of_one(archive: Path) -> None:
    sorted((archive / "manifest").iterdir())[1].write_text('{"first": 101')


LOSSES = [all_of_it, its_content, its_end, a_middle, the_text_of_one]


@pytest.mark.parametrize("lose", LOSSES)
def test_a_lost_manifest_is_damage_for_everything(store: Path, archive: Path, lose: Callable[[Path], None]) -> None:
    good = rows(archive)
    lose(archive)
    before, told = content(archive), Queue(store).progress()
    fault = f"titanic-data: the manifest of {archive} is damaged; "
    advice = f"titanic-data rebuild-manifest --archive {archive}"
    commands = ["verify", "compact", "vacuum --keep 0", "files", "report bodies", "replay --dry-run --where true"]
    where = f"--store {store}"
    for command in (*commands, f"archive {where}", f"archive --allow-gap {where}", f"restore-range 1 100 {where}"):
        done = titanic_data(*command.split(), "--archive", archive)
        assert (done.code, done.out) == (1, b""), command
        assert done.err.startswith(fault), command
        assert advice in done.err, command
    assert content(archive) == before, "nothing is deleted, no gap is booked"
    assert Queue(store).progress() == told
    done = titanic_data("rebuild-manifest", "--archive", archive)
    assert done.line.endswith("complete up to number 300"), done
    assert verify(Archive.open(archive)) == []
    assert rows(archive) == good
    assert [(entry.first, entry.last) for entry in Archive.open(archive).entries] == [(1, 100), (101, 200), (201, 300)]
    assert run(store, archive).rows == 0
    assert vacuum(Archive.open(archive), keep=0).files == 0


def test_what_the_last_request_was_is_known_again(store: Path, archive: Path, tmp_path: Path) -> None:
    noted = [entry.last_id for entry in Archive.open(archive).entries]
    all_of_it(archive)
    rebuilt = rebuild_manifest(archive)
    assert [entry.last_id for entry in rebuilt] == noted
    with pytest.raises(ArchiveError, match="is the archive of another store"):
        run(ring(tmp_path / "other", 400), archive)


def test_the_only_copy_of_old_requests_stays(tmp_path: Path) -> None:
    store, archive = ring(tmp_path / "store", 300, capacity=16 << 20), tmp_path / "archive"
    run(store, archive)
    good = rows(archive)
    forget(store)
    with open_store(store) as opened:
        wait_for_room(opened, 250)
    all_of_it(archive)
    before = content(archive)
    for allow_gap in (False, True):
        with pytest.raises(ArchiveError, match=r"the manifest of .* is damaged"):
            run(store, archive, allow_gap=allow_gap)
    assert content(archive) == before
    rebuild_manifest(archive)
    assert run(store, archive).rows > 0
    assert rows(archive)[:300] == good


def test_an_archive_behind_what_its_store_was_told(store: Path, archive: Path, tmp_path: Path) -> None:
    shutil.copytree(archive, tmp_path / "backup")
    forget(store)
    with open_store(store) as opened:
        fill(opened, 50, at=300)
    run(store, archive)
    shutil.rmtree(archive)
    (tmp_path / "backup").rename(archive)
    before = content(archive)
    fact = "it ends at number 300, and acknowledged all up to 350"
    with pytest.raises(
        ArchiveError, match=f"{archive} lacks requests that it acknowledged to its store {store}; {fact}; .*--allow-gap"
    ):
        run(store, archive)
    assert content(archive) == before
    assert verify(Archive.open(archive)) == [], "what it has is whole; only the store knows of more"
    assert run(store, archive, allow_gap=True).rows == 50, "the ring still has them"
    assert not any(entry.gap for entry in Archive.open(archive).entries)
    assert rows(archive) == in_ring(store, 1, 350)


def test_an_archive_that_is_empty_again(store: Path, archive: Path) -> None:
    for name in ("manifest", "data"):
        shutil.rmtree(archive / name)
    with pytest.raises(ArchiveError, match="it ends at number 0, and acknowledged all up to 300"):
        run(store, archive)
    assert run(store, archive, allow_gap=True).rows == 300


def test_an_archive_that_was_unregistered_has_a_gap_and_is_not_behind(tmp_path: Path) -> None:
    store, archive = ring(tmp_path / "store", 300, capacity=16 << 20), tmp_path / "archive"
    run(store, archive)
    Queue(store).unregister()
    with open_store(store) as opened:
        wait_for_room(opened, 310)
    for _ in range(2):  # the first try has registered it again: the store now counts from where its ring begins
        with pytest.raises(ArchiveGap, match="archive gap: closed requests 301 to "):
            run(store, archive)
    assert run(store, archive, allow_gap=True).rows > 0


@pytest.mark.parametrize("point", ["locked", "intended"])
def test_a_first_run_that_was_killed_is_no_damage(tmp_path: Path, point: str) -> None:
    store, archive = ring(tmp_path / "store", 300, capacity=16 << 20), tmp_path / "archive"
    with open_store(store) as opened:
        wait_for_room(opened, 100)
    with pytest.raises(Crash):
        run(store, archive, reached=crash_at(point))
    first, last = closed_range(store)
    assert run(store, archive).rows == last - first + 1


def test_what_a_crash_has_left_before_a_gap_is_no_damage(tmp_path: Path) -> None:
    store, archive = ring(tmp_path / "store", 300, capacity=16 << 20), tmp_path / "archive"
    run(store, archive)
    forget(store)
    with open_store(store) as opened:
        fill(opened, 90, at=300)
    with pytest.raises(Crash):
        run(store, archive, reached=crash_at("renamed"))
    forget(store)
    with open_store(store, drop_unarchived=True) as opened:
        wait_for_room(opened, 330)
    for point in ("recovered", "intended"):  # the gap is noted; the files of 301 to 390 go beyond it
        with pytest.raises(Crash):
            run(store, archive, allow_gap=True, reached=crash_at(point))
    assert Archive.open(archive).entries[-1].gap
    run(store, archive)
    assert verify(Archive.open(archive)) == []


def test_rebuilding_takes_compacted_files_rather_than_those_they_replaced(archive: Path) -> None:
    good = rows(archive)
    compact(Archive.open(archive))
    all_of_it(archive)
    assert [(entry.first, entry.last) for entry in rebuild_manifest(archive)] == [(1, 300)]
    assert rows(archive) == good
    assert vacuum(Archive.open(archive), keep=0).files > 6
    assert verify(Archive.open(archive)) == []


def test_rebuilding_without_the_compacted_files(archive: Path) -> None:
    good = rows(archive)
    compact(Archive.open(archive))
    all_of_it(archive)
    next((archive / "data").glob("*/closed-1-300-*.parquet")).write_bytes(b"PAR1 half")
    assert [(entry.first, entry.last) for entry in rebuild_manifest(archive)] == [(1, 100), (101, 200), (201, 300)]
    assert rows(archive) == good


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def lose_rows(file: Path) -> None:
    pq.write_table(pq.ParquetFile(file).read().slice(1), file)


FAULTS: dict[str, Callable[[Path], None]] = {
    r"closed-101-200-\d\.parquet: ": cut,
    r"their files have 9\d of 100 numbers": lose_rows,
    r"their files have \d+ of 100 numbers": Path.unlink,
    "are in no file": lambda file: [one.unlink() for one in file.parents[1].glob("*/closed-101-*")],  # type: ignore[dict-item, return-value]
}


@pytest.mark.parametrize("fault", FAULTS)
def test_rebuilding_refuses_what_is_not_whole(store: Path, archive: Path, fault: str) -> None:
    good = rows(archive)
    FAULTS[fault](max((archive / "data").glob("*/closed-101-200-*.parquet")))
    all_of_it(archive)
    before = content(archive)
    with pytest.raises(ArchiveError, match=f"cannot be rebuilt; .*101 to 200.*{fault}|{fault}.*101 to 200"):
        rebuild_manifest(archive)
    assert content(archive) == before
    done = titanic_data("rebuild-manifest", "--allow-gap", "--archive", archive)
    assert done.line.endswith("complete up to number 300 except for 1 gap"), done
    assert titanic_data("restore-range", "101", "200", "--store", store, "--archive", archive).code == 0
    assert rows(archive) == good
    assert verify(Archive.open(archive)) == []


def test_rebuilding_keeps_what_was_noted(archive: Path) -> None:
    """A checksum that is made anew would make a damaged file a whole one."""
    victim = Archive.open(archive).entries[0].files[0]
    (archive / "data" / victim.path).write_bytes(b"?" * victim.bytes)
    its_end(archive)
    assert [(entry.first, entry.last) for entry in rebuild_manifest(archive)] == [(201, 300)]
    assert [fault.range for fault in verify(Archive.open(archive))] == [(1, 100)]
    assert rebuild_manifest(archive) == []


def test_rebuilding_goes_on_from_what_a_crash_has_left(store: Path, archive: Path) -> None:
    forget(store)
    with open_store(store) as opened:
        fill(opened, 90, at=300, step_us=1_200_000_000)
    with pytest.raises(Crash):
        run(store, archive, reached=crash_at("renaming"))
    all_of_it(archive)
    assert [entry.last for entry in rebuild_manifest(archive)] == [100, 200, 300]
    run(store, archive)
    assert rows(archive) == in_ring(store, 1, 390)


def test_what_cannot_be_told_apart_is_said(archive: Path) -> None:
    odd = archive / "data" / "date=2023-11-14" / "closed-301-350-0.parquet"
    odd.write_bytes(b"half")
    with pytest.raises(ArchiveError, match=re.escape(f"it goes up to number 300, and {odd.name} up to 350")):
        Archive.open(archive)
    with pytest.raises(ArchiveError, match=rf"cannot be rebuilt; 301 to 350: {odd.name}: .*move it out of the archive"):
        rebuild_manifest(archive, allow_gap=True)
    odd.unlink()
    assert Archive.open(archive).head == 300


def test_a_lost_archive_json_is_made_again_from_the_store(store: Path, archive: Path) -> None:
    about = archive / "archive.json"
    before = about.read_bytes()
    about.unlink()
    for command in ("verify", "archive --store " + str(store)):
        done = titanic_data(*command.split(), "--archive", archive)
        assert done.code in (1, 2)  # 2: a file is not there
        assert f"titanic-data rebuild-manifest --archive {archive} --store STORE recreates it" in done.err
    done = titanic_data("rebuild-manifest", "--archive", archive, "--store", store)
    assert done.line.endswith("nothing was missing; complete up to number 300"), done
    assert about.read_bytes() == before
    assert run(store, archive).rows == 0


def test_a_lost_archive_json_is_not_made_from_a_store_without_an_archive(tmp_path: Path, archive: Path) -> None:
    (archive / "archive.json").unlink()
    done = titanic_data("rebuild-manifest", "--archive", archive, "--store", ring(tmp_path / "another", 5))
    assert done.code == 1
    assert "no archive was ever registered with" in done.err
    assert not (archive / "archive.json").exists()
