"""`titanic pattern majordomo-async` and `idempotent`: with a Majordomo broker."""

from __future__ import annotations

from typing import BinaryIO

import click

from broker import Client, Curve, Pipeline, Worker
from broker.patterns import Idempotent, Replies, Stamps
from titanic.cli.options import BROKER_ENDPOINTS
from titanic.cli.patterns.roles import COUNT, TIME, each_message, handler, role, run
from titanic.cli.printing import print_body


@click.group()
def majordomo_async() -> None:
    """A Majordomo client that sends the next request without waiting for the previous reply.

    The broker is `titanic broker`, the worker `titanic work`.
    """


@role(
    majordomo_async,
    lines={"help": "One request per line of FILE (- for stdin)."},
    window={**COUNT, "help": "Requests in flight at a time."},
)
def client(
    service: str,
    bodies: tuple[str, ...],
    *,
    lines: BinaryIO | None,
    window: int = 1000,
    endpoint: tuple[str, ...],
    curve: Curve | None,
    timeout: float = 5.0,
    retries: int = 3,
) -> None:
    """Send SERVICE a request for each BODY, all in flight at once. Prints the replies in the order of the requests.

    When the broker is restarted, requests without a reply are sent again. Exits with 3 at the first request without an
    answer.

    \b
    Example:
      titanic pattern majordomo-async client upper one two three
      titanic pattern majordomo-async client upper --lines addresses.txt --window 10000
    """
    requests = each_message(bodies, lines, "BODY")
    with Pipeline(endpoint, timeout=timeout, retries=retries, key=curve) as pipeline:
        for reply in pipeline.map(service, requests, window=window):
            click.echo(b"".join(reply).removesuffix(b"\n"))


@click.group()
def idempotent() -> None:
    """A worker that never executes a request twice: each is identified by the client's name and a number.

    The first request with a given name and number is executed and its reply is kept; repeats get that reply.
    """


@role(
    idempotent,
    endpoint={"help": BROKER_ENDPOINTS},
    keep={**COUNT, "help": "Replies to keep."},
    keep_for={**TIME, "help": "How long to keep a reply."},
)
def worker(
    service: str,
    command: tuple[str, ...],
    *,
    endpoint: tuple[str, ...],
    curve: Curve | None,
    keep: int = 100_000,
    keep_for: float = 86_400.0,
    jobs: int,
) -> None:
    """Run COMMAND for each new request of SERVICE, as a worker of a Majordomo broker.

    Replies are kept in the memory of this process: run only one worker per service, with any number of --jobs.

    \b
    Example:
      titanic pattern idempotent worker pay --jobs 4 -- tee -a payments.txt
    """
    once = Idempotent(handler(command), Replies(most=keep, keep=keep_for))
    worker = Worker(service, once, endpoint, jobs=jobs, key=curve)
    run(worker, f"connecting to {' or '.join(endpoint)} to work on {service}")


@role(
    idempotent,
    name={"metavar": "NAME", "help": "Name of the client.", "show_default": "a random one"},
    number={"type": click.IntRange(0), "metavar": "N", "help": "Number of the request."},
)
def idempotent_client(
    service: str,
    body: tuple[str, ...],
    endpoint: tuple[str, ...],
    curve: Curve | None,
    timeout: float = 5.0,
    retries: int = 3,
    name: str | None = None,
    number: int = 1,
) -> None:
    """Send a request to SERVICE: each BODY is a frame. Repeats with the same name and number get the same reply.

    \b
    Example:
      titanic pattern idempotent client pay 100 --name shop-7 --number 42
    """
    with Client(endpoint, timeout=timeout, retries=retries, key=curve) as asking:
        print_body(asking.call(service, *Stamps(name, number)(*body)))
