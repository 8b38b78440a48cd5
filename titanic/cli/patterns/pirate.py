"""`titanic pattern lazy-pirate`, `simple-pirate` and `paranoid-pirate`."""

from __future__ import annotations

import click

from broker import Curve, WorkerConfig
from broker.patterns import (
    LazyPirate,
    ParanoidQueue,
    ParanoidWorker,
    QueueConfig,
    Server,
    ServerKeys,
    SimpleQueue,
    SimpleWorker,
)
from titanic.cli.patterns.roles import handler, role, run
from titanic.cli.printing import print_body

WORKERS = "tcp://127.0.0.1:5556"

QUEUE = {
    "bind": {"help": "Endpoint to listen on for clients."},
    "bind_workers": {"metavar": "ENDPOINT", "help": "Endpoint to listen on for workers."},
}
WORKER = {"endpoint": {"type": str, "multiple": False, "help": "Endpoint of the queue for workers."}}


@click.group()
def lazy_pirate() -> None:
    """A client that retries on a new connection when no reply arrives, and finally gives up; a server for it.

    The server may be any REP socket, the client any REQ socket.
    """


@role(lazy_pirate)
def client(
    body: tuple[str, ...], endpoint: tuple[str, ...], curve: Curve | None, timeout: float = 2.5, retries: int = 3
) -> None:
    """Send a request to a server: each BODY is a frame. Prints the reply; exits with 3 without one.

    \b
    Example:
      titanic pattern lazy-pirate client hello --timeout 1 --retries 5
    """
    with LazyPirate(endpoint, timeout=timeout, retries=retries, key=curve) as asking:
        print_body(asking.call(*body))


@role(lazy_pirate)
def server(command: tuple[str, ...], bind: str, keys: ServerKeys, jobs: int) -> None:
    """Answer requests with the output of COMMAND.

    \b
    Example:
      titanic pattern lazy-pirate server --jobs 4 -- tr a-z A-Z
    """
    here = Server(handler(command), jobs=jobs, key=keys)
    run(here, f"server at {here.bind(bind)}")


@click.group()
def simple_pirate() -> None:
    """A queue that gives each request to the least recently used worker. Neither side sends heartbeats.

    The client is `titanic pattern lazy-pirate client`, or any REQ socket.
    """


@role(simple_pirate, **QUEUE)
def queue(bind: str, *, bind_workers: str = WORKERS, keys: ServerKeys) -> None:
    """Run the queue.

    \b
    Example:
      titanic pattern simple-pirate queue --bind tcp://0.0.0.0:5555 --bind-workers tcp://0.0.0.0:5556 --open
    """
    here = SimpleQueue(key=keys)
    run(here, f"queue at {here.bind_clients(bind)}, for workers at {here.bind_workers(bind_workers)}")


@role(simple_pirate, **WORKER)
def worker(command: tuple[str, ...], *, endpoint: str = WORKERS, curve: Curve | None, jobs: int) -> None:
    """Run COMMAND for each request of a queue.

    \b
    Example:
      titanic pattern simple-pirate worker --jobs 4 -- tr a-z A-Z
    """
    run(SimpleWorker(handler(command), endpoint, jobs=jobs, key=curve), f"connecting to {endpoint}")


@click.group()
def paranoid_pirate() -> None:
    """A queue that gives each request to the least recently used worker, with heartbeats in both directions (RFC 6).

    The queue drops silent workers. A worker whose queue is silent reconnects, after increasing delays of up to 32 s.
    The client is `titanic pattern lazy-pirate client`, or any REQ socket.
    """


@role(paranoid_pirate, **QUEUE)
def paranoid_queue(bind: str, *, bind_workers: str = WORKERS, keys: ServerKeys, heartbeat: float) -> None:
    """Run the queue. It can be killed and restarted at any time.

    \b
    Example:
      titanic pattern paranoid-pirate queue --bind tcp://0.0.0.0:5555 --bind-workers tcp://0.0.0.0:5556 --open
    """
    here = ParanoidQueue(QueueConfig(heartbeat_interval=heartbeat), key=keys)
    run(here, f"queue at {here.bind_clients(bind)}, for workers at {here.bind_workers(bind_workers)}")


@role(paranoid_pirate, **WORKER)
def paranoid_worker(
    command: tuple[str, ...], *, endpoint: str = WORKERS, curve: Curve | None, heartbeat: float, jobs: int
) -> None:
    """Run COMMAND for each request of a queue.

    \b
    Example:
      titanic pattern paranoid-pirate worker --jobs 4 -- tr a-z A-Z
    """
    config = WorkerConfig(heartbeat_interval=heartbeat, liveness=3)
    here = ParanoidWorker(handler(command), endpoint, jobs=jobs, config=config, key=curve)
    run(here, f"connecting to {endpoint}")
