"""Which request a free slot gets: the most urgent one of all services of its worker, and services in turns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Semaphore

import pytest
from support.raw_mdp import raw_worker
from support.serving import QUICK, with_broker
from support.waiting import until

import broker
from broker import MultiWorker
from titanic import Client, Server


@pytest.fixture(params=["integrated", "stand-alone"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with with_broker(tmp_path, request.param, presence_most=0.1) as server:
        yield server


class Work:
    """What begins, and ends when it may."""

    def __init__(self, server: Server) -> None:
        self.begun: list[str] = []
        self.may_end = Semaphore(0)
        self._endpoint = server.endpoints[0]

    def __call__(self, frames: list[bytes]) -> list[bytes]:
        self.begun.append(frames[0].decode())
        assert self.may_end.acquire(timeout=60)
        return frames

    def ends(self, count: int = 1) -> list[str]:
        """So many handlers end; what begins instead."""
        before = len(self.begun)
        self.may_end.release(count)
        until(lambda: len(self.begun) == before + count)
        return self.begun[before:]

    def waits(self, service: str, count: int) -> None:
        """Wait until so many requests of a service wait at the broker, at least."""
        with broker.Client(self._endpoint, timeout=30) as client:

            def waiting() -> int:
                services = json.loads(client.call("mmi.services", b"")[0])
                return sum(one["waiting"] for one in services if one["name"] == service)

            until(lambda: waiting() >= count)

    @contextmanager
    def worker(self, *services: str, jobs: int) -> Iterator[None]:
        with MultiWorker(dict.fromkeys(services, self), self._endpoint, jobs=jobs, config=QUICK):
            try:
                yield
            finally:
                self.may_end.release(1000)


@pytest.fixture
def work(server: Server) -> Work:
    return Work(server)


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def test_an_urgent_one_of_another_service_begins_when_the_next_slot_is_free(client: Client, work: Work) -> None:
    with work.worker("report", "otp", jobs=4):
        client.submit_batch("report", names("report", 40))
        until(lambda: len(work.begun) == 4)
        client.submit("otp", "otp", priority=9)
        work.waits("otp", 1)
        assert work.ends() == ["otp"]


def test_an_urgent_one_of_the_same_service(client: Client, work: Work) -> None:
    with work.worker("report", "otp", jobs=4):
        client.submit_batch("report", names("report", 40))
        until(lambda: len(work.begun) == 4)
        work.waits("report", 4)
        client.submit("report", "urgent", priority=9)
        until(lambda: client.stats()["dispatch"]["returned"] >= 4)
        work.waits("report", 4)
        assert work.ends() == ["urgent"]


@pytest.mark.parametrize("at_once", [1, 4])
def test_all_urgent_ones_before_the_others_that_have_not_begun(client: Client, work: Work, at_once: int) -> None:
    with work.worker("low", "high", jobs=4):
        client.submit_batch("low", names("low", 20), priority=1)
        until(lambda: len(work.begun) == 4)
        client.submit_batch("high", names("high", 20), priority=9)
        for left in range(20, 0, -at_once):
            work.waits("high", min(4, left))
            assert all(name.startswith("high") for name in work.ends(at_once))
        assert work.begun[4:] == names("high", 20)
        work.waits("low", 8)
        assert work.ends(4) == names("low", 8)[4:]


def test_services_take_turns(client: Client, work: Work) -> None:
    with work.worker("a", "b", jobs=1):
        client.submit_batch("a", names("a", 5))
        until(lambda: work.begun)
        client.submit_batch("b", names("b", 5))
        for _ in range(4):
            work.waits("a", 1)
            work.waits("b", 1)
            work.ends()
        assert work.begun == ["a0", "a1", "b0", "a2", "b1"]


def test_beside_a_worker_of_one_service(server: Server, client: Client, work: Work) -> None:
    """It gets what it works for; ours get the most urgent."""
    with raw_worker(server.endpoints[0], b"low") as worker, work.worker("low", "high", jobs=2):
        client.submit_batch("low", names("low", 9), priority=1)
        token, _ = worker.take()
        until(lambda: len(work.begun) == 2)
        client.submit_batch("high", names("high", 2), priority=9)
        work.waits("high", 2)
        worker.final(token, b"done")
        _, body = worker.take()
        assert body[0].startswith(b"low")
        assert set(work.ends(2)) == {"high0", "high1"}
