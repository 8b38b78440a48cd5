"""Titanic without a broker of its own: worker and client of one that runs elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from support.processes import SUPPORT, Process, script, worker_process
from support.raw_mdp import raw_client, raw_worker
from support.serving import QUICK, brokering, config, serving
from support.waiting import until

from broker import Broker, BrokerConfig, Worker
from titanic import Client, RequestFailed, Server, UnknownRequest


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """Where our broker is."""
    with brokering(heartbeat_interval=0.5, liveness=12) as endpoint:
        yield endpoint


def start_old_broker(endpoint: str, path: Path, interval: float = 2.0) -> Process:
    return Process(SUPPORT / "rfc7_broker.py", endpoint, str(interval), output=path / "broker.out")


@pytest.fixture
def old_broker(tmp_path: Path) -> Iterator[str]:
    """A broker of MDP 0.1 only, which keeps no envelope stacks and loses the requests of dead workers."""
    endpoint = f"ipc://{tmp_path}/broker.ipc"
    with start_old_broker(endpoint, tmp_path):
        yield endpoint


def use_it(client: Client) -> None:
    uuids = client.submit_many("echo", [b"%d" % number for number in range(200)])
    assert dict(client.replies(uuids, 60)) == {uuid: [b"%d" % n] for n, uuid in enumerate(uuids)}
    client.close_many(uuids[1:])
    assert client.reply(uuids[0]) == [b"0"]
    with pytest.raises(UnknownRequest):
        client.reply(uuids[1])
    assert [row["uuid"] for row in client.list()[0]] == uuids[:1]
    assert client.stats()["dispatch"]["succeeded"] == 200


def test_with_our_broker(tmp_path: Path, endpoint: str) -> None:
    with (
        serving(tmp_path, broker=endpoint),
        Worker("echo", lambda frames: frames, endpoint, jobs=4, config=QUICK),
        Client(endpoint, timeout=30) as client,
    ):
        use_it(client)


@pytest.mark.parametrize("text", ["x", "€"])
def test_many_are_put_into_messages_that_fit(tmp_path: Path, text: str) -> None:
    """As many as the broker takes, with the options and the service in front."""
    bodies = [text * (1024 // len(text.encode()))] * 200
    with (
        brokering(max_body=1 << 16) as endpoint,
        serving(tmp_path, broker=endpoint),
        Client(endpoint, timeout=30) as client,
    ):
        assert len(client.submit_many("absent", bodies)) == 200


def test_partials_and_closing_with_our_broker(tmp_path: Path, endpoint: str) -> None:
    with (
        serving(tmp_path, broker=endpoint),
        Client(endpoint, timeout=30) as client,
        raw_worker(endpoint, b"echo") as worker,
    ):
        uuid, closed = client.submit("echo", "x"), client.submit("echo", "y")
        token, _ = worker.take()
        client.close(closed)
        worker.partial(token, b"one", b"")
        worker.final(token, b"two")
        assert client.wait(uuid, 30) == [b"one", b"", b"two"]
        assert not worker.has_request()


def test_with_a_broker_of_version_0_1(tmp_path: Path, old_broker: str) -> None:
    quick = replace(QUICK, versions=("0.1",))
    with (
        serving(tmp_path, broker=old_broker),
        Client(old_broker, timeout=30, version="0.1") as client,
        Worker("echo", lambda frames: frames, old_broker, jobs=4, config=quick),
    ):
        use_it(client)


def test_a_broker_that_loses_requests_is_made_up_for_by_the_attempt_timeout(tmp_path: Path, old_broker: str) -> None:
    log = tmp_path / "executed"
    with serving(tmp_path, broker=old_broker, attempt_timeout=3.0) as server:
        with Client(old_broker, timeout=30, version="0.1") as client:
            uuid = client.submit("echo", "x")
            with worker_process(old_broker, "echo", log, "hang") as process:
                until(lambda: log.exists() and log.read_text() == "x\n")
                process.kill()
            assert client.reply(uuid) is None
            with worker_process(old_broker, "echo", log, "echo"):
                assert client.wait(uuid, 60) == [b"done:x"]
            assert client.show(uuid)["attempts"] >= 2
        assert server.alive


def test_an_attempt_that_takes_too_long_at_last_fails_for_good(tmp_path: Path, old_broker: str) -> None:
    """Nothing else happens meanwhile: the time itself must wake the dispatcher."""
    log = tmp_path / "executed"
    with (
        serving(tmp_path, broker=old_broker, attempt_timeout=0.1, max_attempts=1, presence_most=0.05),
        Client(old_broker, timeout=30, version="0.1") as client,
        worker_process(old_broker, "echo", log, "hang"),
    ):
        uuid = client.submit("echo", "x")
        with pytest.raises(RequestFailed, match="no reply within"):
            client.wait(uuid, 60)


def test_slow_services_leave_lanes_to_the_others(tmp_path: Path) -> None:
    """With 4 lanes for each service and 16 in all, five services whose workers hang must not take them all."""
    old_broker = f"ipc://{tmp_path}/broker.ipc"
    patient = replace(QUICK, heartbeat_interval=10)  # such a broker loses what a worker has that it takes for dead
    with (
        start_old_broker(old_broker, tmp_path, patient.heartbeat_interval),
        serving(tmp_path, broker=old_broker, attempt_timeout=1000, presence_most=0.1, worker=patient),
        Client(old_broker, timeout=30, version="0.1") as client,
    ):
        logs = [tmp_path / f"slow{number}" for number in range(5)]
        for number in range(5):
            client.submit_many(f"slow{number}", [b"x"] * 10)
        slow = replace(patient, versions=("0.1",))
        gate = Event()
        workers = [
            Worker(log.name, lambda frames: bytes(gate.wait(60)), old_broker, config=slow).start() for log in logs
        ]
        try:
            until(lambda: client.stats()["running"] >= 10)
            with Worker("quick", lambda frames: frames, old_broker, config=slow):
                for number in range(20):
                    assert client.wait(client.submit("quick", b"%d" % number), 30) == [b"%d" % number]
            assert client.stats()["running"] <= 16
        finally:
            gate.set()
            for worker in workers:
                worker.stop()


def test_the_broker_comes_later(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/broker.ipc"
    with (
        serving(tmp_path, broker=endpoint),
        Client(endpoint, timeout=1, retries=60) as client,
        raw_client(endpoint) as raw,
    ):
        raw.send(b"mmi.service", b"titanic.request")
        broker = Broker(BrokerConfig(heartbeat_interval=0.5, liveness=60))
        broker.bind(endpoint)
        with broker, Worker("echo", lambda frames: frames, endpoint, jobs=4, config=QUICK):
            use_it(client)


def start_broker(endpoint: str, path: Path) -> Process:
    return Process("-m", "titanic", "broker", "--bind", endpoint, output=path / "broker.out")


def test_a_broker_that_is_killed_and_started_again(tmp_path: Path) -> None:
    endpoint, log = f"ipc://{tmp_path}/broker.ipc", tmp_path / "executed"
    with (
        serving(tmp_path, broker=endpoint) as server,
        Client(endpoint, timeout=1, retries=60) as client,
        worker_process(endpoint, "echo", log),
    ):
        with start_broker(endpoint, tmp_path) as broker:
            uuids = client.submit_many("echo", [b"%d" % number for number in range(100)], window=20)
            until(lambda: log.exists() and log.read_text())
            broker.kill()
        with start_broker(endpoint, tmp_path) as broker:
            more = client.submit_many("echo", [b"%d" % number for number in range(100, 200)], window=20)
            broker.kill()
        with start_broker(endpoint, tmp_path):
            replies = dict(client.replies([*uuids, *more], 60, window=20))
            assert replies == {uuid: [b"done:%d" % n] for n, uuid in enumerate([*uuids, *more])}
            assert server.alive


def test_lanes_with_waits_come_back_after_the_death_of_their_broker(tmp_path: Path) -> None:
    """Each wait held its lane for as long as its client had wanted to wait, although nobody was there any more."""
    endpoint = f"ipc://{tmp_path}/broker.ipc"
    patient = replace(QUICK, liveness=40)  # a busy machine is no death
    with (
        serving(tmp_path, broker=endpoint, worker=patient) as server,
        Client(endpoint, timeout=1, retries=60) as client,
    ):
        with start_broker(endpoint, tmp_path) as broker, raw_client(endpoint) as gone:
            uuid = client.submit("absent", "x").encode()
            for _ in range(3):  # as many as may wait with four lanes
                gone.send(b"titanic.wait", b"600", uuid)
            until(lambda: client.stats()["waiting_clients"] == 3)
            broker.kill()
        with start_broker(endpoint, tmp_path), raw_client(endpoint) as raw:
            until(lambda: raw.ask(b"mmi.service", b"titanic.wait") == [b"200"])
            assert raw.ask(b"titanic.wait", b"0", uuid) == [b"300"]
            until(lambda: client.stats()["waiting_clients"] == 0)
            assert server.alive


def test_an_old_broker_that_is_killed_and_started_again(tmp_path: Path) -> None:
    endpoint, log = f"ipc://{tmp_path}/broker.ipc", tmp_path / "executed"
    with (
        serving(tmp_path, broker=endpoint, attempt_timeout=60),
        worker_process(endpoint, "hung", log, "hang"),
        Client(endpoint, timeout=1, retries=60, version="0.1") as client,
    ):
        with start_old_broker(endpoint, tmp_path) as broker:
            uuid = client.submit("hung", "x")
            until(lambda: log.exists() and log.read_text() == "x\n")
            broker.kill()
        with start_old_broker(endpoint, tmp_path) as broker, worker_process(endpoint, "hung", log):
            assert client.wait(uuid, 60) == [b"done:x"]
            assert client.show(uuid)["attempts"] == 1


def test_it_stops_at_once_when_there_is_no_broker(tmp_path: Path) -> None:
    server = Server(config(tmp_path, broker=f"ipc://{tmp_path}/nobody.ipc", grace=60)).start()
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 20
    assert not server.alive


def test_it_stops_when_the_broker_has_gone(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/broker.ipc"
    server = Server(config(tmp_path, broker=endpoint, grace=0.2))
    with start_broker(endpoint, tmp_path) as broker, Client(endpoint, timeout=1, retries=60) as client:
        server.start()
        with raw_worker(endpoint, b"echo") as worker:
            client.submit("echo", "x")
            worker.take()
            broker.kill()
    server.stop()
    assert not server.alive


# -- two queues at one broker --------------------------------------------------------------------------------------


def test_a_second_queue_does_not_get_the_requests_of_the_first(tmp_path: Path, endpoint: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with serving(first, broker=endpoint), Client(endpoint, timeout=30) as client:
        uuid = client.submit("absent", "x")
        other = Server(config(second, broker=endpoint))
        with other:
            until(lambda: other.problem)
            assert not other.alive
        assert not second.exists(), "the store was made for it"
        assert f"its store is {first / 'store'}; stop that one" in str(other.problem)
        assert [client.reply(uuid) for _ in range(10)] == [None] * 10
    with serving(second, broker=endpoint), Client(endpoint, timeout=30) as client:
        assert client.stats()["store"]["path"] == str(second / "store")


@pytest.mark.parametrize("same", [False, True])
def test_of_two_that_start_together_one_gives_way(
    tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch, *, same: bool
) -> None:
    """Each has found that nobody is there, and registers. Their stores may have the same path, on two machines."""
    first, second = (Server(config(tmp_path / name, broker=endpoint)) for name in ("first", "second"))
    if same:
        second.store.place = second.front._store = first.store.place  # type: ignore[attr-defined, misc]
    register, looked = second.front.register, Event()  # type: ignore[attr-defined]

    def late() -> None:
        looked.set()
        until(lambda: first.ready)
        register()

    monkeypatch.setattr(second.front, "register", late)
    with second:
        assert looked.wait(60)
        with first:
            assert "another queue" in str(until(lambda: second.problem or first.problem))
            assert (first.alive, second.alive) == (second.problem is not None, first.problem is not None)
            assert same or first.alive


def test_nor_one_at_the_broker_of_an_integrated_queue(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as first, Server(config(tmp_path / "second", broker=first.endpoints[0])) as other:
        assert "another queue" in str(until(lambda: other.problem))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_queue_that_is_dead_or_hangs_is_no_rival(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: signal.Signals
) -> None:
    """Of one that hangs the lanes stay registered until their heartbeats are missed; that is not waited for."""
    caplog.set_level("INFO")
    with (
        brokering(heartbeat_interval=5000) as at,
        Client(at, timeout=30) as client,
        Process(SUPPORT / "server_process.py", "attach", at, tmp_path / "first", output=tmp_path / "node") as node,
    ):
        client.submit("absent", "x")
        client.stats()  # this service is registered, too
        node.signal(how)
        if how == signal.SIGKILL:  # its connections are open until it has ended
            until(lambda: not node.running)
        else:  # its threads go on until the first of them has had its turn
            until(lambda: "State:\tT" in Path(f"/proc/{node.pid}/status").read_text())
        with serving(tmp_path, broker=at) as server:
            until(lambda: server.ready or server.problem)
            assert server.problem is None
            assert ("does not answer: replacing it" in caplog.text) is (how == signal.SIGSTOP)


def test_a_queue_without_sockets_goes_on_when_there_are_some(tmp_path: Path, old_broker: str) -> None:
    """At such a broker each request takes a connection."""
    quick = replace(QUICK, versions=("0.1",))
    with (
        script("starved_queue.py", old_broker, str(tmp_path / "store")) as queue,
        Client(old_broker, version="0.1", timeout=60) as client,
        Worker("echo", lambda frames: frames, old_broker, config=quick),
    ):
        said = reading(queue)
        uuids = [client.submit("echo", b"1")]
        assert client.wait(uuids[0], 60) == [b"1"]
        os.kill(queue.pid, signal.SIGUSR1)
        assert said("no more files")
        uuids += client.submit_many("echo", [b"%d" % number for number in range(2, 9)])
        assert said("cannot reach the broker: cannot connect to")
        os.kill(queue.pid, signal.SIGUSR2)
        assert said("can reach the broker again")
        assert [client.wait(uuid, 60) for uuid in uuids] == [[b"%d" % number] for number in range(1, 9)]
        os.kill(queue.pid, signal.SIGTERM)
        assert queue.wait(60) == 0


def reading(process: subprocess.Popen[str]) -> Callable[[str], bool]:
    """Reads what a process says, on to a line with this text."""
    return lambda text: any(text in line for line in iter(process.stdout.readline, ""))  # type: ignore[union-attr]
