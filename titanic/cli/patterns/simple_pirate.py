"""`titanic pattern simple-pirate`."""

from __future__ import annotations

import click

from broker.patterns import SimpleQueue, SimpleWorker
from titanic.cli.help import Command
from titanic.cli.options import option
from titanic.cli.patterns.roles import bind_option, command_argument, handler, jobs_option, run

WORKERS = "tcp://127.0.0.1:5556"


@click.group()
def simple_pirate() -> None:
    """A queue that gives each request to the worker that has been idle for longest. Nobody sends heartbeats.

    The client is `titanic pattern lazy-pirate client`, or any REQ socket.
    """


@simple_pirate.command(cls=Command)
@bind_option(what="Where to listen to clients.")
@bind_option("--bind-workers", WORKERS, "Where to listen to workers.")
def queue(bind: str, bind_workers: str) -> None:
    """Run the queue.

    \b
    Example:
      titanic pattern simple-pirate queue --bind tcp://0.0.0.0:5555 --bind-workers tcp://0.0.0.0:5556
    """
    here = SimpleQueue()
    run(here, f"queue at {here.bind_clients(bind)}, for workers at {here.bind_workers(bind_workers)}")


@simple_pirate.command(cls=Command)
@command_argument
@option("--endpoint", metavar="ENDPOINT", default=WORKERS, help="Where the queue listens to workers.")
@jobs_option
def worker(command: tuple[str, ...], endpoint: str, jobs: int) -> None:
    """Work for a queue: run COMMAND for each request.

    \b
    Example:
      titanic pattern simple-pirate worker --jobs 4 -- tr a-z A-Z
    """
    run(SimpleWorker(handler(command), endpoint, jobs=jobs), f"connecting to {endpoint}")
