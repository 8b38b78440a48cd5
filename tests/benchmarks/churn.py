"""A long day in PostgreSQL: what its tables come to while millions of requests come and go, and what accepting takes.

Requests are accepted in batches of 500, claimed, executed, partly tried again, and closed in disorder; a few thousand
are there at a time, and closed ones are remembered for the last 200,000 (tests/support/postgres_churn.py).
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import ExitStack
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import click
import psycopg
from benchmarks.processor import processor_seconds
from support.postgres import PostgresServer
from support.postgres_churn import Churn, Part

from titanic.store.postgres.store import PostgresStore
from titanic.store.postgres.tools import check

PARTS = 100
"""At least; a tenth of what was done is so many of them that it is none less."""
HEAD = """\
| lives | a second | CPU of PostgreSQL, of the store, µs | tables, MiB | indexes, MiB | dead rows | closed, MiB \
| accepting 500: p50, ms | p99, ms |
|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""
MOST_SLOWER = 1.5
"""How much longer accepting may take in the last tenth than in the first."""
MOST_LARGER = 1.5
"""How much larger tables may be in the second half than in the first."""


class Tenth(NamedTuple):
    """A tenth of the lives, or a part of it. `cpu` is that of PostgreSQL and that of this process, in seconds."""

    lives: int
    seconds: float
    cpu: tuple[float, float]
    part: Part


@click.command()
@click.option("--lives", type=click.IntRange(PARTS), default=1_000_000, show_default=True)
@click.option("--minutes", type=float, help="End after this time, whatever was done.")
@click.option("--seed", type=int, default=3, show_default=True)
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Where the data goes.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def main(lives: int, minutes: float | None, seed: int, folder: Path | None, path: Path | None) -> None:
    """Have so many lives, and say for each tenth what there was at its end. Exit code 1: something grew."""
    parts: list[Tenth] = []
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="churn-", dir=folder)))
        place.chmod(0o711)  # PostgreSQL's user is not ours
        (place / "postgres").mkdir()
        settings = {"shared_buffers": "256MB", "max_wal_size": "1GB", "autovacuum_naptime": "10s"}
        server = stack.enter_context(PostgresServer(place / "postgres", **settings)).create()
        url = server.url(server.new_database())
        store = stack.enter_context(PostgresStore.open(url, capacity=8 << 30))
        connection = stack.enter_context(psycopg.connect(url, autocommit=True))
        churn = Churn(store, random.Random(seed))
        end = time.monotonic() + 60 * minutes if minutes else float("inf")
        print(HEAD)
        for number in range(1, PARTS + 1):
            start, used, own = time.perf_counter(), processor_seconds(server.pid), time.process_time()
            part = churn.go_on(connection, lives // PARTS)
            cpu = processor_seconds(server.pid) - used, time.process_time() - own
            parts.append(Tenth(lives // PARTS, time.perf_counter() - start, cpu, part))
            if number % (PARTS // 10) == 0:
                print(_line(parts[-(PARTS // 10) :], churn.passed), flush=True)
            if path is not None:
                path.write_text(json.dumps(parts), encoding="utf-8")
            if time.monotonic() > end:
                break
        faults = [f"{one.where}: {one.what}" for one in check(store)]
    share = -(-len(parts) // 10)
    if len(parts) < PARTS:
        print(f"\nIn tenths of what was done:\n\n{HEAD}")
        for n in range(share, len(parts) + 1, share):
            print(_line(parts[n - share : n], sum(one.lives for one in parts[:n])))
    print("\n" + "\n".join(_tables(parts[-1].part)))
    faults += _grown(parts, share)
    print("\n" + ("\n".join(faults) or "nothing grew"))
    sys.exit(bool(faults))


def _line(parts: list[Tenth], lives: int) -> str:
    part, count = parts[-1].part, sum(one.lives for one in parts)
    cpu = ", ".join(f"{sum(one.cpu[n] for one in parts) / count * 1e6:.0f}" for n in (0, 1))
    indexes = sum(table.indexes for table in part.tables)
    closed = sum(table.size for table in part.partitions)
    sizes = f"{part.size / 2**20:.0f} | {indexes / 2**20:.0f} | {part.dead:,} | {closed / 2**20:.0f}"
    times = f"{_quantile(parts, 50) * 1000:.1f} | {_quantile(parts, 99) * 1000:.1f}"
    rate = count / sum(one.seconds for one in parts)
    return f"| {lives:,} | {rate:,.0f} | {cpu} | {sizes} | {times} |"


def _quantile(parts: list[Tenth], percent: int) -> float:
    """Seconds that it took to accept a batch."""
    times = sorted(seconds for one in parts for seconds in one.part.accepts)
    return times[len(times) * percent // 100]


def _tables(part: Part) -> list[str]:
    """One by one, at the end."""
    head = ["| table | live rows | dead rows | MiB | of these indexes | updates in place | vacuums |"]
    lines = [
        f"| {table.name} | {table.live:,} | {table.dead:,} | {table.size / 2**20:.1f} | {table.indexes / 2**20:.1f} |"
        f" {f'{table.hot / table.updates:.1%}' if table.updates else ''} | {table.vacuums:,} |"
        for table in sorted(part.tables, key=attrgetter("size"), reverse=True)
    ]
    return [*head, "|---|--:|--:|--:|--:|--:|--:|", *lines]


def _grown(parts: list[Tenth], share: int) -> list[str]:
    faults = []
    sizes = [one.part.size for one in parts]
    middle = len(sizes) // 2
    if max(sizes[middle:]) > MOST_LARGER * max(sizes[:middle]):
        faults.append(f"the tables grew: they have {sizes[-1] >> 20} MiB")
    first, last = _quantile(parts[:share], 99), _quantile(parts[-share:], 99)
    print(f"\np99 of accepting in the last tenth: {last / first:.2f} times that in the first")
    if last > MOST_SLOWER * first:
        faults.append("accepting became slower")
    return faults


if __name__ == "__main__":
    main()
