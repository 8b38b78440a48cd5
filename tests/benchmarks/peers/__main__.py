"""The command: which rows, beside whom, how often."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import click
import zmq
from benchmarks.peers.peer import Peer, Terms
from benchmarks.peers.rounds import Found, measure, table
from benchmarks.peers.rows import ROWS, Row

PEERS = list(dict.fromkeys(kind.name for row in ROWS for kind in row.others))


@click.command()
@click.argument("names", nargs=-1, metavar="[ROW]...")
@click.option("--list", "listing", is_flag=True, help="List rows, peers and goals.")
@click.option("--peer", "chosen", multiple=True, metavar="NAME", help="Only this one beside Titanic; repeatable.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--requests", type=click.IntRange(100), default=20_000, show_default=True, help="For many in flight.")
@click.option("--rival", metavar="ENDPOINT", help="An MDP/0.1 broker that is running, for the rows of echo.")
@click.option("--rival-pid", type=click.IntRange(1), metavar="PID", help="Its process, whose CPU is to be shown.")
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where all data goes, on which disk.",
)
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def main(
    names: tuple[str, ...],
    listing: bool,
    chosen: tuple[str, ...],
    rounds: int,
    requests: int,
    rival: str | None,
    rival_pid: int | None,
    folder: Path | None,
    path: Path | None,
) -> None:
    """Titanic beside RabbitMQ, NATS, Redis and beanstalkd, beside Huey, Dramatiq, Celery and RQ, in PostgreSQL beside
    itself in LMDB, procrastinate and pgqueuer, and beside another MDP broker. Without ROW: all rows, those of echo only
    with --rival.

    A peer that is missing is left out; one that was asked for by --peer is an error.
    """
    if listing:
        for row in ROWS:
            print(f"{row.name:13}{row.what}\n{'':13}{', '.join(_with_goal(row, kind) for kind in row.others)}")
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended then, too
    rows = _rows(names, rival)
    peers = {_peer(name) for name in chosen}
    results: dict[str, dict[str, Found]] = {}
    complete = True
    print(_machine())
    for row in rows:
        others = [kind for kind in row.others if not peers or kind.name in peers]
        if not others and not names:
            continue
        terms = Terms(row.job, rival, rival_pid, row.processes)
        results[row.name], fine = measure(row, others, terms, rounds, requests, folder)
        complete = complete and fine
        print(f"\n{table(row, results[row.name])}", flush=True)
    versions = {name: one.version for found in results.values() for name, one in found.items()}
    print("\n" + "\n".join(f"{name}: {version}" for name, version in versions.items()))
    if path is not None:
        figures = {name: {peer: asdict(one) for peer, one in found.items()} for name, found in results.items()}
        path.write_text(json.dumps({"machine": _machine(), "rows": figures}, indent=1), encoding="utf-8")
    sys.exit(not complete and bool(peers))


def _rows(names: tuple[str, ...], rival: str | None) -> list[Row]:
    known = [row.name for row in ROWS]
    for name in names:
        if name not in known:
            raise click.UsageError(f"no row is called {name!r}; there are {', '.join(known)}")
    return [row for row in ROWS if row.name in names or (not names and (rival or not row.name.startswith("echo")))]


def _peer(name: str) -> str:
    """The peer whose name begins like this."""
    for known in PEERS:
        if known.lower().startswith(name.lower()):
            return known
    raise click.UsageError(f"no peer is called {name!r}; there are {', '.join(PEERS)}")


def _with_goal(row: Row, kind: type[Peer]) -> str:
    least = row.goals.get(kind.name)
    return kind.name if least is None else f"{kind.name} (goal ≥ {least:g})"


def _machine() -> str:
    python = f"Python {platform.python_version()}, pyzmq {zmq.__version__} with libzmq {zmq.zmq_version()}"
    return f"{python}, {platform.system()} {platform.release()}, {os.cpu_count()} processors"


if __name__ == "__main__":
    main()
