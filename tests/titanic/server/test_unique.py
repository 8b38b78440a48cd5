"""Unique requests at a real server: what a second one gets, with keys, workers, lost answers and users."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.each import each
from support.postgres import needs_postgres, shared_server
from support.raw_mdp import RawClient
from support.serving import QUICK, config
from support.waiting import until

from broker import Worker
from titanic import Client, Found, InvalidRequest, RequestFailed, Server
from titanic.settings import ServiceLimits
from titanic.tasks import Tasks


def test_a_second_request_gets_the_first_uuid_marked_as_found(client: Client) -> None:
    first = client.submit("absent", "a", unique="order 7")
    second = client.submit("absent", "b", unique="order 7")
    assert (second, isinstance(first, Found), isinstance(second, Found)) == (first, False, True)
    assert client.stats()["store"]["requests"] == 1
    assert client.stats()["since_start"]["repeated"] == 1
    assert client.show(first)["unique"] == "order 7"
    others = [client.submit("absent", "a"), client.submit("other", "a", unique="order 7")]
    others += [client.submit("absent", "a", unique="order 7", **more) for more in RULES]
    assert not any(isinstance(uuid, Found) for uuid in others)


RULES: list[Any] = [{"unique_until": "started"}, {"unique_for": timedelta(hours=1)}]


def test_a_running_one_counts_until_its_end(server: Server, client: Client) -> None:
    """Of each rule: while a worker has the first one, and when it is done."""
    kinds: list[dict[str, Any]] = [{"unique_until": "started"}, {"unique_until": "done"}, {"unique_for": 100}]
    started, go = threading.Semaphore(0), threading.Event()

    def work(frames: list[bytes]) -> list[bytes]:
        started.release()
        assert go.wait(60)
        return frames

    with Worker("slow", work, server.endpoints[0], jobs=3, config=QUICK):
        firsts = [client.submit("slow", "x", unique="u", **kind) for kind in kinds]
        for _ in kinds:
            assert started.acquire(timeout=60)
        seconds = [client.submit("slow", "x", unique="u", **kind) for kind in kinds]
        assert [isinstance(uuid, Found) for uuid in seconds] == [False, True, True]
        go.set()
        for uuid in [*firsts, *seconds]:
            client.wait(uuid, timeout=60)
    thirds = [client.submit("slow", "x", unique="u", **kind) for kind in kinds]
    assert [isinstance(uuid, Found) for uuid in thirds] == [False, False, True]


def test_a_lost_answer_makes_no_second_request(server: Server, client: Client, raw: RawClient) -> None:
    """The same message comes again after the first was dispatched: it has the key that the client gives it."""
    options = b'{"key": "~1", "key_for": 60, "unique": "u", "unique_until": "started"}'
    status, uuid = raw.ask(b"titanic.submit", options, b"slow", b"x")
    go = threading.Event()
    with Worker("slow", lambda frames: [str(go.wait(60))], server.endpoints[0], config=QUICK):
        until(lambda: client.show(uuid.decode())["state"] == "running")
        assert raw.ask(b"titanic.submit", options, b"slow", b"x") == [b"200", uuid]
        status, other = raw.ask(b"titanic.submit", options.replace(b"~1", b"~2"), b"slow", b"x")
        assert (status, other != uuid) == (b"200", True)
        assert raw.ask(b"titanic.submit", options.replace(b"~1", b"~3"), b"slow", b"x") == [b"200", other, b"found"]
        go.set()


@pytest.mark.usefixtures("echo")
def test_after_a_failure_or_a_close_there_is_a_new_one(client: Client) -> None:
    for rule in ({}, *RULES):
        first = client.submit("echo", "fail", unique="u", max_attempts=1, **rule)
        with pytest.raises(RequestFailed):
            client.wait(first, timeout=60)
        second = client.submit("echo", "x", unique="u", **rule)
        assert client.wait(second, timeout=60) == [b"x"]
        if "unique_for" in rule:
            with pytest.raises(InvalidRequest, match="another with its unique key was accepted"):
                client.retry(first)
            assert client.retry(first, second) == 0
        client.close(second)
        third = client.submit("echo", "x", unique="u", delay=100, **rule)
        assert not isinstance(third, Found)
        assert len({first, second, third}) == 3


@pytest.mark.usefixtures("echo")
def test_what_is_never_kept_still_counts_for_its_time(client: Client) -> None:
    first = client.submit("echo", "x", unique="u", unique_for=1000, keep=0.001)
    until(lambda: client.stats()["store"]["closed"] == 1)
    second = client.submit("echo", "x", unique="u", unique_for=1000)
    assert (second, isinstance(second, Found)) == (first, True)


@pytest.mark.settings(limits={b"few": ServiceLimits(waiting=1)})
def test_a_found_one_counts_for_no_limit(client: Client) -> None:
    first = client.submit("few", "x", unique="u")
    assert client.submit("few", "x", unique="u") == first


@each(
    "options, fault",
    [
        ({"unique": ""}, "unique must be a string of 1 to 255 bytes"),
        ({"unique": "x" * 10_000}, "unique must be a string of 1 to 255 bytes"),
        ({"unique": "ü" * 200}, "unique must be a string of 1 to 255 bytes"),
        ({"unique": True}, "unique must be a string of 1 to 255 bytes"),
        ({"unique": "u", "unique_until": "failed"}, "unique_until must be one of started, done"),
        ({"unique": "u", "unique_for": -1}, "unique_for must be a number of seconds, more than 0"),
        ({"unique": "u", "unique_for": 5, "unique_until": "done"}, "unique_until and unique_for cannot be combined"),
        ({"unique_for": 5}, "unique_until and unique_for need unique"),
        ({"unique_until": "done"}, "unique_until and unique_for need unique"),
        ({"unique": "\1" * 255}, "the options are too long"),
    ],
)
def test_other_values_are_refused(client: Client, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        client.submit("echo", "x", **options)
    assert fault in str(refused.value)
    assert client.stats()["store"]["requests"] == 0


def test_many_in_a_message_are_not_unique(raw: RawClient) -> None:
    status, *_ = raw.ask(b"titanic.submit", b'{"many": true, "unique": "u"}', b"echo", b"x", b"y")
    assert status == b"400 unique is for one request: submit them one by one, without many"


def test_many_unique_ones_are_on_their_way_together(client: Client) -> None:
    bodies, uniques = [f"{n}" for n in range(300)], [f"{n % 150}" for n in range(300)]
    before = client.stats()["since_start"]["commits"]
    uuids = client.submit_many("absent", bodies, uniques=uniques, keys=(f"k{n}" for n in range(300)), unique_for=60)
    assert [isinstance(uuid, Found) for uuid in uuids] == [False] * 150 + [True] * 150
    assert uuids[:150] == uuids[150:]
    assert client.stats()["since_start"]["commits"] - before < 200
    with pytest.raises(InvalidRequest, match="unique must be a string"):
        client.submit_many("absent", bodies, uniques=uniques[:20])


def test_unique_tasks(server: Server) -> None:
    app = Tasks(server.endpoints[0], name="shop")

    @app.task(unique=lambda user, full=False: f"{user}", unique_until="started")
    def refresh(user: int, full: bool = False) -> None: ...

    tickets = refresh.map([1, 2, 1], full=True)
    assert [ticket.found for ticket in tickets] == [False, False, True]
    assert refresh.submit(2).uuid == tickets[1].uuid
    assert refresh.options(unique="another").submit(2).found is False
    with app.testing() as queue:
        first, second = refresh.submit(1), refresh.submit(1)
        assert (first.found, second.found, first.uuid) == (False, True, second.uuid)
        queue.run()
        assert not refresh.submit(1).found


@needs_postgres
def test_on_a_store_that_servers_share(tmp_path: Path) -> None:
    """The rules hold between two of them; what one has claimed for its worker has started."""
    url = shared_server().url(shared_server().new_database())
    go, started = threading.Event(), threading.Semaphore(0)

    def work(frames: list[bytes]) -> list[bytes]:
        started.release()
        return [str(go.wait(60)).encode()]

    nodes = [Server(config(tmp_path, store=url, node_name=name)) for name in ("one", "two")]
    with nodes[0], nodes[1], Client(nodes[0].endpoints[0], timeout=60) as one, Client(nodes[1].endpoints[0]) as two:
        firsts = [one.submit("slow", "x", unique="u", **rule) for rule in ({"unique_until": "started"}, {})]
        again = [two.submit("slow", "x", unique="u", **rule) for rule in ({"unique_until": "started"}, {})]
        assert [*map(str, again)] == firsts
        assert all(isinstance(uuid, Found) for uuid in again)
        with Worker("slow", work, nodes[0].endpoints[0], jobs=2, config=QUICK):
            assert all(started.acquire(timeout=60) for _ in firsts)
            again = [two.submit("slow", "x", unique="u", **rule) for rule in ({"unique_until": "started"}, {})]
            assert [isinstance(uuid, Found) for uuid in again] == [False, True]
            go.set()
            one.wait(firsts[1], timeout=60)
            assert not isinstance(two.submit("slow", "x", unique="u", keep="never"), Found)
