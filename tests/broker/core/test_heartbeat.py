"""Heartbeats of two sides that do not know each other's interval, nor how each judges silence."""

from __future__ import annotations

import random
from itertools import product
from threading import Event

import pytest
from support.each import each
from support.fake_network import MdpNet
from support.transcript import Transcript
from support.waiting import until

from broker import Broker, BrokerConfig, Client, Worker
from broker.config import ClientConfig, WorkerConfig
from broker.core.broker import BrokerCore
from broker.core.client import ClientSession
from broker.core.mdp import Frames
from broker.core.timers import Heartbeat
from broker.core.worker import WorkerSession

INTERVALS = (0.1, 0.5, 2.5, 30.0)
BEAT = (b"MDPW02", b"\5")


@each(
    ("ours", "theirs", "busy"),
    [(a, b, (at + at // 4) % 2 == 0) for at, (a, b) in enumerate(product(INTERVALS, INTERVALS))],
)
def test_nobody_takes_the_other_for_dead(ours: float, theirs: float, busy: bool) -> None:
    """Whatever the two intervals are; and nobody sends more than the quicker one of both."""
    lasts = 10 + 4.5 * max(ours, theirs)  # after four intervals of silence one is dead
    net = MdpNet(BrokerCore(BrokerConfig(heartbeat_interval=ours)), seed=1, delay=0.02)
    session = WorkerSession(b"echo", WorkerConfig(heartbeat_interval=theirs), now=0)
    net.add_worker("worker", session, lambda body: [body])
    if busy:
        net.work = 500
        client = ClientSession(ClientConfig(timeout=None), correlated=True)
        client.request(b"echo", [b"x"], 0.0)
        net.add_client("client", client)
    net.run(lasts)
    assert session.connection == 1
    assert net.broker.stats["workers_expired"] == 0
    assert net.sent <= 2 * (lasts / min(ours, theirs) / 0.75 + 10)


@pytest.mark.parametrize("interval", [1.0, 2.5])
def test_a_worker_that_never_changes_its_interval(interval: float) -> None:
    """A broker with shorter ones of its own waits for it all the same."""
    broker = Transcript(heartbeat_interval=0.5)
    broker.worker("worker")
    for _ in range(100):
        broker.later(interval)
        broker.said("worker", *BEAT)
    assert broker.core.stats["workers_expired"] == 0
    broker.later(4 * interval + 0.1)
    assert broker.core.stats["workers_expired"] == 1


def test_a_worker_that_never_changes_its_judgement() -> None:
    """One of the Guide's: it sends heartbeats each second, and takes three seconds of silence for death."""
    broker = Transcript(heartbeat_interval=10)
    broker.worker("worker")
    silence = 0.0
    for _ in range(100):
        broker.later(1)
        silence = 0.0 if broker.heard("worker") else silence + 1
        assert silence < 3
        broker.said("worker", *BEAT)


def test_silence_is_noticed_in_the_peers_own_rhythm() -> None:
    broker = Transcript(heartbeat_interval=0.1)
    broker.worker("worker")
    for _ in range(5):
        broker.later(0.2)
        broker.said("worker", *BEAT)
    broker.later(0.79)
    assert broker.core.workers
    broker.later(0.02)
    assert not broker.core.workers


def test_two_that_follow_each_other_do_not_become_quicker_for_ever() -> None:
    chance = random.Random(2)
    for own, other in product((0.5, 1.0, 2.5), repeat=2):
        here, there = Heartbeat(own, 4, 0.0), Heartbeat(other, 4, 0.0)
        coming: list[tuple[float, Heartbeat]] = [(own, here), (other, there)]
        latest = {here: 0.0, there: 0.0}
        sent = 0
        while (when := min(coming, key=lambda one: one[0]))[0] < 2000:
            coming.remove(when)
            now, sender = when
            receiver = there if sender is here else here
            latest[receiver] = max(latest[receiver], now + chance.random() ** 3 * own)  # sometimes late
            receiver.messages += 1
            receiver.beat(latest[receiver])
            sender.sent()
            coming.append((now + sender.interval, sender))
            sent += 1
        assert sent <= 2 * 2000 / min(own, other) * 1.5


def test_a_rhythm_that_was_promised_is_left_slowly() -> None:
    """The peer judges by it."""
    rhythm = Heartbeat(2.5, 4, 0.0)
    beats(rhythm, 0.0, 0.1, 0.1, 0.1, 0.1)
    assert rhythm.interval == 0.25
    beats(rhythm, 0.5, 8, 8, 8, 8)
    before = rhythm.interval
    for _ in range(10):
        rhythm.sent()
        assert rhythm.interval <= 1.5 * before
        before = rhythm.interval
    assert before == 2.5


def beats(rhythm: Heartbeat, begin: float, *gaps: float) -> None:
    now = begin
    for gap in (0.0, *gaps):
        now += gap
        rhythm.messages += 1
        rhythm.beat(now)


def test_a_long_job_is_done_once_however_short_the_brokers_heartbeats_are() -> None:
    begun: list[Frames] = []
    over = Event()

    def work(frames: Frames) -> Frames:
        begun.append(frames)
        over.wait(1.2)
        return frames

    broker = Broker(BrokerConfig(heartbeat_interval=0.1))
    endpoint = broker.bind("tcp://127.0.0.1:*")
    with (
        broker,
        Worker("work", work, endpoint, jobs=2) as worker,
        Client(endpoint, timeout=30) as client,
    ):
        until(lambda: worker.registered == 2)
        assert client.call("work", b"x") == [b"x"]
        assert len(begun) == 1
        assert broker.core.stats["workers_expired"] == 0
