"""What one, two and three nodes wait for in PostgreSQL.

Each node is a process with a store of its own on the same database, without brokers: what it does is what a busy server
has its store do. Somebody looks all the time at what their connections wait for (pg_stat_activity).

A wide machine is simulated, since three nodes on two processors would only wait for those: a node and its connections
together may use `--share` of a processor (a control group), so that those of three are not all that there is.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from benchmarks.processor import processor_seconds
from support.postgres import PostgresServer
from support.store_facts import accept_all

from titanic.store import LeaseConfig, NewRequest, NodeFacts, Status
from titanic.store.postgres.store import PostgresStore

GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD = 2_000
"""µs in which a group has its share."""
BODY = [b"x" * 100]
LOOK = (
    "SELECT coalesce(wait_event_type || ': ' || wait_event, 'runs') FROM pg_stat_activity"
    " WHERE application_name LIKE 'node%%' AND state = 'active'"
)
JOBS = {"accept": 100, "accept-one": 1, "life": 100}
"""How many requests are in a batch."""


def work(job: str, number: str, url: str, seconds: str) -> None:
    """The program of a node: it says how many requests it has done."""
    me, batch = int(number), JOBS[job]
    service = b"service %d" % me
    with PostgresStore.open(url) as store:
        store.join(me, None, (), NodeFacts(f"node {me}", "", [], {}), LeaseConfig())
        print("ready", flush=True)
        sys.stdin.readline()
        done, end = 0, time.monotonic() + float(seconds)
        while time.monotonic() < end:
            with store.write() as tx:
                tx.optimistic()
                uuids = accept_all(tx, [NewRequest(service, BODY)] * batch, time.time_ns() // 1000)
            if job == "life":
                _live(store, me, service, uuids)
            done += batch
        print(done, flush=True)


def _live(store: PostgresStore, me: int, service: bytes, uuids: list[bytes]) -> None:
    with store.write() as tx:
        tx.optimistic(alone=True)
        assert tx.claim(me, {service: len(uuids)}, 64 << 20, {}) is not None
    now = time.time_ns() // 1000
    with store.write() as tx:
        tx.optimistic()
        tx.prefetch(uuids)
        for uuid in uuids:
            assert tx.finish(uuid, Status.DONE, BODY, attempts=1, dispatched_at=now, finished_at=now)
    with store.read() as tx:
        tx.prefetch(uuids, replies=True)
        assert all(tx.reply(uuid) for uuid in uuids)
    with store.write() as tx:
        tx.optimistic()
        tx.prefetch(uuids)
        for uuid in uuids:
            tx.close(uuid, now)


@click.command()
@click.option("--nodes", "most", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=float, default=8.0, show_default=True, help="For each figure.")
@click.option("--share", type=float, default=0.5, show_default=True, help="Of a processor, for each node; 0: all.")
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Where the data goes.")
def main(most: int, seconds: float, share: float, folder: Path | None) -> None:
    """Rates of one and more nodes, and what their connections wait for."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="nodes-", dir=folder)))
        place.chmod(0o711)  # PostgreSQL's user is not ours
        (place / "postgres").mkdir()
        settings = {"shared_buffers": "256MB", "max_wal_size": "1GB"}
        server = stack.enter_context(PostgresServer(place / "postgres", **settings)).create()
        print("| job | nodes | a second | × | PostgreSQL, µs | its connections |\n|---|--:|--:|--:|--:|---|")
        for job in JOBS:
            first = 0.0
            for nodes in range(1, most + 1):
                name = server.new_database()
                rate, cpu, waits = _measure(server, server.url(name), job, nodes, seconds, share)
                server.drop_database(name)
                first = first or rate
                found = ", ".join(f"{what} {part:.0%}" for what, part in waits)
                print(f"| {job} | {nodes} | {rate:,.0f} | {rate / first:.2f} | {cpu:.0f} | {found} |", flush=True)


def _measure(
    server: PostgresServer, url: str, job: str, nodes: int, seconds: float, share: float
) -> tuple[float, float, list[tuple[str, float]]]:
    """Requests a second, µs of PostgreSQL for each, and the parts of the time that connections waited for something."""
    seen: Counter[str] = Counter()
    with ExitStack() as stack:
        PostgresStore.open(url, capacity=8 << 30).close()
        processes = []
        for number in range(1, nodes + 1):
            command = "import sys; from benchmarks.nodes import work; work(*sys.argv[1:])"
            given = job, str(number), f"{url}&application_name=node{number}", str(seconds)
            process = subprocess.Popen(
                [sys.executable, "-c", command, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            processes.append(process)
        look = stack.enter_context(server.connect())
        for number, process in enumerate(processes, 1):
            theirs = look.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", [f"node{number}"])
            if share:
                stack.enter_context(
                    _limited(f"titanic-node{number}", share, [process.pid, *(pid for (pid,) in theirs)])
                )
        used = processor_seconds(server.pid)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            seen.update(what for (what,) in look.execute(LOOK))
            time.sleep(0.004)
        done = sum(int(process.communicate()[0]) for process in processes)
        cpu = (processor_seconds(server.pid) - used) / done * 1e6
    return done / seconds, cpu, [(what, count / seen.total()) for what, count in seen.most_common(6)]


@contextmanager
def _limited(name: str, share: float, pids: list[int]) -> Iterator[None]:
    """These processes together have a share of a processor."""
    group = GROUPS / name
    group.mkdir(exist_ok=True)
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD * share)))
        for pid in pids:
            with suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for line in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (GROUPS / "cgroup.procs").write_text(line)
        with suppress(OSError):
            group.rmdir()


if __name__ == "__main__":
    main()
