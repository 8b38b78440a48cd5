"""On a standalone cluster of Spark, by a client of Spark Connect: nothing of a session's own JVM is there.

It takes a minute to start: `make torture`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.archiving import in_ring, rows
from support.processes import PYTHONPATH, SUPPORT
from support.ring import ring
from support.spark_cluster import Cluster, cluster
from support.waiting import until

from titanic import Client, Server
from titanic_data.errors import MissingPart
from titanic_data.session import expect_java

pytestmark = pytest.mark.torture
LONGEST = 600
"""Seconds that a program may take, on a busy machine."""


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        expect_java()
    except MissingPart as error:
        if "CI" in os.environ:
            pytest.fail(str(error))
        pytest.skip(str(error))
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def program(cluster: Cluster, *arguments: str | Path) -> subprocess.Popen[str]:
    """support/spark_remote.py, begun."""
    command = [sys.executable, str(SUPPORT / "spark_remote.py"), cluster.remote, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def said(process: subprocess.Popen[str]) -> str:
    """What it printed, once its input ended and it has."""
    out, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, err[-3000:]
    return out.strip()


def test_an_archive(spark_cluster: Cluster, tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 200)
    assert said(program(spark_cluster, "archive", store, tmp_path / "archive")) == "200"
    assert rows(tmp_path / "archive") == in_ring(store, 1, 200)


def test_a_worker(spark_cluster: Cluster, server: Server, client: Client) -> None:
    uuids = client.submit_many("upper", [b"body %d" % n for n in range(20)])
    process = program(spark_cluster, "work", server.endpoints[0], "upper")
    replies = dict(client.replies(uuids, timeout=LONGEST))
    assert [replies[uuid] for uuid in uuids] == [[b"BODY %d" % n] for n in range(20)]
    assert said(process) == "worked"


def test_rows_are_requests_once_also_when_executors_are_killed(
    spark_cluster: Cluster, server: Server, client: Client
) -> None:
    count = 3000
    process = program(spark_cluster, "write", server.endpoints[0], str(count))
    until(lambda: client.stats()["store"]["requests"] > 50, LONGEST)
    victims = spark_cluster.executors()
    assert victims
    for victim in victims:  # any one alone may not have begun yet
        os.kill(victim, signal.SIGKILL)
    assert client.stats()["store"]["requests"] < count, "it was killed before it was done"
    assert said(process) == "written"
    with server.store.read() as transaction:
        found, _ = transaction.unended(b"", None, 10 * count)
    assert {row.key: body for row, body in found} == {b"order %d" % n: [b"body %d" % n] for n in range(count)}
    assert len(found) == count
    assert client.stats()["since_start"]["repeated"] > 0, "a task was repeated"
