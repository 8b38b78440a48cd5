"""Lazy clients, a queue and its workers on a fake network that loses, delays and doubles, with queues that die."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_network import Net, Way
from support.torture import seeds

from broker import ClientConfig, ClientSession, EventKind, WorkerSession
from broker.patterns import ParanoidWorker
from broker.patterns.pirate_queue.core import (
    CLIENT,
    PARANOID,
    SIMPLE,
    WORKER,
    At,
    PirateDialect,
    PirateQueueCore,
    PirateState,
)
from broker.patterns.request_reply.core import PLAIN


def route(name: str, peer: Any) -> Way | None:
    """Clients and workers are known to the queue by their name and the number of their connection."""
    if name != "queue":
        side = CLIENT if name.startswith("client") else WORKER
        identity = f"{name} {peer}".encode()
        return Way("queue", At(side, identity), identity)
    node, _, number = peer.identity.decode().partition(" ")
    return Way(node, int(number), peer.identity)


class Story:
    """Some clients that ask one thing after another, some workers, and what came of it."""

    def __init__(self, seed: int, dialect: PirateDialect, *, clients: int = 3, workers: int = 3, **faults: Any) -> None:
        self.net = Net(route, seed, **faults)
        self.dialect = dialect
        self.answers: dict[bytes, bytes] = {}
        self.gave_up = 0
        self.asked = {f"client{number}": 0 for number in range(clients)}
        self.start_queue()
        for number in range(workers):
            session = WorkerSession(b"x", ParanoidWorker._default, now=self.net.now, dialect=dialect)
            self.net.start(f"worker{number}", session, self._work)
        for name in self.asked:
            self.net.start(name, ClientSession(ClientConfig(5.0, 100), dialect=PLAIN), self._heard(name))

    def start_queue(self) -> None:
        self.net.start("queue", PirateQueueCore(dialect=self.dialect, now=self.net.now))

    def _work(self, session: WorkerSession) -> None:
        for job in session.take_jobs():
            self.net.soon(lambda job=job: session.final(job.number, [b"re:" + job.body[0]], self.net.now))

    def _heard(self, name: str) -> Any:
        def after(session: ClientSession) -> None:
            for event in session.take_events():
                if event.kind is EventKind.GAVE_UP:
                    self.gave_up += 1
                else:
                    self.answers[f"{name} {self.asked[name]}".encode()] = event.body[0]
            if not len(session) and self.asked[name] < 20:
                self.asked[name] += 1
                session.request(b"", [f"{name} {self.asked[name]}".encode()], self.net.now)

        return after

    @property
    def done(self) -> bool:
        return len(self.answers) == 20 * len(self.asked)

    def check(self) -> None:
        assert self.done
        assert self.gave_up == 0
        assert all(answer == b"re:" + question for question, answer in self.answers.items())


@pytest.mark.parametrize("seed", seeds(2, 8))
@pytest.mark.parametrize(
    "faults",
    [{}, {"delay": 0.5}, {"delay": 0.5, "drop": 0.03}, {"delay": 0.2, "duplicate": 0.2}],
    ids=["calm", "late", "lost", "doubled"],
)
def test_each_request_is_answered_with_its_own_reply(seed: int, faults: dict[str, float]) -> None:
    story = Story(seed, PARANOID, **faults)
    story.net.run(20_000, lambda: story.done)
    if "duplicate" not in faults:  # REQ has no number that would tell a doubled reply from the next; TCP doubles none
        story.check()
    assert story.done
    assert bool(story.net.dead) == ("drop" in faults)


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_queues_that_are_killed_and_started_again(seed: int) -> None:
    story = Story(seed, PARANOID, delay=0.3)
    for life in range(5):
        story.net.at(2.0 + 10 * life, lambda: story.net.kill("queue"))
        story.net.at(2.0 + 10 * life + story.net.chance.random() * 9, story.start_queue)
    story.net.run(20_000, lambda: story.done)
    story.check()


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_workers_that_hang_and_go_on(seed: int) -> None:
    story = Story(seed, PARANOID, delay=0.3)
    for number in range(2):
        story.net.at(1.0 + number, lambda number=number: story.net.stop(f"worker{number}"))
        story.net.at(60.0 + number, lambda number=number: story.net.go_on(f"worker{number}"))
    story.net.run(20_000, lambda: story.done)
    story.check()
    queue = story.net.nodes["queue"]
    story.net.run(100)
    assert queue.count(PirateState.READY) == 3, "they came back"


def test_a_worker_that_is_dead_is_asked_no_more() -> None:
    story = Story(1, PARANOID, workers=2)
    story.net.run(0.1)
    story.net.kill("worker0")
    story.net.run(20_000, lambda: story.done)
    story.check()
    story.net.run(5)
    assert story.net.nodes["queue"].count(PirateState.READY) == 1


def test_simple_pirates_in_calm_weather() -> None:
    story = Story(1, SIMPLE, delay=0.2)
    story.net.run(1000, lambda: story.done)
    story.check()
