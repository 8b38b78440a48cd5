"""Runs all of them, round by round, and prints the table."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import click
from benchmarks.peers import accept, life
from benchmarks.peers.servers import Missing

SLOW = ("Celery", "RQ", "Dramatiq", "Huey")
"""They are given a tenth of the requests."""


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--requests", type=click.IntRange(1000), default=20_000, show_default=True, help="For many in flight.")
@click.option("--only", type=click.Choice(["accept", "life"]), help="This job alone.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def main(rounds: int, requests: int, only: str | None, path: Path | None) -> None:
    """Titanic beside RabbitMQ, Redis, NATS and beanstalkd, and beside Huey, Dramatiq, Celery and RQ."""
    found: dict[str, dict[str, list[float]]] = {}
    if only != "life":
        jobs = {
            "accept, 1,000 in flight": lambda peer: rate(peer.many, requests),
            "accept, one after another": lambda peer: rate(peer.one, requests // 20),
        }
        found |= measure(accept.PEERS, jobs, rounds)
    if only != "accept":
        count = requests // 4
        jobs = {"whole life": lambda peer: rate(peer.many, count // 10 if peer.name in SLOW else count)}
        found |= measure(life.PEERS, jobs, rounds)
    for job, figures in found.items():
        print(table(job, figures))
    if path is not None:
        path.write_text(json.dumps(found, indent=1), encoding="utf-8")


def rate(work: Callable[[int], None], count: int) -> float:
    """So many a second."""
    start = time.perf_counter()
    work(count)
    return count / (time.perf_counter() - start)


def measure(
    peers: tuple[type[accept.Peer], ...], jobs: dict[str, Callable[[accept.Peer], float]], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Figures by job and peer, one each round; a round before the first is for warming up."""
    found: dict[str, dict[str, list[float]]] = {job: {} for job in jobs}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-")))
        there = []
        for number, peer in enumerate(peers):
            try:
                there.append(stack.enter_context(peer(folder / str(number))))
            except (Missing, ImportError) as error:
                print(f"{peer.name} is left out: {error} isn't installed", file=sys.stderr)
        for number in range(rounds + 1):
            for job, work in jobs.items():
                for one in there:
                    print(f"round {number} of {rounds}: {job}: {one.name}", file=sys.stderr)
                    figure = work(one)
                    if number:
                        found[job].setdefault(one.name, []).append(figure)
    return found


def table(job: str, figures: dict[str, list[float]]) -> str:
    """A table in Markdown; the ratios are Titanic's median divided by the peer's."""
    ours = median(figures["titanic"])
    lines = [f"\n| {job} | a second | lowest – highest | titanic is |", "|---|--:|--:|--:|"]
    for name, rates in figures.items():
        ratio = f"{ours / median(rates):.1f} ×" if not name.startswith("titanic") else ""
        lines.append(f"| {name} | {median(rates):,.0f} | {min(rates):,.0f} – {max(rates):,.0f} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
