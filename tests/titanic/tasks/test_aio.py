"""Tasks submitted by coroutines: to a queue in memory, and with a server and a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from support.coroutines import in_loop

from titanic import Server, TimedOut, UnknownRequest, current
from titanic.tasks import TaskFailed, Tasks
from titanic.tasks.memory_queue import MemoryQueue

app = Tasks(name="a", timeout=30)


class Mine(Exception):
    pass


@app.task(max_attempts=2, raises=Mine)
def divide(a: int, b: int) -> float:
    if b == 0:
        raise Mine(a, b)
    return a / b


@app.task(key=str)
async def twice(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


@app.task
async def both(number: int) -> int:
    """A task that awaits another one."""
    first, second = await asyncio.gather(twice.aio.submit(number), divide.aio.submit(number, 1))
    return await first.reply() + int(await second.reply())


@app.task
async def trace() -> str:
    async def inner() -> str:
        return await (await told.aio.submit()).reply(timeout=30)

    return await asyncio.create_task(inner())


@app.task
def told() -> str:
    return current().trace


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    with app.testing() as queue:
        yield queue


async def a_life() -> None:
    ticket = await divide.aio.submit(7, b=2)
    assert await ticket.reply(timeout=30) == await divide.aio.ticket(ticket.uuid).reply() == 3.5
    tickets = await divide.aio.map(range(10), 2)
    assert await tickets.replies(timeout=30) == [number / 2 for number in range(10)]
    assert {ticket.uuid async for ticket, _ in tickets.ended()} == set(tickets.uuids)
    wrong = await divide.options(retry_first=0.01).aio.map([1, 2], 0)
    assert [type(outcome) async for _, outcome in wrong.ended(timeout=30)] == [Mine, Mine]
    for ask in (wrong.replies(), wrong[0].reply()):
        with pytest.raises(Mine) as caught:
            await ask
        assert caught.value.args == (1, 0)
        assert isinstance(caught.value.__cause__, TaskFailed)
    assert (await twice.aio.submit(4)).uuid == (await twice.aio.map([3, 4])).uuids[1]
    assert await (await both.aio.submit(4)).reply(timeout=30) == 12
    said = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    assert await (await trace.options(trace=said).aio.submit()).reply(timeout=30) == said
    with pytest.raises(TypeError, match="'a' does not match its type"):
        await divide.aio.submit("x", 2)  # type: ignore[arg-type]
    flow = await twice.step(5).then(divide, 4).aio.submit()
    assert await flow.reply(timeout=30) == 2.5
    await flow.close()
    late = await divide.options(delay=3600).aio.submit(1, 1)
    with pytest.raises(TimedOut):
        await late.reply(timeout=0.05)
    await late.close()
    await tickets.close()
    for gone in (late, flow, *tickets[:2]):
        with pytest.raises(UnknownRequest):
            await gone.reply()


@in_loop
async def test_in_memory(queue: MemoryQueue) -> None:
    await a_life()
    before = queue.now
    assert await (await divide.options(delay=3600).aio.submit(1, 1)).reply() == 1
    assert (queue.now - before).total_seconds() >= 3600


@pytest.fixture
def served(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(app, "endpoint", server.endpoints[0])
    monkeypatch.setattr(app, "_client", None)
    monkeypatch.setattr(app, "_loop_clients", None)
    with app.worker(jobs=3):
        yield server


@in_loop
async def test_with_a_server(served: Server) -> None:
    await a_life()
    assert app.aio_client is app.aio_client
    waiting = asyncio.create_task((await divide.options(delay=3600).aio.submit(1, 1)).reply())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_each_loop_has_a_client_of_its_own(served: Server) -> None:
    """That of a loop that has ended is closed."""

    async def ask() -> object:
        assert await (await divide.aio.submit(6, 2)).reply(timeout=30) == 3
        return app.aio_client

    first, second = asyncio.run(ask()), asyncio.run(ask())
    assert first is not second
    assert app._loop_clients is not None
    assert vars(app._loop_clients)["_clients"] == {}
