"""The database fails over to its standby while a server works: each acknowledged request gets its reply."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.postgres import needs_postgres
from support.postgres_pair import new_pair
from support.serving import QUICK, config
from support.waiting import until

from broker import Worker
from titanic import Client, Refused, Server, TimedOut
from titanic.store.postgres import connection_pool, database_session
from titanic.store.postgres.tools import check

pytestmark = needs_postgres


def submitted(client: Client, number: int) -> str:
    """Submit until it is stored. Its key makes it one request, whatever became of the tries before."""

    def tried() -> str:
        try:
            return client.submit("echo", b"%d" % number, key=f"number {number}")
        except (Refused, TimedOut):
            return ""

    return until(tried)


def test_all_that_was_accepted_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "AGAIN", 0.05)
    monkeypatch.setattr(database_session, "PATIENCE", 2.0)
    with (
        new_pair() as pair,
        Server(config(tmp_path, store=pair.url(pair.primary.new_database()), retry_most=0.05)) as server,
        Worker("echo", lambda frames: frames, server.endpoints[0], config=QUICK),
        Client(server.endpoints[0], timeout=30) as client,
        ThreadPoolExecutor(1) as thread,
    ):
        stored = [submitted(client, number) for number in range(20)]
        for _ in range(2):
            over = thread.submit(pair.fail_over)
            while not over.done():
                stored.append(submitted(client, len(stored)))
            over.result()
            pair.follow()
        assert len(set(stored)) == len(stored)
        for number, uuid in enumerate(stored):
            assert client.wait(uuid, 60) == [b"%d" % number]
        assert server.alive
        with server.store.read() as transaction:
            assert transaction.counts()[:4] == (len(stored), 0, 0, len(stored))
        assert check(server.store) == []


def test_a_leader_that_stands_still_is_left_as_soon_as_the_lease_has_found_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_session, "PATIENCE", 1000.0)
    with (
        new_pair() as pair,
        Server(config(tmp_path, store=pair.url(pair.primary.new_database()))) as server,
        Worker("echo", lambda frames: frames, server.endpoints[0], config=QUICK),
        Client(server.endpoints[0], timeout=30) as client,
    ):
        stored = [submitted(client, number) for number in range(5)]
        pair.primary.pause()
        began = time.monotonic()
        pair.promote(isolated=True)
        stored.append(submitted(client, 5))
        print(f"nothing was accepted for {time.monotonic() - began:.1f} s")
        for number, uuid in enumerate(stored):
            assert client.wait(uuid, 60) == [b"%d" % number]
