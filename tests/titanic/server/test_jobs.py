"""Requests with options: real store, real broker, real sockets."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest
from support.each import each
from support.raw_mdp import RawClient, raw_worker
from support.serving import QUICK, serving
from support.waiting import until

from broker import RemoteError, Worker
from titanic import Client, InvalidRequest, Refused, RequestFailed, Server, UnknownRequest
from titanic.settings import ServiceLimits
from titanic.store import MIN_CAPACITY
from titanic.util import ids

UNKNOWN = b"0123456789abcdef0123456789abcdef"


pytestmark = pytest.mark.settings(
    max_attempts=3,
    limits={
        b"few": ServiceLimits(waiting=3),
        b"small": ServiceLimits(bytes=1000),
        b"narrow": ServiceLimits(running=2),
    },
)


# -- the wire -------------------------------------------------------------------------------------------------


def test_submit_answers_with_a_uuid_a_line(raw: RawClient) -> None:
    status, uuid = raw.ask(b"titanic.submit", b"{}", b"echo", b"one", b"two")
    assert status == b"200"
    assert ids.parse(uuid) is not None
    status, uuids = raw.ask(b"titanic.submit", b'{"many": true}', b"echo", b"one", b"two", b"three")
    assert status == b"200"
    assert len({ids.parse(line) for line in uuids.split(b"\n")} - {None}) == 3
    assert raw.ask(b"titanic.reply", uuid) == [b"300"]


NONSENSE = [
    [b""],
    [b"x", b"y", b"z"],
    [b"[" * 100_000],
    [b'{"do": "purge", "state": []}'],
    [b'{"do": "purge", "state": {}}'],
    [b'{"do": "purge", "state": "running"}'],
    [b'{"do": "purge"}'],
    [b'{"do": "retry", "state": "done"}'],
    [b'{"do": "retry", "uuids": 7}'],
    [b'{"do": "retry", "uuids": ["x"]}'],
    [b'{"do": "retry", "uuids": ["\\ud800"]}'],
    [b'{"do": "retry", "older_than": "x"}'],
    [b'{"do": "retry", "older_than": 1e400}'],
    [b'{"do": "retry", "after": "x"}'],
    [b'{"do": ["retry"]}'],
    [b'{"limit": 1' + b"0" * 400 + b"}", b"echo", b"x"],
    [b'{"ttl": 1' + b"0" * 400 + b"}", b"echo", b"x"],
    [b'{"key": "\\ud800"}', b"echo", b"x"],
    [b"5", UNKNOWN, b""],
    [b"\xff\xff"],
]


@each("service", [b"titanic.submit", b"titanic.wait", b"titanic.admin", b"titanic.list"])
def test_what_makes_no_sense_is_refused_and_stops_nobody(
    server: Server, raw: RawClient, service: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for body in NONSENSE:
        reply = raw.ask(service, *body)
        if service == b"titanic.list" and body in ([b""], [b"x", b"y", b"z"]):
            continue
        assert reply[0][:4] == b"400 ", (body, reply)
        assert raw.ask(b"titanic.wait", b"0", UNKNOWN)[0][:4] == b"400 "
        assert server.alive
        assert "fault" not in caplog.text


def test_requests_without_any_body_stop_nobody(server: Server, raw: RawClient) -> None:
    for name in (b"request", b"reply", b"close", b"submit", b"wait", b"admin", b"list", b"stats"):
        raw.send(b"titanic." + name)
    assert raw_answers_at_last(raw)
    assert server.alive


def raw_answers_at_last(raw: RawClient) -> bool:
    raw.send(b"titanic.submit", b"{}", b"echo", b"x")
    while raw.receive()[0] != b"200":
        pass
    return True


# -- keys -----------------------------------------------------------------------------------------------------


def test_the_same_key_from_many_clients_at_once_is_one_request(server: Server, client: Client) -> None:
    executed: Counter[bytes] = Counter()
    uuids: list[str] = []

    def work(frames: list[bytes]) -> bytes:
        executed[frames[0]] += 1
        return b"done"

    def submit() -> None:
        with Client(server.endpoints[0], timeout=30) as other:
            uuids.extend(other.submit("echo", "x", key="the key") for _ in range(25))

    with Worker("echo", work, server.endpoints[0], jobs=4, config=QUICK):
        threads = [threading.Thread(target=submit) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(uuids) == 200
        assert len(set(uuids)) == 1
        assert client.wait(uuids[0], 30) == [b"done"]
        client.close(uuids[0])
        assert client.submit("echo", "x", key="the key") == uuids[0]
        with pytest.raises(UnknownRequest):
            client.wait(uuids[0], 30)
    assert executed == {b"x": 1}
    counts = client.stats()["since_start"]
    assert (counts["accepted"], counts["repeated"]) == (1, 200)


def test_a_key_outlives_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Client(server.endpoints[0]) as client:
        uuid = client.submit("echo", "x", key="k")
        short = client.submit("echo", "x", key="short", key_for=0.001)
    with serving(tmp_path) as server, Client(server.endpoints[0]) as client:
        assert client.submit("echo", "x", key="k") == uuid
        assert client.submit("echo", "x", key="short") != short
        assert client.show(uuid)["key"] == "k"


# -- batches --------------------------------------------------------------------------------------------------


def test_a_batch_is_taken_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    with serving(tmp_path, capacity=MIN_CAPACITY) as server, Client(server.endpoints[0]) as client:
        assert len(client.submit_batch("echo", [b"x"] * 1000)) == 1000
        with pytest.raises(Refused, match="store full"):
            client.submit_batch("echo", [bytes(1 << 20)] * 14)
        assert client.stats()["store"]["requests"] == 1000
        uuids = client.submit_batch("echo", ["a", "b", "a"], keys=["1", "2", "1"], priority=9)
        assert uuids[0] == uuids[2] != uuids[1]
        assert client.submit_batch("echo", []) == []
        with pytest.raises(InvalidRequest, match="a list of 2 keys"):
            client.submit_batch("echo", ["a", "b"], keys=["1"])


# -- time to live, delay, priority ----------------------------------------------------------------------------


def test_what_nobody_begins_in_time_expires_and_can_be_retried(server: Server, client: Client) -> None:
    waiting = client.submit("echo", "waiting", ttl=0.05)
    delayed = client.submit("echo", "delayed", ttl=0.05, delay=1000)
    for uuid in (waiting, delayed):
        with pytest.raises(RequestFailed, match="expired: not done in time, after 0 attempts"):
            client.wait(uuid, 30)
    assert {row["uuid"] for row in client.list(state="expired")[0]} == {waiting, delayed}
    assert client.stats()["dispatch"]["expired"] == 2
    assert client.retry(waiting, UNKNOWN.decode()) == 1
    assert client.retry_all(service="other") == 0
    assert client.retry_all(service="echo", older_than=1000) == 0
    assert client.retry_all() == 1
    assert client.retry_all() == 0
    with Worker("echo", lambda frames: frames, server.endpoints[0], config=QUICK):
        assert client.wait(waiting, 30) == [b"waiting"]
        assert client.show(delayed)["state"] == "delayed", "its delay is not over"


def test_what_runs_is_not_expired(server: Server, client: Client) -> None:
    with raw_worker(server.endpoints[0], b"echo") as worker:
        uuid = client.submit("echo", "x", ttl=5)
        other = client.submit("other", "y", ttl=0.01)
        token, _ = worker.take()
        with server.store.write() as transaction:
            running = server.dispatcher.core.flights
            later = transaction.describe(bytes.fromhex(uuid)).expires_at + 1  # type: ignore[union-attr]
            assert bytes.fromhex(uuid) not in [one for one, _ in transaction.expire(later, skip=running)]
        with pytest.raises(RequestFailed, match="expired"):
            client.wait(other, 30)
        worker.final(token, b"X")
        assert client.wait(uuid, 30) == [b"X"]


def test_a_delay_is_waited_for_also_across_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Client(server.endpoints[0]) as client:
        uuid, first = client.submit("echo", "x", delay=1), client.submit("echo", "y", delay=1000)
        row = client.show(uuid)
        assert row["state"] == "delayed" or row["not_before"] <= client.clock() * 1e6
    with (
        serving(tmp_path) as server,
        Client(server.endpoints[0]) as client,
        Worker("echo", lambda frames: frames, server.endpoints[0], config=QUICK),
    ):
        assert client.wait(uuid, 30) == [b"x"]
        row = client.show(uuid)
        assert row["dispatched_at"] >= row["not_before"] > row["submitted_at"]
        assert client.show(first)["state"] == "delayed"


def test_a_delay_is_over_in_time_whatever_else_is_delayed(server: Server, client: Client) -> None:
    with Worker("echo", lambda frames: frames, server.endpoints[0], config=QUICK):
        until(lambda: server.dispatcher.maintenance.clock_jumps.unchecked is None)  # it has looked for the first time
        _, uuid, _ = [client.submit("echo", "x", delay=delay) for delay in (1000, 0.2, 1000)]
        assert client.wait(uuid, 20) == [b"x"]  # without a reason to, nobody looks at the clock for half a minute


def test_9_before_0(server: Server, client: Client) -> None:
    for priority in (0, 4, 9, 0, 9):
        client.submit("echo", f"{priority}", priority=priority)
    seen: list[bytes] = []
    with raw_worker(server.endpoints[0], b"echo") as worker:
        for _ in range(5):
            token, body = worker.take()
            seen += body
            worker.final(token)
    assert seen == [b"9", b"9", b"4", b"0", b"0"]


def test_the_time_to_live_counts_again_after_a_failure_and_after_a_retry(server: Server, client: Client) -> None:
    def fail(frames: list[bytes]) -> bytes:
        raise RemoteError(500, "no")

    with Worker("echo", fail, server.endpoints[0], config=QUICK):
        put_off = client.submit("echo", "x", ttl=5, retry_first=1000, retry_most=1000)
        failed = client.submit("echo", "x", ttl=5, max_attempts=1)
        with pytest.raises(RequestFailed, match="failed: no"):
            client.wait(failed, 30)
        until(lambda: client.show(put_off)["state"] == "delayed")
    assert client.retry(failed) == 1
    for uuid in (put_off, failed):
        with pytest.raises(RequestFailed, match="expired: "):
            client.wait(uuid, 60)


# -- limits ---------------------------------------------------------------------------------------------------


@pytest.mark.settings(limit_grace=0.1)
def test_a_late_reply_is_not_taken_for_that_of_a_later_attempt(server: Server, client: Client) -> None:
    uuid = client.submit("echo", "x", limit=0.5, max_attempts=1)
    with raw_worker(server.endpoints[0], b"echo") as worker:
        token, _ = worker.take()
        with pytest.raises(RequestFailed, match=r"no reply within its limit of 0\.5 s"):
            client.wait(uuid, 30)
        worker.final(token, b"late")

        def another_life() -> list[bytes] | None:
            assert client.retry(uuid) == 1
            token, _ = worker.take()
            worker.final(token, b"in time")
            try:
                return client.wait(uuid, 30)
            except RequestFailed:
                return None  # a slow machine: it was not in time

        assert until(another_life) == [b"in time"]


def test_a_service_takes_no_more_than_its_limits(server: Server, client: Client) -> None:
    uuids = [client.submit("few", "x", delay=1000 if number else 0) for number in range(3)]
    with pytest.raises(Refused, match="service full: 3 requests are waiting for few; its limit is 3"):
        client.submit("few", "x")
    client.close(uuids[1])
    client.submit("few", "x")
    with pytest.raises(Refused, match="service full"):
        client.submit_batch("few", ["x", "y"])
    client.submit("small", bytes(600))
    with pytest.raises(Refused, match=r"service full: .* bytes are waiting for small"):
        client.submit("small", bytes(600))
    client.submit("echo", bytes(10_000))


def test_what_is_known_already_takes_no_room_in_a_full_service(server: Server, client: Client) -> None:
    uuids = client.submit_batch("few", ["x", "y"], keys=["x", "y"])
    uuids += client.submit_batch("few", ["y", "z", "z"], keys=["y", "z", "z"])
    assert len(set(uuids)) == 3
    assert client.submit("few", "x", key="x") == uuids[0]
    assert client.submit_batch("few", ["x", "y", "z"], keys=["x", "y", "z"]) == [*uuids[:2], uuids[3]]
    with pytest.raises(Refused, match="service full"):
        client.submit_batch("few", ["x", "new"], keys=["x", "new"])
    known = client.submit("small", bytes(600), key="small")
    assert client.submit("small", bytes(600), key="small") == known


def test_what_is_known_already_takes_no_room_in_a_full_store(tmp_path: Path) -> None:
    with serving(tmp_path, capacity=MIN_CAPACITY) as server, Client(server.endpoints[0]) as client:
        known = client.submit("echo", "x", key="known")
        large, small = client.submit_batch("echo", [bytes(8 << 20), "y"], keys=["large", "small"])
        with pytest.raises(Refused, match="store full"):
            client.submit_many("echo", [bytes(100_000)] * 100)
        assert client.submit("echo", "x", key="known") == known
        assert client.submit("echo", bytes(8 << 20), key="large") == large
        assert client.submit_batch("echo", ["x", "y"], keys=["known", "small"]) == [known, small]
        with pytest.raises(Refused, match="store full"):
            client.submit_batch("echo", ["x", bytes(100_000)], keys=["known", "new"])


def test_no_more_run_than_a_service_may(server: Server, client: Client) -> None:
    lock, gate, entered = threading.Lock(), threading.Event(), threading.Semaphore(0)
    now = most = 0

    def work(frames: list[bytes]) -> bytes:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        entered.release()
        gate.wait(30)
        with lock:
            now -= 1
        return b""

    with Worker("narrow", work, server.endpoints[0], jobs=8, config=QUICK):
        uuids = client.submit_batch("narrow", [b"x"] * 50)
        for _ in range(2):
            assert entered.acquire(timeout=30)
        gate.set()
        assert len(dict(client.replies(uuids, 60))) == 50
    assert most == 2
