"""The promise: what was acknowledged is executed and answered, whichever processes are killed meanwhile.

Clients write each acknowledged request to a ledger, outside of all that is tested; workers write down what they do.
Everything but the clients is killed with SIGKILL at random moments and started again. In the end the ledger is compared
with what Titanic says, and each execution but a request's first must have a reason. TITANIC_SEED makes the moments and
the victims different.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import pytest
from support import journal
from support.journal import Kill
from support.titanic_eventually import eventually
from support.titanic_processes import SUPPORT, Process, worker
from support.titanic_submitter import KINDS, PER_ROUND
from support.torture import SEED, tally

from titanic import Client, RequestFailed, UnknownRequest
from titanic.store import Store, check

REQUESTS_PER_KILL = 100
CLIENTS = 4
WAYS = pytest.mark.parametrize("integrated", [True, False], ids=["integrated", "stand-alone"])


class Cast:
    """All that may be killed."""

    def __init__(self, path: Path, *, integrated: bool, workers: bool = True) -> None:
        self.path = path
        self.endpoint = f"ipc://{path}/titanic.ipc"
        self.ledger, self.journal = path / "ledger", path / "journal"
        self.makers: dict[str, Callable[[], Process]] = {
            "titanic": lambda: self.node("titanic", "serve" if integrated else "attach", self.path / "store"),
            "worker 1": lambda: worker(self.endpoint, "work", self.journal, "journal"),
            "worker 2": lambda: worker(self.endpoint, "work", self.journal, "journal"),
        }
        if not workers:
            del self.makers["worker 1"], self.makers["worker 2"]
        if not integrated:
            self.makers["broker"] = lambda: self.node("broker", "broker")
        self.kills: list[Kill] = []
        self.running = {name: make() for name, make in self.makers.items()}

    def node(self, name: str, mode: str, *arguments: Path) -> Process:
        return Process(SUPPORT / "titanic_node.py", mode, self.endpoint, *arguments, output=self.path / f"{name}.out")

    def submitter(self, number: int, count: int, mode: str) -> Process:
        script = SUPPORT / "titanic_submitter.py"
        output = self.path / f"client {number}.out"
        return Process(script, self.endpoint, self.ledger, f"client{number}", str(count), mode, output=output)

    def kill(self, name: str) -> None:
        assert self.running[name].running, f"{name} has ended by itself"
        self.running[name].kill()
        self.kills.append(Kill(time.time(), name))
        self.running[name] = self.makers[name]()

    def kill_at(self, moments: Iterable[int], victims: Iterable[str]) -> None:
        """Kill one victim after the other as the work goes on."""
        for moment, victim in zip(moments, victims, strict=False):
            eventually(lambda moment=moment: self.progress() >= moment, 60)  # type: ignore[misc]
            self.kill(victim)

    def end(self) -> None:
        for process in self.running.values():
            process.kill()

    def progress(self) -> int:
        """Requests that were acknowledged, and lines that workers wrote."""
        return sum(path.read_bytes().count(b"\n") for path in (self.ledger, self.journal) if path.exists())


def outcome(client: Client, uuid: str) -> object:
    """What became of a request: its reply, or what kind of an end it had."""
    try:
        return client.wait(uuid, 60)
    except RequestFailed as error:
        return str(error).split(":")[0], str(error)
    except UnknownRequest:
        return None


def compare(body: str, said: object) -> None:
    """What is said of a request is what must be."""
    kind = body.split(".")[0]
    if kind == "closed":
        assert said is None
    elif kind == "never":
        assert said == ("failed", "failed: never"), body
    elif kind == "brief" and isinstance(said, tuple):
        assert said[0] == "expired", body
    else:
        assert said == [b"done:" + body.encode()], body


def live_through_it(path: Path, integrated: bool, requests: int, seed: int) -> None:
    dice = random.Random(seed)
    kills = max(4, requests // REQUESTS_PER_KILL)
    moments = sorted(dice.randrange(2 * requests) for _ in range(kills))
    cast = Cast(path, integrated=integrated)
    with ExitStack() as stack:
        stack.callback(cast.end)
        rounds = requests // CLIENTS // PER_ROUND
        clients = [stack.enter_context(cast.submitter(n, rounds * len(KINDS), "mixed")) for n in range(CLIENTS)]
        # Each is killed at least once, then whoever comes up.
        cast.kill_at(moments, dice.sample(list(cast.makers), len(cast.makers)) + dice.choices([*cast.makers], k=kills))
        eventually(lambda: not any(client.running for client in clients), 60 + requests / 20)

        lines = [line.split() for line in cast.ledger.read_text().splitlines()]
        ledger = dict(lines)
        assert len(ledger) == len(lines) == rounds * PER_ROUND * CLIENTS
        with Client(cast.endpoint, timeout=5, retries=12) as client:
            said = {uuid: outcome(client, uuid) for uuid in ledger}
            for uuid, body in ledger.items():
                compare(body, said[uuid])
            assert {uuid: outcome(client, uuid) for uuid in ledger} == said, "a reply has changed"
            keyed = {body: uuid for uuid, body in ledger.items() if not body.startswith("plain.")}
            again = client.submit_batch("work", list(keyed), keys=list(keyed))
            assert again == list(keyed.values()), "a key has two UUIDs"
            eventually(lambda: client.stats()["running"] == 0)
        assert cast.running["titanic"].terminate() == 0
    executions = journal.read(cast.journal)
    for uuid, body in ledger.items():
        assert executions[body] or isinstance(said[uuid], tuple) or said[uuid] is None, f"{body} was never executed"
    superfluous = {}
    for body, uuid in keyed.items():
        submitted = int(uuid[:12], 16) / 1000
        if journal.unexplained(executions[body], cast.kills, submitted, copies=not integrated):
            superfluous[body] = journal.story(executions[body], cast.kills, submitted)
    assert superfluous == {}
    tally["acknowledged requests checked"] += len(ledger)
    tally["processes killed"] += len(cast.kills)
    with Store.open(path / "store") as store:
        assert check(store) == []


@WAYS
def test_what_was_acknowledged_is_executed_and_answered(tmp_path: Path, integrated: bool) -> None:
    live_through_it(tmp_path, integrated, 2000 if integrated else 600, SEED)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
@WAYS
def test_the_same_for_long(tmp_path: Path, integrated: bool, seed: int) -> None:
    live_through_it(tmp_path, integrated, 6_000, seed)


def submit_the_same(path: Path, clients: int, each: int, kills: int, seed: int) -> None:
    dice = random.Random(seed)
    cast = Cast(path, integrated=True, workers=False)
    with ExitStack() as stack:
        stack.callback(cast.end)
        processes = [stack.enter_context(cast.submitter(number, each, "same")) for number in range(clients)]
        cast.kill_at(sorted(dice.randrange(clients * each * 9 // 10) for _ in range(kills)), ["titanic"] * kills)
        eventually(lambda: not any(process.running for process in processes), 60)
        lines = cast.ledger.read_text().splitlines()
        assert len(lines) == clients * each
        assert len(set(lines)) == 1
        uuid = lines[0].split()[0]
        # Only now: a server that is killed while a worker is busy hands out the request again.
        stack.enter_context(worker(cast.endpoint, "work", path / "executed"))
        with Client(cast.endpoint, timeout=5, retries=12) as client:
            assert client.wait(uuid, 60) == [b"done:same"]
            assert client.submit("work", "same", key="the same") == uuid
            assert client.stats()["store"]["requests"] == 1
        assert cast.running["titanic"].terminate() == 0
    assert (path / "executed").read_text() == "same\n"
    tally["acknowledged requests checked"] += len(lines)
    tally["processes killed"] += len(cast.kills)


def test_one_key_is_one_request_whoever_is_killed(tmp_path: Path) -> None:
    """Several clients and a server that is killed again and again; then comes a worker."""
    submit_the_same(tmp_path, 4, 50, 3, SEED)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(SEED, SEED + 5))
def test_one_key_a_thousand_times(tmp_path: Path, seed: int) -> None:
    submit_the_same(tmp_path, 8, 125, 7, seed)
