"""`titanic retry` and `purge`: what becomes of requests that ended badly, and of many at once."""

from __future__ import annotations

import click

from titanic.cli.help import command
from titanic.cli.inspect import STATES
from titanic.cli.options import endpoint, option, seconds
from titanic.cli.options import uuid as uuid_type
from titanic.client import Client

PURGED = tuple(state for state in STATES if state != "running")


@command()
@click.argument("uuid", type=uuid_type, metavar="[UUID]...", nargs=-1)
@seconds("--older-than", least=0, default=None, help="With --all: only those submitted more than S seconds ago.")
@option("--service", metavar="SERVICE", default=None, help="With --all: only those of this service.")
@option("--all", "everything", is_flag=True, help="All that failed or expired.")
@endpoint
def retry(
    uuid: tuple[str, ...],
    everything: bool,
    service: str | None,
    older_than: float | None,
    endpoint: tuple[str, ...],
    timeout: float,
    mdp: str,
) -> None:
    """Let requests that failed or expired wait again, as if they had never been tried. Prints how many there were.

    \b
    Example:
      titanic retry 01a1fdd40f82747ea223cfe554e7afbc
      titanic retry --all --service mail
    """
    if bool(uuid) == everything:
        raise click.UsageError("name UUIDs, or --all")
    with Client(endpoint, timeout=timeout, version=mdp) as client:
        done = client.retry_all(service=service, older_than=older_than) if everything else client.retry(*uuid)
    click.echo(f"{done} to be tried again")


@command()
@seconds("--older-than", least=0, default=None, help="Only those submitted more than S seconds ago.")
@option("--service", metavar="SERVICE", default=None, help="Only those of this service.")
@option("--state", type=click.Choice(PURGED), required=True, help="In which state.")
@endpoint
def purge(
    state: str, service: str | None, older_than: float | None, endpoint: tuple[str, ...], timeout: float, mdp: str
) -> None:
    """Close all requests in a state: they and their replies are gone. Prints how many there were.

    \b
    Example:
      titanic purge --state done --older-than 86400
    """
    with Client(endpoint, timeout=timeout, version=mdp) as client:
        done = client.purge(state, service=service, older_than=older_than)
    click.echo(f"{done} closed")
