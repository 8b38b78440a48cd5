"""`titanic pattern generaldomo`."""

from __future__ import annotations

import click

from broker.patterns import Generaldomo, GeneraldomoBroker, GeneraldomoWorker
from titanic.cli.patterns.roles import handler, role, run
from titanic.cli.printing import print_body
from titanic.version import __version__

SERVER = "tcp://127.0.0.1:5556"


@click.group()
def generaldomo() -> None:
    """Majordomo over CLIENT and SERVER sockets, which threads may share, beside the usual sockets.

    Needs draft sockets: pip install 'titanic-queue[drafts]'.
    """


@role(
    generaldomo,
    bind={"help": "Where to listen to the clients and workers of Majordomo."},
    bind_server={"metavar": "ENDPOINT", "help": "Where to listen to CLIENT sockets."},
)
def broker(bind: str, bind_server: str = SERVER) -> None:
    """Run the broker.

    \b
    Example:
      titanic pattern generaldomo broker --bind tcp://0.0.0.0:5555 --bind-server tcp://0.0.0.0:5556
    """
    here = GeneraldomoBroker(version=__version__)
    run(here, f"broker at {here.bind(bind)}, for CLIENT sockets at {here.bind_server(bind_server)}")


@role(generaldomo)
def client(
    service: str, body: tuple[str, ...], endpoint: tuple[str, ...] = (SERVER,), timeout: float = 5.0, retries: int = 3
) -> None:
    """Ask SERVICE: each BODY is a frame. Prints the reply; exits with 3 when nobody answers.

    \b
    Example:
      titanic pattern generaldomo client upper hello
    """
    with Generaldomo(endpoint, timeout=timeout, retries=retries) as asking:
        print_body(asking.call(service, *body))


@role(generaldomo, endpoint={"type": str, "multiple": False, "help": "Where the broker listens to CLIENT sockets."})
def worker(service: str, command: tuple[str, ...], *, endpoint: str = SERVER, jobs: int) -> None:
    """Work on SERVICE: run COMMAND for each request.

    \b
    Example:
      titanic pattern generaldomo worker upper --jobs 4 -- tr a-z A-Z
    """
    here = GeneraldomoWorker(service, handler(command), endpoint, jobs=jobs)
    run(here, f"connecting to {endpoint} to work on {service}")
