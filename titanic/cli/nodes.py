"""`titanic nodes` and `drain`, the servers that share a store in PostgreSQL; `titanic pause` and `resume`, services."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

import broker
from titanic.cli.connect import connect, connect_to_look
from titanic.cli.endpoint import Reach
from titanic.cli.options import command, endpoint, json_flag, seconds
from titanic.cli.printing import age, print_json, print_table, say
from titanic.cli.running import EXIT_PENDING
from titanic.cli.store_files import Files, look, lookable
from titanic.client.client import Client
from titanic.errors import InvalidRequest, TimedOut
from titanic.protocol.documents import NodeInfo
from titanic.util.text import duration

LOOK_EVERY = 0.5
"""Seconds between looks whether nodes have ended."""


@command()
@json_flag
@lookable
def nodes(as_json: bool, **where: Any) -> None:
    """List the servers that share a store in PostgreSQL: any of them knows all, and so does the database.

    UP is for how long it has its lease without a gap. LEASE is in how many seconds a node is over unless it renews its
    lease, which it does five times as often; "over" stands for one that was lost while it had requests, which others
    take now. WORKERS and RUNNING are as it said when it renewed it. SHARD is the number under which it counts what it
    stores. ACCESS is the beginning of the SHA-256 of its access file, which all should have alike; "open" stands for
    none. Of two with one NODE the incarnation is told, too: give each a name of its own.

    --json prints a list of {name, incarnation (a number that no other has, for `titanic drain`), version, endpoints,
    started_at (in microseconds since 1970), lease (in seconds; null: it is over), services: {name: [workers, requests
    in flight]}, workers, running, claims (requests that it has claimed), draining, shard, access (16 digits of that
    hash, "open", or empty if the node does not say), asked (whether it is the node that was asked)}.

    \b
    Example:
      titanic nodes
      titanic nodes --json | jq '.[].name'
      titanic nodes --store postgresql://titanic@db.example/titanic
    """
    with look(**where) as source:
        rows = _rows(source)
    if as_json:
        print_json(rows)
        return
    titles = ("NODE", "VERSION", "ENDPOINTS", "UP", "LEASE", "WORKERS", "RUNNING", "CLAIMS", "SHARD", "ACCESS", "STATE")
    right = ("UP", "LEASE", "WORKERS", "RUNNING", "CLAIMS", "SHARD")
    print_table(titles, [_line(row, rows) for row in rows], right=right)


def _rows(source: Client | Files) -> list[NodeInfo]:
    rows = source.nodes()
    if rows is None:
        what, fact = "there are no nodes", "this store is a directory, which one server has to itself"
        raise InvalidRequest(what, fact, "servers share a store in PostgreSQL: see titanic serve --help")
    return rows


def _line(row: NodeInfo, rows: Sequence[NodeInfo]) -> tuple[str, ...]:
    name = row["name"]
    if sum(other["name"] == name for other in rows) > 1:
        name = f"{name} ({row['incarnation']})"
    lease = "over" if row["lease"] is None else f"{max(0.0, row['lease']):.0f}s"
    states = [*(["asked"] if row["asked"] else []), *(["draining"] if row["draining"] else [])]
    figures = map(str, (row["workers"], row["running"], row["claims"], row["shard"]))
    what = (*figures, row.get("access", "")[:8] or "?", " ".join(states))
    return (name, row["version"], " ".join(row["endpoints"]), age(row["started_at"]), lease, *what)


@command()
@click.argument("node", required=False)
@seconds(
    "--wait",
    envvar="TITANIC_DRAIN_WAIT",  # TITANIC_WAIT is for replies
    least=0,
    default=None,
    help="Wait so long for its end, at most; 0: not at all; default: as long as it takes.",
)
@endpoint
def drain(node: str | None, wait: float | None, reach: Reach) -> None:
    """Have the server NODE end as soon as it has nothing left to do: by default the one that is asked.

    NODE is a name or a number that `titanic nodes --json` tells, and must be given with several endpoints. Any of the
    servers that share the store can be asked.
    The node takes no new requests (clients go to the next of their endpoints), claims none, gives back what no worker
    has, sends its workers elsewhere as they become free, and ends with exit code 0 when the last has brought its
    reply, however long that takes. A service manager that restarts only what has failed leaves it alone.

    The command waits for its end. With --wait it exits with 3 when that takes longer; the node goes on draining.

    \b
    Example:
      titanic drain a --wait 60
      titanic drain
    """
    if node is None and len(reach.endpoint) > 1:
        raise click.UsageError("of several endpoints it is left to chance which one is asked; name the NODE to drain")
    with connect(reach) as client:
        ends = client.drain(node)
    say(f"draining {ends['name']}")
    if wait != 0 and not _has_ended(ends, reach, math.inf if wait is None else wait):
        say(f"{ends['name']} has not ended after {duration(wait or 0)}; it goes on draining")
        sys.exit(EXIT_PENDING)


def _has_ended(node: NodeInfo, reach: Reach, wait: float) -> bool:
    """Whether a node that drains ends within so many seconds. It may go on under another number meanwhile."""
    end = time.monotonic() + wait
    while True:
        try:
            with connect_to_look(reach, retries=0) as client:
                rows = client.nodes() or []
            if not any(row["name"] == node["name"] and row["draining"] and row["lease"] is not None for row in rows):
                return True
        except (TimedOut, broker.TimedOut):
            if not node["asked"]:
                raise
            if broker.unreachable(reach.endpoint):
                return True
        if time.monotonic() >= end:
            return False
        time.sleep(LOOK_EVERY)


@command()
@click.argument("service")
@json_flag
@endpoint
def pause(service: str, as_json: bool, reach: Reach) -> None:
    """Give no stored request of SERVICE to a worker any more, until it is resumed. What workers have goes on.

    New requests are accepted, and the time to live of those that wait goes on. It holds for all servers that share the
    store, and after a restart. Plain requests (`titanic call`) are the broker's, and go on.

    With access control it takes admin = true. --json prints {service, paused, on_end, done: 1 if that was a change}.

    \b
    Example:
      titanic pause upper
    """
    with connect(reach) as client:
        told = client.set_service(service, paused=True)
    if as_json:
        print_json(told)
    elif not told["done"]:
        say(f"{service} is paused already")


@command()
@click.argument("service")
@json_flag
@endpoint
def resume(service: str, as_json: bool, reach: Reach) -> None:
    """Give the requests of SERVICE to workers again.

    With access control it takes admin = true. --json prints {service, paused, on_end, done: 1 if that was a change}.

    \b
    Example:
      titanic resume upper
    """
    with connect(reach) as client:
        told = client.set_service(service, paused=False)
    if as_json:
        print_json(told)
    elif not told["done"]:
        say(f"{service} is not paused")
