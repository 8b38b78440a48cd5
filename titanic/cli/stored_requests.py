"""`titanic ls` and `show` print stored requests; `change`, `retry` and `purge` change, requeue or close them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from textwrap import wrap
from typing import Any, BinaryIO

import click

from titanic.cli.connect import connect
from titanic.cli.endpoint import EndpointReach
from titanic.cli.options import Decorator, command, endpoint, json_flag, no_key_file, option, read_time, seconds
from titanic.cli.options import uuid as uuid_type
from titanic.cli.printing import (
    Bar,
    age,
    as_text,
    json_frames,
    moment,
    print_body,
    print_json,
    print_json_list,
    print_long_table,
    print_table,
    say,
    size,
    until,
)
from titanic.cli.redrive import run_job, where_options
from titanic.cli.running import EXIT_FAILED, EXIT_UNKNOWN
from titanic.cli.store_files import Files, open_source, source_options
from titanic.client.batching import KEY_PREFIX
from titanic.client.client import Client
from titanic.client.flows import FlowTree, flow_tree
from titanic.errors import Forbidden, RequestFailed, TitanicError, UnknownRequest
from titanic.protocol.answers import BODY_GONE, lacks_body
from titanic.protocol.documents import SUBMITTER_FIELDS, FailureGroupInfo, JobConditions, RequestInfo
from titanic.protocol.submit_options import DEFAULT_PRIORITY
from titanic.protocol.tsp import FLOW_SUFFIX, Frames
from titanic.util import ids
from titanic.util.text import counted, duration, printable

FOUR_WEEKS = 28 * 86_400.0

PAGE = 1000
"""Requests on one page of the listing."""

STATES = ("waiting", "delayed", "running", "done", "failed", "expired")
PURGED = tuple(state for state in STATES if state != "running")


older_option = seconds(
    "--older-than",
    least=0,
    help="Minimum time since requests ended, as in 2h or 7d; for unfinished requests: since they were submitted.",
)
service_option = option("--service", metavar="SERVICE", help="Only requests for this service.")


@command()
@json_flag
@option(
    "--most",
    old=("--limit",),
    in_file="most",
    envvar=["TITANIC_MOST", "TITANIC_LS_LIMIT"],
    type=click.IntRange(1),
    metavar="N",
    default=50,
    help="Maximum number of requests to print.",
)
@option("--state", type=click.Choice(STATES), help="Only requests in this state.")
@service_option
@option(
    "--key",
    envvar="TITANIC_LS_KEY",  # TITANIC_KEY is that of the connection
    in_file="idempotency-key",
    metavar="KEY",
    callback=no_key_file,
    help="Only the request with this idempotency key.",
)
@option("--text", metavar="TEXT", help="Only requests with this text in their error or key, ignoring case.")
@option("--newest", is_flag=True, help="Newest first.")
@seconds("--since", least=0, help="Only requests submitted within this time, as in 2h or 7d.")
@option("--group-errors", is_flag=True, help="List failures, grouped by error.")
@source_options(unlisted=())
def ls(
    service: str | None,
    state: str | None,
    key: str | None,
    text: str | None,
    newest: bool,
    since: float | None,
    group_errors: bool,
    most: int,
    as_json: bool,
    **where: Any,
) -> None:
    """List stored requests, oldest first.

    A running request is being processed, or is queued in the broker for the next free worker.

    --group-errors lists failures of the last four weeks, or since --since, including those of closed requests. Errors
    that differ only in numbers, ids, paths and quoted texts form one group. RETRIED counts attempts that were followed
    by another. --group-errors needs a server, and read = "all".

    --json prints a list of objects like that of `titanic show --json`; with --group-errors, a list of {service, state,
    text, example, sample (a UUID), first, last, failed, retried, hours: [[hour, failures]]}, with times in
    microseconds since 1970.

    \b
    Example:
      titanic ls --state failed --service mail
      titanic ls --text "connection refused" --since 2h --newest
      titanic ls --group-errors --since 1d
      titanic ls --store /var/lib/titanic/store
    """
    if group_errors:
        with open_source(**where) as source:
            groups = _groups(source, service, FOUR_WEEKS if since is None else since)
        groups = [
            one for one in groups if state in (None, one["state"]) and (text or "").casefold() in one["text"].casefold()
        ][:most]
        if as_json:
            print_json(groups)
            return
        titles = ("SERVICE", "FAILED", "RETRIED", "FIRST", "LAST", "ERROR", "SAMPLE")
        print_table(titles, list(map(_group, groups)), right=titles[1:5])
        return
    shown = 0
    after: str | None = None
    wanted: dict[str, Any] = {"service": service, "state": state, "text": text} | ({"newest": True} if newest else {})

    def pages(source: Client | Files) -> Iterator[list[RequestInfo]]:
        nonlocal shown, after
        least = 0 if since is None else int((source.clock() - since) * 1e6)
        if least and not newest:
            after = ids.before(least).hex()
        while shown < most:
            if key is None:
                page, after = source.list(**wanted, after=after, limit=min(PAGE, most - shown))
            else:
                page, after = _with_key(source, key, wanted), None
            found = [row for row in page if row["submitted_at"] >= least]
            shown += len(found)
            yield found
            is_last = newest and page and not ids.may_be_after(bytes.fromhex(page[-1]["uuid"]), least)
            if after is None or is_last:
                after = None
                return

    with open_source(**where) as source:
        if as_json:
            print_json_list(_document(row) for page in pages(source) for row in page)
            return
        columns = ("UUID", "SERVICE", "STATE", "AGE", "ATTEMPTS", "BODY", "REPLY")
        parts = (list(map(_row, page)) for page in pages(source))
        print_long_table(columns, parts, right=("AGE", "ATTEMPTS", "BODY", "REPLY"))
    if after is not None:
        click.echo(f"({shown} shown; there may be more: raise --most)", err=True)


def _groups(source: Client | Files, service: str | None, since: float) -> list[FailureGroupInfo]:
    if isinstance(source, Files):
        raise click.UsageError("--group-errors needs a server; leave out --offline and --store")
    found = source.facts(max(since, 1.0), of=[service] if service else [], failures=True).get("failures")
    if found is None:
        raise Forbidden('you may not read errors of other users; this requires read = "all"')
    return found


def _group(group: FailureGroupInfo) -> tuple[str, ...]:
    times = age(group["first"]), age(group["last"])
    counts = str(group["failed"]), str(group["retried"])
    return group["service"] or "(others)", *counts, *times, group["text"], group["sample"]


def _with_key(source: Client | Files, key: str, wanted: Mapping[str, Any]) -> list[RequestInfo]:
    """The request with a key, if it is stored and as `wanted`."""
    uuids, states = source.find([key])
    if uuids.get(key) not in states:
        return []  # it is closed, or unknown
    row = source.show(uuids[key])
    is_wanted = all(wanted[name] in (None, row[name]) for name in ("service", "state"))
    text = (wanted["text"] or "").casefold()
    return [row] if is_wanted and (text in row["reason"].casefold() or text in row["key"].casefold()) else []


def _row(row: RequestInfo) -> tuple[str, ...]:
    return (
        row["uuid"],
        row["service"],
        _state(row),
        age(row["submitted_at"]),
        str(row["attempts"]),
        size(row["body_bytes"]),
        size(row["reply_bytes"]) if row["state"] in ("done", "failed") else "–",
    )


def _state(row: RequestInfo) -> str:
    """Its state and, while it runs, its progress if the worker reports it."""
    if (far := row.get("progress")) is None:
        return "paused" if row.get("paused") else row["state"]
    return f"{row['state']} {100 * far['done'] / far['of']:.0f}%" if far["of"] else f"{row['state']} {far['done']:g}"


@command()
@click.argument("uuid", type=uuid_type, metavar="UUID")
@json_flag
@option("--body", is_flag=True, help="Print its body, byte for byte; on a terminal, JSON is indented.")
@source_options()
def show(uuid: str, body: bool, as_json: bool, **where: Any) -> None:
    """Show one request in full, except its body and reply; for a flow, its steps as a tree.

    --json prints one object. Values that are not set, or left to the server's defaults, are null; keys marked "absent"
    are left out when they do not apply. Times are microseconds since 1970.

    \b
    uuid, service
    SUBMITTER_HELP
    state                    waiting, delayed, running, done, failed, expired
    paused                   true while it waits or is delayed and its service
                             is paused; absent
    key, priority, max_attempts, expires_at, not_before
                             as submitted
    options                  {limit, retry_first, retry_most, keep,
                             keep_failed, keep_body, unique_for} that were
                             given, in seconds
    submitted_at, finished_at
    trace, tracestate, type, digest,
    on_failed, on_limit, keep_body, unique, unique_until
                             as submitted; absent if not given
    body_frames, body_bytes, reply_frames, reply_bytes
    progress                 {done, of, text} of a running request, if its
                             worker reports progress; of: null if unknown
    attempts, dispatched_at  number of attempts, and time of the last one
    deliveries               number of deliveries to workers, if known to be
                             more than attempts; absent
    running_since, worker    while a worker of this server runs it: start
                             time, and HOST:PID if known; absent otherwise,
                             and always with a separate broker
    due                      time of the next attempt, if it is delayed
    reason                   why the last attempt or the request failed,
                             with the error reported by the worker
    history                  the attempts that failed: {counts: {failed, died,
                             lost}, deaths, attempts: [{delivery, outcome,
                             started_at, ended_at, worker, host, pid, version,
                             user, error}] (the first and the last four)};
                             absent if none failed. Unknown worker fields
                             are empty (all, with a separate broker). `lost`
                             (the worker died or left while it had other
                             requests) does not count as an attempt.
                             `replaced`: the first and the last body replaced
                             by a retry: [{replaced_at, bytes, frames, base64}]
    flow                     {steps: [{at, uuid, service, state, closed, took,
                             flow}], more: {state: count}} if it is a flow;
                             closed: the last state of a closed step
    closed_steps             [{uuid, service, state, took}] of a flow
    body                     with --body: its frames; what is not UTF-8 is
                             {base64}

    \b
    Example:
      titanic show 01a1fdd40f82747ea223cfe554e7afbc
      titanic show --body 01a1fdd40f82747ea223cfe554e7afbc
    """
    with open_source(**where) as source:
        row, frames = source.show(uuid), list[bytes]()
        if body:
            frames = source.body(uuid) if isinstance(source, Files) else source.look(uuid, None).body
            if not frames and not as_json:
                raise TitanicError(f"request {uuid} has no body", BODY_GONE)
            if not as_json:
                print_body(_indented(frames) if sys.stdout.isatty() else frames)
                return
        if row["state"] == "failed":  # what the worker sent at the last attempt is the reply
            said = source.last_words(uuid) if isinstance(source, Files) else _last_words(source, uuid)
            row["reason"] = as_text([row["reason"].encode(), *said])
        steps = (
            flow_tree(source, uuid, row.get("closed_steps", ()))
            if isinstance(source, Client) and row["service"].endswith(FLOW_SUFFIX)
            else None
        )
    if as_json:
        extra: dict[str, Any] = {"flow": steps} if steps else {}
        print_json(_document(row) | extra | ({"body": json_frames(frames)} if body else {}))
        return
    shown = [*_lines(row), *_history(row)]
    if steps and steps["steps"]:
        shown.append(("steps", "\n".join(_steps(steps))))
    for name, value in shown:
        head, *more = value.splitlines() or [""]
        click.echo(f"{name:<12} {head}")
        for line in more:
            click.echo(f"{'':<12} {line}")


_SUBMITTER_HELP = [
    line
    for name, text in SUBMITTER_FIELDS.items()
    for line in wrap(text, 78, initial_indent=f"{name:<25}", subsequent_indent=" " * 25)
]
show.help = (show.help or "").replace("SUBMITTER_HELP", "\n    ".join(_SUBMITTER_HELP))


@command()
@click.argument("uuid", type=uuid_type, metavar="UUID")
@json_flag
@source_options()
def why(uuid: str, as_json: bool, **where: Any) -> None:
    """Explain why a request is in its state, and what to do about it.

    UUIDs of other requests, and names of users and of workers that left, are shown only to users who may read them.
    Without a server (--store), only the store's files are used.

    --json prints {uuid, service, state, kind, text, next, and numbers that apply: until, seconds, ahead, workers,
    running, limit, requests}; `until` is in microseconds since 1970. `kind` is one of: no-worker, busy, behind (others
    start before it), limit, rate, paused, delayed, retry (after a failed attempt), running, return (its worker is
    awaited), lease (its node does not respond), storing, store (which cannot take the outcome), refused (by the
    broker), draining (this server), no-server, done, failed, poison, expired, cancelled.

    \b
    Example:
      titanic why 01a1fdd40f82747ea223cfe554e7afbc
    """
    with open_source(**where) as source:
        row = source.show(uuid, why=True)
    if (reason := row.get("why")) is None:
        what = "the server cannot explain the request's state"
        raise TitanicError(what, "it runs an older version", f"try titanic show {uuid}")
    if as_json:
        print_json({name: row[name] for name in ("uuid", "service", "state")} | reason)
        return
    state = row["state"] + (" (paused)" if row.get("paused") else "")
    click.echo(printable(f"{state}: {reason['text']}"))
    if reason["next"]:
        click.echo(printable(f"next: {reason['next']}"))


def _indented(frames: Frames) -> Frames:
    """The frames, with JSON objects and lists indented."""
    found = []
    for frame in frames:
        with suppress(ValueError, RecursionError):
            if isinstance(document := json.loads(frame), (dict, list)):
                frame = json.dumps(document, indent=2, ensure_ascii=False).encode()
        found.append(frame)
    return found


def _lines(row: RequestInfo) -> Iterator[tuple[str, str]]:
    """Names and values to show for a request. What is not set, or has its default, is left out."""
    yield "uuid", row["uuid"]
    yield "service", printable(row["service"])
    for name in SUBMITTER_FIELDS:
        if value := row.get(name):
            yield name, printable(str(value))
    yield "state", row["state"] + ("; its service is paused" if row.get("paused") else "")
    if far := row.get("progress"):
        of = f" of {far['of']:g}" if far["of"] is not None else ""
        yield "progress", f"{far['done']:g}{of}" + (f", {printable(far['text'])}" if far["text"] else "")
    if since := row.get("running_since"):
        worker = f", at {printable(row['worker'])}" if "worker" in row else ""
        yield "running", f"since {moment(since)}{worker}"
    yield "submitted", f"{moment(row['submitted_at'])} ({age(row['submitted_at'])} ago)"
    yield "body", f"{counted(row['body_frames'], 'frame')}, {size(row['body_bytes'])}"
    yield "attempts", str(row["attempts"])
    if deliveries := row.get("deliveries"):
        yield "deliveries", f"{deliveries} before this one" if row["state"] == "running" else str(deliveries)
    if row["key"] and not row["key"].startswith(KEY_PREFIX):
        yield "key", printable(row["key"])
    if row["priority"] != DEFAULT_PRIORITY:
        yield "priority", str(row["priority"])
    if kind := row.get("type"):
        yield "type", printable(kind)
    if digest := row.get("digest"):
        yield "digest", digest
    if unique := row.get("unique"):
        until = row.get("unique_until", "done")
        yield "unique", printable(unique) + ("" if "unique_for" in row["options"] else f" (until {until})")
    if target := row.get("on_failed"):
        yield "on failed", printable(target)
    for name in ("on_limit", "keep_body", "trace", "tracestate"):
        if choice := row.get(name):
            yield name.replace("_", " "), str(choice)
    for name, value in row["options"].items():
        yield name.replace("_", " "), duration(value)
    if row["max_attempts"]:
        yield "max attempts", str(row["max_attempts"])
    if row["not_before"]:
        yield "not before", moment(row["not_before"]) + _ahead(row["not_before"])
    if row["expires_at"]:
        yield "expires", moment(row["expires_at"]) + _ahead(row["expires_at"])
    if row["dispatched_at"]:
        first = row["attempts"] <= 1
        waited = f" (waited {_span(row, 'submitted_at', 'dispatched_at')})" if first else ""
        yield "last sent", moment(row["dispatched_at"]) + waited
    if row["due"] and row["due"] != row["not_before"]:
        yield "next attempt", moment(row["due"]) + _ahead(row["due"])
    if row["finished_at"]:
        ran = row["dispatched_at"] and row["state"] != "expired"
        span = _span(row, "dispatched_at" if ran else "submitted_at", "finished_at")
        yield "ended", f"{moment(row['finished_at'])} ({'ran' if ran else 'waited'} {span})"
    if row["state"] in ("done", "failed"):
        yield "reply", f"{counted(row['reply_frames'], 'frame')}, {size(row['reply_bytes'])}"
    if row["reason"]:
        yield "reason" if row["state"] == "expired" else "last error", printable(row["reason"].strip())


def _history(row: RequestInfo) -> Iterator[tuple[str, str]]:
    """The attempts that failed, if there were several; other lines describe a single one."""
    history = row.get("history")
    for old in history.get("replaced", ()) if history is not None else ():
        text = "not UTF-8, see --json" if old["base64"] else "".join(old["frames"])
        yield "old body", f"{size(old['bytes'])}, replaced at {moment(old['replaced_at'])}\n{printable(text)}"
    if history is None or (total := sum(history["counts"].values())) < 2:
        return
    yield "history", ", ".join(f"{count} {outcome}" for outcome, count in history["counts"].items())
    for number, one in enumerate(history["attempts"]):
        if number == 1 and (omitted := total - len(history["attempts"])):
            yield "", f"({counted(omitted, 'attempt')} not kept)"
        user = f" ({printable(one['user'])})" if one["user"] else ""
        version = f", Titanic {printable(one['version'])}" if one["version"] else ""
        at = f", at {printable(one['worker'])}{user}{version}" if one["worker"] else ""
        took = duration(max(0, one["ended_at"] - one["started_at"]) / 1e6)
        head = f"{one['outcome']} at {moment(one['ended_at'])} after {took}{at}"
        yield f"delivery {one['delivery']}", f"{head}\n{printable(one['error'].strip())}"


def _steps(tree: FlowTree, indent: str = "") -> Iterator[str]:
    """The steps of a flow; those of flows within it are indented."""
    for step in tree["steps"]:
        what = f"{indent}{step['at']:<5} {printable(step['service']) or '–'}"
        yield f"{what:<40} {step['state'] or step['closed'] or 'closed':<8} {step['uuid']}"
        if step["flow"] is not None:
            yield from _steps(step["flow"], indent + "  ")
    if tree["more"]:
        yield indent + "and " + ", ".join(f"{count} {state}" for state, count in sorted(tree["more"].items()))


def _last_words(client: Client, uuid: str) -> Frames:
    """What a worker sent when a request failed for good."""
    try:
        client.reply(uuid)
    except RequestFailed as error:
        return error.detail
    return []  # it was requeued meanwhile


def _document(row: RequestInfo) -> dict[str, Any]:
    """A request as JSON for programs: without a generated key, and with null for what is not set."""
    absent = ("not_before", "expires_at", "max_attempts", "due", "dispatched_at", "finished_at", "reason", "key")
    document: dict[str, Any] = {**row}
    document |= {name: document[name] or None for name in absent}
    return document | ({"key": None} if row["key"].startswith(KEY_PREFIX) else {})


def _ahead(microseconds: int) -> str:
    return f" (in {until(microseconds)})" if microseconds > time.time() * 1e6 else ""


def _span(row: Mapping[str, Any], since: str, until: str) -> str:
    """The time between two moments of a request; clocks can be set back meanwhile."""
    return duration(max(0.0, (row[until] - row[since]) / 1e6))


def body_option(help: str) -> Decorator:
    """Add --body, a file for each frame."""
    return option("--body", type=click.File("rb"), multiple=True, metavar="FILE", help=help)


@command()
@click.argument("uuid", type=uuid_type, metavar="[UUID]...", nargs=-1)
@older_option
@service_option
@option("--all", "everything", is_flag=True, help="All requests that failed or expired.")
@body_option("Retry one request with this body instead; - for standard input. Repeatable: one frame per file.")
@where_options
@json_flag
@endpoint
def retry(
    uuid: tuple[str, ...],
    everything: bool,
    service: str | None,
    older_than: float | None,
    body: tuple[BinaryIO, ...],
    where: JobConditions,
    dry_run: bool,
    yes: bool,
    rate: float | None,
    as_json: bool,
    reach: EndpointReach,
) -> None:
    """Requeue requests that failed or expired, as if they had never been tried. Prints how many.

    A request that expired during its --delay still waits for the end of the delay.

    Give UUIDs, or select requests by --service, --older-than or --all. If none of the UUIDs can be requeued, the
    command reports why, and exits with 4 if all are unknown, else with 1.

    With --where, a job in the server counts the requests that match every condition; once you have confirmed, it
    retries those that still match, at most --rate a second; see `titanic redrive`. `error` is a group's text
    from `titanic ls --group-errors`, or any error in that group; `text` a part of the error or key; `body` a part of
    the body; `since` and `until` are times of submission, as in 2h or 2026-12-01T08:00+01:00; `older-than` as
    --older-than.

    --body replaces the body of one request, which must be your own unless you have `admin`. `titanic show` shows the
    first 16 KiB of the first and of the last body that was replaced.

    --json prints {retried}; with --where the job, as `titanic redrive` prints it.

    \b
    Example:
      titanic retry 01a1fdd40f82747ea223cfe554e7afbc
      titanic retry --service mail
      titanic retry --where service=mail --where error="connection refused" --rate 50/s --yes
    """
    if where:
        if uuid or everything or service is not None or older_than is not None or body:
            raise click.UsageError("--where cannot be combined with UUIDs, --service, --older-than, --all or --body")
        run_job(reach, "retry", where, rate, dry_run, yes, as_json)
        return
    if dry_run or yes or rate is not None:
        raise click.UsageError("--dry-run, --yes and --rate need --where")
    chosen = everything or service is not None or older_than is not None
    if body and len(uuid) != 1:
        raise click.UsageError("--body is for one request: give one UUID")
    if bool(uuid) == chosen:
        raise click.UsageError("give either UUIDs, or --service, --older-than or --all")
    with connect(reach) as client:
        if chosen:
            with Bar("requeued") as bar:
                done = client.retry_all(service=service, older_than=older_than, tell=bar.count)
        else:
            done = client.retry(*uuid, body=[file.read() for file in body] or None)
        if as_json:
            print_json({"retried": done})
        else:
            click.echo(f"{counted(done, 'request')} requeued")
        if uuid and not done:
            _explain(client, uuid)


@command()
@click.argument("uuid", type=uuid_type, metavar="UUID")
@option("--priority", type=click.IntRange(0, 9), metavar="N", help="0 to 9; 9 is dispatched first.")
@seconds("--delay", least=0, help="Do not execute the request before this time has passed.")
@option("--at", metavar="TIME", callback=read_time, help="Do not execute it before this time.")
@option("--now", is_flag=True, help="Execute it as soon as a worker is free.")
@body_option("Replace the body with this file; - for standard input. Repeatable: one frame per file.")
@endpoint
def change(
    uuid: str,
    priority: int | None,
    delay: float | None,
    at: datetime | None,
    now: bool,
    body: tuple[BinaryIO, ...],
    reach: EndpointReach,
) -> None:
    """Change the priority or body of a request, or when it may start. A request that is running or has ended is not
    changed.

    Exits with 4 when the UUID is unknown, with 1 when the request cannot be changed.

    \b
    Example:
      titanic change 01a1fdd40f82747ea223cfe554e7afbc --priority 9 --now
      titanic change 01a1fdd40f82747ea223cfe554e7afbc --at 2026-12-01T08:00+01:00
    """
    if (delay is not None) + (at is not None) + now > 1:
        raise click.UsageError("--delay, --at and --now cannot be combined")
    if now:
        delay = 0.0
    if priority is None and delay is None and at is None and not body:
        raise click.UsageError("give --priority, --delay, --at, --now or --body")
    frames = [file.read() for file in body] or None
    with connect(reach) as client:
        client.change(uuid, priority=priority, delay=delay, at=at, body=frames)


def _explain(client: Client, uuids: tuple[str, ...]) -> None:
    """Say why none of these was requeued, and exit."""
    for uuid in uuids:
        try:
            row = client.show(uuid)
        except UnknownRequest as error:
            unknown = error
            continue
        if lacks_body(row):
            say(f"{uuid} cannot be requeued without a new body (--body): {BODY_GONE}")
        else:
            say(f"{uuid} is {row['state']}; only failed and expired requests can be requeued")
        sys.exit(EXIT_FAILED)
    say(unknown)
    sys.exit(EXIT_UNKNOWN)


@command()
@older_option
@service_option
@option("--state", type=click.Choice(PURGED), required=True, help="State of the requests.")
@option("--all", "everything", is_flag=True, help="All requests in that state, of any service and age.")
@json_flag
@endpoint
def purge(
    state: str, everything: bool, service: str | None, older_than: float | None, as_json: bool, reach: EndpointReach
) -> None:
    """Close all requests in a given state, as `titanic close` does. Prints how many.

    Select by --service and --older-than, or give --all.

    --json prints {closed}.

    \b
    Example:
      titanic purge --state done --older-than 1d
      titanic purge --state failed --service mail
    """
    if not everything and service is None and older_than is None:
        raise click.UsageError("give --service, --older-than or --all; purged requests are deleted")
    with connect(reach) as client, Bar("closed") as bar:
        done = client.purge(state, service=service, older_than=older_than, tell=bar.count)
    if as_json:
        print_json({"closed": done})
    else:
        click.echo(f"{done} closed")
