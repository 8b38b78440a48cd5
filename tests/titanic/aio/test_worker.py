"""broker.aio.Worker for a queue: what its handlers know of their requests, and how they end them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.coroutines import eventually, in_loop
from support.processes import worker_process
from support.serving import QUICK

from broker.aio import AsyncHandler, Worker
from titanic import Failed, Progress, RequestFailed, Retry, Server, current, current_or_none
from titanic.aio import Client

pytestmark = pytest.mark.settings(max_attempts=3)


def working(server: Server, handler: AsyncHandler, jobs: int = 1) -> Worker:
    return Worker("work", handler, server.endpoints[0], jobs=jobs, config=QUICK)


class Slow:
    """A handler that works until somebody lets it go on; those that were cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled: list[str] = []

    async def __call__(self, frames: list[bytes]) -> str:
        request = current()
        request.progress(3, 10, "pages")
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            assert current() is request
            assert request.cancelled
            self.cancelled.append(request.uuid)
            raise
        return "done"


@in_loop
async def test_each_of_many_handlers_knows_its_request(server: Server) -> None:
    together = asyncio.Barrier(5)

    async def name(frames: list[bytes]) -> str:
        await together.wait()
        return f"{current().uuid} {current().attempt} {current().key}"

    async with working(server, name, jobs=5), Client(server.endpoints[0], timeout=30) as client:
        uuids = [await client.submit("work", "x", key=f"k{number}") for number in range(5)]
        replies = await asyncio.gather(*(client.wait(uuid, 30) for uuid in uuids))
        assert replies == [[f"{uuid} 1 k{number}".encode()] for number, uuid in enumerate(uuids)]
        assert current_or_none() is None


@in_loop
async def test_failed_and_retry(server: Server) -> None:
    async def end(frames: list[bytes]) -> str:
        if frames[0] == b"failed":
            raise Failed("no such order")
        if current().attempt == 1:
            raise Retry("not yet", after=0.01)
        if frames[0] == b"error":
            raise LookupError("no such thing")
        return f"attempt {current().attempt}"

    async with working(server, end), Client(server.endpoints[0], timeout=30) as client:
        failed, later, wrong = [await client.submit("work", said) for said in ("failed", "retry", "error")]
        with pytest.raises(RequestFailed, match="no such order"):
            await client.wait(failed, 30)
        assert (await client.show(failed))["attempts"] == 1
        assert await client.wait(later, 30) == [b"attempt 2"]
        with pytest.raises(RequestFailed, match="LookupError: no such thing") as caught:
            await client.wait(wrong, 30)
        assert b", in end\n" in caught.value.detail[0]
        assert b"aio/worker.py" not in caught.value.detail[0]


@in_loop
async def test_a_handler_of_a_closed_request_is_cancelled(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    async with working(server, slow), Client(server.endpoints[0], timeout=30) as client:
        uuid = await client.submit("work", "x")
        await slow.begun.wait()
        await client.close(uuid)
        await eventually(lambda: slow.cancelled == [uuid])
        limited = await client.submit("work", "y", limit=1, max_attempts=1)
        with pytest.raises(RequestFailed, match="no reply within its limit"):
            await client.wait(limited, 30)
        await eventually(lambda: slow.cancelled == [uuid, limited])
        slow.go_on.set()
        assert await client.wait(await client.submit("work", "z"), 30) == [b"done"]
    assert "handler of work failed" not in caplog.text


@in_loop
async def test_how_far_it_is_can_be_seen(server: Server) -> None:
    slow, heard = Slow(), list[Progress]()

    def told(progress: Progress) -> None:
        heard.append(progress)
        slow.go_on.set()

    async with working(server, slow), Client(server.endpoints[0], timeout=30) as client:
        assert await client.wait(await client.submit("work", "x"), 30, on_progress=told) == [b"done"]
    assert heard == [{"done": 3, "of": 10, "text": "pages"}]


@in_loop
async def test_what_a_killed_worker_had_goes_to_another(server: Server, tmp_path: Path) -> None:
    async def echo(frames: list[bytes]) -> list[bytes]:
        return frames

    log = tmp_path / "log"
    async with Client(server.endpoints[0], timeout=30) as client:
        with worker_process(server.endpoints[0], "work", log, "await") as process:
            uuids = await client.submit_many("work", [b"%d" % number for number in range(10)])
            await eventually(lambda: log.exists() and len(log.read_bytes().splitlines()) == 5)
            process.kill()
        async with working(server, echo, jobs=3):
            found = await asyncio.gather(*(client.wait(uuid, 30) for uuid in uuids))
            assert found == [[b"%d" % number] for number in range(10)]
