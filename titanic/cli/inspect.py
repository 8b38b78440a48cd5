"""`titanic status`, `ls` and `show`: looking without touching."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from titanic.cli.options import endpoint, json_flag, option
from titanic.cli.options import uuid as uuid_type
from titanic.cli.output import age, duration, moment, print_json, print_table, size
from titanic.client import Client

STATES = ("waiting", "delayed", "running", "done", "failed")


@click.command()
@json_flag
@endpoint
def status(as_json: bool, endpoint: str, timeout: float, mdp: str) -> None:
    """What is stored, what waits for whom, how many workers are there."""
    with Client(endpoint, timeout=timeout, version=mdp) as client:
        document = client.stats()
        document["workers"] = _workers(client)
    if as_json:
        print_json(document)
        return
    store, done = document["store"], document["since_start"]
    click.echo(
        f"store {store['path']}: {store['requests']} requests"
        f" ({store['waiting']} waiting, {store['delayed']} delayed, {store['replies']} ended),"
        f" {size(store['used'])} of {size(store['capacity'])} used"
    )
    click.echo(
        f"running {document['running']}; since the start {done['accepted']} accepted, {done['refused']} refused,"
        f" {document['dispatch']['succeeded']} succeeded, {document['dispatch']['failed']} failed,"
        f" {done['closed']} closed"
    )
    workers = document["workers"] or {}
    names = sorted({*document["services"], *workers})
    if names:
        click.echo()
        rows = [
            (name, str(document["services"].get(name, 0)), str(workers.get(name, 0)) if workers is not None else "?")
            for name in names
            if not name.startswith("titanic.")
        ]
        print_table(("SERVICE", "WAITING", "WORKERS"), rows, right=("WAITING", "WORKERS"))


def _workers(client: Client) -> dict[str, int] | None:
    """Workers per service; None when the broker does not tell."""
    try:
        document: dict[str, int] = json.loads(client.call("mmi.workers")[0])
    except (ValueError, IndexError):
        return None
    return document if isinstance(document, dict) else None


@click.command()
@option("--service", default=None, help="Only requests for this service.")
@option("--state", type=click.Choice(STATES), default=None, help="Only requests in this state.")
@option("--limit", type=click.IntRange(1), default=50, help="How many at most.")
@json_flag
@endpoint
def ls(
    service: str | None, state: str | None, limit: int, as_json: bool, endpoint: str, timeout: float, mdp: str
) -> None:
    """List stored requests, oldest first."""
    rows: list[dict[str, Any]] = []
    after: str | None = None
    with Client(endpoint, timeout=timeout, version=mdp) as client:
        while len(rows) < limit:
            page, after = client.list(service=service, state=state, after=after, limit=min(1000, limit - len(rows)))
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
        click.echo(f"({limit} shown, there are more: --limit)", err=True)


@click.command()
@click.argument("uuid", type=uuid_type, metavar="UUID")
@json_flag
@endpoint
def show(uuid: str, as_json: bool, endpoint: str, timeout: float, mdp: str) -> None:
    """All that is known of one request, its bodies aside."""
    with Client(endpoint, timeout=timeout, version=mdp) as client:
        row = client.show(uuid)
    if as_json:
        print_json(row)
        return
    lines = [
        ("uuid", row["uuid"]),
        ("service", row["service"]),
        ("state", row["state"]),
        ("submitted", f"{moment(row['submitted_at'])} ({age(row['submitted_at'])} ago)"),
        ("body", f"{row['body_frames']} frame(s), {size(row['body_bytes'])}"),
        ("attempts", str(row["attempts"])),
    ]
    if row["dispatched_at"]:
        lines.append(("last sent", moment(row["dispatched_at"])))
    if row["due"]:
        lines.append(("tried again", f"{moment(row['due'])} (in {duration(-_since(row['due']))})"))
    if row["finished_at"]:
        took = (row["finished_at"] - row["dispatched_at"]) / 1e6
        lines.append(("ended", f"{moment(row['finished_at'])} (took {duration(took)})"))
    if row["state"] in ("done", "failed"):
        lines.append(("reply", f"{row['reply_frames']} frame(s), {size(row['reply_bytes'])}"))
    if row["reason"]:
        lines.append(("last error", row["reason"].strip()))
    for name, value in lines:
        first, *more = value.splitlines() or [""]
        click.echo(f"{name:<12} {first}")
        for line in more:
            click.echo(f"{'':<12} {line}")


def _since(microseconds: int) -> float:
    return time.time() - microseconds / 1e6
