"""`titanic retry` and `purge`: requeue requests that failed or expired, close many at once."""

from __future__ import annotations

import sys
from functools import partial

import click

from titanic.cli.connect import connect
from titanic.cli.endpoint import Reach
from titanic.cli.help import command
from titanic.cli.inspect import STATES
from titanic.cli.options import endpoint, json_flag, option, seconds
from titanic.cli.options import uuid as uuid_type
from titanic.cli.printing import EXIT_FAILED, EXIT_UNKNOWN, Bar, print_json, say
from titanic.client.client import Client
from titanic.errors import UnknownRequest
from titanic.util.text import counted

PURGED = tuple(state for state in STATES if state != "running")

older_option = seconds(
    "--older-than",
    least=0,
    default=None,
    help="Only requests that ended longer ago than this, as in 2h or 7d; that were submitted, if they have not ended.",
)
service_option = option("--service", metavar="SERVICE", default=None, help="Only requests of this service.")


@command()
@click.argument("uuid", type=uuid_type, metavar="[UUID]...", nargs=-1)
@older_option
@service_option
@option("--all", "everything", is_flag=True, help="All requests that failed or expired.")
@json_flag
@endpoint
def retry(
    uuid: tuple[str, ...], everything: bool, service: str | None, older_than: float | None, as_json: bool, reach: Reach
) -> None:
    """Requeue requests that failed or expired, as if they had never been tried. Prints how many there were.

    A request that expired before its --delay was over still waits for the end of the delay.

    Name requests by UUID, or choose them by --service, --older-than or --all. When none of the UUIDs can be requeued,
    it says why, and exits with 4 if all are unknown, else with 1.

    --json prints {retried}.

    \b
    Example:
      titanic retry 01a1fdd40f82747ea223cfe554e7afbc
      titanic retry --service mail
    """
    chosen = everything or service is not None or older_than is not None
    if bool(uuid) == chosen:
        raise click.UsageError("name UUIDs, or --service, --older-than or --all")
    with connect(reach) as client:
        if chosen:
            with Bar("requeued") as bar:
                tell = partial(bar.tell, "requeued")
                done = client.retry_all(service=service, older_than=older_than, tell=tell)
        else:
            done = client.retry(*uuid)
        if as_json:
            print_json({"retried": done})
        else:
            click.echo(f"{counted(done, 'request')} requeued")
        if uuid and not done:
            _explain(client, uuid)


def _explain(client: Client, uuids: tuple[str, ...]) -> None:
    """Say why none of these was requeued, and exit."""
    for uuid in uuids:
        try:
            state = client.show(uuid)["state"]
        except UnknownRequest as error:
            unknown = error
            continue
        say(f"{uuid} is {state}; only failed and expired requests are requeued")
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
    state: str, everything: bool, service: str | None, older_than: float | None, as_json: bool, reach: Reach
) -> None:
    """Close all requests in a state, which deletes them and their replies. Prints how many there were.

    Choose by --service and --older-than, or say --all.

    --json prints {closed}.

    \b
    Example:
      titanic purge --state done --older-than 1d
      titanic purge --state failed --service mail
    """
    if not everything and service is None and older_than is None:
        raise click.UsageError("name --service or --older-than, or --all: what is purged is deleted")
    with connect(reach) as client, Bar("closed") as bar:
        done = client.purge(state, service=service, older_than=older_than, tell=partial(bar.tell, "closed"))
    if as_json:
        print_json({"closed": done})
    else:
        click.echo(f"{done} closed")
