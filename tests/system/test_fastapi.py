"""A FastAPI app under load, whose queue is killed again and again: no reply that was promised is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sized
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from support.coroutines import eventually, in_loop
from support.ports import free_port
from support.processes import SUPPORT, Process
from support.serving import QUICK
from support.torture import LONG, tally
from support.waiting import until

from broker import Worker, unreachable
from titanic.aio import Client
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check

BUYERS = 300
"""So many have a request on its way at once."""
CLIENTS = 30
EACH = 40 if LONG else 1
KILLS = 30 if LONG else 2


class Queue:
    """A server in a process, which can be killed."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        self._folder = folder
        self._command = SUPPORT / "server_process.py", "serve", endpoint, str(folder / "store")
        self._process = self._started()

    def kill(self) -> None:
        """Kill it, and start another one."""
        self._process.kill()
        tally["processes killed"] += 1
        self._process = self._started()

    def stop(self) -> int:
        return self._process.terminate()

    def _started(self) -> Process:
        return Process(*self._command, output=self._folder / "server.log")


@contextmanager
def queue(folder: Path) -> Iterator[tuple[str, Queue]]:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    killed = Queue(endpoint, folder)
    try:
        until(lambda: not unreachable([endpoint]))
        yield endpoint, killed
    finally:
        killed.stop()


@asynccontextmanager
async def web(endpoint: str) -> AsyncGenerator[list[httpx.AsyncClient], None]:
    """Clients of the app, over HTTP: httpx looks at all connections of a client for each request, so few of many are
    quicker than many of one."""
    from support.fastapi_shop import shop  # FastAPI takes a while, and each test process imports this module

    server = uvicorn.Server(
        uvicorn.Config(shop(endpoint), port=0, log_level="warning", lifespan="on", timeout_keep_alive=600)
    )
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    settings: dict[str, Any] = {"base_url": f"http://127.0.0.1:{port}", "timeout": 300, "verify": False}
    # httpcore closes idle connections that have expired, also those which it has just given to a request.
    settings["limits"] = httpx.Limits(keepalive_expiry=None)
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(httpx.AsyncClient(**settings)) for _ in range(CLIENTS)]
    server.should_exit = True
    await serving


def _has(fetched: Sized, so_many: int, buyers: Iterable[asyncio.Task[None]]) -> bool:
    """Whether so many are fetched, or a buyer has failed."""
    return len(fetched) >= so_many or any(buyer.done() and buyer.exception() for buyer in buyers)


@pytest.mark.torture(short=True)
@in_loop
async def test_no_reply_is_lost(tmp_path: Path) -> None:
    fetched: list[str] = []
    numbers = iter(range(BUYERS * EACH))
    promised: list[str] = []

    async def buy(client: httpx.AsyncClient) -> None:
        for number in numbers:
            if number % 3 == 0:
                answer = await client.post(f"/prices/{number}")
            else:
                accepted = await client.post(f"/orders/{number}")
                assert accepted.status_code == 202, accepted.text
                promised.append(uuid := accepted.json())
                answer = await client.get(f"/replies/{uuid}")
            assert (answer.status_code, answer.json()) == (200, f"price of {number}"), answer.text
            fetched.append(answer.json())

    with (
        queue(tmp_path) as (endpoint, killed),
        Worker("price", lambda frames: b"price of " + frames[0], endpoint, jobs=4, config=QUICK),
    ):
        async with web(endpoint) as clients:
            buyers = [asyncio.create_task(buy(clients[buyer % CLIENTS])) for buyer in range(BUYERS)]
            for kill in range(KILLS):
                await eventually(partial(_has, fetched, BUYERS * EACH * (kill + 1) // (KILLS + 1), buyers), 600)
                killed.kill()
            await asyncio.gather(*buyers)
            assert sorted(fetched) == sorted(f"price of {number}" for number in range(BUYERS * EACH))
            for uuid in promised[:: BUYERS // 3]:
                assert (await clients[0].get(f"/replies/{uuid}")).status_code == 410
        async with Client(endpoint, timeout=30) as client_of_queue:
            assert (await client_of_queue.stats())["store"]["requests"] == 0
    assert len(set(promised)) == len(promised) == BUYERS * EACH - len(range(0, BUYERS * EACH, 3))
    tally["acknowledged requests checked"] += BUYERS * EACH
    with LmdbStore.open(tmp_path / "store") as store:
        assert check(store) == []
