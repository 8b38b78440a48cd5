"""What the roles of all patterns share: how they are told what to do, how they run, how they print a reply."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import Any, Protocol

import click

from broker import DEFAULT_ENDPOINT
from titanic import logs
from titanic.cli.endpoint import PEER
from titanic.cli.options import Function, option, seconds
from titanic.cli.running import Ending, say
from titanic.cli.work import CommandHandler
from titanic.protocol.tsp import Frames


class Runs(Protocol):
    """A server, queue or worker."""

    def run(self) -> None:
        """Serve until `stop`."""

    def stop(self) -> None:
        """End `run`."""


def command_argument(function: Function) -> Function:
    """COMMAND, behind `--`."""
    return click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")(function)


def body_argument(function: Function) -> Function:
    """BODY, a frame each."""
    return click.argument("body", nargs=-1, required=True)(function)


jobs_option = option(
    "--jobs", "-j", type=click.IntRange(1, 500), metavar="N", default=1, help="Requests to work on at a time."
)


def bind_option(
    name: str = "--bind", default: str = DEFAULT_ENDPOINT, what: str = "Where to listen."
) -> Callable[[Function], Function]:
    """Where a server is to be found."""
    return option(name, metavar="ENDPOINT", default=default, help=what)


def heartbeat_option(default: float = 1.0) -> Callable[[Function], Function]:
    """The same at both ends."""
    return seconds("--heartbeat", least=0.01, default=default, help="Between heartbeats; the same at both ends.")


def patience_options(timeout: float, retries: int, *defaults: str) -> Callable[[Function], Function]:
    """`--endpoint`, `--timeout` and `--retries` of clients; `defaults` are endpoints."""

    def add_all(function: Function) -> Function:
        for add in (
            option("--retries", type=click.IntRange(0), metavar="N", default=retries, help="How often to ask again."),
            seconds("--timeout", least=0.001, default=timeout, help="Wait for a reply, at each try."),
            option(
                "--endpoint",
                type=PEER,
                multiple=True,
                metavar="ENDPOINT",
                default=defaults or (DEFAULT_ENDPOINT,),
                help="Where the server is; given repeatedly, each try goes to the next.",
            ),
        ):
            function = add(function)
        return function

    return add_all


def handler(command: tuple[str, ...]) -> Callable[[Frames], Any]:
    """A function that runs a command for each request; without one, the request is its own reply."""
    if not command:
        return lambda body: body
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"command not found: {command[0]}")
    return CommandHandler(command, None)


def run(role: Runs, text: str) -> None:
    """Run until the first signal, which lets what is in hand finish; a second one ends the process at once."""
    logs.begin("info", "auto")
    ending = Ending(role.stop)
    say(text, "serving")
    role.run()
    sys.exit(ending.code)
