"""Changes of requests that no worker has: their priority, and when they start; another body for a request that failed.
By clients and the command line."""

from __future__ import annotations

import re
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from support.access_files import ALICE, BOB, AccessFiles
from support.cli_titanic import here
from support.each import each
from support.postgres import needs_postgres, shared_server
from support.serving import QUICK, serving
from support.waiting import until

from broker import RemoteError, Worker
from titanic import Client, InvalidRequest, Refused, Server, UnknownRequest
from titanic.settings import ServiceLimits

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
    uuid = client.submit("absent", "y")  # the other worker may still be counted for a moment
    client.change(uuid, delay=HOUR)
    assert client.show(uuid)["state"] == "delayed"
    client.change(uuid, delay=0.2)
    with Worker("absent", lambda frames: frames, served.endpoints[0], config=QUICK):
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
    begun, may_begin = 0, threading.Semaphore(100)

    def work(frames: list[bytes]) -> list[bytes]:
        nonlocal begun
        assert may_begin.acquire(timeout=60)
        begun += 1
        return frames

    confirmed: dict[str, bool] = {}
    with Worker("echo", work, served.endpoints[0], jobs=4, config=QUICK):
        until(lambda: begun)
        ahead = cycle((10, 200, -1))  # close, one that waits, and one that a worker has
        while (at := begun + next(ahead)) < len(uuids):
            may_begin.release(5)
            try:
                client.change(uuids[at], body=[b"new"])
                confirmed[uuids[at]] = True
            except InvalidRequest:
                confirmed.setdefault(uuids[at], False)
        may_begin.release(len(uuids))
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


def test_a_change_that_is_sent_again_when_its_answer_was_lost(served: Server, client: Client) -> None:
    """Also when the request has started, or is done: then it is as the change asks, or it is not."""
    begun, go = threading.Event(), threading.Event()

    def work(frames: list[bytes]) -> list[bytes]:
        begun.set()
        assert go.wait(60)
        return frames

    uuid = client.submit("slow", "old")
    for _ in range(2):
        client.change(uuid, body=["new", "er"], priority=7)
    with Worker("slow", work, served.endpoints[0], config=QUICK):
        assert begun.wait(60)
        until(lambda: client.show(uuid)["state"] == "running")
        for state in ("running", "done"):
            client.change(uuid, body=["new", "er"], priority=7)
            others: list[dict[str, Any]] = [{"body": ["new"]}, {"priority": 4}, {"priority": 7, "delay": 0}]
            for other in others:
                with pytest.raises(InvalidRequest, match=f"it is {state}"):
                    client.change(uuid, **other)
            go.set()
            assert client.wait(uuid, 60) == [b"new", b"er"]


@each(
    "call, fault",
    [
        (lambda client: client.change(UNKNOWN), "a change must have priority, delay, at or body"),
        (lambda client: client.change(UNKNOWN, priority=10), "priority must be a whole number from 0 to 9"),
        (lambda client: client.change(UNKNOWN, delay=-1), "delay must be a number of seconds from 0 to ten years"),
        (lambda client: client.change(UNKNOWN, delay=1, at=datetime.now(UTC)), "at and delay cannot be combined"),
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


def failed(served: Server, client: Client, *body: bytes | str, **options: Any) -> str:
    """A request that fails for its body."""
    with Worker("pay", _pay, served.endpoints[0], config=QUICK):
        uuid = client.submit("pay", *body, max_attempts=1, **options)
        until(lambda: client.show(uuid)["state"] == "failed")
    return uuid


def _pay(frames: list[bytes]) -> list[bytes]:
    if b"EUR" not in frames[0]:
        raise RemoteError(500, "no currency")
    return frames


def test_a_failed_request_is_retried_with_another_body(served: Server, client: Client) -> None:
    uuid = failed(served, client, "5", key="order 7", type="text/plain")
    other = failed(served, client, b"\xff", "two")
    assert client.retry(uuid, body=["5 EUR"]) == 1
    assert client.retry(other, body=[b"EUR" * 20_000]) == 1
    assert client.retry(uuid, body=["7 EUR"]) == 0, "it waits"
    assert client.submit("pay", "5", key="order 7") == uuid
    with Worker("pay", _pay, served.endpoints[0], config=QUICK):
        assert client.wait(uuid, 60) == [b"5 EUR"]
        assert client.wait(other, 60) == [b"EUR" * 20_000]
    assert client.retry(uuid, body=["7 EUR"]) == 0, "it is done"
    row = client.show(uuid)
    assert (row["type"], row["body_bytes"], row["history"]["counts"]) == ("text/plain", 5, {"failed": 1})
    (old,) = row["history"]["replaced"]
    assert (old["frames"], old["bytes"], old["base64"]) == (["5"], 1, False)
    assert row["history"]["attempts"][0]["ended_at"] <= old["replaced_at"] <= row["finished_at"]
    (old,) = client.show(other)["history"]["replaced"]
    assert ([b64decode(one) for one in old["frames"]], old["bytes"]) == ([b"\xff", b"two"], 4)


def test_a_retry_that_is_sent_again_when_its_answer_was_lost(served: Server, client: Client) -> None:
    """Counts as done while the request has not failed again; one that was not retried does not."""
    uuid, other = failed(served, client, "5 $"), failed(served, client, "5")
    expired, waiting = client.submit("absent", "x", ttl=0.001), client.submit("absent", "x")
    until(lambda: client.show(expired)["state"] == "expired")
    for _ in range(2):
        assert client.retry(uuid, uuid, expired, waiting) == 2
        assert client.retry(other, body=["5 EUR"]) == 1
    assert client.retry(other, body=["6 EUR"]) == 0, "it has another body"
    assert "history" not in client.show(expired)
    assert client.show(uuid)["history"]["counts"] == {"failed": 1}
    with Worker("pay", _pay, served.endpoints[0], config=QUICK):
        assert client.wait(other, 60) == [b"5 EUR"]
        assert client.retry(other, body=["5 EUR"]) == 1, "done, as it asks"
        until(lambda: client.show(uuid)["state"] == "failed")
        assert client.retry(uuid) == 1, "failed again"
        until(lambda: client.show(uuid)["history"]["counts"] == {"failed": 3})


def test_the_first_and_the_last_body_are_kept(served: Server, client: Client) -> None:
    """The beginning of a long one, and none of a request without its body after success."""
    uuid = failed(served, client, "a" * 100_000)
    for body in ("b", "c", "d"):
        client.retry(uuid, body=[body])
        with Worker("pay", _pay, served.endpoints[0], config=QUICK):
            until(lambda: client.show(uuid)["state"] == "failed")
    first, last = client.show(uuid)["history"]["replaced"]
    assert (first["frames"], first["bytes"], last["frames"]) == (["a" * 16384], 100_000, ["c"])
    assert client.show(uuid)["history"]["counts"] == {"failed": 4}
    secret = failed(served, client, "secret", keep_body="never")
    client.retry(secret, body=["EUR"])
    (old,) = client.show(secret)["history"]["replaced"]
    assert (old["frames"], old["bytes"]) == ([], 6)


def test_a_body_without_room_leaves_a_request_as_it_is(served: Server, client: Client) -> None:
    """Neither a limit nor a full store lets it run with its old body."""
    served.reload(replace(served.config, limits={b"pay": ServiceLimits(bytes=1000)}))
    uuid, others = failed(served, client, "5"), client.submit_many("echo", ["x"] * 3)
    with pytest.raises(Refused, match="0 bytes are waiting for pay; its limit is 1000; the request is as it was"):
        client.retry(uuid, body=["EUR" * 1000])
    with pytest.raises(InvalidRequest, match="accepts at most"):
        client.retry(uuid, body=[bytes(served.config.wire.max_body)] * 2)
    assert client.show(uuid)["state"] == "failed"
    assert client.look(uuid, None).body == [b"5"]
    assert "replaced" not in client.show(uuid)["history"]
    with pytest.raises(InvalidRequest, match="body is for one request"):
        client.retry(uuid, *others, body=["EUR"])


def test_a_full_store_takes_no_larger_body(tmp_path: Path) -> None:
    with serving(tmp_path, capacity=16 << 20) as server, Client(server.endpoints[0], timeout=30) as client:
        uuid = failed(server, client, "5")
        with suppress(Refused):
            while True:
                client.submit("echo", bytes(200_000))
        with pytest.raises(Refused, match="not done: the store is full"):
            client.retry(uuid, body=[b"EUR" * 300_000])
        assert client.show(uuid)["state"] == "failed"
        assert client.look(uuid, None).body == [b"5"]
        assert client.retry(uuid, body=["6 EUR"]) == 1
        with Worker("pay", _pay, server.endpoints[0], config=QUICK):
            assert client.wait(uuid, 60) == [b"6 EUR"]


def test_the_command_retries_with_a_file(served: Server, client: Client, tmp_path: Path) -> None:
    at = ("--endpoint", served.endpoints[0])
    uuid = failed(served, client, "5")
    (tmp_path / "body").write_bytes(b"6 EUR")
    done = here("retry", uuid, "--body", tmp_path / "body", "--body", "-", *at, stdin=b"and more")
    assert (done.code, done.out) == (0, b"1 request requeued\n")
    assert client.look(uuid, None).body == [b"6 EUR", b"and more"]
    shown = here("show", uuid, *at).out.decode()
    assert re.search(r"^old body +1 B, replaced at .*\n +5$", shown, re.MULTILINE)
    assert here("retry", uuid, "--body", tmp_path / "body", *at).code == 1, "it waits"
    for options in (("--all",), (uuid, uuid), ("--where", "service=pay")):
        assert here("retry", *options, "--body", tmp_path / "body", *at).code == 2


def test_an_administrator_replaces_the_body_of_another(tmp_path: Path) -> None:
    """It is in the audit, and so is whoever reads the old one."""
    files = AccessFiles(tmp_path / "access", ALICE + BOB + "admin = true\n")
    with (
        serving(tmp_path, access=files.path, key=files.key) as server,
        Client(server.endpoints[0], timeout=60, key=files.secret("alice"), server_key=files.server_key) as alice,
        Client(server.endpoints[0], timeout=60, key=files.secret("bob"), server_key=files.server_key) as bob,
    ):
        uuid = alice.submit("absent", "secret", ttl=0.001)
        until(lambda: alice.show(uuid)["state"] == "expired")
        assert bob.retry(uuid, body=["other"]) == 1
        assert bob.show(uuid)["history"]["replaced"][0]["frames"] == ["secret"]
        acts = [(one["user"], one["act"], one["uuid"], one["text"]) for one in bob.audit()["acts"]]
        assert ("bob", "retry", uuid, "body") in acts
        until(lambda: ("bob", "read", uuid) in [(one["user"], one["act"], one["uuid"]) for one in bob.audit()["acts"]])
