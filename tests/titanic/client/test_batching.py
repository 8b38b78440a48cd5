"""Many requests at once, and the keys that a client generates."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.lossy import losing
from support.serving import QUICK, serving
from support.waiting import PATIENCE, until

from broker import BrokerConfig, Worker
from titanic import Client, InvalidRequest, RequestFailed, Server, TimedOut, UnknownRequest
from titanic.client import batching
from titanic.client.calls import BlockingWire

UNKNOWN = "0123456789abcdef0123456789abcdef"


pytestmark = pytest.mark.settings(max_attempts=1)


def test_many(client: Client, echo: Worker) -> None:
    bodies: list[bytes | list[bytes]] = [b"%d" % number for number in range(500)]
    bodies.append([b"two", b"frames"])
    uuids = client.submit_many("echo", bodies, window=100)
    assert len(set(uuids)) == 501
    replies = dict(client.replies([*uuids, *uuids], 60))
    assert replies == dict(zip(uuids, [*([body] for body in bodies[:500]), [b"two", b"frames"]], strict=True))
    client.close_many(uuids)
    assert client.stats()["store"]["requests"] == 0
    assert client.submit_many("echo", []) == []
    assert list(client.replies([], 1)) == []


def test_many_with_keys_and_options(client: Client) -> None:
    bodies: list[str | list[str]] = [*map(str, range(250)), ["two", "frames"]]
    keys = [f"many: {number} " + "é" * 80 for number in range(251)]
    uuids = client.submit_many("absent", bodies, keys=keys, priority=7, ttl=timedelta(hours=1))
    rows, _ = client.list(limit=1000)
    assert [(row["uuid"], row["key"], row["priority"]) for row in rows] == [
        (uuid, key, 7) for uuid, key in zip(uuids, keys, strict=True)
    ]
    assert all(row["expires_at"] for row in rows)
    assert client.submit_many("absent", reversed(bodies), keys=reversed(keys)) == uuids[::-1], "known keys"
    for wrong in (["k"], ["k", "l", "m"]):
        with pytest.raises(InvalidRequest, match="keys than bodies; give one for each"):
            client.submit_many("absent", ["x", "y"], keys=wrong)
    with pytest.raises(InvalidRequest, match="give keys, one for each body"):
        client.submit_many("absent", ["x"], key="k")


def test_many_that_are_large(client: Client, echo: Worker) -> None:
    bodies = [bytes([number]) * 400_000 for number in range(12)]  # larger than a message of several; or than an answer
    uuids = client.submit_many("echo", bodies)
    assert dict(client.replies(uuids, 60)) == {uuid: [body] for uuid, body in zip(uuids, bodies, strict=True)}


def test_many_at_a_broker_that_takes_little(tmp_path: Path) -> None:
    with serving(tmp_path, wire=BrokerConfig(max_body=1000)) as server, Client(server.endpoints[0]) as client:
        assert len(set(client.submit_many("absent", [bytes(400)] * 10))) == 10
        with pytest.raises(InvalidRequest, match="1000"):
            client.submit_many("absent", [b"x", bytes(1001)])


@pytest.mark.parametrize("way", ["submit", "submit_batch", "submit_many", "several frames"])
def test_what_is_sent_again_is_stored_once(tmp_path: Path, way: str) -> None:
    """The answers are lost after the requests are stored: nobody can tell that from a question that was lost."""
    with (
        serving(tmp_path) as server,
        losing(server.endpoints[0], tmp_path, b"titanic.submit", 2) as lossy,
        Client(lossy, timeout=0.3, retries=50) as client,
    ):
        match way:
            case "submit":
                uuids = [client.submit("absent", "x")]
            case "submit_batch":
                uuids = client.submit_batch("absent", ["x"] * 3)
            case "submit_many":
                uuids = client.submit_many("absent", ["x"] * 250)
            case _:
                uuids = client.submit_many("absent", [["a", "b"], "c"])
        rows, _ = client.list(limit=1000)
        assert [row["uuid"] for row in rows] == uuids
        assert client.stats()["since_start"]["repeated"] > 0, "it was sent again"


def keys_in(server: Server) -> int:
    with server.store.read() as transaction:
        return int(transaction.raw.stat(transaction.db.keys)["entries"])


def test_a_key_of_its_own_is_forgotten_when_nobody_can_need_it_any_more(server: Server, client: Client) -> None:
    for _ in range(5):
        client.submit("absent", "x")
    assert keys_in(server) == 1, "that of the last one: its answer may have been lost"
    client.submit_many("absent", ["x"] * 3000)
    assert keys_in(server) <= 10, "those that were on their way together"
    client.submit_batch("absent", ["x"] * 250)
    assert keys_in(server) == 250
    with Client(server.endpoints[0], timeout=30) as another:
        another.submit("absent", "x")
        another.submit("absent", "x", key="its caller's")
    assert keys_in(server) == 252
    client.submit_many("absent", ["x"] * 4000)
    assert keys_in(server) <= 12


def test_it_is_not_if_it_was_sent_again(tmp_path: Path) -> None:
    """The first one may still come."""
    with (
        serving(tmp_path) as server,
        losing(server.endpoints[0], tmp_path, b"titanic.submit", 1) as lossy,
        Client(lossy, timeout=3, retries=50) as client,  # long enough that only what is lost is sent again
    ):
        client.submit("absent", "x")
        client.submit("absent", "x")
        assert keys_in(server) == 2
        client.submit("absent", "x")
        assert keys_in(server) == 2


def test_what_need_not_be_unique_has_no_keys(client: Client) -> None:
    client.submit_many("absent", ["x"] * 3, unique=False)
    client.submit_batch("absent", ["x"] * 3, unique=False)
    assert {row["key"] for row in client.list()[0]} == {""}


def test_replies_tell_errors_with_the_rest(client: Client, echo: Worker) -> None:
    good, bad = client.submit("echo", "x"), client.submit("echo", "fail")
    replies = dict(client.replies([good, bad, UNKNOWN], 30))
    assert replies[good] == [b"x"]
    assert isinstance(replies[bad], RequestFailed)
    assert str(replies[bad]) == "failed: as you wish"
    assert isinstance(replies[UNKNOWN], UnknownRequest)


def test_other_things_can_be_done_between_two_replies(client: Client, echo: Worker) -> None:
    uuids = client.submit_many("echo", [b"x"] * 50)
    for timeout in (None, 30.0):
        for uuid, reply in client.replies(uuids, timeout):
            assert reply == [b"x"]
            client.close_many([client.submit("absent", "y")])
            if timeout is not None:
                client.close(uuid)


@pytest.mark.parametrize(
    ("taken", "pause"), [(0.0, batching.POLL_FIRST), (batching.POLL_FIRST / 2, batching.POLL_FIRST / 2), (3600.0, 0.0)]
)
def test_the_time_that_one_takes_with_a_reply_is_part_of_the_pause(
    taken: float, pause: float, client: Client, echo: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    pauses: list[float] = []

    async def sleep(wire: BlockingWire, seconds: float) -> None:
        pauses.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(batching, "time", clock)
    monkeypatch.setattr(BlockingWire, "sleep", sleep)
    uuids = [client.submit("echo", "x"), client.submit("absent", "y")]
    client.wait(uuids[0], 30)
    replies = client.replies(uuids, None)
    assert next(replies) == (uuids[0], [b"x"])
    clock.now += taken
    with pytest.raises(KeyboardInterrupt):
        next(replies)
    assert pauses == [pause]


def test_the_last_reply_is_not_seen_later_than_it_comes(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "POLL_FIRST", 3600.0)
    monkeypatch.setattr(batching, "POLL_MOST", 3600.0)
    uuids = client.submit_many("late", ["x", "y"])
    with Client(server.endpoints[0]) as other, ThreadPoolExecutor(1) as pool:
        arrived = pool.submit(lambda: list(other.replies(uuids)))
        until(lambda: client.stats()["waiting_clients"])
        with Worker("late", lambda frames: frames, server.endpoints[0], config=QUICK):
            assert arrived.result(PATIENCE) == [(uuid, [body]) for uuid, body in zip(uuids, (b"x", b"y"), strict=True)]


def test_replies_that_do_not_come_in_time(client: Client, echo: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.client.calls.LEAST_LOOK", 30.0)  # a busy server is not taken for one that is away
    uuids = [client.submit("echo", "x"), client.submit("absent", "y")]
    client.wait(uuids[0], 30)
    replies = client.replies(uuids, 0.2)
    assert next(replies) == (uuids[0], [b"x"])
    with pytest.raises(TimedOut, match=r"no reply yet to 1 request; waited 200 ms"):
        next(replies)
