"""A queue with a broker elsewhere: either ends, is killed, and is started again, while workers work."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.kept_jobs import Handler
from support.ports import free_port
from support.processes import SUPPORT, Process
from support.raw_mdp import raw_worker
from support.relay import Relay, relay
from support.serving import QUICK, brokering, config
from support.torture import LONG, SEED, tally
from support.waiting import until

import broker
from broker import Worker
from titanic import Client, Server


class Place:
    """A broker and a queue, each in its own process, at one endpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.broker = self.start("broker")
        self.queue = self.start("queue")

    def start(self, who: str) -> Process:
        mode = "broker" if who == "broker" else "attach"
        arguments = [self.endpoint] if who == "broker" else [self.endpoint, self.path / "store"]
        return Process(SUPPORT / "server_process.py", mode, *arguments, output=self.path / f"{who}.out")

    def restart(self, who: str, how: str) -> None:
        self.end(who, how)
        setattr(self, who, self.start(who))

    def end(self, who: str, how: str) -> None:
        process = getattr(self, who)
        if how == "kill":
            process.kill()
        else:
            assert process.terminate() == 0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.queue.kill()
    place.broker.kill()


def running(client: Client, uuids: list[str]) -> bool:
    return all(client.show(uuid)["state"] == "running" for uuid in uuids)


def replies(client: Client, uuids: list[str]) -> None:
    for number, uuid in enumerate(uuids):
        assert client.wait(uuid, 60) == [b"part", b"done:%d" % number]
        assert client.show(uuid)["attempts"] == 1


def once(work: Handler, count: int) -> None:
    assert sorted(work.begun) == sorted((b"%d" % number, 1, 1) for number in range(count))


@pytest.mark.parametrize(("who", "how"), [("broker", "stop"), ("queue", "kill"), ("both", "stop"), ("both", "kill")])
def test_jobs_go_on_over_restarts(place: Place, who: str, how: str) -> None:
    """Each is executed once, its reply counts, and there is a free worker that gets none of them."""
    work, other, count = Handler(), Handler(), 6
    other.go.set()
    with (
        Worker("echo", work, place.endpoint, jobs=count, config=QUICK) as worker,
        Client(place.endpoint, timeout=60) as client,
    ):
        uuids = [client.submit("echo", b"%d" % number) for number in range(count)]
        until(lambda: len(work.begun) == count)
        with Worker("echo", other, place.endpoint, config=QUICK):
            for _ in range(2):
                for one in ("broker", "queue") if who == "both" else (who,):
                    place.end(one, how)
                    if one == "broker":
                        until(lambda: not worker.registered)
                for one in ("broker", "queue") if who == "both" else (who,):
                    setattr(place, one, place.start(one))
                until(lambda: worker.registered)
                until(partial(running, client, uuids))
            work.go.set()
            replies(client, uuids)
    once(work, count)
    assert other.begun == []


def registrations(place: Place) -> int:
    """At the broker, since it began."""
    with broker.Client(place.endpoint) as asking:
        return int(json.loads(asking.call("mmi.stats", "")[0])["workers_registered"])


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("who", ["broker", "queue"])
def test_replies_that_come_while_one_is_away(place: Place, who: str, how: str) -> None:
    work = Handler()
    with (
        Worker("echo", work, place.endpoint, jobs=2, config=QUICK) as worker,
        Client(place.endpoint, timeout=60) as client,
    ):
        uuids = [client.submit("echo", b"%d" % number) for number in range(2)]
        until(lambda: len(work.begun) == 2)
        before = registrations(place)
        place.end(who, how)
        if who == "broker":
            until(lambda: not worker.registered)
        else:  # the worker was sent away, and is back
            until(lambda: registrations(place) > before)
        work.go.set()
        setattr(place, who, place.start(who))
        replies(client, uuids)
    once(work, 2)


def test_a_reply_on_its_way_when_the_queue_is_killed(place: Place) -> None:
    """The broker, which stood still, passes it on to a connection that is gone."""
    work, other = Handler(), Handler()
    other.go.set()
    with (
        Worker("echo", work, place.endpoint, config=QUICK) as worker,
        Client(place.endpoint, timeout=60) as client,
    ):
        uuids = [client.submit("echo", b"0")]
        until(lambda: work.begun)
        with Worker("echo", other, place.endpoint, config=QUICK):
            place.broker.signal(signal.SIGSTOP)
            work.go.set()
            until(lambda: not any(one.returns for one in worker.sessions))
            place.restart("queue", "kill")
            place.broker.signal(signal.SIGCONT)
            replies(client, uuids)
    once(work, 1)
    assert other.begun == []


@pytest.mark.parametrize("who", ["broker", "queue"])
def test_what_no_worker_has_goes_out_at_once(place: Place, who: str) -> None:
    work, other = Handler(), Handler()
    other.go.set()
    with Worker("echo", work, place.endpoint, config=QUICK), Client(place.endpoint, timeout=60) as client:
        uuids = [client.submit("echo", b"%d" % number) for number in range(4)]
        until(lambda: work.begun)
        place.restart(who, "kill")
        with Worker("echo", other, place.endpoint, config=QUICK):
            for uuid in uuids[1:]:
                client.wait(uuid, 20)
        work.go.set()
        replies(client, uuids)
    once(work, 1)
    assert sorted(other.begun) == [(b"%d" % number, 1, 1) for number in range(1, 4)]


@pytest.fixture
def line() -> Iterator[Relay]:
    """To a broker that runs all the time."""
    with brokering(heartbeat_interval=0.5, liveness=12) as endpoint, relay(endpoint) as line:
        line.direct = endpoint  # type: ignore[attr-defined]
        yield line


def test_the_connection_between_them_is_lost(tmp_path: Path, line: Relay) -> None:
    """Both go on."""
    work, endpoint = Handler(), line.direct  # type: ignore[attr-defined]
    with (
        Server(config(tmp_path, broker=line.endpoint)),
        Worker("echo", work, endpoint, jobs=2, config=QUICK),
        Client(endpoint, timeout=60) as client,
    ):
        uuids = [client.submit("echo", b"%d" % number) for number in range(2)]
        until(lambda: len(work.begun) == 2)
        line.reset()
        until(partial(running, client, uuids))
        work.go.set()
        replies(client, uuids)
    once(work, 2)


def test_a_worker_that_keeps_nothing(place: Place) -> None:
    """Its requests go to another one, as soon as the broker is back."""
    with raw_worker(place.endpoint, b"echo") as raw, Client(place.endpoint, timeout=60) as client:
        uuid = client.submit("echo", b"1")
        raw.take()
        place.restart("broker", "kill")
        with Worker("echo", lambda frames: b"other", place.endpoint, config=QUICK):
            assert client.wait(uuid, 20) == [b"other"]


@pytest.mark.torture(short=True)
def test_torture_of_kills(place: Place) -> None:
    dice, work = random.Random(SEED), Handler()
    jobs, kills = (50, 50) if LONG else (10, 4)
    with Worker("echo", work, place.endpoint, jobs=jobs, config=QUICK), Client(place.endpoint, timeout=60) as client:
        uuids = [client.submit("echo", b"%d" % number) for number in range(jobs)]
        until(lambda: len(work.begun) == jobs)
        for _ in range(kills):
            place.restart(dice.choice(("broker", "queue")), dice.choice(("stop", "kill")))
            until(partial(running, client, uuids))
            threading.Event().wait(dice.random() * (2.0 if LONG else 0.3))
            tally["processes killed"] += 1
        work.go.set()
        replies(client, uuids)
    once(work, jobs)
    tally["executions compared"] += jobs
