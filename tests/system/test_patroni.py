"""The fail-over drill of deploy/NODES.md: three nodes on a PostgreSQL under Patroni and etcd, which loses its leader
again and again while clients submit, wait and close. What was acknowledged is there, and how long nothing was.

TITANIC_DRILLS is how often each kind of loss is tried.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median

import psycopg
import pytest
from support.alert_causes import OF_THE_DATABASE, firing, quick_rules
from support.cli_titanic import running
from support.faults import Lost
from support.patroni import PATIENCE, Cluster, Member, new_cluster
from support.postgres import PASSWORD
from support.scraping import Prometheus, needs_prometheus, prometheus_of
from support.serving import QUICK
from support.torture import SEED, figures, tally
from support.waiting import until

from broker import Worker
from titanic import Client, TitanicError, UnknownRequest
from titanic.store import open_store
from titanic.store.postgres.tools import check

DRILLS = int(os.environ.get("TITANIC_DRILLS", "3"))
NODES = 3


class Traffic(threading.Thread):
    """Somebody who submits, waits for some of the replies and closes them, until told to stop. He notes what he was
    told, and when."""

    def __init__(self, endpoint: str, name: str, over: threading.Event) -> None:
        super().__init__()
        self._endpoint, self._name, self._over = endpoint, name, over
        self._dice = random.Random(f"{SEED} {name}")
        self.stored: dict[str, bytes] = {}
        self.gone: set[str] = set()
        self.acknowledged: list[float] = []
        self.refused = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        with Client(self._endpoint, timeout=2, retries=0) as client:
            while not self._over.is_set():
                self._live(client, f"{self._name} {len(self.stored) + len(self.gone)}")

    def _live(self, client: Client, name: str) -> None:
        if not self._told(lambda: self._submit(client, name)):
            return
        uuid = next(reversed(self.stored))
        if self._dice.random() < 0.5 or not self._told(lambda: self._fetch(client, uuid)) or self._dice.random() < 0.5:
            return
        del self.stored[uuid]  # nobody knows, unless told
        if self._told(lambda: client.close(uuid)):
            self.gone.add(uuid)

    def _submit(self, client: Client, name: str) -> None:
        uuid = client.submit("echo", name, key=name, key_for=3600)
        self.acknowledged.append(time.monotonic())
        self.stored[uuid] = name.encode()

    def _fetch(self, client: Client, uuid: str) -> None:
        reply = client.wait(uuid, 60)
        if reply != [self.stored[uuid]]:
            self.wrong.append(f"{self.stored[uuid]!r}: {reply!r}")

    def _told(self, ask: Callable[[], object]) -> bool:
        """Ask until there is an answer; False when it is over before."""
        while not self._over.is_set():
            try:
                ask()
            except UnknownRequest as error:
                self.wrong.append(f"{time.strftime('%H:%M:%S')} {self._name}: {error}")
                return False
            except TitanicError:
                self.refused += 1
                self._over.wait(0.05)
            else:
                return True
        return False


class Drill:
    """Nodes, workers and clients on a cluster, and what was seen of it."""

    def __init__(self, folder: Path, cluster: Cluster, stack: ExitStack) -> None:
        self.cluster = cluster
        self._folder = folder
        self.executions: Counter[bytes] = Counter()
        self.over = threading.Event()
        self.stood: dict[str, list[float]] = {}
        settings = {"TITANIC_STORE": cluster.url(), "PGPASSWORD": PASSWORD, "TITANIC_GRACE": "1"}
        options = ("serve", "--bind", "tcp://127.0.0.1:*", "--retry-first", "0.05", "--retry-most", "0.5")
        nodes = [stack.enter_context(running(folder / f"{n}.log", *options, **settings)) for n in range(NODES)]
        self.endpoints = [one.says(r"serving at (\S+);")[1] for one in nodes]
        for endpoint in self.endpoints:
            stack.enter_context(Worker("echo", self._handle, endpoint, config=QUICK))
        self.traffic = [Traffic(each, f"c{n}", self.over) for n, each in enumerate(self.endpoints * 2)]
        stack.callback(self.over.set)
        for one in self.traffic:
            one.start()

    def _handle(self, frames: list[bytes]) -> list[bytes]:
        self.executions[frames[0]] += 1
        return frames

    def acknowledged(self) -> int:
        return sum(len(one.acknowledged) for one in self.traffic)

    def flows(self, more: int = 60) -> None:
        """Wait until so many more are acknowledged, some of them at each node."""
        before = [len(one.acknowledged) for one in self.traffic]
        until(
            lambda: all(
                len(one.acknowledged) >= n + more // NODES for n, one in zip(before, self.traffic, strict=True)
            ),
            120,
        )

    def lose(self, kind: str) -> None:
        """The cluster's leader, in one way; wait until there is another, all is as before, and all goes on."""
        self.cluster.recover()
        self.flows()
        leader = self.cluster.member("leader")
        began = time.monotonic()
        ways = {"killed": leader.kill, "crashed": leader.kill_postgres, "stalled": leader.pause}
        ways.get(kind, self.cluster.switch_over)()
        until(
            lambda: "leader" in [role for name, role in self.cluster.roles().items() if name != leader.name],
            PATIENCE,
            every=0.2,
        )
        self.flows()
        told = sorted([began, *(when for one in self.traffic for when in list(one.acknowledged) if when >= began)])
        self.stood.setdefault(kind, []).append(max(b - a for a, b in pairwise(told)))
        if kind == "killed":
            leader.start()
        elif kind == "stalled":
            leader.go_on()

    def state(self) -> str:
        """What there is to be seen when something went wrong."""
        with psycopg.connect(self.cluster.url(), password=PASSWORD) as connection:
            nodes = connection.execute("SELECT n::text FROM titanic.node AS n ORDER BY incarnation").fetchall()
            rows = connection.execute("SELECT * FROM titanic.ready LIMIT 30").fetchall()
            later = connection.execute("SELECT * FROM titanic.later LIMIT 30").fetchall()
        logs = [path.read_text()[-2500:] for path in sorted(self._folder.glob("*.log"))]
        seen = [(one.name, len(one.acknowledged), one.wrong) for one in self.traffic]
        return "\n".join(map(str, (*nodes, *rows, *later, *seen, *logs)))

    def settle(self) -> None:
        """Nobody submits any more. All that was acknowledged is there, with its reply, at every node."""
        self.cluster.recover()
        self.over.set()
        for one in self.traffic:
            one.join(PATIENCE)
            assert not one.is_alive()
            tally["submissions refused"] += one.refused
            tally["acknowledged requests checked"] += len(one.stored) + len(one.gone)
            assert one.wrong == []
        clients = [Client(endpoint, timeout=10) for endpoint in self.endpoints]
        for number, one in enumerate(self.traffic):
            for client in (clients[number % NODES], clients[(number + 1) % NODES]):
                self._check(client, one)
        for client in clients:
            client.disconnect()

    def _check(self, client: Client, one: Traffic) -> None:
        for uuid, body in one.stored.items():
            try:
                assert client.wait(uuid, 60) == [body]
            except UnknownRequest as error:
                raise Lost(f"{body!r} was acknowledged: {error}") from error
        there = [uuid for uuid, answer in client.replies(one.gone, 60) if not isinstance(answer, UnknownRequest)]
        assert there == []


@pytest.mark.torture
def test_the_leader_is_lost_again_and_again(tmp_path: Path) -> None:
    kinds = ("switched over", "crashed", "killed", "stalled")
    with new_cluster() as cluster, ExitStack() as stack:
        drill = Drill(tmp_path, cluster, stack)
        try:
            for kind in kinds * DRILLS:
                drill.lose(kind)
            drill.settle()
        except BaseException:
            print(drill.state())
            raise
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PGPASSWORD", PASSWORD)
            with open_store(cluster.url(), capacity=None) as store:
                assert check(store) == []
        twice = sum(1 for times in drill.executions.values() if times > 1)
    for kind in kinds:
        seen = sorted(drill.stood[kind])
        figures.append(
            f"Patroni, leader {kind} {len(seen)} times: nothing was acknowledged for {median(seen):.1f} s (median),"
            f" {seen[-1]:.1f} s (most)"
        )
    figures.append(f"Patroni: {cluster.made_anew} machines made anew by an operator")
    figures.append(f"Patroni: {sum(drill.executions.values())} executions, {twice} requests more than once")
    print(*figures, sep="\n")


@pytest.mark.torture
@needs_prometheus
def test_alerts_of_the_database_fire_and_resolve(tmp_path: Path) -> None:
    """The standbys stand still; then two of three machines are lost, and the last one steps down."""
    causes: dict[str, tuple[Callable[[Member], None], Callable[[Member], None]]] = {
        "TitanicNoStandby": (Member.pause, Member.go_on),
        "TitanicNoLeader": (Member.kill, Member.start),
    }
    assert set(causes) == OF_THE_DATABASE
    (tmp_path / "rules.yml").write_text(quick_rules())
    with new_cluster() as cluster, ExitStack() as stack:
        servers = [f"127.0.0.1:{one.rest}" for one in cluster.members]
        prometheus = stack.enter_context(prometheus_of(tmp_path / "prometheus", tmp_path / "rules.yml", servers))
        for alert, cause in causes.items():
            until(lambda: len(prometheus.ask("patroni_primary")) == len(servers), PATIENCE, every=0.2)
            _fire_and_resolve(prometheus, cluster, alert, *cause)
            cluster.recover()


def _fire_and_resolve(
    prometheus: Prometheus,
    cluster: Cluster,
    alert: str,
    lose: Callable[[Member], None],
    bring_back: Callable[[Member], None],
) -> None:
    assert not firing(prometheus, alert)
    leader = cluster.member("leader")
    others = [one for one in cluster.members if one is not leader]
    for one in others:
        lose(one)
    lost = time.monotonic()
    until(lambda: firing(prometheus, alert), PATIENCE, every=0.2)
    fired = time.monotonic()
    for one in others:
        bring_back(one)
    until(lambda: not firing(prometheus, alert), PATIENCE, every=0.2)
    figures.append(f"{alert} | fired after {fired - lost:.0f} s | resolved after {time.monotonic() - fired:.0f} s")
