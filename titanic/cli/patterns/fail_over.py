"""`titanic pattern freelance` and `binary-star`: several servers, of which one may fail."""

from __future__ import annotations

import logging

import click

from broker import Curve
from broker.patterns import (
    BinaryStar,
    BinaryStarClient,
    Freelance,
    FreelanceConfig,
    LazyPirate,
    NotPublic,
    ServerKeys,
    Shotgun,
    StarConfig,
    freelance_server,
)
from titanic.cli.patterns.roles import handler, role, run
from titanic.cli.printing import print_body

log = logging.getLogger("titanic.binary-star")

CLIENTS = {"primary": "tcp://127.0.0.1:5001", "backup": "tcp://127.0.0.1:5002"}
STATES = {"primary": "tcp://127.0.0.1:5003", "backup": "tcp://127.0.0.1:5004"}
OTHER = {"primary": "backup", "backup": "primary"}

MODEL = {"type": click.IntRange(1, 3), "metavar": "N"}


@click.group()
def freelance() -> None:
    """Clients that know several servers, without a broker.

    \b
    Model 1  asks one server after another, until one answers
    Model 2  asks all servers at once, and takes the first reply
    Model 3  pings all servers, and asks one that answered (RFC 10)
    """


@role(
    freelance,
    endpoint={"help": "Endpoint of a server; repeatable."},
    model={**MODEL, "help": "How to find a server; the servers must use the same model."},
)
def client(
    body: tuple[str, ...],
    endpoint: tuple[str, ...],
    curve: Curve | None,
    timeout: float = 1.0,
    retries: int = 3,
    model: int = 3,
) -> None:
    """Send a request: each BODY is a frame, each --endpoint a server. Prints the reply; exits with 3 without one.

    \b
    Example:
      titanic pattern freelance client hello --endpoint tcp://127.0.0.1:5555 --endpoint tcp://127.0.0.1:5556
    """
    asking: LazyPirate | Shotgun | Freelance
    if model == 1:
        asking = LazyPirate(endpoint, timeout=timeout, retries=retries, key=curve)
    else:
        config = FreelanceConfig(timeout=timeout, retries=retries)
        asking = Shotgun(endpoint, config, key=curve) if model == 2 else Freelance(endpoint, config, key=curve)
    with asking:
        print_body(asking.call(*body))


@role(
    freelance,
    public={"metavar": "ENDPOINT", "help": "In model 3: the endpoint that clients connect to, if it is not --bind."},
    model={**MODEL, "help": "The model of its clients."},
)
def server(
    command: tuple[str, ...], bind: str, *, public: str = "", keys: ServerKeys, model: int = 3, jobs: int
) -> None:
    """Answer requests with the output of COMMAND.

    \b
    Example:
      titanic pattern freelance server --bind tcp://127.0.0.1:5555 -- tr a-z A-Z &
      titanic pattern freelance server --bind tcp://127.0.0.1:5556 -- tr a-z A-Z &
      titanic pattern freelance server --bind tcp://0.0.0.0:5557 --public tcp://10.0.0.1:5557 --open
    """
    try:
        here = freelance_server(handler(command), bind, model=model, public=public, jobs=jobs, key=keys)
    except NotPublic as error:
        raise click.BadParameter(
            f"{error.endpoint} {error.why}; in model 3 a server must know its public endpoint, "
            "like --public tcp://10.0.0.1:5555",
            param_hint="--public" if public else "--bind without --public",
        ) from None
    run(here, f"server at {here.endpoints[0]}")


@click.group()
def binary_star() -> None:
    """Two servers, one of which answers clients. The other takes over if the first is unreachable and a client sends a
    request.

    Failover is automatic. To switch back, restart the primary, which stays passive; when a short interruption is
    acceptable, stop the backup, so that the primary takes over; then restart the backup.
    """


@role(
    binary_star,
    bind={"metavar": "ENDPOINT", "help": "Endpoint to listen on for clients.", "show_default": "port 5001 or 5002"},
    bind_state={
        "metavar": "ENDPOINT",
        "help": "Endpoint at which the other server receives the state of this one.",
        "show_default": "port 5003 or 5004",
    },
    peer={"metavar": "ENDPOINT", "help": "--bind-state of the other server.", "show_default": "port 5004 or 5003"},
)
def star_server(
    which: str,
    command: tuple[str, ...],
    *,
    bind: str | None = None,
    bind_state: str | None = None,
    peer: str | None = None,
    keys: ServerKeys,
    heartbeat: float,
    jobs: int,
) -> None:
    """Run one of the two: `server primary` or `server backup`. Requests are answered with the output of COMMAND.

    Exits with 1 when both are active, both are passive, or both were started in the same role: an operator must then
    intervene. Before it exits, it notifies its peer for four heartbeats, so that the peer exits too. If keys are used,
    both servers must have the same key.

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
        key=keys,
    )
    endpoint = star.serve(handler(command), bind or CLIENTS[which], jobs=jobs)
    run(star, f"{which} at {endpoint}, its state at {star.endpoint}")


@role(
    binary_star,
    primary={"metavar": "ENDPOINT", "help": "Endpoint of the primary for clients."},
    backup={"metavar": "ENDPOINT", "help": "Endpoint of the backup for clients."},
)
def star_client(
    body: tuple[str, ...],
    *,
    primary: str = CLIENTS["primary"],
    backup: str = CLIENTS["backup"],
    curve: Curve | None,
    heartbeat: float,
    retries: int = 5,
) -> None:
    """Send a request to the primary, then the backup, and so on: each BODY is a frame. Prints the reply; exits with 3
    without one.

    \b
    Example:
      titanic pattern binary-star client hello
    """
    with BinaryStarClient(primary, backup, config=StarConfig(heartbeat), retries=retries, key=curve) as asking:
        print_body(asking.call(*body))
