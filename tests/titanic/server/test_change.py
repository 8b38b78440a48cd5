"""Changes of requests that no worker has: their priority, and when they start; by clients and the command line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.cli_titanic import here
from support.postgres import needs_postgres, shared_server
from support.serving import QUICK, serving
from support.waiting import until

from broker import Worker
from titanic import Client, InvalidRequest, Server, UnknownRequest

HOUR = timedelta(hours=1)
UNKNOWN = "0" * 32


@pytest.fixture(params=["lmdb", pytest.param("postgres", marks=needs_postgres)])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server on either engine."""
    if request.param == "lmdb":
        with serving(tmp_path) as server:
            yield server
        return
    from titanic import ServerConfig

    postgres = shared_server()
    url = postgres.url(postgres.new_store())
    with Server(ServerConfig(store=url, bind=("tcp://127.0.0.1:*",), grace=0.0, worker=QUICK)) as server:
        yield server


@pytest.fixture
def client(served: Server) -> Iterator[Client]:
    with Client(served.endpoints[0], timeout=30) as client:
        yield client


def test_a_higher_priority_starts_first(served: Server, client: Client) -> None:
    began: list[bytes] = []

    def work(frames: list[bytes]) -> list[bytes]:
        began.append(frames[0])
        return frames

    uuids = [client.submit("echo", f"{number}") for number in range(4)]
    client.change(uuids[2], priority=9)
    client.change(uuids[0], priority=0)
    assert [client.show(uuid)["priority"] for uuid in uuids] == [0, 4, 9, 4]
    with Worker("echo", work, served.endpoints[0], config=QUICK):
        assert dict(client.replies(uuids, 60)).keys() == {*uuids}
    assert began == [b"2", b"1", b"3", b"0"]


def test_another_time(served: Server, client: Client) -> None:
    start = datetime.now(UTC) + HOUR
    with Worker("echo", lambda frames: frames, served.endpoints[0], config=QUICK):
        uuid = client.submit("echo", "x", delay=10 * HOUR)
        client.change(uuid, at=start)
        row = client.show(uuid)
        assert (row["state"], row["due"]) == ("delayed", pytest.approx(start.timestamp() * 1e6, abs=2))
        client.change(uuid, delay=2 * HOUR, priority=7)
        row = client.show(uuid)
        assert (row["priority"], row["due"] / 1e6) == (7, pytest.approx(time.time() + 7200, abs=600))
        client.change(uuid, delay=0)
        assert client.wait(uuid, 60) == [b"x"]
    uuid = client.submit("echo", "y")
    client.change(uuid, delay=0.2)
    assert client.show(uuid)["state"] == "delayed"
    with Worker("echo", lambda frames: frames, served.endpoints[0], config=QUICK):
        assert client.wait(uuid, 60) == [b"y"]


def test_another_body(served: Server, client: Client) -> None:
    uuid = client.submit("echo", "old", "frames", key="k", type="text/plain")
    client.change(uuid, body=["new"])
    client.change(uuid, body=[b"new" * 20_000, "er"], priority=9)
    assert client.look(uuid, None).body == [b"new" * 20_000, b"er"]
    assert client.submit("echo", "old", "frames", key="k") == uuid
    row = client.show(uuid)
    assert (row["body_frames"], row["body_bytes"], row["type"], row["priority"]) == (2, 60_002, "text/plain", 9)
    with pytest.raises(InvalidRequest, match=r"body has \d+ bytes; the broker at \S+ accepts at most \d+"):
        client.change(uuid, body=[bytes(served.config.wire.max_body // 2)] * 3)
    with Worker("echo", lambda frames: frames, served.endpoints[0], config=QUICK):
        assert client.wait(uuid, 60) == [b"new" * 20_000, b"er"]


def test_what_is_confirmed_is_executed(served: Server, client: Client) -> None:
    """However close together a change and the dispatch of its request are."""
    uuids = client.submit_many("echo", [b"old"] * 1500)
    done = 0

    def work(frames: list[bytes]) -> list[bytes]:
        nonlocal done
        done += 1
        return frames

    confirmed: dict[str, bool] = {}
    with Worker("echo", work, served.endpoints[0], jobs=4, config=QUICK):
        while (at := done + 10) < len(uuids):
            try:
                client.change(uuids[at], body=[b"new"])
                confirmed[uuids[at]] = True
            except InvalidRequest:
                confirmed.setdefault(uuids[at], False)
        replies = dict(client.replies(uuids, 120))
    assert {True, False} == {*confirmed.values()}
    for uuid in uuids:
        assert replies[uuid] == [b"new" if confirmed.get(uuid) else b"old"]


def test_what_a_worker_has_is_not_changed(served: Server, client: Client) -> None:
    begun, go = threading.Event(), threading.Event()

    def work(frames: list[bytes]) -> list[bytes]:
        begun.set()
        assert go.wait(60)
        return frames

    with Worker("slow", work, served.endpoints[0], config=QUICK):
        uuid = client.submit("slow", "x")
        assert begun.wait(60)
        until(lambda: client.show(uuid)["state"] == "running")
        with pytest.raises(InvalidRequest, match=f"request {uuid} cannot be changed; it is running; only waiting and "):
            client.change(uuid, priority=9)
        go.set()
        client.wait(uuid, 60)
    with pytest.raises(InvalidRequest, match="it is done"):
        client.change(uuid, priority=9)
    with pytest.raises(UnknownRequest):
        client.change(UNKNOWN, priority=9)


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (lambda client: client.change(UNKNOWN), "a change must have priority, delay, at or body"),
        (lambda client: client.change(UNKNOWN, priority=10), "priority must be a whole number from 0 to 9"),
        (lambda client: client.change(UNKNOWN, delay=-1), "delay must be a number of seconds from 0 to ten years"),
        (lambda client: client.change(UNKNOWN, delay=1, at=datetime.now(UTC)), "at and delay exclude each other"),
        (lambda client: client.change(UNKNOWN, at=datetime(2026, 1, 1)), "at is 2026-01-01T00:00:00; it has no time "),
    ],
)
def test_changes_that_cannot_be(client: Client, call: Callable[[Client], None], fault: str) -> None:
    with pytest.raises(InvalidRequest, match=fault):
        call(client)


def test_the_command(served: Server, client: Client, tmp_path: Path) -> None:
    at = ("--endpoint", served.endpoints[0])
    uuid = client.submit("absent", "x", delay=HOUR)
    assert here("change", uuid, "--priority", "9", "--now", *at).code == 0
    row = client.show(uuid)
    assert (row["state"], row["priority"]) == ("waiting", 9)
    assert here("change", uuid, "--at", (datetime.now(UTC) + HOUR).isoformat(), *at).code == 0
    assert client.show(uuid)["state"] == "delayed"
    assert here("change", UNKNOWN, "--now", *at).code == 4
    (tmp_path / "body").write_bytes(b"\0 from a file")
    assert here("change", uuid, "--body", tmp_path / "body", "--body", "-", *at, stdin=b"and more").code == 0
    assert client.look(uuid, None).body == [b"\0 from a file", b"and more"]
    client.close(uuid)
    for options in ((), ("--now", "--delay", "1"), ("--at", "2026-12-01T08:00"), ("--priority", "10")):
        assert here("change", uuid, *options, *at).code == 2
