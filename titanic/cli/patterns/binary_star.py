"""`titanic pattern binary-star`."""

from __future__ import annotations

import logging

import click

from broker.patterns import BinaryStar, BinaryStarClient, StarConfig
from titanic.cli.patterns.roles import handler, role, run
from titanic.cli.printing import print_body

log = logging.getLogger("titanic.binary-star")

CLIENTS = {"primary": "tcp://127.0.0.1:5001", "backup": "tcp://127.0.0.1:5002"}
STATES = {"primary": "tcp://127.0.0.1:5003", "backup": "tcp://127.0.0.1:5004"}
OTHER = {"primary": "backup", "backup": "primary"}


@click.group()
def binary_star() -> None:
    """Two servers, one of which answers clients. The other takes over when the first is gone and a client asks.

    Fail-over is automatic. To go back, start the primary again, which stays passive; stop the backup when a short pause
    does no harm, and the primary takes over; start the backup again.
    """


@role(
    binary_star,
    bind={"metavar": "ENDPOINT", "help": "Where to listen to clients.", "show_default": "port 5001 or 5002"},
    bind_state={
        "metavar": "ENDPOINT",
        "help": "Where the other server listens to this one.",
        "show_default": "port 5003 or 5004",
    },
    peer={"metavar": "ENDPOINT", "help": "--bind-state of the other server.", "show_default": "port 5004 or 5003"},
)
def server(
    which: str,
    command: tuple[str, ...],
    *,
    bind: str | None = None,
    bind_state: str | None = None,
    peer: str | None = None,
    heartbeat: float,
    jobs: int,
) -> None:
    """Run one of the two: `server primary` or `server backup`. Requests are answered with the output of COMMAND.

    Exits with 1 when both are active, both are passive, or both were started as the same one: then somebody has to
    look. Before that, it tells the other server for four heartbeats, so that this one ends too.

    \b
    Example:
      titanic pattern binary-star server primary -- tr a-z A-Z &
      titanic pattern binary-star server backup -- tr a-z A-Z &
    """
    star = BinaryStar(
        primary=which == "primary",
        bind=bind_state or STATES[which],
        peer=peer or STATES[OTHER[which]],
        config=StarConfig(heartbeat),
        on_active=lambda: log.info("active: clients are answered here"),
        on_passive=lambda: log.info("passive: ready to take over"),
    )
    endpoint = star.serve(handler(command), bind or CLIENTS[which], jobs=jobs)
    run(star, f"{which} at {endpoint}, its state at {star.endpoint}")


@role(
    binary_star,
    primary={"metavar": "ENDPOINT", "help": "Where the primary listens to clients."},
    backup={"metavar": "ENDPOINT", "help": "Where the backup listens to clients."},
)
def client(
    body: tuple[str, ...],
    *,
    primary: str = CLIENTS["primary"],
    backup: str = CLIENTS["backup"],
    heartbeat: float,
    retries: int = 5,
) -> None:
    """Ask the primary, then the backup, and so on: each BODY is a frame. Prints the reply; exits with 3 without one.

    \b
    Example:
      titanic pattern binary-star client hello
    """
    with BinaryStarClient(primary, backup, config=StarConfig(heartbeat), retries=retries) as asking:
        print_body(asking.call(*body))
