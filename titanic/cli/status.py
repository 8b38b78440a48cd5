"""`titanic status`, `workers` and `health`: what the queue holds and does, its workers, and whether it is healthy."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import click

import broker
from titanic.cli.connect import connect_to_read
from titanic.cli.endpoint import EndpointReach
from titanic.cli.options import GroupedCommand, command, endpoint, json_flag, option, reaching, seconds
from titanic.cli.printing import age, print_json, print_table, say, size
from titanic.cli.store_files import Files, open_source, source_options
from titanic.client.client import Client
from titanic.errors import RequestError, TimedOut, TitanicError, disk_trouble
from titanic.facts.service_health import (
    FIND_CAUSE,
    HOUR,
    LATELY,
    POISON,
    RECENTLY,
    SLOWER,
    RunTimes,
    is_failing,
    outcomes,
    run_times,
    slow_services,
)
from titanic.protocol.documents import Percentiles, WorkerInfo
from titanic.store import PINS_MUCH
from titanic.util.text import counted, duration, is_url, limit_texts, printable

MAX_NAMED = 5
"""Services that a line names."""

RATES = ("accepted", "dispatched", "succeeded", "failed", "closed")


@command()
@json_flag
@seconds(
    "--watch",
    least=0.1,
    default=None,
    is_flag=False,
    flag_value=2.0,
    help="Repeat at this interval (2 s when none is given), with rates, until Ctrl-C.",
)
@source_options()
def status(as_json: bool, watch: float | None, **where: Any) -> None:
    """Show the store, and the waiting requests and workers of each service.

    --json prints one object, with --watch one per line; with --offline only store, services, other, settings, filled_by
    and workers.

    \b
    store            {path, requests, waiting, delayed, replies, used,
                     capacity, closed, lost}: requests = waiting + running +
                     delayed + replies (all that ended); used (with
                     closed requests) and capacity: bytes; closed: those
                     that are kept; lost: those dropped before they were
                     archived
    durability       "synced", "relaxed" or "memory": see titanic serve --help
    accepting        whether there is space for a small request
    disk_full        whether the store's disk is full, or the store deleted
    disk_free        bytes that the store's disk has left; null: the store
                     was deleted, or is in a database
    full_in          seconds until the store is full at the rate of the
                     last hour; null: not filling, or not known yet
    refuses_for_room whether a request was refused in the last minute for
                     lack of space
    readers          [{pid, command, age in seconds, pinned}] of processes
                     that have long been reading the store's files, or of
                     transactions open in its database for 5 minutes;
                     pinned: bytes that cannot be reused until they end;
                     absent if there are none
    services         {name: number of waiting requests} of about 1,000
                     services: those with workers, limits or other
                     settings, then the largest
    other            {services, waiting, delayed}: the other services;
                     absent if there are none
    settings         {name: {paused, on_end}} of services with operator
                     settings; absent if there are none
    filled_by        [{service, live, ended, closed, bytes}] of the services
                     that fill the store most: numbers of unfinished, ended
                     and closed requests, and their approximate bytes;
                     estimated from the newest if there are over 1000
    workers          {name: count}; null if the broker does not
                     report them
    facts            {used, room}: bytes of counts and history
    running          number of requests being processed by workers
    waiting_clients  number of clients waiting for a reply
    queue            id of the server's process
    since_start      {accepted, refused, repeated (the key was known),
                     replies_given, closed, commits, ends_missed
                     (notifications of on_end and on_failed for which
                     there was no room; absent if none)}
    dispatch         since the start: {dispatched, succeeded, failed (for
                     good), expired, retried, returned (by the broker; not
                     counted as attempts), poisoned (failed as poison)}

    \b
    If several servers share a store in PostgreSQL (titanic nodes lists
    them), store, services, workers and running cover all of them; the
    other keys cover the server that answers. Two keys are added:
    \b
    node             this server: {name, incarnation, shard, draining,
                     running}
    other_nodes      [{name, incarnation, draining, workers, running, access}]
    \b
    Example:
      titanic status
      titanic status --watch 5
      titanic status --json | jq .store.used
    """
    if watch is not None:
        try:
            _watch(watch, as_json, where)
        except KeyboardInterrupt:
            click.echo()
        return
    document = _ask(where)
    if as_json:
        print_json(document)
    else:
        _show(document)


def _ask(where: dict[str, Any]) -> dict[str, Any]:
    with open_source(**where) as source:
        document: dict[str, Any] = {**source.stats(filled_by=True)}
        document["workers"] = None if isinstance(source, Files) else worker_counts(source)
    elsewhere = Counter(document.pop("workers_elsewhere", ()))
    if elsewhere and document["workers"] is not None:
        document["workers"] = dict(Counter(document["workers"]) + elsewhere)
    return document


def _watch(every: float, as_json: bool, where: dict[str, Any]) -> None:
    before: tuple[float, dict[str, Any]] | None = None
    terminal = sys.stdout.isatty()
    while True:
        began = time.monotonic()
        try:
            document = _ask(where)
        except (TimedOut, broker.TimedOut) as error:  # it may come back
            document = None
            say(error)
        if document is not None:
            if as_json:
                click.echo(json.dumps(document))
            else:
                if terminal:
                    click.clear()
                click.echo(f"{time.strftime('%Y-%m-%d %H:%M:%S')}, every {every:g} s; Ctrl-C to stop\n")
                _show(document, before, began)
                if not terminal:
                    click.echo()
            sys.stdout.flush()
            before = (began, document)
        time.sleep(max(0.0, every - (time.monotonic() - began)))


def _show(document: dict[str, Any], before: tuple[float, dict[str, Any]] | None = None, now: float = 0.0) -> None:
    store, running, done = document["store"], document.get("running", 0), document.get("since_start")
    if document.get("disk_full", False):
        full = f"; {'; '.join(disk_trouble(store['path'], document.get('disk_free', 0)))}"
    else:
        full = "" if document.get("accepting", True) else "; it is full"
    durability = document.get("durability", "synced")
    how = "" if durability == "synced" else f"; durability {durability}"
    click.echo(
        f"store {printable(store['path'])}: {counted(store['requests'], 'request')}"
        f" ({store['waiting']} waiting, {running} running,"
        f" {store['delayed']} delayed, {store['replies']} ended),"
        f" {size(store['used'])} of {size(store['capacity'])} used, {store['closed']} closed kept{full}{how}"
    )
    for reader in document.get("readers", ()):
        click.echo(printable(_reader(reader)))
    for line in _set(document.get("settings", {})):
        click.echo(line)
    if "other_nodes" in document:
        click.echo(f"{counted(len(nodes := list(_nodes(document))), 'node')}: {printable(', '.join(nodes))}")
    if done is not None:
        ended = document["dispatch"]
        node = document.get("node")
        where = "" if node is None else f" of {printable(node['name'])}"
        click.echo(
            f"since start{where}: {done['accepted']} accepted, {done['refused']} refused,"
            f" {ended['succeeded']} succeeded, {ended['failed']} failed, {ended['expired']} expired,"
            f" {done['closed']} closed"
        )
    if facts := document.get("facts"):
        click.echo(f"counts and history: {size(facts['used'])} of {size(facts['room'])} used")
    if before is not None and done is not None:
        click.echo(f"per second: {', '.join(_rates(document, before[1], now - before[0]))}")
    workers = document["workers"]
    names = {*document["services"], *(workers or ())}
    rows = [
        (name, str(document["services"].get(name, 0)), "?" if workers is None else str(workers.get(name, 0)))
        for name in sorted(names)
        if not name.startswith("titanic.")
    ]
    if (other := document.get("other")) is not None:
        rows.append((f"(others: {other['services']})", str(other["waiting"]), ""))
    if filling := [one for one in document.get("filled_by", ()) if one["bytes"]]:
        click.echo()
        lines = [
            (one["service"], str(one["live"]), str(one["ended"]), str(one["closed"]), size(one["bytes"]))
            for one in filling
        ]
        titles = ("FILLED BY", "LIVE", "ENDED", "CLOSED", "ABOUT")
        print_table(titles, lines, right=titles[1:])
    if rows:
        click.echo()
        print_table(("SERVICE", "WAITING", "WORKERS"), rows, right=("WAITING", "WORKERS"))


def _reader(reader: Mapping[str, Any]) -> str:
    return (
        f"process {reader['pid']} ({reader['command'] or 'unknown'}) has been reading the store for"
        f" {duration(reader['age'])}; {size(reader['pinned'])} cannot be reused until it ends"
    )


def _set(settings: dict[str, Any]) -> Iterator[str]:
    """What operators have set for services."""
    if paused := [name for name, one in sorted(settings.items()) if one["paused"]]:
        yield f"paused: {printable(', '.join(paused))}"
    if notified := [f"{name} to {one['on_end']}" for name, one in sorted(settings.items()) if one["on_end"]]:
        yield f"notifications: {printable(', '.join(notified))}"


def _nodes(document: dict[str, Any]) -> Iterator[str]:
    own, others = document["node"], document["other_nodes"]
    rows = others if own is None else [own, *others]
    names = Counter(row["name"] for row in rows)
    for row in rows:
        number = f", number {row['incarnation']}" if names[row["name"]] > 1 and "incarnation" in row else ""
        states = f"{', draining' if row['draining'] else ''}{', connected' if row is own else ''}"
        yield f"{row['name']} ({row['running']} running{states}{number})"


def _rates(document: dict[str, Any], before: dict[str, Any], elapsed: float) -> Iterator[str]:
    now, then = ({**each["since_start"], **each["dispatch"]} for each in (document, before))
    for name in RATES:
        yield f"{max(0, now[name] - then[name]) / elapsed:.1f} {name}"


def worker_counts(client: Client) -> dict[str, int] | None:
    """Workers per service; None when the broker does not report them."""
    try:
        document: dict[str, int] = broker.read_json(client.call("mmi.workers", "mmi.workers")[0])
    except (ValueError, IndexError, broker.RemoteError, TimedOut):
        return None
    return document if isinstance(document, dict) else None


@command()
@json_flag
@endpoint
def workers(as_json: bool, reach: EndpointReach) -> None:
    """List the workers of the server that answers, and the requests that they have.

    A line is a worker process, as HOST:PID, or one connection of a worker that does not name its process. SLOTS is how
    many requests it takes at a time, HEARD the age of its last message, VERSION the version that it reports. A
    second table lists all requests, longest-running first; a dash means a plain request or one hidden from you.

    Only each service's slots, shown as WORKERS, are known if the broker is a separate process, or if you have neither
    metrics = true nor read = "all". If servers share a store, each lists its own workers.

    To drain a worker, stop its unit; without one, send SIGTERM to its PID. It takes no more requests, finishes running
    ones (`titanic worker`: within --grace), and exits.

    --json prints {workers (null if unknown), services: {name: total slots of its workers; null: one or more workers},
    omitted (worker processes left out of a list that would be too long), node (the server's name, if servers share
    a store), reason (why workers is null)}. Each worker is {name, host, pid, user (with access control), version,
    services, slots, requests: [{uuid, service, started_at}], registered_at, heard_at}; times are microseconds since
    1970.

    \b
    Example:
      titanic workers
      titanic workers --json | jq '.workers[] | select(.requests == []) | .name'
    """
    with connect_to_read(reach) as client:
        found = client.workers()
    if as_json:
        print_json(found)
        return
    if found["workers"] is None:
        say(found["reason"])
        counts = found["services"].items()
        print_table(("SERVICE", "WORKERS"), [(name, _count(count)) for name, count in counts], right=("WORKERS",))
        return
    _show_workers(found["workers"])
    if found["omitted"]:
        say(f"not shown: {counted(found['omitted'], 'worker')}")


def _show_workers(rows: Sequence[WorkerInfo]) -> None:
    more = [name for name in ("user", "version") if any(row.get(name) for row in rows)]
    titles = ("WORKER", *map(str.upper, more), "SLOTS", "REQUESTS", "REGISTERED", "HEARD", "SERVICES")
    lines = [
        (
            row["name"] or "–",
            *(str(row.get(name) or "–") for name in more),
            str(row["slots"]),
            str(len(row["requests"])),
            f"{age(row['registered_at'])} ago",
            f"{age(row['heard_at'])} ago",
            " ".join(row["services"]),
        )
        for row in rows
    ]
    print_table(titles, lines, right=("SLOTS", "REQUESTS", "REGISTERED", "HEARD"))
    in_hand = [(one["started_at"], one["uuid"], row["name"], one["service"]) for row in rows for one in row["requests"]]
    if in_hand:
        click.echo()
        running = [(uuid or "–", age(at), name or "–", service) for at, uuid, name, service in sorted(in_hand)]
        print_table(("REQUEST", "RUNNING", "WORKER", "SERVICE"), running, right=("RUNNING",))


def _count(count: int | None) -> str:
    return "some" if count is None else str(count)


@command()
@json_flag
@seconds("--last", least=60, default=3600.0, help="Show the counts and times of this span, at most four weeks.")
@endpoint
def services(as_json: bool, last: float, reach: EndpointReach) -> None:
    """List the services: waiting and running requests, and activity in the last hour.

    Counts and times survive restarts and cover all servers that share a store. WAIT is the time until the first
    attempt, RUN the duration of an attempt: approximate p50, p90 and p99. RUN NOW shows the p50 of the last few minutes
    and the usual p50. RETRIED counts attempts that failed and were followed by another. RUNNING may exceed WORKERS
    because some requests are sent ahead; it may exceed a lowered limit because running requests are not stopped. What
    to do about slow services is below the table.

    --json prints {since, step, incomplete, total, services, other, bytes}. since: microseconds since 1970; step: length
    of a period in seconds; incomplete: [[from, until]], spans whose counts are missing because a server was killed;
    bytes: size of counts and audit in the store. total, each of services, and other (the least active
    services if there are over 1000; else null) are {accepted, dispatched, succeeded, failed, retried, expired, closed,
    cancelled (closed before they ended), requeued (sent again by users), wait and run: {p50, p90, p99} in seconds, or
    null}; services also have {waiting, delayed, running, workers, paused, limits, limits_set (as `titanic limits`, if
    any is set), usual: {attempts, wait, run} (of the day before; absent if there were none, or the step is an hour)}.

    \b
    Example:
      titanic services
      titanic services --last 86400 --json | jq '.services | map_values(.failed)'
    """
    with connect_to_read(reach) as client:
        found, stats = client.facts(last), client.stats(services=True)
        hour = client.facts(HOUR)
        times = {} if as_json else run_times(client.facts(LATELY), client.facts(RECENTLY), hour)
    elsewhere = stats.get("workers_elsewhere", {})
    rows: dict[str, dict[str, Any]] = {name: dict(one) for name, one in found["services"].items()}
    for name, now in stats.get("by_service", {}).items():
        workers = now["workers"] if now["workers"] is None else now["workers"] + elsewhere.get(name, 0)
        names = "waiting", "delayed", "running", "paused", "limits", "limits_set"
        figures = {each: value for each, value in now.items() if each in names}
        rows[name] = {**rows.get(name, {}), **figures, "workers": workers}
    if as_json:
        print_json({**found, "services": rows})
        return
    counts = "DONE", "FAILED", "RETRIED", "PER MINUTE"
    titles = ("SERVICE", "WAITING", "RUNNING", "WORKERS", *counts, "WAIT", "RUN", "RUN NOW")
    unnamed = {"waiting": "?"} if "other" in stats else {}  # what waits for these is in the sum of the others
    lines = [_service(name, {**unnamed, **row}, last, times.get(name)) for name, row in sorted(rows.items())]
    if found["other"] is not None or "other" in stats:
        lines.append(_service("(others)", {**(found["other"] or {}), **stats.get("other", {})}, last))
    print_table(titles, lines, right=titles[1:])
    notes = {name: f"runs longer than usual; {FIND_CAUSE}" for name, one in times.items() if one.is_slower}
    for name, advice in slow_services(stats, hour["services"], times, time.time()).items():
        notes[name] = f"{SLOWER}; {advice}"
    for name, note in notes.items():
        click.echo(printable(f"{name}: {note}"))
    for name, now in stats.get("by_service", {}).items():
        if now.get("limits_set"):
            click.echo(printable(f"{name}: {', '.join(limit_texts(now, time.time()))}"))
    if found["incomplete"]:
        lost = sum(until - since for since, until in found["incomplete"])
        say(f"a server was killed: counts of {duration(lost / 1e6)} are incomplete")


def _service(name: str, row: Mapping[str, Any], last: float, times: RunTimes | None = None) -> tuple[str, ...]:
    workers = row.get("workers", 0)
    ended = row.get("succeeded", 0) + row.get("failed", 0) + row.get("expired", 0)
    return (
        f"{name} (paused)" if row.get("paused") else name,
        str(row.get("waiting", 0)),
        str(row.get("running", 0)),
        "?" if workers is None else str(workers),
        str(row.get("succeeded", 0)),
        str(row.get("failed", 0)),
        str(row.get("retried", 0)),
        f"{ended * 60 / last:.1f}",
        _percentiles(row.get("wait")),
        _percentiles(row.get("run")),
        times.text if times and times.now else "–",
    )


def _percentiles(times: Percentiles | None) -> str:
    return "–" if times is None else ", ".join(map(duration, (times["p50"], times["p90"], times["p99"])))


WARN_FULL_IN = 24 * 3600.0
"""It is a warning when the store will be full in fewer seconds at its present rate, however much is in use."""

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
"""The exit codes of `health`, as Nagios and its kin read them."""

WORDS = ("healthy", "warning", "critical", "unknown")


class Probe(GroupedCommand):
    """Wrong usage is unknown: the usual 2 would say that the server is dead."""

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **settings)
        except click.UsageError as error:
            vars(error)["exit_code"] = UNKNOWN  # of this one, not of the class
            raise


@click.command(cls=Probe)
@json_flag
@option(
    "--max-waiting",
    envvar="TITANIC_HEALTH_MAX_WAITING",  # TITANIC_MAX_WAITING is the broker's
    type=click.IntRange(0),
    metavar="N",
    help="Warn if more requests are waiting.",
)
@seconds("--max-age", least=0, help="Warn if a request has waited longer.")
@reaching(2.0, "Maximum time to wait for an answer; more than half of it is a warning.")
def health(as_json: bool, max_waiting: int | None, max_age: float | None, reach: EndpointReach) -> None:
    """Check the health of the queue: it answers, it accepts requests, and waiting requests are within the given limits.

    Slow or failing services and poisoned requests, which `titanic doctor` reports as problems, are named as well, but
    do not change the exit code: restarting the server would not help.

    Prints one line within two seconds and exits with a Nagios code: 0 healthy; 1 warning (slow answer, store full
    within a day at the current rate, a limit exceeded, a reader that prevents the reuse of much of the store, or
    servers with different access files); 2 critical (no answer, or the store or its disk is full); 3 unknown (usage
    error or another error).

    --json prints {status: "healthy", "warning", "critical" or "unknown", problems: [text], attention: [text], waiting,
    oldest}; attention lists findings that do not change the exit code; oldest is the age in seconds of the request
    that has waited longest, or null.

    \b
    Example:
      titanic health
      titanic health --max-waiting 10000 --max-age 600
    """
    found, noted = Observation(), list[str]()
    try:
        with connect_to_read(reach, retries=0) as client:
            found = observe(client)
            if found.took <= reach.timeout / 2:
                with suppress(TitanicError, broker.BrokerError):
                    noted += [f"{check}: {text}; {advice}" for check, text, advice in attention(client)]
        code, problems = judge(found, reach.timeout, max_waiting, max_age)
    except (TitanicError, broker.BrokerError) as error:
        dead = isinstance(error, (RequestError, broker.TimedOut, broker.RemoteError))
        code, problems = CRITICAL if dead else UNKNOWN, [str(error)]
    if as_json:
        asked = {"waiting": found.waiting, "oldest": found.oldest}
        print_json({"status": WORDS[code], "problems": problems, "attention": noted, **asked})
    else:
        text = "; ".join(problems)
        if not problems:
            since = "" if found.oldest is None else f", the oldest for {duration(found.oldest)}"
            text = f"{found.waiting} waiting{since}, {found.document['running']} running"
        click.echo(printable("; ".join([f"{WORDS[code]}: {text}", *(f"needs attention: {one}" for one in noted)])))
    sys.exit(code)


class Observation(NamedTuple):
    """What a server says of itself, and how many seconds its answer took; None: there is no answer."""

    document: Mapping[str, Any] = {}
    took: float = 0.0
    waiting: int | None = None
    oldest: float | None = None


def observe(client: Client) -> Observation:
    """Ask a server about itself."""
    began = time.monotonic()
    document = client.stats()
    took = time.monotonic() - began
    rows, after = client.list(state="waiting", limit=1)
    while not rows and after is not None:  # a page can be empty and yet not the last
        rows, after = client.list(state="waiting", limit=1, after=after)
    oldest = max(0.0, time.time() - rows[0]["submitted_at"] / 1e6) if rows else None
    return Observation(document, took, document["store"]["waiting"], oldest)


def attention(client: Client) -> Iterator[tuple[str, str, str]]:
    """Services that are slow or fail, and poisoned requests: what is checked, what was found, and what to do."""
    stats, recent, hour, now = client.stats(services=True), client.facts(RECENTLY), client.facts(), client.clock()
    times = run_times(client.facts(LATELY), recent, hour)
    slow = slow_services(stats, hour["services"], times, now)
    waiting = {name: stats["by_service"][name]["waiting"] for name in slow}
    for advice in dict.fromkeys(slow.values()):
        names = named([name for name in slow if slow[name] == advice], waiting)
        yield "speed", f"{SLOWER}: {names}", advice
    if slower := [f"{name} ({one.text})" for name, one in times.items() if one.is_slower]:
        yield "run times", f"longer than usual: {', '.join(slower[:MAX_NAMED])}", FIND_CAUSE
    if failing := [f"{name} ({outcomes(one)})" for name, one in recent["services"].items() if is_failing(one)]:
        yield "failures", f"lately: {', '.join(failing)}", "titanic ls --group-errors --since 1h"
    rows, _ = client.list(state="failed", text=POISON, newest=True, limit=MAX_NAMED)
    if poison := [f"{row['uuid']} of {row['service']}" for row in rows if row["reason"].startswith(POISON)]:
        yield "poison", f"killed their workers: {', '.join(poison)}", "titanic why UUID"


def named(names: list[str], waiting: Mapping[str, int], more: int = 0) -> str:
    """Some services, with how many of their requests wait. `more`: there are so many besides."""
    most = sorted(names, key=lambda name: -waiting[name])
    shown = ", ".join(f"{name} ({waiting[name]} waiting)" for name in most[:MAX_NAMED])
    more += max(0, len(most) - MAX_NAMED)
    return shown + (f", and {more} more" if more else "")


def _different_access(document: Mapping[str, Any]) -> str:
    """What to say of nodes that have not the same access file; empty: nothing."""
    rows = [row for row in (document.get("node"), *document.get("other_nodes", ())) if row and row.get("access")]
    if len({row["access"] for row in rows}) < 2:
        return ""
    each = sorted(f"{row['name']} has {row['access'][:8]}" for row in rows)
    return f"nodes have different access files: {', '.join(each)}; use the same on all, and reload"


def judge(found: Observation, timeout: float, max_waiting: int | None, max_age: float | None) -> tuple[int, list[str]]:
    """The exit code, and the problems."""
    waiting, oldest = found.waiting or 0, found.oldest
    full, warnings = [], []
    if found.document["disk_full"]:
        full.append("; ".join(disk_trouble(found.document["store"]["path"], found.document.get("disk_free", 0))))
    elif not found.document["accepting"]:
        full.append("the store is full")
    elif found.document.get("refuses_for_room"):
        full.append("the store refuses requests for lack of space")
    full_in = found.document.get("full_in")
    if not full and full_in is not None and full_in < WARN_FULL_IN:
        warnings.append(f"at the current rate the store will be full in about {duration(round(full_in / 360) * 360)}")
    for reader in found.document.get("readers", ()):
        store = found.document["store"]
        if reader["pinned"] > PINS_MUCH * store["capacity"] or is_url(store["path"]):  # there it slows down claims
            warnings.append(_reader(reader))
    if differ := _different_access(found.document):
        warnings.append(differ)
    if found.took > timeout / 2:
        warnings.append(f"slow: it took {duration(found.took)} to answer")
    if max_waiting is not None and waiting > max_waiting:
        warnings.append(f"{waiting} requests waiting, more than {max_waiting}")
    if max_age is not None and oldest is not None and oldest > max_age:
        warnings.append(f"the oldest request has waited {duration(oldest)}, longer than {duration(max_age)}")
    return CRITICAL if full else WARNING if warnings else OK, full + warnings
