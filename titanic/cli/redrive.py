"""`retry --where`, `close --where` and `titanic redrive`: jobs in the server over all requests that match."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, cast

import click

from titanic.cli.connect import connect
from titanic.cli.endpoint import EndpointReach
from titanic.cli.options import Duration, command, endpoint, json_flag, option, read_time, together
from titanic.cli.options import uuid as uuid_type
from titanic.cli.printing import Bar, moment, print_json, print_table, say
from titanic.cli.running import EXIT_FAILED
from titanic.client.client import Client
from titanic.protocol.documents import JobConditions, RedriveInfo
from titanic.util.text import counted, printable

CONDITIONS = ("service", "owner", "state", "error", "key", "text", "body", "since", "until", "older-than")
TIMES = ("since", "until")

POLL_INTERVAL = 0.2
"""Seconds between polls of a job."""

ENDED = ("done", "cancelled", "stopped")
DONE = {"retry": "requeued", "close": "closed"}


def _conditions(context: click.Context, parameter: click.Parameter, given: Sequence[str]) -> JobConditions:
    """The callback of --where."""
    found: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in CONDITIONS or not value or name in found:
            raise click.UsageError(f"--where is {text!r}; it must be NAME=VALUE, NAME one of {', '.join(CONDITIONS)}")
        if name in TIMES and {"T", "-"} & {*value}:
            found[name] = cast(datetime, read_time(context, parameter, value)).timestamp()
        elif name in (*TIMES, "older-than"):
            seconds = Duration(least=0).convert(value, parameter, context)
            found[name.replace("-", "_")] = time.time() - seconds if name in TIMES else seconds
        else:
            found[name] = value
    return cast(JobConditions, found)


def _rate(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """The callback of --rate."""
    try:
        return None if text is None else float(text.removesuffix("/s"))
    except ValueError:
        raise click.UsageError(f"--rate is {text!r}; it must be a number of requests a second, as in 50/s") from None


where_options = together(
    option(
        "--where",
        multiple=True,
        callback=_conditions,
        metavar="NAME=VALUE",
        help=f"Select requests that meet all conditions: {', '.join(CONDITIONS)}.",
    ),
    option("--dry-run", is_flag=True, help="With --where: only count the requests."),
    option("--yes", is_flag=True, help="With --where: do not ask for confirmation."),
    option("--rate", callback=_rate, metavar="N", help="With --where: requests a second at most, as in 50/s."),
)


def run_job(
    reach: EndpointReach,
    action: Literal["retry", "close"],
    where: JobConditions,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Start a job, have its number confirmed, and follow it until it ends."""
    with connect(reach) as client:
        job = _follow(client, client.redrive(action, rate=rate, **where), ("counted", *ENDED), "counting")
        if job["state"] == "counted":
            asked = not dry_run and (yes or _confirm(job))
            job = client.change_redrive(job["id"], "confirm" if asked else "cancel", job["counted"])
            job = _follow(client, job, ENDED, DONE[action])
    if as_json:
        print_json(job)
    elif dry_run and job["state"] != "stopped":
        click.echo(f"{counted(job['counted'], 'request')} would be {DONE[action]}")
    else:
        click.echo(f"{counted(job['done'], 'request')} {DONE[action]}")
        if job["changed"]:
            click.echo(f"{counted(job['changed'], 'request')} did not match any more, and stayed unchanged")
    if job["state"] == "stopped" or (job["state"] == "cancelled" and not dry_run):
        say(f"job {job['id']} is {job['state']}{job['reason'] and ': '}{job['reason']}")
        sys.exit(EXIT_FAILED)


def _confirm(job: RedriveInfo) -> bool:
    """Ask for a confirmation. Closing is final, so its number must be typed."""
    number = str(job["counted"])
    if job["action"] == "retry":
        return click.confirm(f"Requeue {counted(job['counted'], 'request')}?", err=True)
    text = f"This deletes {counted(job['counted'], 'request')} with their replies. Type {number} to confirm"
    return str(click.prompt(text, default="", show_default=False, err=True)).strip() == number


def _follow(client: Client, job: RedriveInfo, states: Sequence[str], what: str) -> RedriveInfo:
    with Bar(what) as bar:
        while job["state"] not in states:
            going = job["state"] != "counting"
            bar.count(job["done"] + job["changed"] if going else job["counted"], job["counted"] if going else 0)
            time.sleep(POLL_INTERVAL)
            (job,) = client.redrives(job["id"])
    return job


@command()
@click.argument("job", type=uuid_type, required=False)
@click.argument("change", type=click.Choice(["pause", "resume", "cancel"]), required=False)
@json_flag
@endpoint
def redrive(job: str | None, change: Any, as_json: bool, reach: EndpointReach) -> None:
    """List the jobs that `titanic retry --where`, `titanic close --where` and the console have started, newest first;
    or pause, resume or cancel one.

    A job runs in the server: it survives restarts, and goes on when the command that started it ends. It ends early
    when its user is removed or loses the permission. What it has done stays done.

    --json prints a list of {id, action, where, rate, user, state, counted, done, changed, started_at, ended_at,
    reason}. Times are microseconds since 1970.

    \b
    Example:
      titanic redrive
    """
    with connect(reach) as client:
        jobs = [client.change_redrive(job, change)] if job is not None and change else client.redrives(job)
    if as_json:
        print_json(jobs)
        return
    titles = ("JOB", "ACTION", "STATE", "COUNTED", "DONE", "CHANGED", "RATE", "STARTED", "USER", "WHERE")
    print_table(titles, map(_row, jobs), right=titles[3:7])


def _row(job: RedriveInfo) -> tuple[str, ...]:
    state = f"{job['state']}: {job['reason']}" if job["reason"] else job["state"]
    numbers = str(job["counted"]), str(job["done"]), str(job["changed"])
    rate = f"{job['rate']:g}/s" if job["rate"] else "–"
    where = " ".join(f"{name.replace('_', '-')}={value}" for name, value in job["where"].items())
    row = job["id"], job["action"], state, *numbers, rate, moment(job["started_at"]), job["user"], where
    return tuple(map(printable, row))
