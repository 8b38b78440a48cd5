"""broker.aio.Worker at real brokers: what its handlers return, yield and raise; how it ends, and how it dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import uvloop
from support.coroutines import eventually, in_loop
from support.keyed_router import key_files, keyed_router
from support.serving import QUICK, brokering
from support.waiting import PATIENCE

from broker import DELIVERY, EndpointError, RemoteError, UsageError, WorkerConfig
from broker.aio import AsyncHandler, Client, Worker


async def shout(frames: list[bytes]) -> list[bytes]:
    await asyncio.sleep(0)
    return [frame.upper() for frame in frames]


async def count(frames: list[bytes]) -> AsyncGenerator[str, None]:
    """As many parts as it is told to; -1: an error behind two of them."""
    for number in range(abs(int(frames[0]))):
        await asyncio.sleep(0)
        yield str(number)
    if frames[0] == b"-2":
        raise RemoteError(418, "as you wish", [b"detail"])


class Doors:
    """A handler whose calls wait until they may go on; those that were cancelled."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside = self.most = 0
        self.cancelled: list[bytes] = []

    async def __call__(self, frames: list[bytes]) -> list[bytes]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += frames
            raise
        finally:
            self.inside -= 1
        return frames


def working(service: str, handler: AsyncHandler, endpoint: str | list[str], jobs: int = 1) -> Worker:
    return Worker(service, handler, endpoint, jobs=jobs, config=QUICK)


@in_loop
async def test_replies_parts_and_errors(address: str, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(frames: list[bytes]) -> None:
        raise {b"value": ValueError, b"exit": SystemExit, b"cancel": asyncio.CancelledError}[frames[0]](frames[0])

    async with (
        working("shout", shout, address, jobs=2),
        working("count", count, address),
        working("fail", fail, address) as failing,
        Client(address, timeout=30) as client,
    ):
        assert await client.call("shout", "a", "b") == [b"A", b"B"]
        assert [part async for part in client.stream("count", "3")] == [[b"0"], [b"1"], [b"2"]]
        assert [part async for part in client.stream("count", "0")] == [[b""]]
        with pytest.raises(RemoteError, match="418 as you wish") as caught:
            await client.call("count", "-2")
        assert caught.value.detail == [b"detail"]
        for said, text in (
            (b"value", "ValueError: b'value'"),
            (b"exit", "SystemExit: b'exit'"),
            (b"cancel", "Cancell"),
        ):
            with pytest.raises(RemoteError, match=f"500 {text}"):
                await client.call("fail", said)
        assert failing.registered == 1
    assert failing.registered == 0
    assert [record.levelname for record in caplog.records if "handler of fail failed" in record.message] == [
        "ERROR"
    ] * 3


@in_loop
async def test_a_reply_that_is_too_large_is_an_error_reply(address: str) -> None:
    async def large(frames: list[bytes]) -> AsyncGenerator[bytes, None]:
        yield bytes(2000)

    config = WorkerConfig(max_reply=1000)
    async with Worker("large", large, address, config=config), Client(address, timeout=30) as client:
        with pytest.raises(RemoteError, match="413 a part of the reply has 2000 bytes"):
            await client.call("large", "x")


def test_a_plain_function_is_refused() -> None:
    class Plain:
        def __call__(self, frames: list[bytes]) -> bytes:
            return b""

    for handler in (lambda frames: frames, Plain()):
        with pytest.raises(UsageError, match=r"the handler of s is a plain function, .*; make it `async def`, or"):
            Worker("s", handler)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="jobs is 0"):
        Worker("s", shout, jobs=0)
    with pytest.raises(UsageError):
        Worker("", shout)


@in_loop
async def test_so_many_at_a_time(address: str) -> None:
    doors = Doors()
    async with working("doors", doors, address, jobs=5), Client(address, timeout=30) as client:
        calls = [asyncio.create_task(client.call("doors", str(number))) for number in range(12)]
        await eventually(lambda: doors.inside == 5)
        doors.open.set()
        assert await asyncio.gather(*calls) == [[b"%d" % number] for number in range(12)]
        assert doors.most <= 5


@in_loop
async def test_many_with_five_hundred_jobs(address: str) -> None:
    """All five hundred are at work at once, beside whatever else the loop does."""
    doors = Doors()
    async with working("doors", doors, address, jobs=500) as worker, Client(address, timeout=100) as client:
        await eventually(lambda: worker.registered == 500)
        calls = [asyncio.create_task(client.call("doors", str(number))) for number in range(1000)]
        await eventually(lambda: doors.inside == 500)
        doors.open.set()
        assert await asyncio.gather(*calls) == [[b"%d" % number] for number in range(1000)]


@in_loop
async def test_stop_lets_finish_what_runs(address: str) -> None:
    doors = Doors()
    worker = working("doors", doors, address, jobs=2)
    running = asyncio.create_task(worker.run())
    async with Client(address, timeout=30) as client:
        call = asyncio.create_task(client.call("doors", "x"))
        await eventually(lambda: doors.inside)
        worker.stop()
        await eventually(lambda: worker.registered == 0)
        doors.open.set()
        assert await call == [b"x"]
        await running
        async with asyncio.timeout(PATIENCE):
            while await client.present("doors"):  # until its good-bye is there
                pass
    await worker.run()  # it has ended
    never = working("doors", doors, address)
    never.stop()
    await never.run()


@in_loop
async def test_another_worker_gets_what_one_has_that_is_cancelled(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    doors = Doors()
    running = asyncio.create_task(working("doors", doors, address).run())
    async with Client(address, timeout=30) as client:
        call = asyncio.create_task(client.call("doors", "x"))
        await eventually(lambda: doors.inside)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert doors.cancelled == [b"x"]
        async with working("doors", shout, address):
            assert await call == [b"X"]
    assert "failed" not in caplog.text


@in_loop
async def test_a_client_hears_of_a_stop_in_a_handler(address: str) -> None:
    workers: list[Worker] = []

    async def last(frames: list[bytes]) -> bytes:
        workers[0].stop()
        return b"bye"

    workers.append(working("last", last, address))
    async with Client(address, timeout=30) as client:
        running = asyncio.create_task(workers[0].run())
        assert await client.call("last", "x") == [b"bye"]
        await running


@in_loop
async def test_it_comes_back_to_a_broker_that_is_started_again(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/broker"
    async with working("shout", shout, endpoint, jobs=3) as worker, Client(endpoint, timeout=60) as client:
        for _ in range(2):
            with brokering(endpoint):
                assert await client.call("shout", "x") == [b"X"]
            await eventually(lambda: worker.registered == 0)


@in_loop
async def test_it_works_for_several_brokers(address: str) -> None:
    """No more at a time than it has jobs."""
    doors = Doors()
    with brokering() as other:
        async with (
            Worker("doors", doors, [address, other], everywhere=True, jobs=2, config=QUICK) as worker,
            Client(address, timeout=60) as one,
            Client(other, timeout=60) as two,
        ):
            await eventually(lambda: worker.registered == 4)
            calls = [asyncio.create_task(client.call("doors", "x")) for client in (one, two) * 4]
            await eventually(lambda: doors.inside == 2)
            doors.open.set()
            assert await asyncio.gather(*calls) == [[b"x"]] * 8
            assert doors.most == 2


@in_loop
async def test_a_key_that_is_refused_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.worker_log.PROBE_AFTER", 0.05)
    curve = key_files(tmp_path)[1]
    with keyed_router([]) as endpoint:
        async with Worker("shout", shout, endpoint, key=curve, config=QUICK):
            await eventually(lambda: "refused this key" in caplog.text)


@in_loop
async def test_an_endpoint_that_cannot_be_right_is_said_at_once() -> None:
    for begin in (_enter, Worker.run):
        with pytest.raises(EndpointError, match="nonsense"):
            await begin(working("shout", shout, "nonsense"))


@in_loop
async def test_a_fault_of_its_own_is_no_silence(
    address: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(now: float) -> None:
        raise ValueError("a bug in this program")

    worker = working("shout", shout, address)
    await worker.__aenter__()
    await eventually(lambda: worker.registered)
    monkeypatch.setattr(worker._logs[0], "flush", fail)
    worker._loop.call(worker._loop.touch, worker._logs[0])
    await eventually(lambda: "the worker of shout has ended" in caplog.text)
    assert worker.registered == 0
    with pytest.raises(ValueError, match="a bug in this program"):
        await worker.__aexit__()


@in_loop
async def test_each_handler_knows_its_own_delivery(address: str) -> None:
    seen: list[object] = []

    async def look(frames: list[bytes]) -> None:
        seen.append(DELIVERY.get())
        await asyncio.sleep(0)
        assert DELIVERY.get() is seen[-1]

    async with working("look", look, address) as worker, Client(address, timeout=30) as client:
        await client.call("look", "x")
        await client.call("look", "x")
        assert worker.registered
    assert len({id(one) for one in seen}) == 2
    assert DELIVERY.get() is None


async def _enter(worker: Worker) -> None:
    await worker.__aenter__()


def test_client_and_worker_run_in_the_loop_of_uvloop(address: str) -> None:
    """Its alarms are of another kind when they are due at once."""
    told: list[object] = []

    async def call() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        worker = Worker("shout", shout, address, jobs=4, config=QUICK)
        worker.every(0.0, int)  # it is always due
        async with worker, Client(address, timeout=30) as client:
            assert await asyncio.gather(*(client.call("shout", b"hello") for _ in range(200))) == [[b"HELLO"]] * 200

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(call())
    assert told == []
