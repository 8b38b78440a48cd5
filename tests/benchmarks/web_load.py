"""What `titanic web` costs with many requests stored and many who look: pages in milliseconds, memory, the rate.

    python -m benchmarks.web_load --requests 1000000 --services 1000 --viewers 50 --minutes 60
    python -m benchmarks.web_load --requests 1000 --services 1000 --errors 900000

A server and a gateway run as processes of their own, with a store in a temporary folder. Requests are stored for all
services, some thousands are done or have failed, and `--errors` failed with a text of their own each. Then each page is
asked for while the viewers watch: each has an event stream, and fetches one page after another. They are a process of
their own. The queue's rate is that of requests that are submitted, echoed and closed in rounds, in turns with and
without the viewers; beside it stands what each process uses of the processors. With `--minutes` they go on looking for
so long, and memory is told every five.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from os import getpid
from pathlib import Path

import httpx
from benchmarks.processor import processor_seconds
from support.processes import Process

from broker import Worker
from titanic import Client, Failed

PAGES = ("/", "/services", "/services/s1", "/requests", "/requests?state=failed", "/requests?service=s1", "/failures")
MORE = ("/schedules", "/store", "/users", "/v1/stats", "/v1/services", "/v1/requests?state=waiting")
PORT = 18080
URL = f"http://127.0.0.1:{PORT}"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def failing(frames: list[bytes]) -> list[bytes]:
    """One in ten fails."""
    if frames[0].endswith(b"7"):
        raise Failed("it ends with 7")
    return frames


def erring(frames: list[bytes]) -> list[bytes]:
    """Each fails, with an error that no other has: letters, since numbers in errors are folded."""
    raise Failed("no " + frames[0].decode().translate(dict(zip(b"0123456789", "abcdefghij", strict=True))))


def fill(client: Client, endpoint: str, requests: int, services: int, errors: int) -> None:
    """Store them, and have some executed, of which every tenth fails; then those that fail with errors of their own."""
    each = requests // services
    for number in range(services):
        client.submit_many(f"s{number}", [b"%d" % one for one in range(each)], unique=False)
    with Worker(b"ended", failing, endpoint, jobs=16):
        uuids = client.submit_many("ended", [b"%d" % one for one in range(10_000)], max_attempts=1)
        for _ in client.replies(uuids, timeout=600):
            pass
    with Worker(b"erring", erring, endpoint, jobs=64):
        for first in range(0, errors, 10_000):
            bodies = [b"%d" % number for number in range(first, min(errors, first + 10_000))]
            for _ in client.replies(client.submit_many("erring", bodies, max_attempts=1), timeout=600):
                pass
    ended = len(uuids) + errors
    print(f"{requests:,} requests wait for {services:,} services, {ended:,} have ended", flush=True)


@dataclass
class Rate:
    """Of requests that are submitted, executed and fetched, and the cores that each process used meanwhile."""

    pids: dict[str, int]
    found: list[float] = field(default_factory=list)
    cores: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, client: Client, count: int, **more: int) -> None:
        """`more` processes: name=pid."""
        pids = {**self.pids, **more}
        before = {name: processor_seconds(pid) for name, pid in pids.items()}
        began = time.perf_counter()
        uuids = client.submit_many("rate", [b"x"] * count)
        for uuid, _ in client.replies(uuids, timeout=300):
            client.close(uuid)
        took = time.perf_counter() - began
        self.found.append(count / took)
        for name, pid in pids.items():
            self.cores.setdefault(name, []).append((processor_seconds(pid) - before[name]) / took)

    def __str__(self) -> str:
        cores = ", ".join(f"{name} {statistics.median(used):.2f}" for name, used in self.cores.items())
        return f"{statistics.median(self.found):,.0f}/s (cores: {cores})"


async def one_page(http: httpx.AsyncClient, path: str) -> float:
    """Milliseconds that it takes."""
    began = time.perf_counter()
    answer = await http.get(path)
    assert answer.status_code == 200, (path, answer.status_code, answer.text[:300])
    return (time.perf_counter() - began) * 1000


async def ask(path: str, headers: str, connection: Connection) -> int:
    """Ask for a page; the length of its body. In few steps: browsers work on machines of their own, so viewers must
    take little of this one."""
    reader, writer = connection
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\n{headers}\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 20"), head
    length = re.search(rb"content-length: (\d+)", head)
    return int(length[1]) if length else 0


async def watch(number: int) -> None:
    """One browser: a stream, and a page that refreshes itself every two seconds."""

    async def stream() -> None:
        connection = await asyncio.open_connection("127.0.0.1", PORT)
        await ask("/v1/events", "", connection)
        while await connection[0].read(65536):
            pass

    async with asyncio.TaskGroup() as group:
        group.create_task(stream())
        connection = await asyncio.open_connection("127.0.0.1", PORT)
        while True:
            await connection[0].readexactly(await ask(PAGES[number % len(PAGES)], "X-Live: 1\r\n", connection))
            number += 1
            await asyncio.sleep(2)


async def watch_all(viewers: int) -> None:
    """Until the process is ended."""
    async with asyncio.TaskGroup() as group:
        for number in range(viewers):
            group.create_task(watch(number))


def look(viewers: int) -> None:
    """What the process of the viewers runs."""
    asyncio.run(watch_all(viewers))


@contextmanager
def watched(viewers: int) -> Iterator[int]:
    """So many look; the id of their process."""
    process = get_context("spawn").Process(target=look, args=(viewers,), daemon=True)
    process.start()
    try:
        time.sleep(5)
        assert process.pid is not None
        yield process.pid
        assert process.is_alive()
    finally:
        process.terminate()
        process.join()


def memory(pid: int) -> float:
    """MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def watch_memory(viewers: int, minutes: int, pid: int) -> None:
    """What it comes to in time. Somebody leaves and somebody comes every five minutes."""
    for minute in range(0, minutes, 5):
        with watched(viewers):
            time.sleep(300)
            print(f"memory of titanic web after {minute + 5} minutes: {memory(pid):.0f} MiB", flush=True)


async def pages() -> dict[str, float]:
    """Milliseconds of each."""
    async with httpx.AsyncClient(base_url=URL, timeout=60) as http:
        return {path: await one_page(http, path) for path in (*PAGES, *MORE)}


def measure(client: Client, viewers: int, rounds: int, count: int, pids: dict[str, int]) -> None:
    """Pages while they are watched; the rate with and without, in turns."""
    without, with_ = Rate(pids), Rate(pids)
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        without.measure(client, count)
        with watched(viewers) as pid:
            for path, took in asyncio.run(pages()).items():
                times.setdefault(path, []).append(took)
            with_.measure(client, count, viewers=pid)
    for path, found in times.items():
        print(f"{path:32} {statistics.median(found):8.0f} ms, at most {max(found):.0f}")
    print(f"memory of titanic web {memory(pids['gateway']):.0f} MiB")
    ratios = [after / before for before, after in zip(without.found, with_.found, strict=True)]
    print(f"rate without viewers {without}")
    print(f"rate with {viewers} {with_}")
    print(f"{statistics.median(ratios):.2f} ×, rounds {', '.join(f'{ratio:.2f}' for ratio in ratios)}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fill, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("requests", 100_000),
        ("services", 100),
        ("errors", 0),
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
        server = stack.enter_context(Process("-m", "titanic", *serve, output=output))
        web = ("web", "--endpoint", endpoint, "--bind", f"127.0.0.1:{PORT}", "--timeout", "60")
        gateway = stack.enter_context(Process("-m", "titanic", *web, output=output))
        client = stack.enter_context(Client(endpoint, timeout=60))
        fill(client, endpoint, chosen.requests, chosen.services, chosen.errors)
        stack.enter_context(Worker(b"rate", list, endpoint, jobs=64))
        pids = {"server": server.pid, "gateway": gateway.pid, "client and worker": getpid()}
        measure(client, chosen.viewers, chosen.rounds, chosen.count, pids)
        watch_memory(chosen.viewers, chosen.minutes, gateway.pid)


if __name__ == "__main__":
    main()
