"""broker.aio.Client at brokers of this project and others, that are there, go, or come late."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.coroutines import eventually, in_loop
from support.keyed_router import key_files, keyed_router, new_curve
from support.ports import free_port
from support.processes import SUPPORT, Process
from support.raw_mdp import raw_worker
from support.relay import relay
from support.secured import SERVER
from support.serving import QUICK, brokering
from support.waiting import until

import broker
from broker import Broker, BrokerConfig, KeyRefused, RemoteError, TimedOut, UsageError, Worker, unreachable
from broker.aio import Client

NOBODY = "tcp://127.0.0.1:9"


def serve(frames: list[bytes]) -> Generator[bytes, None, list[bytes]]:
    """As many parts as it is told to, and then what it was given."""
    if frames[0] == b"fail":
        raise RemoteError(418, "as you wish", [b"detail"])
    for number in range(int(frames[0])):
        yield b"%d" % number
    return frames[1:]


@contextmanager
def serving(endpoint: str, jobs: int = 2) -> Iterator[Worker]:
    with Worker("serve", serve, endpoint, jobs=jobs, config=QUICK) as worker:
        until(lambda: worker.registered == jobs)
        yield worker


@in_loop
async def test_calls_streams_and_errors(address: str) -> None:
    with serving(address):
        async with Client(address, timeout=60) as client:
            assert await client.call("serve", "2", b"end") == [b"0", b"1", b"end"]
            assert [part async for part in client.stream("serve", "2", "end")] == [[b"0"], [b"1"], [b"end"]]
            assert [part async for part in client.stream("serve", "2")] == [[b"0"], [b"1"]]
            assert await client.present("serve")
            assert not await client.present("absent")
            with pytest.raises(RemoteError, match="418 as you wish") as caught:
                await client.call("serve", "fail")
            assert caught.value.detail == [b"detail"]
            for wrong in (client.call("", "x"), client.call("serve"), client.call("serve", 7)):  # type: ignore[arg-type]
                with pytest.raises(UsageError):
                    await wrong
            replies = [frames async for frames in client.map("serve", [["0", str(n)] for n in range(50)], window=7)]
            assert replies == [[b"%d" % number] for number in range(50)]
        with pytest.raises(UsageError, match="the client is closed"):
            await client.call("serve", "1")


@in_loop
async def test_any_number_at_once_on_one_connection(address: str) -> None:
    """None waits for another, and each has its own reply."""
    async with Client(address, timeout=60) as client:
        with raw_worker(address, b"held") as held, serving(address):
            waiting = asyncio.create_task(client.call("held", "x"))
            replies = await asyncio.gather(*(client.call("serve", "0", str(number)) for number in range(500)))
            assert replies == [[b"%d" % number] for number in range(500)]
            assert not waiting.done()
            token, _ = await asyncio.to_thread(held.take)
            held.final(token, b"late")
            assert await waiting == [b"late"]


@in_loop
async def test_a_coroutine_that_is_cancelled_disturbs_nobody(address: str) -> None:
    with raw_worker(address, b"held") as held, serving(address):
        async with Client(address, timeout=60) as client:
            assert await client.present("serve")
            sockets = client._exchange._dealer.sockets()  # type: ignore[union-attr]
            tasks = [asyncio.create_task(client.call("held", str(number))) for number in range(3)]
            token, _ = await asyncio.to_thread(held.take)
            tasks[0].cancel()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(tasks[1], 0.01)
            assert await client.call("serve", "0", "x") == [b"x"]
            held.final(token, b"nobody wants it")
            token, (body,) = await asyncio.to_thread(held.take)
            while body != b"2":
                held.final(token, b"nobody wants it")
                token, (body,) = await asyncio.to_thread(held.take)
            held.final(token, b"2")
            assert await tasks[2] == [b"2"]
            async for part in client.stream("serve", "1000", "x"):
                assert part == [b"0"]
                break
            assert await client.call("serve", "0", "y") == [b"y"]
            assert client._exchange._dealer.sockets() == sockets  # type: ignore[union-attr]
            await eventually(lambda: not client._exchange._answers)  # type: ignore[union-attr]


@in_loop
async def test_nobody_answers() -> None:
    """As the client that blocks says it, and all at once."""
    with pytest.raises(TimedOut) as known, broker.Client(NOBODY, timeout=0.05, retries=1) as blocking:
        blocking.call("echo", "x")
    async with Client(NOBODY, timeout=0.05, retries=1) as client:
        found = await asyncio.gather(*(client.call("echo", "x") for _ in range(100)), return_exceptions=True)
    assert {(type(fault), str(fault)) for fault in found} == {(TimedOut, str(known.value))}
    assert [fault.reason for fault in found[:1] if isinstance(fault, TimedOut)] == [known.value.reason]


@in_loop
async def test_a_service_without_a_worker(address: str) -> None:
    async with Client(address, timeout=30) as client:
        assert not await client.present("absent")
        with pytest.raises(TimedOut, match=r"^no answer from .*; is a broker there, and does the service have a wor"):
            await client.call("absent", "x", timeout=0.1, retries=0)
        with pytest.raises(TimedOut):
            async for _ in client.stream("absent", "x", timeout=0.1, retries=0):
                pass


@in_loop
async def test_a_patient_call_waits_for_a_broker_that_comes_late(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/broker"
    async with Client(endpoint, timeout=0.1, retries=0) as client:
        patient = asyncio.create_task(client.call("serve", "0", "x", timeout=60))
        with pytest.raises(TimedOut, match="is a broker there"):
            await client.call("serve", "0", "x")
        with brokering(endpoint), serving(endpoint):
            assert await patient == [b"x"]


@in_loop
async def test_a_broker_that_is_started_again_is_asked_again_at_once(tmp_path: Path) -> None:
    """Long before the time of a try is over."""
    endpoint = f"ipc://{tmp_path}/broker"
    async with Client(endpoint, timeout=1000) as client:
        with brokering(endpoint), raw_worker(endpoint, b"held") as held:
            calls = [asyncio.create_task(client.call("held", str(number))) for number in range(20)]
            await asyncio.to_thread(held.take)
        with brokering(endpoint), Worker("held", lambda frames: frames, endpoint, config=QUICK):
            assert await asyncio.gather(*calls) == [[b"%d" % number] for number in range(20)]
        assert client.sent_again >= 20


@in_loop
async def test_a_line_that_breaks_again_and_again(address: str) -> None:
    """Connecting again does not eat the processor, and what comes in between is answered."""
    with relay(address, breaks=lambda data, answers: answers and b"late" in data) as line, serving(address):
        async with Client(line.endpoint, timeout=60) as client:
            assert await client.call("serve", "0", "x") == [b"x"]
            doomed = asyncio.create_task(client.call("serve", "0", "late"))
            await eventually(lambda: client.sent_again > 2)
            assert not doomed.done()
            doomed.cancel()
            assert await client.call("serve", "0", "y") == [b"y"]


@in_loop
async def test_the_other_broker_is_asked(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When the first one is not there, is killed, or stands still."""
    monkeypatch.setattr("broker.io.dealer.shuffled", list)
    monkeypatch.setattr("broker.io.dealer.BEAT", 0.2)
    monkeypatch.setattr("broker.io.dealer.SILENCE", 2.0)
    monkeypatch.setattr("broker.client.LONGEST_POLL", 50)
    first = f"tcp://127.0.0.1:{free_port()}"
    with serving(address):
        async with Client([NOBODY, address], timeout=60) as client:
            assert await client.is_foreign(30) is False
            assert await client.call("serve", "0", "x") == [b"x"]
        for end in (signal.SIGKILL, signal.SIGSTOP):
            with Process(SUPPORT / "server_process.py", "broker", first, output=tmp_path / "log") as one:
                until(lambda: not unreachable([first]))
                async with Client(f"{first},{address}", timeout=60) as client:
                    calls = [asyncio.create_task(client.call("serve", "0", str(number))) for number in range(9)]
                    await eventually(lambda: client._known)
                    assert client._exchange._dealer.server == first  # type: ignore[union-attr]
                    os.kill(one.pid, end)
                    assert await asyncio.gather(*calls) == [[b"%d" % number] for number in range(9)]


@in_loop
async def test_one_that_sends_its_clients_away(address: str) -> None:
    away = Broker()
    endpoint = away.bind("tcp://127.0.0.1:*")
    away.integrate(b"titanic.x", lambda batch: away.reply([(one, [b"503 draining: ask another"]) for one in batch]))
    with away, Worker("titanic.x", lambda frames: b"200", address, config=QUICK) as worker:
        until(lambda: worker.registered)
        async with Client([endpoint, address], timeout=60) as client:
            assert await client.call("titanic.x", "x") == [b"200"]


@in_loop
async def test_a_refused_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.client.PROBE_AFTER", 0.05)
    secret, _ = key_files(tmp_path)
    with keyed_router([]) as first, keyed_router([]) as second:
        async with Client([first, second], key=secret, server_key=SERVER.public.decode()) as client:
            for _ in range(2):
                found = await asyncio.gather(*(client.call("s", "x") for _ in range(5)), return_exceptions=True)
                assert {type(fault) for fault in found} == {KeyRefused}
                assert "refused this key" in str(found[0])
    curve = new_curve()
    with keyed_router([curve.public]) as endpoint:
        async with Client(endpoint, key=curve) as client:  # a router that echoes is none of ours
            assert await client.call("echo", b"hello") == [b"hello"]


@in_loop
async def test_a_key_is_refused_later(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Those whose tickets are in flight hear it, and nothing is left of them."""
    monkeypatch.setattr("broker.client.PROBE_AFTER", 0.05)
    async with Client(address, timeout=60) as client:
        assert not await client.present("absent")
        exchange = client._exchange
        assert exchange is not None
        calls = [asyncio.create_task(client.call("absent", "x")) for _ in range(3)]
        await eventually(lambda: len(exchange._session) == 3)
        exchange._fail(KeyRefused("the server refused this key"))
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert {str(fault) for fault in found} == {"the server refused this key"}
        assert len(exchange._session) == 0


@in_loop
async def test_one_at_a_time_where_requests_cannot_be_told_apart(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/b"
    with (
        Process(SUPPORT / "rfc7_broker.py", endpoint, "0.5", output=tmp_path / "broker.out"),
        Worker("serve", serve, endpoint, jobs=3, config=replace(QUICK, versions=("0.1",))) as worker,
    ):
        until(lambda: worker.registered == 3)
        async with Client(endpoint, timeout=30, version="0.1") as client:
            replies = await asyncio.gather(*(client.call("serve", "0", str(number)) for number in range(30)))
            assert replies == [[b"%d" % number] for number in range(30)]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.call("absent", "x"), 0.05)
            stream = client.stream("serve", "0", "x")
            assert await anext(stream) == [b"x"]
            queued = asyncio.create_task(client.call("serve", "0", "y"))
            await stream.aclose()
            assert await queued == [b"y"]


@in_loop
async def test_it_is_closed_while_coroutines_wait(address: str) -> None:
    client = Client(address, timeout=60)
    waiting = [asyncio.create_task(client.call("absent", "x")) for _ in range(3)]
    await eventually(lambda: client._exchange is not None and len(client._exchange._session) == 3)
    early = Client(NOBODY, timeout=60)
    waiting.append(asyncio.create_task(early.call("absent", "x")))
    await eventually(lambda: early._detection is not None)
    client.close()
    early.close()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert {(type(fault), str(fault)) for fault in found} == {(UsageError, "the client is closed")}


def test_loops_one_after_another(address: str) -> None:
    """A client that was made outside of them serves each; two at the same time it refuses."""
    client = Client(address, timeout=30)
    with serving(address):
        for _ in range(2):
            assert asyncio.run(client.call("serve", "0", "x")) == [b"x"]

        async def two() -> None:
            assert await client.call("serve", "0", "x") == [b"x"]
            with pytest.raises(UsageError, match="another event loop is using this client"):
                await asyncio.to_thread(lambda: asyncio.run(client.call("serve", "0", "x")))
            client.close()

        asyncio.run(two())


@in_loop
async def test_the_loop_is_not_held_up(address: str) -> None:
    """Neither by thousands of answers at once nor by looking for a reason."""
    late: list[float] = []

    async def tick() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.001)
            late.append(time.monotonic() - began)

    ticking = asyncio.create_task(tick())
    hold, done = threading.Event(), BrokerConfig(max_waiting=10_000)
    integrated = Broker(done)

    def answer(batch: list[broker.Request]) -> None:
        hold.wait(30)
        integrated.reply([(one, one.body) for one in batch])

    integrated.integrate(b"echo", answer)  # type: ignore[arg-type]
    endpoint = integrated.bind("tcp://127.0.0.1:*")
    with integrated:
        async with Client(endpoint, timeout=60) as client:
            assert await client.present("echo") in (True, False)
            calls = [asyncio.create_task(client.call("echo", str(number))) for number in range(2000)]
            await eventually(lambda: len(client._exchange._session) == 2000)  # type: ignore[union-attr]
            rounds = len(late)
            hold.set()
            assert await asyncio.gather(*calls) == [[b"%d" % number] for number in range(2000)]
            assert len(late) > rounds + 5, "others have their turn in between"
    ticking.cancel()
