"""titanic.aio.Client: each method, many coroutines at once, and what a cancelled one leaves."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
from support.coroutines import eventually, in_loop
from support.keyed_router import key_files, keyed_router
from support.lossy import losing
from support.ports import free_port
from support.processes import SUPPORT, Process
from support.raw_mdp import raw_worker
from support.secured import SERVER
from support.serving import QUICK, brokering, config, serving
from support.waiting import PATIENCE, until

import titanic
from broker import BrokerConfig, RemoteError, Worker, unreachable
from titanic import (
    InvalidRequest,
    KeyRefused,
    RequestFailed,
    Server,
    TimedOut,
    UnknownRequest,
)
from titanic.aio import Client

UNKNOWN = "0123456789abcdef0123456789abcdef"

pytestmark = pytest.mark.settings(max_attempts=1)


def test_it_has_each_method() -> None:
    """With the same parameters, and asynchronous."""
    for name, method in vars(titanic.Client).items():
        if name.startswith("_") or not callable(method):
            continue
        own = getattr(Client, name)
        assert inspect.signature(own).parameters == inspect.signature(method).parameters, name
        assert inspect.iscoroutinefunction(own) or inspect.isasyncgenfunction(own) or name == "disconnect"
    assert inspect.signature(Client).parameters == inspect.signature(titanic.Client).parameters


@in_loop
async def test_a_life(server: Server, echo: Worker) -> None:
    async with Client(server.endpoints[0], timeout=30) as client:
        uuid = await client.submit("echo", "text", b"bytes", key="k")
        assert await client.wait(uuid, 30) == await client.reply(uuid) == [b"text", b"bytes"]
        assert (await client.show(uuid))["state"] == "done"
        assert (await client.look(uuid, 4)).body == [b"text"]
        assert await client.find(["k", "l"]) == ({"k": uuid}, {uuid: "done"})
        assert [row["uuid"] for row in (await client.list(newest=True, text="k"))[0]] == [uuid]
        await client.close(uuid)
        for ask in (client.reply(uuid), client.wait(uuid), client.show(uuid)):
            with pytest.raises(UnknownRequest, match=f"unknown UUID {uuid}; it was closed"):
                await ask
        bad = await client.submit("echo", "fail")
        with pytest.raises(RequestFailed, match="as you wish"):
            await client.wait(bad, 30)
        assert await client.retry(bad) == 1
        with pytest.raises(RequestFailed):
            await client.wait(bad, 30)
        assert (await client.retry_all(), await client.call("echo", "x")) == (1, [b"x"])
        with pytest.raises(RemoteError):
            await client.call("echo", "fail")
        with pytest.raises(RequestFailed):
            await client.wait(bad, 30)
        assert await client.purge("failed") == 1
        assert await client.nodes() is None
        assert (await client.stats())["store"]["requests"] == 0
    with pytest.raises(InvalidRequest, match="the client is closed"):
        await client.stats()


@in_loop
async def test_many(server: Server, echo: Worker) -> None:
    async with Client(server.endpoints[0], timeout=30) as client:
        uuids = await client.submit_many("echo", [b"%d" % number for number in range(500)], window=200)
        uuids += await client.submit_batch("echo", ["500", "501"])
        absent = await client.submit("absent", "x")
        assert len([uuid async for uuid, _ in client.replies(uuids, PATIENCE)]) == len(uuids)
        found: dict[str, Any] = {}

        async def collect() -> None:
            async for uuid, outcome in client.replies([*uuids, UNKNOWN, absent], 5):
                found[uuid] = outcome

        with pytest.raises(TimedOut, match="no reply yet to 1 request"):
            await collect()
        assert isinstance(found.pop(UNKNOWN), UnknownRequest)
        assert found == {uuid: [b"%d" % number] for number, uuid in enumerate(uuids)}
        async for uuid, _ in client.replies(uuids):
            await client.close(uuid)
            break
        await client.close_many([*uuids, absent])
        assert (await client.stats())["store"]["requests"] == 0


@in_loop
async def test_a_coroutine_that_is_cancelled_leaves_the_request(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("titanic.client.calls.LEAST_LOOK", 30.0)  # a busy server is not taken for one that is away
    async with Client(server.endpoints[0], timeout=30) as client:
        uuid = await client.submit("late", "x")
        waits = [asyncio.create_task(client.wait(uuid)) for _ in range(3)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.wait(uuid, 60)
        with pytest.raises(TimedOut, match=rf"no reply to {uuid} yet; waited 50 ms"):
            await client.wait(uuid, 0.05)
        waits[0].cancel()
        assert (await client.show(uuid))["state"] == "waiting"
        with Worker("late", lambda frames: frames, server.endpoints[0], config=QUICK):
            assert await asyncio.gather(*waits[1:]) == [[b"x"], [b"x"]]


@in_loop
async def test_hundreds_wait(server: Server) -> None:
    """For requests of their own, over one connection. The others are not disturbed meanwhile."""
    async with Client(server.endpoints[0], timeout=30) as client:
        uuids = await client.submit_many("late", [b"%d" % number for number in range(400)])
        waits = [asyncio.create_task(client.wait(uuid)) for uuid in uuids]
        while (await client.stats())["waiting_clients"] < 400:
            assert not any(wait.done() for wait in waits)
        with Worker("late", lambda frames: frames, server.endpoints[0], jobs=4, config=QUICK):
            assert await asyncio.gather(*waits) == [[b"%d" % number] for number in range(400)]


@in_loop
async def test_hundreds_wait_where_few_may(tmp_path: Path) -> None:
    """With a broker elsewhere a server holds few waits: the others look together, in a few messages."""
    with brokering() as endpoint, serving(tmp_path, broker=endpoint) as server:
        async with Client(endpoint, timeout=30) as client:
            uuids = await client.submit_many("late", [b"%d" % number for number in range(300)])
            waits = [asyncio.create_task(client.wait(uuid, 60)) for uuid in uuids]
            await eventually(lambda: len(client._together._waiting) > 290)
            waits.append(asyncio.create_task(client.wait(UNKNOWN, 60)))
            with pytest.raises(UnknownRequest):
                await waits.pop()
            waits.pop().cancel()
            with Worker("late", lambda frames: frames, endpoint, jobs=4, config=QUICK):
                assert await asyncio.gather(*waits) == [[b"%d" % number] for number in range(299)]
            await eventually(lambda: client._together._task is None)
            assert not client._together._pending
        assert server.alive


@in_loop
async def test_more_wait_than_one_client_may(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.aio.client.MOST_WAITS", 10)
    monkeypatch.setattr("titanic.client.calls.LEAST_LOOK", 30.0)
    async with Client(server.endpoints[0], timeout=30) as client:
        uuids = await client.submit_many("late", [b"%d" % number for number in range(30)])
        waits = [asyncio.create_task(client.wait(uuid)) for uuid in uuids]
        await eventually(lambda: len(client._together._waiting) == 20)
        with pytest.raises(TimedOut, match="no reply to"):
            await client.wait(uuids[0], 0.05)
        with pytest.raises(UnknownRequest):
            await client.wait(UNKNOWN, 60)
        with Worker("late", lambda frames: frames, server.endpoints[0], jobs=4, config=QUICK):
            assert await asyncio.gather(*waits) == [[b"%d" % number] for number in range(30)]


@in_loop
async def test_what_is_sent_again_is_stored_once(tmp_path: Path) -> None:
    with serving(tmp_path) as server, losing(server.endpoints[0], tmp_path, b"titanic.submit", 2) as lossy:
        async with Client(lossy, timeout=0.3, retries=50) as client:
            uuids = await asyncio.gather(*(client.submit("absent", "x") for _ in range(20)))
            rows, _ = await client.list(limit=1000)
            assert {row["uuid"] for row in rows} == set(uuids)
            assert (await client.stats())["since_start"]["repeated"] > 0, "it was sent again"


@in_loop
async def test_the_server_is_killed_while_many_wait(tmp_path: Path) -> None:
    """And comes back: all of them get their replies soon, though their questions would wait for long."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    command = [SUPPORT / "server_process.py", "serve", endpoint, str(tmp_path / "store")]
    async with Client(endpoint, timeout=60) as client:
        with Process(*command, output=tmp_path / "first.log") as first:
            until(lambda: not unreachable([endpoint]))
            uuids = await client.submit_many("late", [b"%d" % number for number in range(200)])
            waits = [asyncio.create_task(client.wait(uuid)) for uuid in uuids]
            while (await client.stats())["waiting_clients"] < 200:
                pass
            first.kill()
        with (
            Process(*command, output=tmp_path / "second.log"),
            Worker("late", lambda frames: frames, endpoint, jobs=4, config=QUICK),
        ):
            assert await asyncio.gather(*waits) == [[b"%d" % number] for number in range(200)]


@in_loop
async def test_errors_are_those_of_the_other_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.client.PROBE_AFTER", 0.05)
    nobody = f"tcp://127.0.0.1:{free_port()}"
    fact = rf"^no answer from {nobody}; waited \d\S* m?s, connection refused at {nobody}; is it running, and is"
    async with Client(nobody, timeout=0.05, retries=1) as client:
        for ask in (client.submit("s", "x"), client.wait(UNKNOWN, 0.1), client.submit_many("s", ["x"]), client.stats()):
            with pytest.raises(TimedOut, match=fact):
                await ask
        with pytest.raises(TimedOut, match=fact):
            async for _ in client.replies([UNKNOWN], 0.1):
                pass
    with serving(tmp_path, wire=BrokerConfig(max_body=1 << 20)) as server:
        async with Client(server.endpoints[0], timeout=30) as client:
            for wrong in (client.submit("s", bytes(3 << 20)), client.submit_many("s", [bytes(3 << 20)])):
                with pytest.raises(InvalidRequest, match=r"body has \d+ bytes; the broker at .* at most 1048576"):
                    await wrong
            for wrong in (client.submit("", "x"), client.reply("x"), client.submit("s", 7)):  # type: ignore[arg-type]
                with pytest.raises(InvalidRequest):
                    await wrong
    secret, _ = key_files(tmp_path)
    with keyed_router([]) as endpoint:
        async with Client(endpoint, key=secret, server_key=SERVER.public.decode()) as client:
            for refused in (client.submit("s", "x"), client.wait(UNKNOWN, 60), client.submit_many("s", ["1", "2"])):
                with pytest.raises(KeyRefused, match="refused this key"):
                    await refused


@in_loop
async def test_it_goes_on_where_it_was_when_the_server_restarts_gracefully(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/titanic.ipc"
    first = Server(config(tmp_path, bind=(endpoint,))).start()
    async with Client(endpoint, timeout=0.3, retries=100) as client:
        uuid = await client.submit("late", "x")
        waiting = asyncio.create_task(client.wait(uuid, 60))
        await asyncio.to_thread(first.stop)
        assert not waiting.done()
        with serving(tmp_path, bind=(endpoint,)), raw_worker(endpoint, b"late") as worker:
            token, _ = await asyncio.to_thread(worker.take)
            worker.final(token, b"late")
            assert await waiting == [b"late"]
