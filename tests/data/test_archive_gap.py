"""A ring that has let go of what the archive lacks: said, noted, and gone on from, also after a crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.archiving import Crash, crash_at, in_ring, rows, run
from support.cli_data import titanic_data
from support.ring import fill, ring, wait_for_room
from support.store_facts import closed_range as range_of

from titanic.store import open_store
from titanic_data.archive import Archive, Engine, Entry, PyArrowEngine, Queue, SparkEngine, restore_range, verify
from titanic_data.errors import ArchiveError, ArchiveGap
from titanic_data.store_reader import closed_range, forget

BEGUN = ("intended", "staging", "staged", "renaming", "renamed")
"""Where a range is written down, and not committed."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return ring(tmp_path / "store", 300, capacity=16 << 20)


@pytest.fixture
def parquet(request: pytest.FixtureRequest) -> Engine:
    return PyArrowEngine() if request.param == "pyarrow" else SparkEngine(request.getfixturevalue("spark"))


def let_go(store: Path, upto: int) -> tuple[int, int]:
    """Let the ring move on, as a server with --drop-unarchived does; its first and last number then."""
    forget(store)
    with open_store(store, drop_unarchived=True) as opened:
        wait_for_room(opened, upto)
    return closed_range(store)


def close_more(store: Path, count: int, at: int = 300) -> None:
    forget(store)
    with open_store(store) as opened:
        fill(opened, count, at=at)


def expect_whole(store: Path, archive: Path, gaps: list[tuple[int, int]]) -> None:
    """All that the ring has is there, the gaps are noted, and nothing is left to do."""
    opened = Archive.open(archive)
    assert verify(opened) == []
    assert [(entry.first, entry.last) for entry in opened.entries if entry.gap] == gaps
    first, last = closed_range(store)
    assert [row for row in rows(archive) if int(str(row["seq"])) >= first] == in_ring(store, first, last)
    assert not (archive / "pending.json").exists()
    assert run(store, archive).rows == 0


def test_a_gap(tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 300, capacity=16 << 20)
    run(store, tmp_path / "archive")
    Queue(store).unregister()
    with open_store(store) as opened:
        wait_for_room(opened, 310)
        with opened.read() as txn:
            first, last = range_of(txn)
    with pytest.raises(ArchiveGap, match=f"closed requests 301 to {first - 1} are not in the archive"):
        run(store, tmp_path / "archive")
    assert run(store, tmp_path / "archive", allow_gap=True).rows == last - first + 1
    entries = Archive.open(tmp_path / "archive").entries
    assert [(entry.first, entry.last) for entry in entries if entry.gap] == [(301, first - 1)]
    assert verify(Archive.open(tmp_path / "archive")) == []
    assert run(store, tmp_path / "archive").rows == 0


def test_a_new_archive_of_an_old_ring(tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 300, capacity=16 << 20)
    with open_store(store) as opened:
        wait_for_room(opened, 100)
        with opened.read() as txn:
            first, last = range_of(txn)
    assert run(store, tmp_path / "archive").rows == last - first + 1
    entries = Archive.open(tmp_path / "archive").entries
    assert (entries[0].gap, entries[0].first, entries[0].last) == (True, 1, first - 1)
    assert [entry.gap for entry in entries[1:]] == [False] * (len(entries) - 1)
    assert verify(Archive.open(tmp_path / "archive")) == []
    other = ring(tmp_path / "other", 400)
    with pytest.raises(ArchiveError, match="is another store"):
        restore_range(Archive.open(tmp_path / "archive"), other, entries[0].first, entries[0].last)
    assert Archive.open(tmp_path / "archive").entries == entries


@pytest.mark.parametrize("upto", [330, 400])  # within what was begun, and beyond it
@pytest.mark.parametrize("point", BEGUN)
def test_a_gap_after_a_crash(store: Path, tmp_path: Path, point: str, upto: int) -> None:
    a_gap_after_a_crash(store, tmp_path / "archive", PyArrowEngine(), point, upto)


@pytest.mark.torture
def test_a_gap_after_a_crash_of_spark(store: Path, tmp_path: Path, spark: SparkSession) -> None:
    a_gap_after_a_crash(store, tmp_path / "archive", SparkEngine(spark), "renaming", 330)


def a_gap_after_a_crash(store: Path, archive: Path, parquet: Engine, point: str, upto: int) -> None:
    run(store, archive)
    close_more(store, 90)
    with pytest.raises(Crash):
        run(store, archive, parquet, reached=crash_at(point))
    begun = json.loads((archive / "pending.json").read_text())
    assert (begun["first"], begun["last"]) == (301, 390)
    if point in BEGUN[::2]:
        Queue(store).unregister()  # the other way to lose some
    first, last = let_go(store, upto)
    for _ in range(2):
        with pytest.raises(ArchiveGap, match=f"closed requests 301 to {first - 1} are not in .*run again with --allow"):
            run(store, archive, parquet)
    assert run(store, archive, parquet, allow_gap=True).rows == last - first + 1
    expect_whole(store, archive, [(301, first - 1)])


@pytest.mark.parametrize("point", BEGUN)
def test_the_first_run_was_killed_and_the_ring_moved_on(store: Path, tmp_path: Path, point: str) -> None:
    with pytest.raises(Crash):
        run(store, tmp_path / "archive", rows=60, reached=crash_at(point))
    first, last = let_go(store, 100)
    assert run(store, tmp_path / "archive").rows == last - first + 1
    expect_whole(store, tmp_path / "archive", [(1, first - 1)])


def test_a_gap_was_noted_and_what_was_begun_was_not_forgotten(store: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    run(store, archive)
    close_more(store, 90)
    with pytest.raises(Crash):
        run(store, archive, reached=crash_at("staged"))
    first, _ = let_go(store, 330)
    Archive.open(archive).commit(Entry(301, first - 1, gap=True))
    run(store, archive)
    expect_whole(store, archive, [(301, first - 1)])


MOVES = [(*move, allow_gap) for allow_gap in (False, True) for move in (("intended", 330), ("staged", 400))]
"""When it moves, and up to where: past some of what was begun, and past all of it."""


@pytest.mark.parametrize(
    ("parquet", "when", "upto", "allow_gap"),
    [
        *(("pyarrow", *move) for move in MOVES),
        ("spark", *MOVES[0]),
        *(pytest.param("spark", *move, marks=pytest.mark.torture) for move in MOVES[1:]),
    ],
    indirect=["parquet"],
)
def test_the_ring_moves_on_while_it_is_archived(
    store: Path, tmp_path: Path, parquet: Engine, when: str, upto: int, allow_gap: bool
) -> None:
    archive = tmp_path / "archive"
    run(store, archive)
    close_more(store, 90)
    moved: list[tuple[int, int]] = []

    def reached(point: str) -> None:
        if point == when and not moved:
            moved.append(let_go(store, upto))

    if not allow_gap:
        with pytest.raises(ArchiveGap, match=r"closed requests 301 to .* are not in the archive") as caught:
            run(store, archive, parquet, reached=reached)
        assert "failOnDataLoss" not in str(caught.value)
    run(store, archive, parquet, reached=reached, allow_gap=True)
    run(store, archive)  # what was closed after it had begun
    expect_whole(store, archive, [(301, moved[0][0] - 1)])


def test_the_command_says_it(store: Path, tmp_path: Path) -> None:
    where = ("--store", store, "--archive", tmp_path / "archive")
    assert titanic_data("archive", *where).line.endswith("complete up to number 300")
    first, last = let_go(store, 310)
    done = titanic_data("archive", *where)
    assert (done.code, done.err.startswith("titanic-data: archive gap: closed requests 301 to ")) == (1, True)
    done = titanic_data("archive", *where, "--allow-gap")
    assert done.line.endswith(f"complete up to number {last} except for 1 gap")
    assert (
        f"301 to {first - 1}: never archived" in titanic_data("verify", "--archive", tmp_path / "archive").out.decode()
    )
