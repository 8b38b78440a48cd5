"""What `titanic web` costs with many requests stored and many who look: pages in milliseconds, memory, the rate.

    python -m benchmarks.web_load --requests 1000000 --services 1000 --viewers 50 --minutes 60

A server and a gateway run as processes of their own, with a store in a temporary folder. Requests are stored for all
services, a tenth of them done, some failed. Then each page is asked for while the viewers watch: each has an event
stream, and fetches one page after another. The queue's rate is that of requests that are submitted, echoed and closed
in rounds, in turns with and without the viewers. With `--minutes` they go on looking for so long, and memory is told
every five.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
from support.processes import Process

from broker import Worker
from titanic import Client, Failed

PAGES = ("/", "/services", "/services/s1", "/requests", "/requests?state=failed", "/requests?service=s1", "/failures")
MORE = ("/schedules", "/store", "/users", "/v1/stats", "/v1/services", "/v1/requests?state=waiting")
PORT = 18080
URL = f"http://127.0.0.1:{PORT}"


def failing(frames: list[bytes]) -> list[bytes]:
    """One in ten fails."""
    if frames[0].endswith(b"7"):
        raise Failed("it ends with 7")
    return frames


def fill(client: Client, endpoint: str, requests: int, services: int) -> None:
    """Store them, and have some executed, of which every tenth fails."""
    each = requests // services
    for number in range(services):
        client.submit_many(f"s{number}", [b"%d" % one for one in range(each)], unique=False)
    with Worker(b"ended", failing, endpoint, jobs=16):
        uuids = client.submit_many("ended", [b"%d" % one for one in range(10_000)], max_attempts=1)
        for _ in client.replies(uuids, timeout=600):
            pass
    print(f"{requests:,} requests wait for {services:,} services, {len(uuids):,} have ended", flush=True)


def rate(client: Client, count: int) -> float:
    """Requests a second that are submitted, executed and fetched, of so many."""
    began = time.perf_counter()
    uuids = client.submit_many("rate", [b"x"] * count)
    for uuid, _ in client.replies(uuids, timeout=300):
        client.close(uuid)
    return count / (time.perf_counter() - began)


async def one_page(http: httpx.AsyncClient, path: str) -> float:
    """Milliseconds that it takes."""
    began = time.perf_counter()
    answer = await http.get(path)
    assert answer.status_code == 200, (path, answer.status_code, answer.text[:300])
    return (time.perf_counter() - began) * 1000


async def watch(http: httpx.AsyncClient, number: int) -> None:
    """One browser: a stream, and a page that refreshes itself every two seconds."""

    async def stream() -> None:
        async with http.stream("GET", "/v1/events") as events:
            async for _ in events.aiter_lines():
                pass

    async with asyncio.TaskGroup() as group:
        group.create_task(stream())
        while True:
            with suppress(httpx.TransportError):
                await http.get(PAGES[number % len(PAGES)], headers={"X-Live": "1"})
            number += 1
            await asyncio.sleep(2)


@asynccontextmanager
async def watched(viewers: int) -> AsyncIterator[None]:
    """So many look."""
    async with httpx.AsyncClient(base_url=URL, timeout=60, limits=httpx.Limits(max_connections=None)) as http:
        tasks = [asyncio.create_task(watch(http, number)) for number in range(viewers)]
        await asyncio.sleep(5)
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def memory(pid: int) -> float:
    """MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def watch_memory(viewers: int, minutes: int, pid: int) -> None:
    """What it comes to in time. Somebody leaves and somebody comes every five minutes."""
    for minute in range(0, minutes, 5):
        async with watched(viewers):
            await asyncio.sleep(300)
            print(f"memory of titanic web after {minute + 5} minutes: {memory(pid):.0f} MiB", flush=True)


async def measure(client: Client, viewers: int, rounds: int, count: int, pid: int) -> None:
    """Pages while they are watched; the rate with and without, in turns."""
    without: list[float] = []
    with_: list[float] = []
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        without.append(await asyncio.to_thread(rate, client, count))
        async with watched(viewers), httpx.AsyncClient(base_url=URL, timeout=60) as http:
            for path in (*PAGES, *MORE):
                times.setdefault(path, []).append(await one_page(http, path))
            with_.append(await asyncio.to_thread(rate, client, count))
    for path, found in times.items():
        print(f"{path:32} {statistics.median(found):8.0f} ms, at most {max(found):.0f}")
    print(f"memory of titanic web {memory(pid):.0f} MiB")
    before, after = statistics.median(without), statistics.median(with_)
    print(f"rate without viewers {before:,.0f}/s, with {viewers} {after:,.0f}/s: {after / before:.2f} ×")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fill, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("requests", 100_000),
        ("services", 100),
        ("viewers", 50),
        ("rounds", 3),
        ("count", 5000),
        ("minutes", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args(arguments)
    logging.disable()  # thousands of failures
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        endpoint, output = f"ipc://{folder}/titanic", Path(folder, "log")
        serve = ("serve", "--store", f"{folder}/store", "--capacity", "8GiB", "--bind", endpoint)
        stack.enter_context(Process("-m", "titanic", *serve, output=output))
        web = ("web", "--endpoint", endpoint, "--bind", f"127.0.0.1:{PORT}", "--timeout", "60")
        gateway = stack.enter_context(Process("-m", "titanic", *web, output=output))
        client = stack.enter_context(Client(endpoint, timeout=60))
        fill(client, endpoint, chosen.requests, chosen.services)
        stack.enter_context(Worker(b"rate", list, endpoint, jobs=64))
        asyncio.run(measure(client, chosen.viewers, chosen.rounds, chosen.count, gateway.pid))
        asyncio.run(watch_memory(chosen.viewers, chosen.minutes, gateway.pid))


if __name__ == "__main__":
    main()
