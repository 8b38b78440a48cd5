"""`titanic ls` and `show`: looking at requests without touching them."""

from __future__ import annotations

from typing import Any

import click

from titanic import tsp
from titanic.cli.help import command
from titanic.cli.offline import Files, look, lookable
from titanic.cli.options import json_flag, option
from titanic.cli.options import uuid as uuid_type
from titanic.cli.output import age, as_text, duration, moment, print_json, print_table, size, until
from titanic.client import OWN_KEY
from titanic.text import counted, printable

STATES = ("waiting", "delayed", "running", "done", "failed", "expired")


@command()
@json_flag
@option(
    "--limit",
    envvar="TITANIC_LS_LIMIT",  # TITANIC_LIMIT is that of `titanic work`, in seconds
    type=click.IntRange(1),
    metavar="N",
    default=50,
    help="How many at most.",
)
@option("--state", type=click.Choice(STATES), default=None, help="Only requests in this state.")
@option("--service", metavar="SERVICE", default=None, help="Only requests for this service.")
@lookable
def ls(service: str | None, state: str | None, limit: int, as_json: bool, **where: Any) -> None:
    """List stored requests, oldest first.

    --json prints a list of what `titanic show --json` prints.

    \b
    Example:
      titanic ls --state failed --service mail
      titanic ls --store /var/lib/titanic
    """
    rows: list[dict[str, Any]] = []
    after: str | None = None
    with look(**where) as source:
        while len(rows) < limit:
            page, after = source.list(service=service, state=state, after=after, limit=min(1000, limit - len(rows)))
            rows += page
            if after is None:
                break
    if as_json:
        print_json(rows)
        return
    print_table(
        ("UUID", "SERVICE", "STATE", "AGE", "ATTEMPTS", "BODY", "REPLY"),
        [
            (
                row["uuid"],
                row["service"],
                row["state"],
                age(row["submitted_at"]),
                str(row["attempts"]),
                size(row["body_bytes"]),
                size(row["reply_bytes"]) if row["state"] in ("done", "failed") else "–",
            )
            for row in rows
        ],
        right=("AGE", "ATTEMPTS", "BODY", "REPLY"),
    )
    if after is not None:
        click.echo(f"({len(rows)} shown, there may be more: --limit)", err=True)


@command()
@click.argument("uuid", type=uuid_type, metavar="UUID")
@json_flag
@lookable
def show(uuid: str, as_json: bool, **where: Any) -> None:
    """All that is known of one request, its bodies aside.

    --json prints one object; times are microseconds since 1970, 0 for never. Its `reason` is why the request failed,
    the last time or for good, with what the worker said.

    \b
    Example:
      titanic show 01a1fdd40f82747ea223cfe554e7afbc
    """
    with look(**where) as source:
        row = source.show(uuid)
        if row["state"] == "failed":  # what the worker said at the last attempt is the reply
            said = source.last_words(uuid) if isinstance(source, Files) else source.call(tsp.REPLY, uuid)[1:]
            row["reason"] = as_text([row["reason"].encode(), *said])
    if as_json:
        print_json(row)
        return
    lines = [
        ("uuid", row["uuid"]),
        ("service", printable(row["service"])),
        ("state", row["state"]),
        ("submitted", f"{moment(row['submitted_at'])} ({age(row['submitted_at'])} ago)"),
        ("body", f"{counted(row['body_frames'], 'frame')}, {size(row['body_bytes'])}"),
        ("attempts", str(row["attempts"])),
    ]
    if row["key"] and not row["key"].startswith(OWN_KEY):
        lines.append(("key", printable(row["key"])))
    if row["priority"] != 4:
        lines.append(("priority", str(row["priority"])))
    if row["expires_at"] and row["state"] in ("waiting", "delayed", "running"):
        lines.append(("expires", f"{moment(row['expires_at'])} (in {until(row['expires_at'])})"))
    if row["dispatched_at"]:
        first = row["attempts"] <= 1
        waited = f" (waited {_span(row, 'submitted_at', 'dispatched_at')})" if first else ""
        lines.append(("last sent", moment(row["dispatched_at"]) + waited))
    if row["due"]:
        lines.append(
            ("tried again" if row["attempts"] else "not before", f"{moment(row['due'])} (in {until(row['due'])})")
        )
    if row["finished_at"]:
        ran = row["dispatched_at"] and row["state"] != "expired"
        span = _span(row, "dispatched_at" if ran else "submitted_at", "finished_at")
        lines.append(("ended", f"{moment(row['finished_at'])} ({'ran' if ran else 'waited'} {span})"))
    if row["state"] in ("done", "failed"):
        lines.append(("reply", f"{counted(row['reply_frames'], 'frame')}, {size(row['reply_bytes'])}"))
    if row["reason"]:
        lines.append(("last error", printable(row["reason"].strip())))
    for name, value in lines:
        first, *more = value.splitlines() or [""]
        click.echo(f"{name:<12} {first}")
        for line in more:
            click.echo(f"{'':<12} {line}")


def _span(row: dict[str, Any], since: str, until: str) -> str:
    """The time between two moments of a request; clocks can be set back meanwhile."""
    return duration(max(0.0, (row[until] - row[since]) / 1e6))
