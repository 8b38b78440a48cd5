"""`titanic pattern binary-star`."""

from __future__ import annotations

import logging

import click

from broker.patterns import BinaryStar, BinaryStarClient, StarConfig
from titanic.cli.help import Command
from titanic.cli.options import option
from titanic.cli.output import print_body
from titanic.cli.patterns.roles import body_argument, command_argument, handler, heartbeat_option, jobs_option, run

log = logging.getLogger("titanic.binary-star")

CLIENTS = {"primary": "tcp://127.0.0.1:5001", "backup": "tcp://127.0.0.1:5002"}
STATES = {"primary": "tcp://127.0.0.1:5003", "backup": "tcp://127.0.0.1:5004"}
OTHER = {"primary": "backup", "backup": "primary"}


@click.group()
def binary_star() -> None:
    """Two servers, of which one answers clients. The other takes over when it is gone and a client asks.

    Fail-over happens by itself. Going back is done by hand: start the primary again, which stays passive; stop the
    backup, when a short pause does no harm, and the primary takes over; start the backup again.
    """


@binary_star.command(cls=Command)
@click.argument("role", type=click.Choice(list(OTHER)))
@command_argument
@option(
    "--bind", metavar="ENDPOINT", default=None, help="Where to listen to clients.", show_default="port 5001 or 5002"
)
@option(
    "--bind-state",
    metavar="ENDPOINT",
    default=None,
    help="Where the other server listens to this one.",
    show_default="port 5003 or 5004",
)
@option(
    "--peer",
    metavar="ENDPOINT",
    default=None,
    help="--bind-state of the other server.",
    show_default="port 5004 or 5003",
)
@heartbeat_option()
@jobs_option
def server(
    role: str,
    command: tuple[str, ...],
    bind: str | None,
    bind_state: str | None,
    peer: str | None,
    heartbeat: float,
    jobs: int,
) -> None:
    """Run one of the two: `server primary` or `server backup`. Requests are answered with the output of COMMAND.

    Ends with exit code 1 when both turn out to be active, both passive, or both started as the same: then somebody has
    to look. Before, it tells the other for four heartbeats, which is to end too.

    \b
    Example:
      titanic pattern binary-star server primary -- tr a-z A-Z &
      titanic pattern binary-star server backup -- tr a-z A-Z &
    """
    star = BinaryStar(
        primary=role == "primary",
        bind=bind_state or STATES[role],
        peer=peer or STATES[OTHER[role]],
        config=StarConfig(heartbeat),
        on_active=lambda: log.info("active: clients are answered here"),
        on_passive=lambda: log.info("passive: ready to take over"),
    )
    endpoint = star.serve(handler(command), bind or CLIENTS[role], jobs=jobs)
    run(star, f"{role} at {endpoint}, its state at {star.endpoint}")


@binary_star.command(cls=Command)
@body_argument
@option("--primary", metavar="ENDPOINT", default=CLIENTS["primary"], help="Where the primary listens to clients.")
@option("--backup", metavar="ENDPOINT", default=CLIENTS["backup"], help="Where the backup listens to clients.")
@heartbeat_option()
@option("--retries", type=click.IntRange(0), metavar="N", default=5, help="How often to ask again.")
def client(body: tuple[str, ...], primary: str, backup: str, heartbeat: float, retries: int) -> None:
    """Ask the primary, then the backup, and so on: each BODY is a frame. Prints the reply; exits with 3 without one.

    \b
    Example:
      titanic pattern binary-star client hello
    """
    with BinaryStarClient(primary, backup, config=StarConfig(heartbeat), retries=retries) as asking:
        print_body(asking.call(*body))
