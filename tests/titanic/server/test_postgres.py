"""A server whose store is in PostgreSQL: lives are whole, and it goes on when the database was away."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.postgres import PostgresServer, needs_postgres, spare_server
from support.serving import QUICK, config
from support.store_facts import closed_in
from support.waiting import until

from broker import Worker
from titanic import Client, Refused, Server
from titanic.cluster import notifications
from titanic.cluster.node import ClaimingNode
from titanic.cluster.notifications import Cluster
from titanic.store import LeaseConfig
from titanic.store.postgres import connection_pool
from titanic.store.postgres.tools import check

pytestmark = needs_postgres


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with spare_server() as server:
        yield server


@pytest.fixture
def server(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(connection_pool, "AGAIN", 0.05)
    with Server(config(tmp_path, store=postgres.url(postgres.new_database()), retry_most=0.05)) as server:
        yield server
        assert server.alive
        assert check(server.store) == []


def test_lives_are_whole(server: Server, client: Client) -> None:
    with Worker("echo", echo, server.endpoints[0], config=QUICK):
        uuids = [client.submit("echo", f"{number}", delay=number % 2 * 0.01) for number in range(10)]
        for number, uuid in enumerate(uuids):
            assert client.wait(uuid, 30) == [b"%d" % number]
        client.close(*uuids)
    with server.store.read() as transaction:
        assert transaction.counts()[:4] == (0, 0, 0, 0)
        assert [one.uuid.hex() for one in closed_in(transaction, 0, 100, 1 << 20)] == uuids


def test_an_outage_is_told_once_and_by_one(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_pool, "AGAIN", 0.05)
    monkeypatch.setattr(notifications, "POLL_INTERVAL", 0.05)
    caplog.set_level(logging.INFO)
    failed: Counter[str] = Counter()
    for owner, name in ((ClaimingNode, "_unanswered"), (Cluster, "_not_seen")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name), failed))
    lease = LeaseConfig(renew=1.0)  # a connection whose answer comes later is given up
    with Server(config(tmp_path, store=postgres.url(postgres.new_database()), lease=lease)) as server:
        node = server.dispatcher.node
        assert node is not None
        until(lambda: node.claims.writes)
        with Client(server.endpoints[0], timeout=30) as client:
            postgres.stop("kill")  # at once: else one connection of a pool is well for a moment when another is gone
            until(lambda: failed["_unanswered"] > 2 and failed["_not_seen"] > 2)
            for _ in range(2):
                with pytest.raises(Refused, match="can't be reached"):
                    client.submit("echo", "x")
            postgres.start()
            until(lambda: accepts(client))
            until(lambda: "can use the database again" in caplog.messages)
    told = [one for one in caplog.records if "can't be reached" in one.getMessage()]
    assert [vars(one)["event"] for one in told] == ["database-away"]
    assert [one for one in caplog.messages if one.startswith("can ")] == ["can use the database again"]


def counted(method: Callable[..., None], calls: Counter[str]) -> Callable[..., None]:
    def called(*args: Any) -> None:
        calls[method.__name__] += 1
        method(*args)

    return called


def echo(frames: list[bytes]) -> list[bytes]:
    return frames


def accepts(client: Client) -> bool:
    try:
        client.submit("echo", "x")
    except Refused:
        return False
    return True


def test_while_the_database_is_away_the_reason_is_told_and_then_all_goes_on(
    server: Server, client: Client, postgres: PostgresServer
) -> None:
    begun, go_on, executed = threading.Event(), threading.Event(), []

    def work(frames: list[bytes]) -> list[bytes]:
        executed.append(frames)
        begun.set()
        go_on.wait(30)
        return frames

    with Worker("echo", work, server.endpoints[0], config=QUICK):
        uuid = client.submit("echo", "first")
        assert begun.wait(30)
        postgres.stop()
        with pytest.raises(Refused, match=f"{postgres.port}.* can't be reached"):
            client.submit("echo", "lost")
        go_on.set()
        until(lambda: executed == [[b"first"]])
        postgres.start()
        assert client.wait(uuid, 30) == [b"first"]
        until(lambda: accepts(client))
        until(lambda: [b"x"] in executed)
    assert executed.count([b"first"]) == 1, "its reply was kept until the database was back"
    assert [b"lost"] not in executed


def test_a_connection_that_is_cut_costs_one_answer_at_most(
    server: Server, client: Client, postgres: PostgresServer
) -> None:
    database = server.store.place.rpartition("/")[2]
    for _ in range(3):
        assert client.submit("nobody", "x")
        postgres.cut_connections(database)
    until(lambda: accepts(client))
