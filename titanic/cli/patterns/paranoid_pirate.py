"""`titanic pattern paranoid-pirate`."""

from __future__ import annotations

import click

from broker import WorkerConfig
from broker.patterns import ParanoidQueue, ParanoidWorker, QueueConfig
from titanic.cli.help import Command
from titanic.cli.options import option
from titanic.cli.patterns.roles import bind_option, command_argument, handler, heartbeat_option, jobs_option, run

WORKERS = "tcp://127.0.0.1:5556"


@click.group()
def paranoid_pirate() -> None:
    """A queue that gives each request to the worker that has been idle for longest, with heartbeats both ways.

    Silent workers are forgotten; workers whose queue is silent come back on a new connection, later each time, up to
    32 s. The client is `titanic pattern lazy-pirate client`, or any REQ socket. RFC 6.
    """


@paranoid_pirate.command(cls=Command)
@bind_option(what="Where to listen to clients.")
@bind_option("--bind-workers", WORKERS, "Where to listen to workers.")
@heartbeat_option()
def queue(bind: str, bind_workers: str, heartbeat: float) -> None:
    """Run the queue. It may be killed and started again at any time.

    \b
    Example:
      titanic pattern paranoid-pirate queue --bind tcp://0.0.0.0:5555 --bind-workers tcp://0.0.0.0:5556
    """
    here = ParanoidQueue(QueueConfig(heartbeat_interval=heartbeat))
    run(here, f"queue at {here.bind_clients(bind)}, for workers at {here.bind_workers(bind_workers)}")


@paranoid_pirate.command(cls=Command)
@command_argument
@option("--endpoint", metavar="ENDPOINT", default=WORKERS, help="Where the queue listens to workers.")
@heartbeat_option()
@jobs_option
def worker(command: tuple[str, ...], endpoint: str, heartbeat: float, jobs: int) -> None:
    """Work for a queue: run COMMAND for each request.

    \b
    Example:
      titanic pattern paranoid-pirate worker --jobs 4 -- tr a-z A-Z
    """
    config = WorkerConfig(heartbeat_interval=heartbeat, liveness=3)
    run(ParanoidWorker(handler(command), endpoint, jobs=jobs, config=config), f"connecting to {endpoint}")
