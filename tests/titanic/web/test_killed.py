"""Server, gateway and worker are killed while clients submit over HTTP, with keys: whatever was acknowledged is
executed and fetched, and no client sees anything twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest
from support.ports import free_port
from support.processes import Process
from support.torture import LONG, SEED, figures, tally
from support.waiting import until

CLIENTS, REQUESTS, KILLS = (8, 200, 60) if LONG else (3, 15, 3)
"""Clients, requests of each, and how often something is killed, at least."""

BETWEEN = 60 if LONG else 1
"""The most answers that come between two kills. Who is killed as soon as he has answered once hardly ever does."""

PATIENCE = 120.0


class World:
    """The three processes, each of which is started again when it was killed."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.journal = folder / "journal"
        endpoint = f"ipc://{folder}/titanic"
        command = f'printf "%s\\n" "$TITANIC_UUID" >>{self.journal}; tr a-z A-Z'
        retries = ("--retry-first", "0.05", "--max-attempts", "60000", "--capacity", "64MiB")
        self._commands: dict[str, tuple[str, ...]] = {
            "server": ("serve", "--store", str(folder / "store"), "--bind", endpoint, *retries),
            "web": ("web", "--endpoint", endpoint, "--bind", f"127.0.0.1:{self.port}", "--timeout", "1"),
            "worker": ("work", "upper", "--endpoint", endpoint, "--heartbeat", "0.2", "--", "sh", "-c", command),
        }
        self._folder, self._stack = folder, stack
        self._running = {name: self._start(name) for name in self._commands}
        self.kills = 0

    def _start(self, name: str) -> Process:
        output = self._folder / f"{name}.log"
        return self._stack.enter_context(Process("-m", "titanic", *self._commands[name], output=output))

    def kill(self, name: str) -> None:
        """SIGKILL, and start it again."""
        self._running[name].kill()
        self._running[name] = self._start(name)
        self.kills += 1
        tally["processes killed"] += 1


class Client:
    """Submits with keys, and says everything again until it is answered."""

    def __init__(self, world: World, name: str) -> None:
        self._name = name
        self.acknowledged: dict[str, str] = {}
        """UUIDs by their keys."""
        self.fetched = 0
        """Replies."""
        self.unanswered = 0
        """Calls that had no answer, or one of a gateway that could not reach the queue."""
        self.done = threading.Event()
        self._http = httpx.Client(base_url=world.url, timeout=10, verify=False)

    def run(self) -> None:
        """Submit all, fetch all."""
        try:
            with self._http:
                self._run()
        finally:
            self.done.set()

    @property
    def answers(self) -> int:
        """How much has been told so far."""
        return len(self.acknowledged) + self.fetched

    def _run(self) -> None:
        for number in range(REQUESTS):
            key = f"{self._name}-{number}"
            uuid = self._submit(key)
            self.acknowledged[key] = uuid
            if number % 3 == 0:
                assert self._submit(key) == uuid, "the same key is the same request"
        for key, uuid in self.acknowledged.items():
            reply = until(partial(self._fetched, uuid), PATIENCE, every=0.05)
            assert reply == key.upper(), "it is the reply to this very request"
            self.fetched += 1

    def _said(self, ask: Callable[[httpx.Client], httpx.Response]) -> httpx.Response | None:
        """The answer; None: there was none, or the queue is away."""
        try:
            answer = ask(self._http)
        except httpx.TransportError:
            self.unanswered += 1
            return None
        if answer.status_code < 500:
            return answer
        self.unanswered += 1
        return None

    def _submit(self, key: str) -> str:
        headers = {"Idempotency-Key": key}

        def ask(client: httpx.Client) -> httpx.Response:
            return client.post("/v1/services/upper/requests", content=key, headers=headers)

        answer = until(lambda: self._said(ask), PATIENCE, every=0.05)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["uuid"])

    def _fetched(self, uuid: str) -> str | None:
        answer = self._said(lambda client: client.get(f"/v1/requests/{uuid}/reply?wait=2"))
        if answer is None or answer.status_code == 202:
            return None
        assert answer.status_code == 200, answer.text
        return answer.text


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


@pytest.mark.torture(short=True)
@pytest.mark.timeout(1800 if LONG else 300)
def test_nothing_is_lost_and_nobody_sees_anything_twice(world: World) -> None:
    chance = random.Random(SEED)
    clients = [Client(world, f"c{number}") for number in range(CLIENTS)]
    names = ["server", "web", "worker"]
    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(client.run) for client in clients]
        while world.kills < KILLS or (LONG and not all(client.done.is_set() for client in clients)):
            progress = sum(client.answers for client in clients) + chance.randint(1, BETWEEN)
            name = names[world.kills % 3] if world.kills < 3 else chance.choice(names)
            until(partial(reached, clients, progress), PATIENCE, every=0.02)
            world.kill(name)
        for one in running:
            one.result(PATIENCE * 4)
    uuids = [uuid for client in clients for uuid in client.acknowledged.values()]
    tally["acknowledged requests checked"] += len(uuids)
    assert len(set(uuids)) == len(uuids) == CLIENTS * REQUESTS
    executed = set(world.journal.read_text().split())
    assert set(uuids) <= executed, "what was acknowledged was executed"
    assert executed <= set(uuids), "nothing was executed that no client knows: no key stands for two"
    figures.append(
        f"{len(uuids):,} requests over HTTP, {world.kills:,} kills of server, gateway and worker, "
        f"{sum(client.unanswered for client in clients):,} calls without an answer"
    )


def reached(clients: list[Client], answers: int) -> bool:
    """Whether so much has been told, or all."""
    return sum(client.answers for client in clients) >= answers or all(client.done.is_set() for client in clients)
