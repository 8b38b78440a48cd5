"""Our worker and client with a broker that knows RFC 7 and nothing else (`support/rfc7_broker.py`)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from support.processes import line, script
from support.waiting import until

from broker import Client, EndpointError, Pipeline, RemoteError, TimedOut, UsageError, Worker, WorkerConfig
from broker.core.mdp import Frames

QUICK = WorkerConfig(heartbeat_interval=0.1, liveness=5, reconnect_first=0.01, reconnect_most=0.1)


@pytest.fixture
def endpoint() -> Iterator[str]:
    with script("rfc7_broker.py", "tcp://127.0.0.1:*", "0.1") as broker:
        yield line(broker)


@pytest.mark.parametrize("first", ["broker", "worker"])
def test_a_broker_that_ends_on_the_first_message_of_0_2_gets_none(tmp_path: Path, first: str) -> None:
    endpoint = f"ipc://{tmp_path}/broker"
    worker = Worker("echo", lambda frames: frames, endpoint, jobs=3, config=QUICK)
    if first == "worker":
        worker.start()
    with script("rfc7_broker.py", endpoint, "0.1", "strict") as broker, Client(endpoint) as client:
        assert line(broker)
        if first == "broker":
            worker.start()
        until(lambda: worker.registered == 3)
        assert client.call("echo", b"hello") == [b"hello"]
        worker.stop()
        assert broker.poll() is None


@pytest.mark.timeout(600)
def test_a_broker_that_is_stopped_gets_nothing_of_0_2(tmp_path: Path) -> None:
    """Before, while and after its silence says something."""
    endpoint, busy = f"ipc://{tmp_path}/broker", Event()

    def work(frames: Frames) -> Frames:
        busy.set()
        return frames

    with (
        script("rfc7_broker.py", endpoint, "0.1", "strict") as broker,
        Worker("echo", work, endpoint, config=QUICK) as worker,
        Client(endpoint, timeout=0.5, retries=60) as client,
        Client(endpoint, timeout=0.5, retries=60) as other,
    ):
        assert line(broker)
        assert client.call("echo", b"1") == [b"1"]
        os.kill(broker.pid, signal.SIGSTOP)
        with ThreadPoolExecutor() as pool:
            calls = [pool.submit(one.call, "echo", b"2") for one in (client, other)]
            until(lambda: other._session.careful and worker.sessions[0].connection > 1)
            os.kill(broker.pid, signal.SIGCONT)
            assert [call.result() for call in calls] == [[b"2"]] * 2
        assert broker.poll() is None


def test_a_worker_that_gives_up_a_request_does_not_end_it(tmp_path: Path) -> None:
    endpoint, begun, go_on = f"ipc://{tmp_path}/broker", Event(), Event()

    def hang(frames: Frames) -> Frames:
        begun.set()
        go_on.wait(60)
        return frames

    with script("rfc7_broker.py", endpoint, "0.1", "strict") as broker, Client(endpoint) as client:

        def asked() -> bool:
            """Whether the worker has it. It may have been given up before it was sent."""
            with pytest.raises(TimedOut):
                client.call("hang", b"x", timeout=0.1, retries=0)
            return begun.is_set()

        assert line(broker)
        with Worker("hang", hang, endpoint, config=QUICK) as worker:
            until(asked)
            worker.abandon()
        go_on.set()
        assert client.call("mmi.service", b"absent") == [b"404"]
        assert broker.poll() is None


def test_many_on_their_way_are_refused_and_do_not_end_it(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/broker"
    with script("rfc7_broker.py", endpoint, "0.1", "strict") as broker, Pipeline(endpoint) as pipeline:
        assert line(broker)
        with pytest.raises(UsageError, match="is not a titanic broker, and may mix up concurrent requests"):
            list(pipeline.map("echo", [b"1", b"2"]))
        assert broker.poll() is None


def test_a_job_that_takes_longer_than_four_heartbeats(tmp_path: Path) -> None:
    """Such a broker sends none to a worker that is busy: its reply was dropped."""
    endpoint = f"ipc://{tmp_path}/broker"
    quick = WorkerConfig(heartbeat_interval=0.5, versions=("0.1",))
    begun: list[Frames] = []

    def work(frames: Frames) -> Frames:
        begun.append(frames)
        Event().wait(3.5)
        return frames

    with script("rfc7_broker.py", endpoint, "0.5") as broker, Client(endpoint, version="0.1", timeout=30) as client:
        assert line(broker)
        with Worker("work", work, endpoint, config=quick) as worker:
            until(lambda: worker.registered)
            until(lambda: worker.sessions[0].heartbeat.patience < 3)
            assert client.call("work", b"x") == [b"x"]
    assert len(begun) == 1


def test_the_worker_finds_out_its_version(endpoint: str) -> None:
    with (
        Worker("echo", lambda frames: frames, endpoint, config=QUICK) as worker,
        Client(endpoint, version="0.1") as client,
    ):
        until(lambda: client.present("echo"))
        assert client.call("echo", b"hello", b"world") == [b"hello", b"world"]
        until(lambda: worker.registered)
        assert worker.sessions[0].dialect.name == "0.1"
        assert client.call("mmi.other", b"x") == [b"501"]


def test_parts_come_in_one_reply_and_errors_cross(endpoint: str) -> None:
    def count(frames: Frames) -> Iterator[bytes]:
        if frames == [b"fail"]:
            raise RemoteError(404, "nothing of that name")
        yield b"1"
        return b"2"

    config = WorkerConfig(heartbeat_interval=0.1, liveness=50, versions=("0.1",))
    with Worker("count", count, endpoint, config=config, jobs=2), Client(endpoint, version="0.1") as client:
        assert client.call("count", b"x") == [b"1", b"2"]
        with pytest.raises(RemoteError, match="404 nothing of that name"):
            client.call("count", b"fail")


def test_the_worker_leaves(endpoint: str) -> None:
    with Client(endpoint, version="0.1") as client:
        with Worker("echo", lambda frames: frames, endpoint, config=QUICK):
            until(lambda: client.present("echo"))
        until(lambda: not client.present("echo"))


def test_a_client_of_another_version_gets_nothing(endpoint: str) -> None:
    with Client(endpoint, timeout=0.05, retries=1, version="0.2") as client, pytest.raises(TimedOut):
        client.call("mmi.service", b"echo")


def test_an_endpoint_that_is_none_is_said_each_time() -> None:
    with Client("nonsense") as client:
        for _ in range(2):
            with pytest.raises(EndpointError, match="nonsense"):
                client.call("echo", b"x")
