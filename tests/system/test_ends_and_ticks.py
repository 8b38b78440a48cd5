"""What is stored because something else has happened: a request for each end (`on_end`), a request for each tick of a
schedule. Server, workers, schedulers and submitters are killed at random moments; in the end there is one for each."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pytest
from support.ports import free_port
from support.processes import Process
from support.torture import LONG, SEED, tally
from support.waiting import until

from titanic import Client
from titanic.errors import RequestError
from titanic.store import open_store
from titanic.store.lmdb.tools import check

JOBS = 2000 if LONG else 30
KILLS = 100 if LONG else 4
PATIENCE = 1200.0 if LONG else 300.0
"""Seconds, on a busy machine."""

SCHEDULE = "[second]\nservice = 'tick'\nevery = 1\nmissed = 'all'\n"

WRITE_END = """read -r end; [ "$end" ] && printf '%s\\n' "$end" >>{}"""
"""One write for each line, so that none is cut. When its parent is killed before it writes the body, nothing comes."""


class Players:
    """Processes that are killed and come back."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.store, self.told = folder / "store", folder / "told"
        self.told.touch()
        (folder / "schedules.toml").write_text(SCHEDULE)
        (folder / "jobs").write_text("".join(f"{number}\n" for number in range(JOBS)))
        self._begin: dict[str, Callable[[], Process]] = {
            "server": lambda: self._run("serve", "--bind", self.endpoint, "--store", self.store),
            "worker": lambda: self._run("work", "job", "--", "sh", "-c", "read n; [ $((n % 7)) != 0 ]"),
            "told": lambda: self._run("work", "told", "--", "sh", "-c", WRITE_END.format(self.told)),
            "cron": lambda: self._run("cron", folder / "schedules.toml"),
            "other cron": lambda: self._run("cron", folder / "schedules.toml"),
        }
        self._running = {name: begin() for name, begin in self._begin.items()}
        stack.callback(self.end)

    def _run(self, command: str, *arguments: str | Path) -> Process:
        output = self.folder / f"{command}.log"
        return Process("-m", "titanic", command, *arguments, output=output, TITANIC_ENDPOINT=self.endpoint)

    def strike(self, name: str) -> None:
        """Kill one, and start it again."""
        self._running[name].kill()
        self._running[name] = self._begin[name]()

    def mend(self) -> None:
        """Start those again that have ended by themselves."""
        for name, process in self._running.items():
            if not process.running:
                self._running[name] = self._begin[name]()

    def stop(self, *names: str) -> None:
        for name in names:
            self._running.pop(name).kill()

    @property
    def names(self) -> list[str]:
        return [*self._begin]

    @property
    def heard(self) -> Counter[str]:
        """How often each end was executed. Each line is one write, so none is cut when a command is killed."""
        found: Counter[str] = Counter()
        for line in self.told.read_text().splitlines():
            found[json.loads(line)["uuid"]] += 1
        return found

    def end(self) -> None:
        for process in self._running.values():
            process.kill()


@pytest.mark.torture(short=True)
@pytest.mark.timeout(1800 if LONG else 900)
def test_each_end_and_each_tick_is_stored_once(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    with ExitStack() as stack:
        players = Players(tmp_path, stack)
        client = stack.enter_context(Client(players.endpoint, timeout=PATIENCE))
        client.set_service("job", on_end="told")
        jobs = set(client.submit_many("job", [b"%d\n" % number for number in range(JOBS)], max_attempts=1))
        victims = dice.sample(players.names, len(players.names))
        for _ in range(KILLS):
            enough = min(len(players.heard) + dice.randrange(1, 2 + JOBS // 50), JOBS)
            until(lambda enough=enough: players.mend() or len(players.heard) >= enough, PATIENCE)  # type: ignore[misc]
            players.strike(victims.pop() if victims else dice.choice(players.names))
            tally["processes killed"] += 1
        until(lambda: players.mend() or len(players.heard) == JOBS, PATIENCE)
        assert set(players.heard) == jobs, "each end was told, and nothing else"
        until(lambda: players.mend() or len(listed(client, "tick")) > 5, PATIENCE)
        players.stop("cron", "other cron")
        assert len(listed(client, "told")) == JOBS, "each end is stored once, though it may be executed twice"
        ticks = sorted(str(row["key"]).partition(":second:")[2] for row in listed(client, "tick"))
        seconds = [datetime.fromisoformat(tick).timestamp() for tick in ticks]
        assert len(set(ticks)) == len(ticks)
        assert seconds == [seconds[0] + n for n in range(len(seconds))], "none is missing"
        tally["acknowledged requests checked"] += JOBS + len(ticks)
    with open_store(players.store) as store:
        assert check(store) == []


def listed(client: Client, service: str) -> list[dict[str, object]]:
    """All requests of a service."""
    found: list[dict[str, object]] = []
    after: str | None = None
    while True:
        try:
            page, after = client.list(service=service, after=after, limit=1000)
        except RequestError:
            continue
        found += [dict(row) for row in page]
        if after is None:
            return found
