"""`titanic pattern lazy-pirate`."""

from __future__ import annotations

import click

from broker.patterns import LazyPirate, Server
from titanic.cli.help import Command
from titanic.cli.output import print_body
from titanic.cli.patterns.roles import (
    bind_option,
    body_argument,
    command_argument,
    handler,
    jobs_option,
    patience_options,
    run,
)


@click.group()
def lazy_pirate() -> None:
    """A client that waits, asks again on a new connection, and gives up after some tries; a server to ask.

    The server may be any REP socket, the client any REQ socket.
    """


@lazy_pirate.command(cls=Command)
@body_argument
@patience_options(2.5, 3)
def client(body: tuple[str, ...], endpoint: tuple[str, ...], timeout: float, retries: int) -> None:
    """Ask a server: each BODY is a frame. Prints the reply; exits with 3 when nobody answers.

    \b
    Example:
      titanic pattern lazy-pirate client hello --timeout 1 --retries 5
    """
    with LazyPirate(endpoint, timeout=timeout, retries=retries) as asking:
        print_body(asking.call(*body))


@lazy_pirate.command(cls=Command)
@command_argument
@bind_option()
@jobs_option
def server(command: tuple[str, ...], bind: str, jobs: int) -> None:
    """Answer requests with the output of COMMAND.

    \b
    Example:
      titanic pattern lazy-pirate server --jobs 4 -- tr a-z A-Z
    """
    here = Server(handler(command), jobs=jobs)
    run(here, f"server at {here.bind(bind)}")
