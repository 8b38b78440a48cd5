"""The promise: what was acknowledged is executed and answered, whichever processes are killed meanwhile.

Clients write each acknowledged request to a ledger, outside of all that is tested. Everything but them is killed
with SIGKILL at random moments and started again. In the end the ledger is compared with what Titanic says.
TITANIC_LEDGER_REQUESTS makes it longer, TITANIC_SEED different.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.titanic_eventually import eventually
from support.titanic_processes import SUPPORT, Process, worker
from support.torture import LONG, SEED, tally

from titanic import Client
from titanic.store import Store, check

REQUESTS = int(os.environ.get("TITANIC_LEDGER_REQUESTS", "20000" if LONG else "2000"))
REQUESTS_PER_KILL = 100
CLIENTS = 4


class Cast:
    """All that may be killed."""

    def __init__(self, path: Path, *, integrated: bool, workers: bool = True) -> None:
        self.path = path
        self.endpoint = f"ipc://{path}/titanic.ipc"
        self.ledger, self.executed = path / "ledger", path / "executed"
        self.makers: dict[str, Callable[[], Process]] = {
            "titanic": lambda: self.node("titanic", "serve" if integrated else "attach", self.path / "store"),
            "worker 1": lambda: worker(self.endpoint, "work", self.executed),
            "worker 2": lambda: worker(self.endpoint, "work", self.executed),
        }
        if not workers:
            del self.makers["worker 1"], self.makers["worker 2"]
        if not integrated:
            self.makers["broker"] = lambda: self.node("broker", "broker")
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
        tally["processes killed"] += 1
        self.running[name] = self.makers[name]()

    def end(self) -> None:
        for process in self.running.values():
            process.kill()

    def progress(self) -> int:
        """Requests that were acknowledged, and those that were executed."""
        return sum(path.read_bytes().count(b"\n") for path in (self.ledger, self.executed) if path.exists())


@pytest.mark.torture(short=True)
@pytest.mark.parametrize("integrated", [True, False], ids=["integrated", "stand-alone"])
def test_what_was_acknowledged_is_executed_and_answered(tmp_path: Path, integrated: bool) -> None:
    requests = REQUESTS if integrated else REQUESTS // 2
    dice = random.Random(SEED)
    kills = max(4, requests // REQUESTS_PER_KILL)
    moments = sorted(dice.randrange(2 * requests * 9 // 10) for _ in range(kills))
    cast = Cast(tmp_path, integrated=integrated)
    with ExitStack() as stack:
        stack.callback(cast.end)
        each = requests // CLIENTS // 10 * 6  # six calls are ten requests
        clients = [stack.enter_context(cast.submitter(number, each, "mixed")) for number in range(CLIENTS)]
        # Each is killed at least once, then whoever comes up.
        victims = dice.sample(list(cast.makers), len(cast.makers)) + dice.choices(list(cast.makers), k=kills)
        for moment, victim in zip(moments, victims, strict=False):
            eventually(lambda moment=moment: cast.progress() >= moment, 60)  # type: ignore[misc]
            cast.kill(victim)
        eventually(lambda: not any(client.running for client in clients), 60)

        lines = [line.split() for line in cast.ledger.read_text().splitlines()]
        ledger = dict(lines)
        assert len(ledger) == len(lines) == each // 6 * 10 * CLIENTS
        expected = {uuid: [b"done:" + body.encode()] for uuid, body in ledger.items()}
        with Client(cast.endpoint, timeout=5, retries=12) as client:
            assert dict(client.replies(ledger, 60)) == expected
            assert dict(client.replies(ledger, 60)) == expected, "a reply has changed"
        tally["acknowledged requests checked"] += len(expected)
        assert set(ledger.values()) <= set(cast.executed.read_text().split())
        assert cast.running["titanic"].terminate() == 0
    with Store.open(tmp_path / "store") as store:
        assert check(store) == []
        with store.read() as transaction:
            assert transaction.counts().requests >= len(ledger)


def test_one_key_is_one_request_whoever_is_killed(tmp_path: Path) -> None:
    """8 clients, 1,000 submissions, and a server that is killed again and again; then comes a worker."""
    dice = random.Random(SEED)
    cast = Cast(tmp_path, integrated=True, workers=False)
    with ExitStack() as stack:
        stack.callback(cast.end)
        clients = [stack.enter_context(cast.submitter(number, 125, "same")) for number in range(8)]
        for moment in sorted(dice.randrange(900) for _ in range(5)):
            eventually(lambda moment=moment: cast.progress() >= moment, 60)  # type: ignore[misc]
            cast.kill("titanic")
        eventually(lambda: not any(client.running for client in clients), 60)
        lines = cast.ledger.read_text().splitlines()
        assert len(lines) == 1000
        assert len(set(lines)) == 1
        stack.enter_context(worker(cast.endpoint, "work", cast.executed))
        with Client(cast.endpoint, timeout=5, retries=12) as client:
            assert client.wait(lines[0].split()[0], 60) == [b"done:same"]
            assert client.submit("work", "same", key="the same") == lines[0].split()[0]
            assert client.stats()["store"]["requests"] == 1
        assert cast.running["titanic"].terminate() == 0
    assert cast.executed.read_text() == "same\n"
