"""What becomes of accepted requests: real store, real broker, real sockets."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest
from support.processes import worker_process
from support.raw_mdp import raw_client, raw_worker
from support.serving import QUICK, serving
from support.shortages import broken_disk
from support.waiting import until

from broker import Pipeline, RemoteError, Worker
from titanic import Client, Refused, RequestFailed, Server, UnknownRequest
from titanic.protocol import tsp
from titanic.store import MIN_CAPACITY

pytestmark = pytest.mark.settings(max_attempts=3)


# -- closing --------------------------------------------------------------------------------------------------


def test_closed_before_dispatch_is_cancelled_and_no_worker_sees_it(server: Server, client: Client) -> None:
    uuids = [client.submit("echo", f"{number}") for number in range(10)]
    client.close(*uuids[:9])
    with raw_worker(server.endpoints[0], b"echo") as worker:
        token, body = worker.take()
        assert body == [b"9"]
        worker.final(token, b"done")
        assert client.wait(uuids[9], 30) == [b"done"]
        assert not worker.has_request()
    for uuid in uuids[:9]:
        with pytest.raises(UnknownRequest):
            client.reply(uuid)


def test_closed_while_it_waits_in_the_broker_no_worker_sees_it(server: Server, client: Client) -> None:
    """The only worker is busy with a plain request, so the stored one gets as far as the broker's queue."""
    with raw_worker(server.endpoints[0], b"echo") as worker, raw_client(server.endpoints[0]) as plain:
        plain.send(b"echo", b"plain")
        token, body = worker.take()
        assert body == [b"plain"]
        stored = client.submit("echo", "stored")
        until(lambda: client.stats()["running"] == 1)
        client.close(stored)
        until(lambda: client.stats()["running"] == 0)
        worker.final(token, b"done")
        last = client.submit("echo", "last")
        token, body = worker.take()
        assert body == [b"last"]
        worker.final(token, b"done")
        assert client.wait(last, 30) == [b"done"]


def test_closed_while_running_drops_the_reply(server: Server, client: Client) -> None:
    first, second = client.submit("echo", "first"), client.submit("echo", "second")
    with raw_worker(server.endpoints[0], b"echo") as worker:
        token, body = worker.take()
        assert body == [b"first"]
        client.close(first)
        worker.final(token, b"too late")
        token, body = worker.take()
        assert body == [b"second"]
        worker.final(token, b"in time")
        assert client.wait(second, 30) == [b"in time"]
    with pytest.raises(UnknownRequest):
        client.reply(first)
    assert client.stats()["store"]["requests"] == 1


# -- workers --------------------------------------------------------------------------------------------------


def test_partials_are_joined(server: Server, client: Client) -> None:
    uuid = client.submit("echo", "x")
    with raw_worker(server.endpoints[0], b"echo") as worker:
        token, _ = worker.take()
        worker.partial(token, b"one", b"")
        worker.partial(token, b"two")
        worker.final(token, b"three", b"")
        assert client.wait(uuid, 30) == [b"one", b"", b"two", b"three", b""]


def test_a_reply_of_nothing_is_an_empty_frame(server: Server, client: Client) -> None:
    with Worker("echo", lambda frames: None, server.endpoints[0], config=QUICK):
        assert client.wait(client.submit("echo", "x"), 30) == [b""]


def test_a_failure_is_tried_again_until_it_succeeds(server: Server, client: Client) -> None:
    seen: list[bytes] = []

    def second_time_lucky(frames: list[bytes]) -> bytes:
        seen.append(frames[0])
        if len(seen) < 3:
            raise RemoteError(500, "not yet")
        return b"at last"

    with Worker("echo", second_time_lucky, server.endpoints[0], config=QUICK):
        uuid = client.submit("echo", "x")
        assert client.wait(uuid, 30) == [b"at last"]
    assert seen == [b"x"] * 3
    assert client.show(uuid)["attempts"] == 3
    assert client.stats()["dispatch"]["retried"] == 2


def test_a_failure_for_good(server: Server, client: Client) -> None:
    def fail(frames: list[bytes]) -> bytes:
        raise RemoteError(500, "never will it work", [b"line 7"])

    with Worker("echo", fail, server.endpoints[0], config=QUICK):
        uuid = client.submit("echo", "x")
        with pytest.raises(RequestFailed, match="never will it work"):
            client.wait(uuid, 30)
    with raw_client(server.endpoints[0]) as raw:
        for _ in range(2):
            assert raw.ask(b"titanic.reply", uuid.encode()) == [
                b"500 failed: never will it work",
                b"failed",
                b"line 7",
            ]
    row = client.show(uuid)
    assert (row["state"], row["attempts"], row["reason"]) == ("failed", 3, "never will it work")


def test_the_request_of_a_worker_that_was_killed_goes_to_another(
    server: Server, client: Client, tmp_path: Path
) -> None:
    log = tmp_path / "executed"
    uuid = client.submit("echo", "x")
    with worker_process(server.endpoints[0], "echo", log, "hang") as process:
        until(lambda: log.exists() and log.read_text() == "x\n")
        process.kill()
    with worker_process(server.endpoints[0], "echo", log, "echo"):
        assert client.wait(uuid, 60) == [b"done:x"]
    assert log.read_text() == "x\nx\n"


def test_as_many_are_with_workers_as_there_are(server: Server, client: Client) -> None:
    gate, entered = threading.Event(), threading.Semaphore(0)

    def wait(frames: list[bytes]) -> bytes:
        entered.release()
        gate.wait(60)
        return b""

    with Worker("echo", wait, server.endpoints[0], jobs=3, config=QUICK):
        uuids = client.submit_many("echo", [b"x"] * 10)
        for _ in range(3):
            assert entered.acquire(timeout=30)
        running, _ = client.list(state="running")
        assert [row["uuid"] for row in running] == uuids[:3]
        waiting, _ = client.list(state="waiting")
        assert [row["uuid"] for row in waiting] == uuids[3:]
        page, following = client.list(state="running", limit=2)
        assert [row["uuid"] for row in page] == uuids[:2]
        page, following = client.list(state="running", limit=2, after=following)
        assert [row["uuid"] for row in page] == uuids[2:3]
        assert following is None
        gate.set()
        assert len(dict(client.replies(uuids, 30))) == 10


def test_a_slow_and_an_absent_service_delay_nobody(server: Server, client: Client) -> None:
    absent = client.submit_many("absent", [b"x"] * 5000)
    slow = client.submit_many("slow", [b"x"] * 50)
    with raw_worker(server.endpoints[0], b"slow") as worker:
        worker.take()
        with Worker("quick", lambda frames: frames, server.endpoints[0], jobs=2, config=QUICK):
            quick = client.submit_many("quick", [b"%d" % number for number in range(500)])
            assert dict(client.replies(quick, 60)) == {uuid: [b"%d" % n] for n, uuid in enumerate(quick)}
        assert client.stats()["services"] == {"absent": 5000, "slow": 49}, "one runs"
        with Worker("absent", lambda frames: frames, server.endpoints[0], jobs=4, config=QUICK):
            assert len(dict(client.replies(absent, 60))) == 5000
    assert client.reply(slow[0]) is None


def test_a_client_that_floods_starves_nobody(server: Server, client: Client) -> None:
    """Other services and urgent requests pass it. In its own service a request waits for what came before it, and for
    nothing that came later."""
    enough = threading.Event()
    order: list[bytes] = []

    def flood() -> None:
        with Pipeline(server.endpoints[0], timeout=60) as pipeline:
            while not enough.is_set():
                list(pipeline.map(tsp.REQUEST, [[b"busy", b"flood"]] * 100))

    def work(frames: list[bytes]) -> list[bytes]:
        order.append(frames[0])
        return frames

    def waiting() -> int:
        return client.stats()["services"].get("busy", 0)

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        with Worker("other", lambda frames: frames, server.endpoints[0], config=QUICK):
            uuid = client.submit("other", b"x")
            assert client.wait(uuid, 30) == [b"x"]
        before = waiting()
        once = client.submit("busy", b"once")
        after = waiting()
        until(lambda: waiting() > after)
        urgent = client.submit("busy", b"urgent", priority=9)
    finally:
        enough.set()
        flooding.join()
    with Worker("busy", work, server.endpoints[0], config=QUICK):
        assert client.wait(urgent, 30) == [b"urgent"]
        assert client.wait(once, 60) == [b"once"]
    assert order.index(b"urgent") == 0
    assert before <= order.index(b"once") - 1 <= after


def test_many_clients_at_once(server: Server) -> None:
    executed: Counter[bytes] = Counter()
    failures: list[BaseException] = []

    def work(frames: list[bytes]) -> bytes:
        executed[frames[0]] += 1
        return frames[0][::-1]

    def use(number: int) -> None:
        try:
            with Client(server.endpoints[0], timeout=30) as client:
                for turn in range(20):
                    body = b"%d.%d" % (number, turn)
                    uuid = client.submit("reverse", body)
                    assert client.wait(uuid, 60) == [body[::-1]]
                    client.close(uuid)
        except BaseException as error:
            failures.append(error)

    with Worker("reverse", work, server.endpoints[0], jobs=4, config=QUICK):
        threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert len(executed) == executed.total() == 160
    with server.store.read() as transaction:
        assert transaction.counts().requests == 0


# -- a disk that fails ----------------------------------------------------------------------------------------


def test_a_disk_that_fails_for_a_while_costs_no_reply_and_no_second_execution(server: Server, client: Client) -> None:
    uuid = client.submit("echo", "x")
    with raw_worker(server.endpoints[0], b"echo") as worker:
        token, _ = worker.take()
        with broken_disk() as tried:
            worker.final(token, b"the only one")
            until(lambda: tried)
            assert client.reply(uuid) is None
            assert client.show(uuid)["state"] == "running"
            with pytest.raises(Refused, match="not stored: the disk failed"):
                client.submit("echo", "y")
        assert client.wait(uuid, 30) == [b"the only one"]
        assert not worker.has_request()
    assert client.stats()["dispatch"]["dispatched"] == 1


# -- a full store ---------------------------------------------------------------------------------------------


def test_a_full_store_refuses_but_goes_on_and_accepts_again(tmp_path: Path) -> None:
    body = bytes(100_000)
    with serving(tmp_path, capacity=MIN_CAPACITY) as server, raw_client(server.endpoints[0]) as raw:
        uuids = []
        while (answer := raw.ask(b"titanic.request", b"echo", body))[0] == b"200":
            uuids.append(answer[1])
        assert len(answer) == 1
        assert answer[0].startswith(b"500 store full: ")
        assert 110 < len(uuids) < 168
        for _ in range(50):
            raw.send(b"titanic.request", b"echo", body)
        assert all(raw.receive()[0].startswith(b"500 store full: ") for _ in range(50))
        with (
            Worker("echo", lambda frames: frames[0][:100], server.endpoints[0], config=QUICK),
            Client(server.endpoints[0]) as client,
        ):
            replies = dict(client.replies([uuid.decode() for uuid in uuids], 60))
            assert all(reply == [body[:100]] for reply in replies.values())
        assert raw.ask(b"titanic.request", b"echo", body)[0].startswith(b"500 store full: ")
        for uuid in uuids[:60]:
            assert raw.ask(b"titanic.close", uuid) == [b"200"]
        assert raw.ask(b"titanic.request", b"echo", body)[0] == b"200"


def test_when_it_is_nearly_full_the_small_ones_of_a_batch_get_in(tmp_path: Path) -> None:
    with serving(tmp_path, capacity=MIN_CAPACITY) as server, raw_client(server.endpoints[0]) as raw:
        for number in range(20):
            raw.send(b"titanic.request", b"echo", bytes(MIN_CAPACITY) if number % 2 else b"small")
        answers = [raw.receive()[0][:9] for _ in range(20)]
    assert Counter(answers) == {b"200": 10, b"500 store": 10}


@pytest.mark.parametrize("how", ["closed", "purged", "expired"])
def test_absent_services_for_which_nothing_waits_are_forgotten(tmp_path: Path, how: str) -> None:
    """They were asked for and counted among the absent ones for ever."""
    with serving(tmp_path, presence_most=0.05) as server, Client(server.endpoints[0]) as client:
        core = server.dispatcher.core
        options = {"ttl": 0.2} if how == "expired" else {}
        uuids = [client.submit(f"absent{number % 20}", "x", **options) for number in range(40)]
        kept = client.submit("kept", "x")
        if how == "closed":
            until(lambda: len(core.backlogs.absent) == 21)
            client.close_many(uuids[::2])
            client.close_many(uuids[1::2])
        elif how == "purged":
            for number in range(20):
                client.purge("waiting", service=f"absent{number}")
        until(lambda: list(core.backlogs) == list(core.backlogs.absent) == [b"kept"])
        with Worker("kept", lambda frames: b"done", server.endpoints[0], config=QUICK):
            assert client.wait(kept, 30) == [b"done"]
        again = client.submit("absent3", "x")
        with Worker("absent3", lambda frames: b"done", server.endpoints[0], config=QUICK):
            assert client.wait(again, 30) == [b"done"]
