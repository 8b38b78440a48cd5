"""Workers whose connections are lost while they work: they return with their requests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from support.kept_jobs import Handler
from support.relay import Relay, relay
from support.serving import QUICK, with_broker
from support.waiting import until

from broker import BrokerConfig, Worker
from titanic import Client, Server, UnknownRequest, current


@pytest.fixture
def line(server: Server) -> Iterator[Relay]:
    with relay(server.endpoints[0]) as line:
        yield line


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("ends", ["while it is away", "afterwards"])
def test_a_job_goes_on_and_counts(server: Server, client: Client, line: Relay, jobs: int, ends: str) -> None:
    work = Handler()
    with Worker("echo", work, line.endpoint, jobs=jobs, config=QUICK) as worker:
        uuids = [client.submit("echo", b"%d" % number) for number in range(jobs)]
        until(lambda: len(work.begun) == jobs)
        line.down()
        until(lambda: not server.workers)
        other = Handler()
        with Worker("echo", other, server.endpoints[0], config=QUICK):
            if ends == "while it is away":
                work.go.set()
            more = client.submit("echo", "more")
            until(lambda: other.begun)  # what is missing takes no place of another worker
            other.go.set()
            assert client.wait(more, 30) == [b"part", b"done:more"]
            line.up()
            until(lambda: worker.registered)
            work.go.set()
            for number, uuid in enumerate(uuids):
                assert client.wait(uuid, 30) == [b"part", b"done:%d" % number]
                assert client.show(uuid)["attempts"] == 1
    assert sorted(work.begun) == [(b"%d" % number, 1, 1) for number in range(jobs)]
    assert len(other.begun) == 1
    assert server.broker.counters()["resumed"] == jobs  # type: ignore[union-attr]


def test_closed_while_its_worker_is_away(server: Server, client: Client, line: Relay) -> None:
    cancelled = threading.Event()
    begun = threading.Event()

    def work(frames: list[bytes]) -> bytes:
        begun.set()
        while not current().cancelled:
            cancelled.wait(0.01)
        cancelled.set()
        return b"late"

    with Worker("echo", work, line.endpoint, config=QUICK) as worker:
        uuid = client.submit("echo", "1")
        assert begun.wait(30)
        line.down()
        until(lambda: not server.workers)
        client.close(uuid)
        line.up()
        assert cancelled.wait(30)
        until(lambda: worker.registered and not server.dispatcher.core.flights)
    with pytest.raises(UnknownRequest):
        client.reply(uuid)


def test_a_pause_of_its_service_cancels_nothing(server: Server, client: Client, line: Relay) -> None:
    """The server asks for what no worker has begun; this one has, also when it returns."""
    work = Handler()
    with Worker("echo", work, line.endpoint, config=QUICK) as worker:
        uuid = client.submit("echo", "1")
        until(lambda: work.begun)
        client.set_service("echo", paused=True)
        line.down()
        until(lambda: not server.workers)
        line.up()
        until(lambda: server.broker.counters()["resumed"] and worker.registered)  # type: ignore[union-attr]
        other = client.submit("other", "")
        with Worker("other", lambda _: b"", line.endpoint, config=QUICK):  # a CANCEL would have come before that
            client.wait(other, 30)
        work.go.set()
        assert client.wait(uuid, 30) == [b"part", b"done:1"]
    assert work.cancelled == 0


@pytest.mark.settings(wire=BrokerConfig(liveness=60, worker_return=0.2))
def test_a_worker_that_does_not_return_in_time(server: Server, client: Client, line: Relay) -> None:
    work, other = Handler(), Handler()
    other.go.set()
    with Worker("echo", work, line.endpoint, config=QUICK) as worker:
        uuid = client.submit("echo", "1")
        until(lambda: work.begun)
        line.down()
        until(lambda: not server.workers)
        with Worker("echo", other, server.endpoints[0], config=QUICK):
            assert client.wait(uuid, 30) == [b"part", b"done:1"]
            line.up()
            until(lambda: worker.registered)
            work.go.set()
            until(lambda: server.broker.counters()["workers_busy"] == 0)  # type: ignore[union-attr]
    assert [delivery for _, _, delivery in other.begun] == [2]
    assert client.reply(uuid) == [b"part", b"done:1"]


@pytest.mark.parametrize("kind", ["integrated", "stand-alone"])
def test_a_worker_that_leaves_takes_no_place_of_another(tmp_path: Path, kind: str) -> None:
    old = Handler()
    with with_broker(tmp_path, kind) as server, Client(server.endpoints[0], timeout=30) as client:
        leaving = Worker("echo", old, client.endpoint, config=QUICK).start()
        first = client.submit("echo", "first")
        until(lambda: old.begun)
        stopping = threading.Thread(target=leaving.stop)
        stopping.start()
        until(lambda: "echo" not in client.workers()["services"])
        with Worker("echo", lambda frames: b"new", client.endpoint, config=QUICK):
            second = client.submit("echo", "second")
            until(lambda: client.reply(second) == [b"new"])
            old.go.set()
            assert client.wait(first, 30) == [b"part", b"done:first"]
        stopping.join()


def test_a_process_with_many_names_takes_one_descriptor(server: Server, client: Client) -> None:
    """A worker may say any name behind that of its process, on each of any number of connections."""
    host = socket.gethostname()[:24]
    before = len(list(Path("/proc/self/fd").iterdir()))
    with zmq.Context.instance().socket(zmq.DEALER) as peer:
        peer.linger = 0
        peer.connect(client.endpoint)
        for number in range(50):
            process = b"titanic:process=%b:1/%d" % (host.encode(), number)
            words = [b"titanic:1", b"titanic:slots=1", b"titanic:keeper=k", process]
            peer.send_multipart([b"MDPW02", b"\x01", b"echo", *words])
            assert peer.recv_multipart() == [b"MDPW02", b"\x05"]
            peer.send_multipart([b"MDPW02", b"\x06"])
        until(lambda: not server.workers)
        assert len(list(Path("/proc/self/fd").iterdir())) - before < 20
