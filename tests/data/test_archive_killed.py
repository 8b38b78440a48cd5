"""The archiver is killed at every point, while a server goes on closing requests."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support import torture
from support.archiving import Crash, crash_at, killed, read_files, run
from support.cli_titanic import serving
from support.ring import ring
from support.spark import LONGEST
from support.store_facts import closed_range
from support.waiting import until

from titanic import Client, Refused
from titanic.store import open_read_only
from titanic_data.archive import Archive, Queue, SparkEngine, archive_frame, verify
from titanic_data.archive.archiver import POINTS

ROOT = Path(__file__).parents[2]
BODY = b"b" * 4000


pytestmark = pytest.mark.timeout(LONGEST)


class Closing(threading.Thread):
    """A client that submits requests and closes them, until it is stopped."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        self._endpoint = endpoint
        self._stop_it = threading.Event()
        self.closed: list[str] = []
        self.refused = 0

    def run(self) -> None:
        with Client(self._endpoint) as client:
            while not self._stop_it.is_set():
                try:
                    uuids = client.submit_batch("absent", [BODY] * 20)
                except Refused:  # the ring is full of what the archive has not got
                    self.refused += 1
                    self._stop_it.wait(0.02)
                    continue
                for uuid in uuids:
                    self._close(client, uuid)

    def _close(self, client: Client, uuid: str) -> None:
        while True:
            try:
                client.close(uuid)
            except Refused:
                self.refused += 1
                self._stop_it.wait(0.02)
            else:
                self.closed.append(uuid)
                return

    def stop(self) -> None:
        self._stop_it.set()


@contextmanager
def closing(endpoint: str) -> Iterator[Closing]:
    with Client(endpoint) as client:
        client.archive(register=True)  # from the first request on
    thread = Closing(endpoint)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def start(folder: Path, endpoint: str, engine: str, point: str, count: int) -> subprocess.Popen[bytes]:
    with (folder / "archiver.log").open("ab") as log:
        return killed(folder / "store", folder / "archive", endpoint, engine, point, str(count), output=log)


def let_go_of(folder: Path) -> tuple[int, int]:
    """The last number that the ring has let go of, and the last that the manifest has."""
    with open_read_only(folder / "store") as store, store.read() as txn:
        first = closed_range(txn)[0]
    archive = folder / "archive" / "archive.json"
    return first - 1, Archive.open(archive.parent).head if archive.exists() else 0


def finish(folder: Path, endpoint: str, thread: Closing) -> None:
    """Archive the rest, and compare: closed = archived = distinct."""
    thread.stop()
    while thread.is_alive():
        assert start(folder, endpoint, "pyarrow", "never", 1).wait(LONGEST) == 0  # which makes room
        thread.join(0.01)
    assert start(folder, endpoint, "pyarrow", "never", 1).wait(LONGEST) == 0, (folder / "archiver.log").read_text()
    archive = Archive.open(folder / "archive")
    assert verify(archive) == []
    ids = read_files(archive.files())["request_id"].to_pylist()
    assert len(ids) == len(set(ids)) == len(thread.closed)
    assert set(ids) == set(thread.closed)
    gone, head = let_go_of(folder)
    assert gone <= head == len(ids)
    torture.tally["acknowledged requests checked"] += len(ids)


def kill_at_points(folder: Path, engine: str, points: tuple[str, ...]) -> None:
    with serving(folder, "--capacity", "16MiB") as (_, endpoint), closing(endpoint) as thread:
        until(lambda: len(thread.closed) > 200)
        for point in points:
            code = 0
            while code == 0:  # there was nothing to do: the ring was full, until this run acknowledged what is archived
                code = start(folder, endpoint, engine, point, 1).wait(LONGEST)
            assert code == -signal.SIGKILL, (point, (folder / "archiver.log").read_text())
            torture.tally["processes killed"] += 1
            gone, head = let_go_of(folder)
            assert gone <= head
        finish(folder, endpoint, thread)


@pytest.mark.torture(short=True)
def test_pyarrow_is_killed_at_every_point(tmp_path: Path) -> None:
    kill_at_points(tmp_path, "pyarrow", tuple(torture.part([*POINTS], 3)))


@pytest.mark.torture
def test_spark_is_killed_at_every_point(tmp_path: Path) -> None:
    kill_at_points(tmp_path, "spark", POINTS)


@pytest.mark.torture
@pytest.mark.parametrize(("parquet", "kills", "longest"), [("pyarrow", 150, 2.5), ("spark", 30, 15.0)])
def test_killed_at_random(tmp_path: Path, parquet: str, kills: int, longest: float) -> None:
    dice = random.Random(torture.SEED)
    with serving(tmp_path, "--capacity", "16MiB") as (_, endpoint), closing(endpoint) as thread:
        for _ in range(kills):
            process = start(tmp_path, endpoint, parquet, "never", 1)
            try:
                process.wait(dice.uniform(0.1, longest))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                torture.tally["processes killed"] += 1
            gone, head = let_go_of(tmp_path)
            assert gone <= head
        finish(tmp_path, endpoint, thread)


@pytest.mark.torture(short=True)
def test_a_crash_of_spark_anywhere(spark: SparkSession, tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 240, step_us=1_200_000_000)

    engine = SparkEngine(spark)
    for point in torture.part([*POINTS], 4):
        with pytest.raises(Crash):
            run(store, tmp_path / "archive", engine, rows=40, reached=crash_at(point))
    run(store, tmp_path / "archive", engine, rows=40)
    archive = Archive.open(tmp_path / "archive")
    assert verify(archive) == []
    frame = archive_frame(spark, archive.path)
    assert frame.count() == frame.select("request_id").distinct().count() == 240
    ring_frame = spark.read.format("titanic").load(str(store))
    assert frame.exceptAll(ring_frame).isEmpty()
    assert ring_frame.exceptAll(frame).isEmpty()
    assert Queue(store).progress()[:2] == (True, 240)
