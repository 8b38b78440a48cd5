"""`titanic nodes` and `drain`, the servers that share a store in PostgreSQL; `titanic pause`, `resume` and `limits`,
services."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

import click
from click.core import ParameterSource

import broker
from titanic.cli.connect import connect, connect_to_read
from titanic.cli.endpoint import EndpointReach
from titanic.cli.options import command, endpoint, json_flag, option, seconds, together
from titanic.cli.printing import age, print_json, print_table, say
from titanic.cli.running import EXIT_PENDING
from titanic.cli.store_files import Files, open_source, source_options
from titanic.client.client import Client
from titanic.errors import InvalidRequest, TimedOut
from titanic.protocol.documents import LimitValues, NodeInfo
from titanic.util.text import duration, limit_texts, printable
from titanic.util.units import READ_LIMIT

POLL_INTERVAL = 0.5
"""Seconds between polls whether a draining node has stopped."""


@command()
@json_flag
@source_options()
def nodes(as_json: bool, **where: Any) -> None:
    """List the servers that share a store in PostgreSQL. Any of them can answer; --store asks the database.

    UP is how long the server has held its lease without a gap. LEASE is the time until the lease expires; servers renew
    it five times per period. "expired" means that the server stopped without a clean shutdown; other servers take over
    its requests. It stays listed for one or two hours, or until it is back. WORKERS and RUNNING are as of the last
    renewal; for expired servers, only --json has them. SHARD is the number of the server's set of counters. ACCESS is
    the start of the SHA-256 of its access file, which must be equal on all servers; "open" means none. Servers with
    the same NODE are shown with their incarnation: give each its own name.

    --json prints a list of {name, incarnation (unique, for `titanic drain`), version, endpoints, started_at
    (microseconds since 1970), lease (seconds; null: expired), services: {name: [workers, requests in flight]}, workers,
    running, claims (claimed requests), draining, shard, access (16 digits of that hash, "open", or empty if unknown),
    asked (whether this server answered)}.

    \b
    Example:
      titanic nodes
      titanic nodes --json | jq '.[].name'
      titanic nodes --store postgresql://titanic@db.example/titanic
    """
    with open_source(**where) as source:
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
        what, fact = "there are no nodes", "this store is a directory, which servers cannot share"
        raise InvalidRequest(what, fact, "servers share a store in PostgreSQL: see titanic serve --help")
    return rows


def _line(row: NodeInfo, rows: Sequence[NodeInfo]) -> tuple[str, ...]:
    name = row["name"]
    if sum(other["name"] == name for other in rows) > 1:
        name = f"{name} ({row['incarnation']})"
    lease = "expired" if row["lease"] is None else f"{max(0.0, row['lease']):.0f}s"
    states = [*(["connected"] if row["asked"] else []), *(["draining"] if row["draining"] else [])]
    work = ("–", "–") if row["lease"] is None else (row["workers"], row["running"])
    figures = map(str, (*work, row["claims"], row["shard"]))
    what = (*figures, row.get("access", "")[:8] or "?", " ".join(states))
    return (name, row["version"], " ".join(row["endpoints"]), age(row["started_at"]), lease, *what)


@command()
@click.argument("node", required=False)
@seconds(
    "--wait",
    envvar="TITANIC_DRAIN_WAIT",  # TITANIC_WAIT is for replies
    least=0,
    help="Maximum time to wait for it to stop; 0: do not wait; default: no limit.",
)
@endpoint
def drain(node: str | None, wait: float | None, reach: EndpointReach) -> None:
    """Drain the server NODE, then stop it. By default, drain the server that answers. (A worker drains on SIGTERM.)

    NODE is a name, or an incarnation from `titanic nodes --json`; it is required with several endpoints. Any server
    that shares the store can take the command. The drained server accepts no new requests (clients use their next
    endpoint), claims none, returns those that no worker has started, and disconnects workers as they become free, so
    that they use their next endpoint. It exits with 0 after the last reply, however long that takes. A service manager
    that restarts only failed services does not restart it.

    The command waits for the server to stop. If that takes longer than --wait, it exits with 3; draining continues.

    \b
    Example:
      titanic drain a --wait 60
      titanic drain
    """
    if node is None and len(reach.endpoint) > 1:
        raise click.UsageError("with several endpoints, one is picked at random; name the NODE to drain")
    with connect(reach) as client:
        ends = client.drain(node)
    say(f"draining {ends['name']}")
    if wait != 0 and not _has_ended(ends, reach, math.inf if wait is None else wait):
        say(f"{ends['name']} is still draining after {duration(wait or 0)}")
        sys.exit(EXIT_PENDING)


def _has_ended(node: NodeInfo, reach: EndpointReach, wait: float) -> bool:
    """Whether a draining node stops within `wait` seconds. It may continue under another incarnation meanwhile."""
    end = time.monotonic() + wait
    while True:
        try:
            with connect_to_read(reach, retries=0) as client:
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
        time.sleep(POLL_INTERVAL)


@command()
@click.argument("service")
@json_flag
@endpoint
def pause(service: str, as_json: bool, reach: EndpointReach) -> None:
    """Pause a service: dispatch none of its stored requests until it is resumed. Running requests continue.

    New requests are accepted. The time to live of waiting requests keeps running. The pause applies to all servers that
    share the store and survives restarts. Plain requests (`titanic call`) are not affected.

    With access control, requires admin = true. --json prints {service, paused, on_end, done: 1 if this changed
    anything}.

    \b
    Example:
      titanic pause upper
    """
    _set_paused(service, True, "already paused", as_json, reach)


@command()
@click.argument("service")
@json_flag
@endpoint
def resume(service: str, as_json: bool, reach: EndpointReach) -> None:
    """Resume a service: dispatch its requests to workers again.

    With access control, requires admin = true. --json prints {service, paused, on_end, done: 1 if this changed
    anything}.

    \b
    Example:
      titanic resume upper
    """
    _set_paused(service, False, "not paused", as_json, reach)


def _set_paused(service: str, paused: bool, so_before: str, as_json: bool, reach: EndpointReach) -> None:
    """Pause or resume a service. `so_before`: how it was if nothing changes."""
    with connect(reach) as client:
        answer = client.set_service(service, paused=paused)
    if as_json:
        print_json(answer)
    elif not answer["done"]:
        say(f"{service} is {so_before}")


def _typed(context: click.Context, parameter: click.Parameter, text: Any) -> Any:
    """The callback of an option that changes limits: only where it is typed. A variable or a file, which other commands
    read, too, turns no question into a change."""
    name = str(parameter.name)
    if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
        return None
    try:
        return READ_LIMIT[name](text) if name in READ_LIMIT else text
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


LIMITS = (
    ("running", "N", "Maximum number of requests that run at the same time."),
    ("rate", "N", "Maximum rate at which attempts begin, evenly spread, as in 10/s, 600/m or 5/h."),
    ("waiting", "N", "Maximum number of unfinished requests; further ones are refused."),
    ("bytes", "SIZE", "Maximum size of the bodies of unfinished requests; further requests are refused."),
)


@command()
@click.argument("service")
@together(*[option(f"--{name}", callback=_typed, metavar=unit, help=text) for name, unit, text in LIMITS])
@option("--reset", callback=_typed, is_flag=True, help="Remove all limits that were set, except those given here.")
@json_flag
@endpoint
def limits(service: str, reset: bool | None, as_json: bool, reach: EndpointReach, **given: float | None) -> None:
    """Show the limits of a service, or set them while servers run.

    Requests over --running or --rate wait in the queue and occupy no job slot of a worker; retries count, too. Requests
    over --waiting or --bytes are refused when they are submitted.

    A limit set here replaces that of titanic serve --service-limit on all servers that share the store. It survives
    restarts, and applies until it is reset. Lowering a limit does not stop running requests. SERVICE need not have
    requests or workers yet. TITANIC_ variables and files cannot set these options.

    With access control, setting limits requires admin = true; showing them requires metrics = true. --json prints
    {limits: {waiting, bytes, running, rate}, and if any is set limits_set: {waiting, bytes, running, rate (null: not
    set), configured: {waiting, bytes, running, rate}, at (microseconds since 1970), by}}.

    \b
    Example:
      titanic limits upper --running 4 --rate 10/s
      titanic limits upper --reset
    """
    changes = {name: value for name, value in given.items() if reset or value is not None}
    with connect(reach) if changes else connect_to_read(reach) as client:
        if changes:
            row = client.set_limits(service, **cast(LimitValues, changes))
        else:
            row = {**client.stats(services=True, of=[service])["by_service"].get(service, {})}
    if as_json:
        print_json({name: row[name] for name in ("limits", "limits_set") if name in row})
        return
    for text in limit_texts(row, time.time()) or [f"{service} has no limits"]:
        click.echo(printable(text))
