"""Workers with one connection for all their services and jobs, at brokers that know it and at others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

from broker import (
    DELIVERY,
    Broker,
    BrokerConfig,
    Client,
    MultiWorker,
    Pipeline,
    RemoteError,
    UsageError,
    Worker,
    WorkerConfig,
    aio,
)
from broker.core import mmi
from broker.core.mdp import NAMES_SLOTS

pytestmark = pytest.mark.usefixtures("greeted")

DESCRIBE = mmi._DOCUMENTS[b"mmi.broker"]

QUICK = WorkerConfig(heartbeat_interval=0.5, liveness=20, reconnect_first=0.01, reconnect_most=0.05)


@contextmanager
def broker_at(endpoint: str, **config: int) -> Iterator[Broker]:
    broker = Broker(BrokerConfig(**config))
    broker.bind(endpoint)
    with broker:
        yield broker


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/broker"


def workers(broker: Broker) -> dict[str, int]:
    return {name.decode(): count for name, count in broker.workers().items()}


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def forget_slots(patch: pytest.MonkeyPatch, forget: bool) -> None:
    """Have the brokers that are asked from now on say that they do not know SLOTS, or that they do."""

    def answer(*args: Any) -> dict[str, Any]:
        said: dict[str, Any] = DESCRIBE(*args)
        return {**said, "knows": [word for word in said["knows"] if not (forget and word == NAMES_SLOTS.decode())]}

    patch.setitem(mmi._DOCUMENTS, b"mmi.broker", answer)  # a dict, which also the compiled module looks into


class Held:
    """Handlers that wait until they may go on."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.go = threading.Event()

    def __call__(self, frames: list[bytes]) -> list[bytes]:
        self.begun.append(frames[0])
        assert self.go.wait(60)
        return frames


def test_one_connection_for_many_services_and_jobs(endpoint: str) -> None:
    services = {f"service{number}": lambda frames: frames for number in range(1000)}
    before = descriptors()
    with broker_at(endpoint) as broker, MultiWorker(services, endpoint, jobs=100, config=QUICK) as worker:
        until(lambda: worker.registered == 100)
        assert workers(broker) == dict.fromkeys(services, 100)
        assert len(broker.core.workers) == 1
        assert len(worker.sessions) == 1
        assert descriptors() < before + 60
        with Pipeline(endpoint, timeout=60) as client:
            sent = {client.send(name, name): name.encode() for name in services}
            while (reply := client.receive()) is not None:
                assert reply.body == [sent.pop(reply.ticket)]
            assert not sent


def test_no_more_at_a_time_than_it_has_jobs(endpoint: str) -> None:
    work = Held()
    with (
        broker_at(endpoint) as broker,
        MultiWorker(dict.fromkeys("abc", work), endpoint, jobs=2, config=QUICK),
        Pipeline(endpoint, timeout=60) as client,
    ):
        until(lambda: broker.core.workers)
        for name in "abc":
            for number in range(3):
                client.send(name, f"{name}{number}")
        until(lambda: broker.core.waiting.count == 7)
        assert len(work.begun) <= 2
        work.go.set()
        assert sum(client.receive() is not None for _ in range(9)) == 9


@pytest.mark.parametrize("older", [False, True])
def test_a_service_with_a_limit(endpoint: str, older: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_slots(monkeypatch, older)
    work = Held()
    with (
        broker_at(endpoint) as broker,
        MultiWorker(dict.fromkeys("ab", work), endpoint, jobs=3, limits={"a": 1}, config=QUICK),
        Pipeline(endpoint, timeout=60) as client,
    ):
        until(lambda: workers(broker) == {"a": 1, "b": 3})
        until(lambda: len(broker.core.workers) == (4 if older else 1))
        for name in ("a1", "a2", "b1", "b2"):
            client.send(name[0], name)
        until(lambda: len(work.begun) == 3)
        assert {*work.begun} == {b"a1", b"b1", b"b2"}
        work.go.set()
        assert sum(client.receive() is not None for _ in range(4)) == 4


@pytest.mark.parametrize("limits", [{"a": 0}, {"other": 1}])
def test_limits_that_make_no_sense(endpoint: str, limits: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"limits has .* give 1 or more, for names in handlers"):
        MultiWorker({"a": lambda frames: frames}, endpoint, limits=limits)


def test_parts_progress_cancellation_and_failures_are_of_their_request(endpoint: str) -> None:
    def parts(frames: list[bytes]) -> Iterator[bytes]:
        yield b"1"
        yield frames[0]

    def fail(frames: list[bytes]) -> None:
        raise RemoteError(404, "not here")

    def cancelled(frames: list[bytes]) -> bytes:
        delivery, end = DELIVERY.get(), threading.Event()
        assert delivery is not None
        delivery.on_cancel(end.set)
        assert end.wait(60)
        return b"it was"

    services = {"parts": parts, "fail": fail, "cancelled": cancelled}
    with (
        broker_at(endpoint) as broker,
        MultiWorker(services, endpoint, jobs=3, config=QUICK),
        Pipeline(endpoint, timeout=60) as pipeline,
        Client(endpoint, timeout=60) as client,
    ):
        ticket = pipeline.send("cancelled", b"")
        other = pipeline.send("cancelled", b"")
        assert client.call("parts", b"2") == [b"1", b"2"]
        with pytest.raises(RemoteError, match="404 not here"):
            client.call("fail", b"")
        until(lambda: sum(len(worker.requests) for worker in broker.core.workers.values()) == 2)
        for one in (ticket, other):
            pipeline.send("mmi.cancel", "cancelled", pipeline._session.mark(one), b"running")
            until(lambda: pipeline.receive().body == [b"it was"])  # type: ignore[union-attr]


def test_coroutines(endpoint: str) -> None:
    async def main() -> None:
        go = asyncio.Event()
        begun = 0

        async def wait(frames: list[bytes]) -> list[bytes]:
            nonlocal begun
            begun += 1
            await go.wait()
            return frames

        with broker_at(endpoint) as broker:
            async with (
                aio.Worker("wait", wait, endpoint, jobs=50, config=QUICK),
                aio.Client(endpoint, timeout=60) as client,
            ):
                calls = [asyncio.create_task(client.call("wait", b"%d" % number)) for number in range(60)]
                while begun < 50:
                    await asyncio.sleep(0)
                assert len(broker.core.workers) == 1
                go.set()
                assert await asyncio.gather(*calls) == [[b"%d" % number] for number in range(60)]

    asyncio.run(main())


def test_it_finishes_what_it_has_begun_and_returns_the_rest(endpoint: str) -> None:
    work, names = Held(), "abcd"
    with broker_at(endpoint) as broker, Pipeline(endpoint, timeout=60) as client:
        worker = MultiWorker(dict.fromkeys(names, work), endpoint, jobs=2, config=QUICK).start()
        for name in names:
            client.send(name, name)
        until(lambda: len(work.begun) == 2)
        end = threading.Thread(target=worker.stop)
        end.start()
        until(lambda: workers(broker) == {})
        with MultiWorker(dict.fromkeys(names, lambda frames: [b"other"]), endpoint, jobs=2, config=QUICK):
            others = [client.receive(), client.receive()]
            assert [reply.body for reply in others if reply is not None] == [[b"other"]] * 2
            work.go.set()
            end.join(60)
            ours = [client.receive(), client.receive()]
            assert {reply.body[0] for reply in ours if reply is not None} == set(work.begun)


def test_abandon_gives_all_to_others(endpoint: str) -> None:
    work = Held()
    with broker_at(endpoint), Pipeline(endpoint, timeout=60) as client:
        worker = MultiWorker({"a": work, "b": work}, endpoint, jobs=2, config=QUICK).start()
        client.send("a", b"1")
        client.send("b", b"2")
        until(lambda: len(work.begun) == 2)
        worker.abandon()
        with MultiWorker(dict.fromkeys("ab", lambda frames: [b"other"]), endpoint, jobs=2, config=QUICK):
            assert [reply.body for reply in (client.receive(), client.receive()) if reply] == [[b"other"]] * 2
        work.go.set()


def test_a_broker_without_the_request_that_a_worker_returns_with(endpoint: str) -> None:
    """It has the worker drop the reply, and meanwhile the slot is taken."""
    work = Held()
    with MultiWorker({"slow": work, "quick": lambda frames: frames}, endpoint, jobs=3, config=QUICK) as worker:
        with broker_at(endpoint), Pipeline(endpoint, timeout=60) as client:
            client.send("slow", b"1")
            until(lambda: work.begun)
        with broker_at(endpoint) as broker, Client(endpoint, timeout=60) as asking:
            assert asking.call("quick", b"2") == [b"2"]
            assert workers(broker) == {"slow": 3, "quick": 3}
            assert broker.core.stats["not_resumed"] == broker.counters()["workers_busy"] == 1
            work.go.set()
            until(lambda: broker.counters()["workers_busy"] == 0)
            assert worker.registered == 3


@pytest.mark.parametrize("kind", ["threads", "coroutines"])
def test_a_broker_is_replaced_by_an_older_one_and_by_a_newer_one(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """While it works, without a restart: with a connection for each job at the older one."""

    def play() -> None:
        for connections in (4, 1, 4, 1, 1, 4):
            forget_slots(monkeypatch, connections > 1)
            with broker_at(endpoint) as broker, Pipeline(endpoint, timeout=60) as client:
                until(lambda: workers(broker) == {"echo": 4})
                until(lambda expected=connections: len(broker.core.workers) == expected)  # type: ignore[misc]
                until(lambda: worker.registered == 4)
                sent = {client.send("echo", b"%d" % number): b"%d" % number for number in range(50)}
                while (reply := client.receive()) is not None:
                    assert reply.body == [sent.pop(reply.ticket)]
                assert not sent

    if kind == "threads":
        with Worker("echo", lambda frames: frames, endpoint, jobs=4, config=QUICK) as worker:
            play()
        return

    async def echo(frames: list[bytes]) -> list[bytes]:
        return frames

    async def main() -> None:
        nonlocal worker
        async with aio.Worker("echo", echo, endpoint, jobs=4, config=QUICK) as worker:
            await asyncio.to_thread(play)

    worker: Worker | aio.Worker  # type: ignore[no-redef]
    asyncio.run(main())


def test_several_services_at_an_older_broker(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Held()
    forget_slots(monkeypatch, True)
    with MultiWorker({"a": work, "b": work}, endpoint, jobs=2, config=QUICK) as worker:
        with broker_at(endpoint) as broker, Pipeline(endpoint, timeout=60) as client:
            until(lambda: workers(broker) == {"a": 2, "b": 2})
            for name in ("a", "a", "b", "b"):
                client.send(name, name)
            until(lambda: len(work.begun) == 2)
            forget_slots(monkeypatch, False)
        with broker_at(endpoint) as broker, Pipeline(endpoint, timeout=60) as client:
            work.go.set()
            until(lambda: workers(broker) == {"a": 2, "b": 2} and len(broker.core.workers) == 1)
            until(lambda: len(worker.sessions) == 1)
            client.send("b", b"again")
            reply = client.receive()
            assert reply is not None
            assert reply.body == [b"again"]


def test_jobs_of_other_connections_take_their_slots(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler is at work since before the broker was replaced."""
    work = Held()
    forget_slots(monkeypatch, True)
    with MultiWorker({"slow": work, "quick": lambda frames: frames}, endpoint, jobs=2, config=QUICK) as worker:
        with broker_at(endpoint) as broker, Pipeline(endpoint, timeout=60) as client:
            until(lambda: workers(broker) == {"slow": 2, "quick": 2})
            lead = worker.sessions[0]
            client.send("slow", b"1")
            client.send("slow", b"2")
            until(lambda: len(work.begun) == 2)
            assert lead.is_working
            forget_slots(monkeypatch, False)
        with broker_at(endpoint) as broker:
            work.go.set()
            until(lambda: workers(broker) == {"slow": 2, "quick": 2} and len(broker.core.workers) == 1)


def test_more_than_the_system_allows_ends_the_worker_at_an_older_broker(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_slots(monkeypatch, True)
    services = {f"service{number}": lambda frames: frames for number in range(1000)}
    with broker_at(endpoint), pytest.raises(UsageError, match="100000 jobs of 1000 services need"):
        MultiWorker(services, endpoint, jobs=100, config=QUICK).run()


def test_two_brokers_it_goes_to_the_other_one(tmp_path: Path) -> None:
    first, second = (f"ipc://{tmp_path}/{name}" for name in ("first", "second"))
    with broker_at(first) as one, broker_at(second) as two:
        brokers = {first: one, second: two}
        with MultiWorker({"a": lambda frames: frames, "b": list}, [first, second], jobs=3, config=QUICK) as worker:
            until(lambda: worker.registered == 3)
            (there,) = [name for name, broker in brokers.items() if workers(broker)]
            other = brokers[second if there == first else first]
            brokers[there].wind_down()
            until(lambda: workers(other) == {"a": 3, "b": 3})
            assert not workers(brokers[there])
