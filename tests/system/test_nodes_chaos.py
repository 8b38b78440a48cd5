"""Nodes that share a database, under chaos: no acknowledged request is lost, no reply wrong, nothing closed comes back,
and what is executed twice has a reason that P2 names.

A real primary with a synchronous standby, `titanic serve` at several nodes, clients and workers of all of them, all in
processes of their own, and TCP between them by lines that break. The plan of the faults follows from TITANIC_SEED
(support/chaos_plan.py prints it); TITANIC_CHAOS is how many seconds of faults there are. An hour of it is
`TITANIC_TORTURE=1 TITANIC_CHAOS=3600 pytest tests/system/test_nodes_chaos.py`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.chaos_check import Lives, Troubles, summary, violations
from support.chaos_client import Ledger, Round
from support.chaos_cluster import Cluster, Size
from support.chaos_worker import SERVICES
from support.journal import Journal
from support.postgres import needs_postgres
from support.torture import SEED, figures, tally
from support.waiting import until

from titanic import Client
from titanic.store import open_store
from titanic.store.postgres.tools import check

pytestmark = needs_postgres

SECONDS = float(os.environ.get("TITANIC_CHAOS", "30"))
SETTLED = 180.0


class Run:
    """From an empty store to one that was emptied again."""

    def __init__(self, folder: Path, size: Size, seed: int) -> None:
        self.folder = folder
        self.size = size
        self.seed = seed
        self.count: Counter[str] = Counter()
        self.excused: Counter[str] = Counter()

    def live(self, seconds: float) -> None:
        with ExitStack() as stack:
            self.cluster = Cluster(self.folder, stack, self.size, self.seed)
            with Client(self.cluster.endpoints().split(","), timeout=2, retries=30) as client:
                client.stats()
            self.cluster.begin()
            self.cluster.strike()
            self.cluster.over.wait(seconds)
            self.cluster.calm()
            self.cluster.end_clients(SETTLED)
            self.settle()
            self.complaints()

    def settle(self) -> None:
        """What clients that were killed have left is done, too; then the store is empty, and sound."""
        lives = Lives(self.ledgers)
        ledger = Ledger(str(self.folder / "ledger.settle"))
        with Client(self.cluster.endpoints().split(","), timeout=5, retries=12) as client:
            left = [life for life in lives.of.values() if life.uuids and life.closed == float("inf")]
            for at in range(0, len(left), 1000):
                some = left[at : at + 1000]
                this = Round(client, ledger, None, [life.name for life in some])
                this.uuids = [min(life.uuids) for life in some]
                this.collect(
                    life_uuid
                    for life_uuid, life in zip(this.uuids, some, strict=True)
                    if life.close_asked == float("inf")
                )
                this.close(this.uuids)

            def empty() -> bool:
                for state in ("waiting", "delayed", "done", "failed", "expired"):
                    client.purge(state)
                return bool(client.stats()["store"]["requests"] == 0)

            until(empty, SETTLED)
        for node in self.cluster.nodes.values():
            assert node.process is not None
            if code := node.process.terminate():
                self.cluster.wrong.append(f"{node.name} ended with {code}")
        with open_store(self.cluster.database.pair.url(self.cluster.database.name)) as store:
            self.cluster.wrong += [f"the store is not sound: {problem}" for problem in check(store)]

    def complaints(self) -> None:
        for path in self.folder.glob("*.out"):
            for line in path.read_text(errors="replace").splitlines():
                if "Traceback" in line or "a bug in this program" in line:
                    self.cluster.wrong.append(f"{path.name}: {line}")

    @property
    def ledgers(self) -> list[Path]:
        return sorted(self.folder.glob("ledger.*"))

    def compare(self) -> str:
        """Empty, or all that cannot be."""
        lives, journal = Lives(self.ledgers), Journal(self.folder / "journal")
        silences = {name: node.heard.silences for name, node in self.cluster.nodes.items()}
        troubles = Troubles(self.cluster.troubles, silences, self.size.lease)
        found = [*violations(lives, journal, troubles, self.excused, self.size.jobs * len(SERVICES))]
        executions = [*journal.all.values()]
        self.count.update(lives.operations)
        self.count["executions"] = len(executions)
        self.count["operations"] = sum(lives.operations.values()) + len(executions)
        self.count["operations"] -= lives.operations["submissions without an answer"]
        self.count["acknowledged"] = sum(bool(life.uuids) for life in lives.of.values())
        wrong = [f"the run: {text}" for text in self.cluster.wrong]
        return "\n".join([*wrong, summary(found) if found else ""]).strip()

    def report(self) -> str:
        cluster = self.cluster
        faults = dict(sorted(cluster.counts.items()))
        parts = {"faults": faults, "fail-overs": cluster.database.fail_overs, "counted": dict(self.count)}
        return json.dumps(parts | {"twice for": dict(self.excused)}, indent=1)


def through(folder: Path, size: Size, seed: int, seconds: float) -> Run:
    run = Run(folder, size, seed)
    run.live(seconds)
    wrong = run.compare()
    (folder / "report").write_text(run.report())
    tally["operations modelled"] += run.count["operations"]
    tally["acknowledged requests checked"] += run.count["acknowledged"]
    tally["executions compared"] += run.count["executions"]
    tally["faults of a cluster"] += run.cluster.counts["faults"]
    tally["fail-overs"] += run.cluster.database.fail_overs
    if wrong:
        pytest.fail(f"{folder}\n{wrong}\n{run.report()}", pytrace=False)
    return run


@pytest.mark.torture
@pytest.mark.timeout(SECONDS + 900)
def test_nodes_under_chaos(tmp_path: Path) -> None:
    run = through(tmp_path, Size(), SEED, SECONDS)
    assert run.cluster.database.fail_overs
    assert run.count["acknowledged"]
    figures.append(f"{run.cluster.counts['faults']} faults of a cluster, {run.cluster.database.fail_overs} fail-overs")


if __name__ == "__main__":  # PYTHONPATH=tests python tests/system/test_nodes_chaos.py FOLDER SECONDS NODES SEED
    import sys

    where, span, nodes, seed_ = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    where.mkdir(parents=True)
    where.chmod(0o755)
    one = Run(where, Size(nodes=nodes), seed_)
    threading.excepthook = lambda given: sys.__excepthook__(given.exc_type, given.exc_value, given.exc_traceback)
    began = time.monotonic()
    one.live(span)
    print(one.compare() or "nothing wrong")
    print(one.report())
    print(f"{time.monotonic() - began:.0f} s")
