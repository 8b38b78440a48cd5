"""`titanic pattern idempotent`."""

from __future__ import annotations

import click

from broker import Client, Worker
from broker.patterns import Idempotent, Replies, Stamps
from titanic.cli.help import Command
from titanic.cli.options import endpoint_option, option, seconds
from titanic.cli.output import print_body
from titanic.cli.patterns.roles import (
    body_argument,
    command_argument,
    handler,
    jobs_option,
    patience_options,
    run,
)


@click.group()
def idempotent() -> None:
    """A worker that does nothing twice: a request has its client's name and a number in front.

    The first with that name and number is executed, its reply is kept, and all others like it get that reply.
    """


@idempotent.command(cls=Command)
@click.argument("service")
@command_argument
@endpoint_option()
@option("--keep", type=click.IntRange(1), metavar="N", default=100_000, help="Replies to keep.")
@seconds("--keep-for", least=0.001, default=86_400.0, help="How long to keep a reply.")
@jobs_option
def worker(
    service: str, command: tuple[str, ...], endpoint: tuple[str, ...], keep: int, keep_for: float, jobs: int
) -> None:
    """Work on SERVICE of a Majordomo broker: run COMMAND for each request that is new.

    Replies are kept in memory, by this process: one worker, with any number of --jobs, for a service.

    \b
    Example:
      titanic pattern idempotent worker pay --jobs 4 -- tee -a payments.txt
    """
    once = Idempotent(handler(command), Replies(most=keep, keep=keep_for))
    run(Worker(service, once, endpoint, jobs=jobs), f"connecting to {' or '.join(endpoint)} to work on {service}")


@idempotent.command(cls=Command)
@click.argument("service")
@body_argument
@patience_options(5.0, 3)
@option("--name", metavar="NAME", default=None, help="Of the client.", show_default="a random one")
@option("--number", type=click.IntRange(0), metavar="N", default=1, help="Of the request.")
def client(
    service: str,
    body: tuple[str, ...],
    endpoint: tuple[str, ...],
    timeout: float,
    retries: int,
    name: str | None,
    number: int,
) -> None:
    """Ask SERVICE: each BODY is a frame. Given again with the same name and number, it gets the same reply.

    \b
    Example:
      titanic pattern idempotent client pay 100 --name shop-7 --number 42
    """
    with Client(endpoint, timeout=timeout, retries=retries) as asking:
        print_body(asking.call(service, *Stamps(name, number)(*body)))
