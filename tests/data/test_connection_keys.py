"""Tables as requests at a server with access control: everything that asks it has keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.cli_data import titanic_data
from support.cli_titanic import serving
from support.ring import ring

from broker import load_secret, new_keys
from titanic import Client
from titanic_data.archive import Queue
from titanic_data.errors import InvalidOption
from titanic_data.spark_client import close, collect, known
from titanic_data.spark_options import write_options
from titanic_data.spark_worker import SparkWorker

ACCESS = """
[users.tables]
keys = ["tables.key"]
submit = ["upper"]
work = ["upper"]
read = "own"
close = true

[users.archivist]
keys = ["archivist.key"]
admin = true
metrics = true
"""


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """Where a server is that knows those who write tables, and who archives. The store has ten closed requests."""
    (tmp_path / "access.toml").write_text(ACCESS)
    for name in ("server", "tables", "archivist"):
        new_keys(tmp_path, name)
    ring(tmp_path / "store", 10)
    options = ("--access", str(tmp_path / "access.toml"), "--key", str(tmp_path / "server.key_secret"))
    with serving(tmp_path, *options) as (_, endpoint):
        yield endpoint


def upper(requests: DataFrame) -> DataFrame:
    return requests.selectExpr("id", "upper(CAST(body AS STRING)) AS reply")


def test_rows_become_requests_and_replies(spark: SparkSession, endpoint: str, tmp_path: Path) -> None:
    key, server_key = str(tmp_path / "tables.key_secret"), str(tmp_path / "server.key")
    rows = spark.createDataFrame([(f"order {n}", f"body {n}") for n in range(10)], "key STRING, body STRING").coalesce(
        1
    )
    writer = rows.write.format("titanic").mode("append").option("service", "upper").option("endpoint", endpoint)
    writer.option("keyFile", key).option("serverKey", server_key).save()
    assert known(rows, endpoint, key=key, server_key=server_key) == 10
    with (
        SparkWorker(spark, "upper", upper, endpoint, lanes=16, key=key, server_key=server_key),
        Client(endpoint, timeout=30, key=key, server_key=server_key) as client,
    ):
        uuids, _ = client.find([f"order {n}" for n in range(10)])
        assert len(dict(client.replies(uuids.values(), timeout=200))) == 10  # collecting would take Spark's processors
    found = collect(rows, endpoint, key=key, server_key=server_key).cache()
    assert {row.key: bytes(row.reply) for row in found.collect()} == {f"order {n}": b"BODY %d" % n for n in range(10)}
    assert close(found, endpoint, key=key, server_key=server_key) == 10


def test_an_archive_tells_a_server_that_knows_it(endpoint: str, tmp_path: Path) -> None:
    where = ("--store", tmp_path / "store", "--endpoint", endpoint)
    keys = ("--key", tmp_path / "archivist.key_secret", "--server-key", tmp_path / "server.key")
    done = titanic_data("archive", *where, *keys, "--archive", tmp_path / "archive")
    assert (done.code, done.err) == (0, "")
    queue = Queue(tmp_path / "store")
    assert queue.progress().registered
    refused = titanic_data("unregister", *where)
    assert refused.code == 1
    assert "requires a key; this client has none" in refused.err
    assert queue.progress().registered
    others = ("--key", tmp_path / "tables.key_secret", "--server-key", tmp_path / "server.key")
    refused = titanic_data("unregister", *where, *others)
    assert refused.code == 1
    assert "user 'tables' may not" in refused.err
    assert queue.progress().registered
    assert titanic_data("unregister", *where, *keys).code == 0
    assert not queue.progress().registered


def test_faults_of_keys_are_told_before_spark_is_asked(tmp_path: Path) -> None:
    new_keys(tmp_path, "tables")
    (tmp_path / "rows.csv").write_text("key,body\n1,2\n")
    done = titanic_data("submit", tmp_path / "rows.csv", "--key", tmp_path / "tables.key_secret")
    assert done.code == 2
    assert "a key without a server key" in done.err
    with pytest.raises(InvalidOption, match="needs keyFile and serverKey"):
        write_options({"service": "upper", "keyFile": "/k"})
    public = load_secret(tmp_path / "tables.key_secret").public.decode()
    assert write_options({"service": "upper", "keyFile": "/k", "serverKey": public}).serverkey == public
