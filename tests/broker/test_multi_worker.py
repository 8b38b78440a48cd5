"""One worker of several services: no more at a time than it has jobs, and what takes long keeps nobody waiting."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.waiting import until

from broker import Broker, BrokerConfig, Client, MultiWorker, Pipeline, UsageError, Worker, WorkerConfig

pytestmark = pytest.mark.usefixtures("greeted")

QUICK = WorkerConfig(heartbeat_interval=0.5, liveness=20, reconnect_first=0.01, reconnect_most=0.05)
APART = replace(QUICK, versions=("0.2",))
"""It asks no broker what it is: with a connection for each service and job."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    one = Broker(BrokerConfig())
    endpoint = one.bind("tcp://127.0.0.1:*")
    with one:
        yield endpoint


class Counted:
    """Handlers that wait, and how many are at it."""

    def __init__(self) -> None:
        self.now = self.most = self.begun = 0
        self.go = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, frames: list[bytes]) -> list[bytes]:
        with self._lock:
            self.now += 1
            self.begun += 1
            self.most = max(self.most, self.now)
        self.go.wait(60)
        with self._lock:
            self.now -= 1
        return frames


def test_several_services_with_some_jobs_in_all(endpoint: str) -> None:
    work = Counted()
    names = [f"service {number}" for number in range(5)]
    with (
        MultiWorker(dict.fromkeys(names, work), endpoint, jobs=2, config=APART) as worker,
        Pipeline(endpoint, timeout=60) as client,
    ):
        until(lambda: worker.registered == 10)
        tickets = {client.send(name, f"{name} {n}") for name in names for n in range(4)}
        until(lambda: work.now == 2)
        # Longer than it has patience: it leaves with all that it is not working on, and the requests wait there.
        until(lambda: worker.registered == 2)
        assert work.begun == 2
        work.go.set()
        while (reply := client.receive()) is not None:
            assert reply.error is None
            tickets.remove(reply.ticket)
        assert not tickets
        assert work.most == 2
        until(lambda: worker.registered == 10)


@pytest.mark.parametrize("config", [QUICK, APART])
def test_each_has_its_own_function(endpoint: str, config: WorkerConfig) -> None:
    services = {"upper": lambda frames: frames[0].upper(), "lower": lambda frames: frames[0].lower()}
    with MultiWorker(services, endpoint, config=config), Client(endpoint, timeout=60) as client:
        assert client.call("upper", b"a") == [b"A"]
        assert client.call("lower", b"A") == [b"a"]


def test_one_that_is_free_gets_what_another_has_no_hand_for(endpoint: str) -> None:
    work = Counted()
    with (
        MultiWorker({"slow": work, "other": work}, endpoint, config=APART) as busy,
        Pipeline(endpoint, timeout=60) as asks,
        Client(endpoint, timeout=60) as client,
    ):
        until(lambda: busy.registered == 2)
        asks.send("slow", b"")
        asks.send("other", b"")
        until(lambda: busy.registered == 1)
        with Worker("other", lambda frames: [b"free"], endpoint, config=QUICK):
            assert client.call("other", b"") == [b"free"]
            work.go.set()


def test_as_many_come_back_as_there_are_arms(endpoint: str) -> None:
    work, second = Counted(), Counted()
    services = {"a": work, "b": second, "c": work}
    with MultiWorker(services, endpoint, jobs=2, config=APART) as worker, Pipeline(endpoint, timeout=60) as client:
        until(lambda: worker.registered == 6)
        client.send("a", b"")
        client.send("b", b"")
        until(lambda: worker.registered == 2)
        second.go.set()
        until(lambda: worker.registered == 1 + 3)  # the one at work, and one for each service
        assert worker.registered == 4
        work.go.set()
        until(lambda: worker.registered == 6)


@pytest.mark.parametrize("config", [QUICK, APART])
def test_it_finishes_what_it_has_when_it_stops(endpoint: str, config: WorkerConfig) -> None:
    work = Counted()
    worker = MultiWorker({"a": work, "b": work}, endpoint, jobs=2, config=config).start()
    with Pipeline(endpoint, timeout=60) as client:
        until(lambda: worker.registered == (2 if config is QUICK else 4))
        client.send("a", b"1")
        client.send("b", b"2")
        until(lambda: work.now == 2)
        end = threading.Thread(target=worker.stop)
        end.start()
        work.go.set()
        end.join(30)
        replies = [client.receive(), client.receive()]
        assert sorted(reply.body[0] for reply in replies if reply is not None) == [b"1", b"2"]


def test_what_it_cannot_be() -> None:
    with pytest.raises(UsageError, match="no service given"):
        MultiWorker({})
    with pytest.raises(UsageError, match="jobs is 0"):
        MultiWorker({"a": lambda frames: None}, jobs=0)
    with pytest.raises(UsageError):
        MultiWorker({"": lambda frames: None})


MANY = """
import resource, sys
from broker import MultiWorker, UsageError, WorkerConfig
soft, hard = map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
handlers = {f"service{number}": list for number in range(11)}
try:
    worker = MultiWorker(handlers, sys.argv[1], jobs=100, config=WorkerConfig(versions=("0.2",))).start()
except UsageError as error:
    sys.exit(str(error))
print(sum(channel._dealer.socket is not None for channel in worker._channels))
worker.stop()
"""


@pytest.mark.parametrize(
    ("hard", "said"),
    [
        (4000, (0, "1100\n", "")),
        (1000, (1, "", "1100 jobs of 11 services need 2")),
    ],
)
def test_more_registrations_than_usual_fit_or_are_refused_at_the_start(
    tmp_path: Path, hard: int, said: tuple[int, str, str]
) -> None:
    """What does not fit would be absent without a word."""
    command = [sys.executable, "-c", MANY, f"ipc://{tmp_path}/nobody", "256", str(hard)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr[: len(said[2])]) == said
    assert not said[2] or "the limit is 1000" in done.stderr
