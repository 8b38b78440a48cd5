"""Spark reads the ring and what waits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import lmdb
import pytest
from pyspark.sql import DataFrame, SparkSession
from support.ring import BEGIN, ring, wait_for_room
from support.store_facts import accept_all, closed_in, closed_range

from pyspark_titanic.source import ClosedReader
from titanic.store import ClosedRequest, NewRequest, Status, open_read_only, open_store
from titanic_data.columns import STATUSES
from titanic_data.errors import DataLoss, PipelineError
from titanic_data.spark_options import read_options
from titanic_data.store_reader import forget
from titanic_data.tables import CLOSED

COUNT = 2100


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ring(tmp_path_factory.mktemp("read") / "store", COUNT)


@pytest.fixture(scope="module")
def entries(store: Path) -> list[ClosedRequest]:
    """The ring, one by one."""
    with open_read_only(store) as opened, opened.read() as txn:
        return closed_in(txn, 0, COUNT, 1 << 40)


def load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("titanic").options(**options).load(str(path))


def test_every_row_is_what_the_ring_has(spark: SparkSession, store: Path, entries: list[ClosedRequest]) -> None:
    rows = load(spark, store, rowsPerPartition=500).orderBy("seq").collect()
    assert len(rows) == len(entries) == COUNT
    for row, entry in zip(rows, entries, strict=True):
        assert (row.seq, row.request_id) == (entry.sequence, entry.uuid.hex())
        assert row.service == entry.service.decode()
        assert row.idempotency_key == (entry.key.decode() or None)
        assert row.status == STATUSES[entry.status]
        assert row.attempts == entry.attempts
        assert [micros(row[name]) for name in ("submitted_at", "dispatched_at", "replied_at", "closed_at")] == [
            entry.submitted_at,
            entry.dispatched_at,
            entry.replied_at,
            entry.closed_at,
        ]
        assert frames(row.request, row.request_sizes) == (None if entry.request_left_out else entry.request)
        if entry.status in (Status.DONE, Status.FAILED) and not entry.reply_left_out and entry.reply:
            assert frames(row.reply, row.reply_sizes) == entry.reply
        assert (row.request_bytes, row.reply_bytes) == (entry.request_bytes, entry.reply_bytes)
        assert row.error == (entry.error or None)
        assert row.owner == (entry.owner.decode() or None)
        assert row.source == (entry.source.decode() or None)
        assert (row.priority, row.unclaimed, row.schema_version) == (entry.priority, entry.unclaimed, 1)
        assert str(row.date) == row.closed_at.strftime("%Y-%m-%d")
    assert {row.status for row in rows} == {"ok", "failed", "expired", "cancelled"}
    assert any(row.request is None for row in rows)
    assert {row.owner for row in rows} == {None, "shop", "eve"}
    assert {row.source for row in rows} == {None, "192.0.2.7", "2001:db8::7"}
    assert {len(row.request_sizes) for row in rows if row.request_sizes is not None} == {0, 3}


def micros(moment: Any) -> int:
    """A time as the store has it. Spark gives times without a zone, in that of this machine."""
    return 0 if moment is None else round(moment.astimezone().timestamp() * 1e6)


def frames(body: bytearray | None, sizes: list[int] | None) -> list[bytes] | None:
    if body is None or sizes is None:
        return None if body is None else [bytes(body)]
    bounds = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
    return [bytes(body[begin:end]) for begin, end in pairwise(bounds)]


def test_ranges_and_columns(spark: SparkSession, store: Path) -> None:
    def numbers(**options: Any) -> list[int]:
        return sorted(row.seq for row in load(spark, store, columns="seq", **options).collect())

    assert numbers(startingOffsets=2001, endingOffsets=2050) == list(range(2001, 2051))
    assert numbers(startingOffsets="latest") == []
    assert numbers(startingOffsets=2100) == [2100]
    assert load(spark, store, columns="status, seq").columns == ["status", "seq"]
    assert load(spark, store, minPartitions=5).rdd.getNumPartitions() == 5
    assert load(spark, store, rowsPerPartition=1000).rdd.getNumPartitions() == 3


def test_a_schema_of_the_user(spark: SparkSession, store: Path) -> None:
    rows = spark.read.format("titanic").schema("attempts INT, seq BIGINT").load(str(store)).where("seq = 3").collect()
    assert [tuple(row) for row in rows] == [(3, 3)]


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name, "false")
    spark.conf.set(name, "true")
    yield
    spark.conf.set(name, str(before))


@pytest.mark.usefixtures("pushing")
@pytest.mark.parametrize(
    ("condition", "count", "parts"),
    [
        ("seq > 100 AND seq <= 300", 200, 2),
        ("seq = 17", 1, 1),
        ("seq >= 2000 AND service = 'mail'", 34, 2),
        ("seq < 1", 0, 0),
        ("seq IN (5, 500)", 2, 21),
        ("seq < 9999999", COUNT, 21),
    ],
)
def test_conditions_choose_the_range(spark: SparkSession, store: Path, condition: str, count: int, parts: int) -> None:
    found = load(spark, store, pushFilters=True, rowsPerPartition=100, columns="seq,service").where(condition)
    assert found.count() == count
    assert max(found.rdd.getNumPartitions(), 1) == max(parts, 1)


def test_an_empty_store(spark: SparkSession, tmp_path: Path) -> None:
    open_store(tmp_path / "store").close()
    assert load(spark, tmp_path / "store").count() == 0
    assert load(spark, tmp_path / "store", table="waiting").count() == 0


def test_what_waits(spark: SparkSession, tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        with store.write() as txn:
            requests = [NewRequest(b"later", [b"%d" % n], key=b"k%d" % n, key_until=BEGIN * 2) for n in range(250)]
            times = {"not_before": BEGIN * 2, "expires_at": BEGIN * 3}
            requests.append(NewRequest(b"delayed", [b"a", b"b"], owner=b"shop", **times))
            uuids = accept_all(txn, requests, BEGIN)
            txn.finish(uuids[7], Status.DONE, [b"done"], attempts=1, dispatched_at=BEGIN, finished_at=BEGIN)
            txn.close(uuids[8], BEGIN)
        found = load(spark, tmp_path / "store", table="waiting", rowsPerPartition=100)
        assert found.rdd.getNumPartitions() == 3
        rows = {row.request_id: row for row in found.collect()}
    assert sorted(rows) == sorted(uuid.hex() for n, uuid in enumerate(uuids) if n not in (7, 8))
    first, last = rows[uuids[0].hex()], rows[uuids[-1].hex()]
    assert (first.service, first.state, first.request, first.request_sizes) == ("later", "waiting", b"0", None)
    assert (first.idempotency_key, first.due_at, micros(first.submitted_at)) == ("k0", None, BEGIN)
    assert (last.state, last.request, last.request_sizes) == ("delayed", b"ab", [1, 1])
    assert (first.owner, last.owner) == (None, "shop")
    assert (micros(last.due_at), micros(last.expires_at)) == (BEGIN * 2, BEGIN * 3)


def damaged(path: Path, number: int) -> None:
    """Flip a bit of a record in the ring."""
    with lmdb.open(str(path), max_dbs=16, map_size=512 << 20) as env, env.begin(write=True) as txn:
        closed, key = env.open_db(b"closed", txn), number.to_bytes(8, "big")
        record = txn.get(key, db=closed)
        txn.put(key, record[:-1] + bytes([record[-1] ^ 1]), db=closed)


def test_a_damaged_record_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    path = ring(tmp_path / "store", 20)
    damaged(path, 9)
    with pytest.raises(Exception, match="the record of 0000000000000009 in 'closed' is damaged"):
        load(spark, path).count()
    assert load(spark, path, endingOffsets=8).count() == 8


def test_a_ring_that_let_go_meanwhile(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = ring(tmp_path / "store", 100, capacity=16 << 20)
    strict, lax = load(spark, path, columns="seq"), load(spark, path, columns="seq", failOnDataLoss=False)
    words = ("true", "false")
    parts = [ClosedReader(read_options({"path": str(path), "failOnDataLoss": word}), ["seq"]) for word in words]
    planned = [reader.partitions() for reader in parts]
    forget(path)
    with open_store(path, capacity=16 << 20) as store:
        wait_for_room(store, 50)
        with store.read() as txn:
            first, _ = closed_range(txn)
    with pytest.raises(DataLoss, match=f"closed requests 1 to 100 are not in .*; the ring now begins at {first};"):
        list(parts[0].read(planned[0][0]))
    found = [number for batch in parts[1].read(planned[1][0]) for number in batch["seq"].to_pylist()]
    assert found == list(range(first, 101))
    skipped = (
        f"closed requests 1 to {first - 1} are skipped: failOnDataLoss=false, and the store {path} begins at {first}"
    )
    assert caplog.messages == [skipped]
    later = read_options({"path": str(path), "failOnDataLoss": "false", "startingOffsets": "5"})
    assert ClosedReader(later, ["seq"]).partitions()[0].value[0] == first
    assert caplog.messages[1:] == [skipped.replace("1 to", "5 to", 1)]
    assert strict.agg({"seq": "min"}).collect() == lax.agg({"seq": "min"}).collect() == [(first,)]  # planned afterwards
    with pytest.raises(Exception, match=f"titanic: closed requests 5 to {first - 1} are not in the store"):
        load(spark, path, startingOffsets=5).count()


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"tabel": "closed"}, "unknown option 'tabel'; known: path, table, .*; did you mean table?"),
        ({"table": "close"}, "the option table cannot be 'close'; known: closed, waiting; did you mean closed?"),
        ({"columns": "seq,atempts"}, "there is no column 'atempts' in closed; .*; did you mean attempts?"),
        ({"columns": "seq,seq"}, "a column is named twice"),
        (
            {"startingOffsets": "first"},
            "the option startingOffsets cannot be 'first'; it must be earliest, latest or",
        ),
        (
            {"endingOffsets": 999_999},
            f"closed requests {COUNT + 1} to 999999 are not in .*; its last number is",
        ),
        (
            {"startingOffsets": COUNT + 2},
            f"startingOffsets is {COUNT + 2}, which the store .* has not reached; its last n",
        ),
        ({"startingOffsets": 9, "endingOffsets": 7}, "the range is empty; startingOffsets is 9, endingOffsets 7"),
        ({"batchSize": 0}, "the option batchSize cannot be '0'; it must be a number from 1"),
        ({"failOnDataLoss": "no"}, "the option failOnDataLoss cannot be 'no'; it must be true or false"),
        ({"table": "waiting", "startingOffsets": 5}, "startingOffsets is for the table closed"),
        ({"service": "mail"}, "unknown option 'service'"),
    ],
)
def test_bad_options_are_refused(store: Path, options: dict[str, Any], fault: str) -> None:
    given = {"path": str(store), **{name: str(value) for name, value in options.items()}}
    with pytest.raises(PipelineError, match=fault):
        ClosedReader(read_options(given), ["seq"]).partitions()


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"tabel": "closed"}, "unknown option 'tabel'; known:"),
        ({"endingOffsets": 999_999}, "closed requests .* are not in"),
    ],
)
def test_bad_options_are_refused_on_the_driver(
    spark: SparkSession, store: Path, options: dict[str, Any], fault: str
) -> None:
    """When the frame is made, and when it is planned."""
    with pytest.raises(Exception, match=f"titanic: {fault}"):
        load(spark, store, **options).count()


def test_there_is_nothing_yet(spark: SparkSession, store: Path) -> None:
    assert load(spark, store, startingOffsets=COUNT + 1).count() == 0
    assert load(spark, store, startingOffsets=COUNT + 9, failOnDataLoss="false").count() == 0


def test_a_start_that_the_store_has_not_come_to_is_logged(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    far = {"path": str(store), "failOnDataLoss": "false", "startingOffsets": str(COUNT + 9)}
    assert ClosedReader(read_options(far), ["seq"]).partitions() == []
    text = f"no closed requests from number {COUNT + 9} on: the last number of the store {store} is {COUNT}"
    assert caplog.messages == [text]


def test_stores_that_are_none(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"there is no store at .*/none; No such file or directory"):
        load(spark, tmp_path / "none")
    with pytest.raises(Exception, match="titanic: there is no path to read from"):
        spark.read.format("titanic").load()
    (tmp_path / "other").mkdir()
    with lmdb.open(str(tmp_path / "other"), max_dbs=2) as env:
        env.open_db(b"something")
    with pytest.raises(Exception, match="it is an LMDB file of another program"):
        load(spark, tmp_path / "other")
    late = ring(tmp_path / "late", 1)
    with lmdb.open(str(late), max_dbs=16, map_size=512 << 20) as env, env.begin(write=True) as txn:
        txn.put(b"store_format", (99).to_bytes(4, "little"), db=env.open_db(b"meta", txn))
    with pytest.raises(Exception, match=r"was written by a later version; its format is 99, .*; upgrade Titanic"):
        load(spark, late)


def test_a_schema_that_does_not_fit(spark: SparkSession, store: Path) -> None:
    with pytest.raises(Exception, match="titanic: the column seq cannot be read as INT; it is BIGINT"):
        spark.read.format("titanic").schema("seq INT").load(str(store)).count()
    with pytest.raises(Exception, match="titanic: there is no column 'number' in closed"):
        spark.read.format("titanic").schema("number BIGINT").load(str(store)).count()


def test_the_documented_columns_come_first() -> None:
    named = "seq request_id service idempotency_key status attempts submitted_at dispatched_at replied_at closed_at"
    assert CLOSED.schema.names[:13] == [*named.split(), "request", "reply", "error"]
    assert CLOSED.schema.names[-2:] == ["schema_version", "date"]
