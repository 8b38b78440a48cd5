"""`titanic pattern freelance`."""

from __future__ import annotations

import click

from broker.patterns import Freelance, FreelanceConfig, LazyPirate, NotPublic, Shotgun, freelance_server
from titanic.cli.patterns.roles import handler, role, run
from titanic.cli.printing import print_body

MODEL = {"type": click.IntRange(1, 3), "metavar": "N"}


@click.group()
def freelance() -> None:
    """Clients that know several servers, without a broker.

    \b
    Model 1  asks one server after another, until one answers
    Model 2  asks all servers at once, and takes the first reply
    Model 3  pings all servers, and asks one that answered (RFC 10)
    """


@role(freelance, model={**MODEL, "help": "How to find a server; the servers must be of the same model."})
def client(
    body: tuple[str, ...], endpoint: tuple[str, ...], timeout: float = 1.0, retries: int = 3, model: int = 3
) -> None:
    """Ask the servers, each given by an --endpoint: each BODY is a frame. Prints the reply; exits with 3 without one.

    \b
    Example:
      titanic pattern freelance client hello --endpoint tcp://127.0.0.1:5555 --endpoint tcp://127.0.0.1:5556
    """
    asking: LazyPirate | Shotgun | Freelance
    if model == 1:
        asking = LazyPirate(endpoint, timeout=timeout, retries=retries)
    else:
        config = FreelanceConfig(timeout=timeout, retries=retries)
        asking = Shotgun(endpoint, config) if model == 2 else Freelance(endpoint, config)
    with asking:
        print_body(asking.call(*body))


@role(
    freelance,
    public={"metavar": "ENDPOINT", "help": "In model 3: what clients connect to, if it is not --bind."},
    model={**MODEL, "help": "What its clients speak."},
)
def server(command: tuple[str, ...], bind: str, *, public: str = "", model: int = 3, jobs: int) -> None:
    """Answer requests with the output of COMMAND.

    \b
    Example:
      titanic pattern freelance server --bind tcp://127.0.0.1:5555 -- tr a-z A-Z &
      titanic pattern freelance server --bind tcp://127.0.0.1:5556 -- tr a-z A-Z &
      titanic pattern freelance server --bind tcp://0.0.0.0:5557 --public tcp://10.0.0.1:5557
    """
    try:
        here = freelance_server(handler(command), bind, model=model, public=public, jobs=jobs)
    except NotPublic as error:
        raise click.BadParameter(
            f"{error.endpoint} {error.why}; in model 3 servers have to know what clients connect to, "
            "like --public tcp://10.0.0.1:5555",
            param_hint="--public" if public else "--bind without --public",
        ) from None
    run(here, f"server at {here.endpoints[0]}")
