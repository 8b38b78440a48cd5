"""Flows, whichever processes are killed meanwhile: chains, chords, chords of chains and steps for each item, submitted
by a client and executed by workers, all of which are killed at random moments with SIGKILL, as is the server. In the
end each has replied with what it should, every last step was executed, and nothing is left but the flows themselves."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.ports import free_port
from support.processes import SUPPORT, Process
from support.torture import LONG, SEED, figures, tally
from support.waiting import until

from titanic import Client
from titanic.errors import RequestError
from titanic.store import open_store
from titanic.store.lmdb.tools import check

WORKERS = 2
FLOWS = 1000 if LONG else 12
KILLS = 100 if LONG else 3
PATIENCE = 1200.0 if LONG else 300.0
"""Seconds, on a busy machine."""


class Cast:
    """A server, workers and a client that can be killed and come back."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.store = folder / "store"
        self.submitted, self.executed = folder / "submitted", folder / "executed"
        for journal in (self.submitted, self.executed):
            journal.touch()
        begin: dict[str, Callable[[], Process]] = {"server": self._server, "client": self._client}
        begin |= {f"worker {number}": self._worker for number in range(WORKERS)}
        self._begin = begin
        self._running = {name: start() for name, start in begin.items()}
        stack.callback(self.end)

    def _process(self, name: str, *arguments: str | Path) -> Process:
        more = {"TITANIC_ENDPOINT": self.endpoint, "FLOW_JOURNAL": str(self.executed)}
        return Process(SUPPORT / name, *arguments, output=self.folder / f"{name}.log", **more)

    def _server(self) -> Process:
        return self._process("server_process.py", "serve", self.endpoint, self.store)

    def _client(self) -> Process:
        return self._process("flow_client.py", str(SEED), str(FLOWS), self.submitted)

    def _worker(self) -> Process:
        return self._process("flow_worker.py", "3")

    @property
    def names(self) -> list[str]:
        return [*self._begin]

    def strike(self, name: str) -> None:
        """Kill one, and start it again."""
        self._running[name].kill()
        self._running[name] = self._begin[name]()

    def mend(self) -> None:
        """Start those again that have ended by themselves, such as a client that found no server."""
        for name, process in self._running.items():
            if not process.running and not (name == "client" and self.is_submitted):
                self._running[name] = self._begin[name]()

    @property
    def is_submitted(self) -> bool:
        return len(self.flows()) == FLOWS

    @property
    def done(self) -> int:
        return len(self.executed.read_text().splitlines())

    def flows(self) -> dict[str, int]:
        """The replies that flows are to have. A line that was cut when the client was killed is written again."""
        lines = [line.split() for line in self.submitted.read_text().splitlines() if line.endswith(" .")]
        return {line[-3]: int(line[-2]) for line in lines}

    def end(self) -> None:
        for process in self._running.values():
            process.kill()


@pytest.mark.torture(short=True)
@pytest.mark.timeout(1800 if LONG else 900)
def test_flows_outlive_everybody(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    with ExitStack() as stack:
        cast = Cast(tmp_path, stack)
        victims = dice.sample(cast.names, len(cast.names))  # each at least once, if there are enough kills
        for _ in range(KILLS):
            enough = min(cast.done + dice.randrange(1, 2 + FLOWS // 50), FLOWS)
            until(lambda enough=enough: cast.mend() or cast.done >= enough, PATIENCE)  # type: ignore[misc]
            cast.strike(victims.pop() if victims else dice.choice(cast.names))
            tally["processes killed"] += 1
        until(lambda: cast.mend() or cast.is_submitted, PATIENCE)
        flows = cast.flows()
        with Client(cast.endpoint, timeout=5, retries=20) as client:
            replies = dict(client.replies(flows, PATIENCE))
            assert {uuid: reply for uuid, reply in replies.items() if isinstance(reply, Exception)} == {}
            assert {uuid: reply for uuid, reply in replies.items() if reply != [b"%d" % flows[uuid]]} == {}
            assert set(map(str, range(FLOWS))) <= set(cast.executed.read_text().splitlines()), "each last step ran"
            until(lambda: len(_stored(client)) == FLOWS, PATIENCE)
            assert set(_stored(client)) == set(flows), "the steps are closed"
            client.close_many(flows)
            assert _stored(client) == []
        ran = Counter(cast.executed.read_text().splitlines())
        figures.append(f"{FLOWS} flows, {KILLS} kills: {sum(ran.values()) - len(ran)} of {len(ran)} steps ran again")
    with open_store(cast.store) as store:
        assert check(store) == []


def _stored(client: Client) -> list[str]:
    found: list[str] = []
    after: str | None = None
    while True:
        try:
            page, after = client.list(after=after, limit=1000)
        except RequestError:
            continue
        found += [row["uuid"] for row in page]
        if after is None:
            return found
