"""`titanic audit`: who acted on requests of others, services and nodes, and what was refused."""

from __future__ import annotations

import time

import click

from titanic.cli.connect import connect_to_read
from titanic.cli.endpoint import EndpointReach
from titanic.cli.options import command, endpoint, json_flag, option, seconds
from titanic.cli.printing import moment, print_json, print_table
from titanic.util.text import printable

MOST = 1000
"""Rows in one answer."""


@command()
@json_flag
@option("--user", metavar="NAME", help="Only acts or refusals of this user.")
@option("--act", metavar="TEXT", help="Only this act, such as close, retry, purge, pause, read or access.")
@option("--address", metavar="TEXT", help="Only from this IP address.")
@seconds("--since", least=0, help="Only entries within this time, as in 2h or 7d.")
@option("--refusals", is_flag=True, help="Refused log-ins and missing permissions, by address and minute.")
@option("--most", type=click.IntRange(1, MOST), metavar="N", default=50, help="Maximum number of rows to print.")
@endpoint
def audit(
    user: str | None,
    act: str | None,
    address: str | None,
    since: float | None,
    refusals: bool,
    most: int,
    as_json: bool,
    reach: EndpointReach,
) -> None:
    """List who closed, retried, changed, read or purged requests of others, paused services or changed their settings,
    or drained nodes, and when the server's access file or settings were reloaded; the newest first.

    Requests that a user submits, reads, closes or retries as their owner are not listed, nor are log-ins with keys or
    deliveries to workers. After a user's first 60 reads of others' requests in a minute, one row stands for all further
    reads. An act on several requests has one row, with the UUID of the first; there is no search by UUID.

    With access control, requires audit = true. Without access control, users are anonymous, and the only closes listed
    are kills and those in the web console. Who edited a file is unknown: the row names the server's system user.

    --json prints {acts: [{at, act, user, way, address, service, uuid, count, text}], refusals: [{at, address, count,
    user, action}], next}. `way` is http, page, mdp or offline; `uuid` the first of `count` requests. Times are
    microseconds since 1970.

    \b
    Example:
      titanic audit --since 2h
      titanic audit --refusals
    """
    with connect_to_read(reach) as client:
        begin = None if since is None else max(0.0, time.time() - since)
        page = client.audit(refusals=refusals, user=user, act=act, address=address, since=begin, limit=most)
    if as_json:
        print_json(page)
        return
    if refusals:
        rows = [
            (moment(one["at"]), one["address"], str(one["count"]), one["user"], one["action"])
            for one in page["refusals"]
        ]
        print_table(("MINUTE", "ADDRESS", "COUNT", "USER", "ACTION"), [tuple(map(printable, row)) for row in rows])
        return
    acts = [
        (
            moment(one["at"]),
            one["user"] or "anonymous",
            one["act"],
            str(one["count"] or ""),
            one["service"],
            one["uuid"],
            " ".join(filter(None, (one["way"], one["address"]))),
            one["text"],
        )
        for one in page["acts"]
    ]
    header = ("TIME", "USER", "ACT", "COUNT", "SERVICE", "REQUEST", "FROM", "DETAILS")
    print_table(header, [tuple(map(printable, row)) for row in acts])
