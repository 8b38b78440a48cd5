"""`titanic pattern majordomo-async`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import click

from broker import Pipeline
from titanic.cli.help import Command
from titanic.cli.options import option
from titanic.cli.patterns.roles import patience_options


@click.group()
def majordomo_async() -> None:
    """A Majordomo client that does not wait for one reply before it sends the next request.

    The broker is `titanic broker`, the worker `titanic work`.
    """


@majordomo_async.command(cls=Command)
@click.argument("service")
@click.argument("body", nargs=-1)
@option("--lines", type=click.File("rb"), metavar="FILE", help="A request for each line; - is standard input.")
@option("--window", type=click.IntRange(1), metavar="N", default=1000, help="Requests in flight at a time.")
@patience_options(5.0, 3)
def client(
    service: str,
    body: tuple[str, ...],
    lines: BinaryIO | None,
    endpoint: tuple[str, ...],
    timeout: float,
    retries: int,
    window: int,
) -> None:
    """Ask SERVICE, a request for each BODY, all in flight at once. Prints the replies in the order of the requests.

    When the broker is restarted, what has no reply yet is sent again. Exits with 3 at the first request that nobody
    answers.

    \b
    Example:
      titanic pattern majordomo-async client upper one two three
      titanic pattern majordomo-async client upper --lines addresses.txt --window 10000
    """
    if bool(body) == (lines is not None):
        raise click.UsageError("give BODY or --lines, one of them")

    def requests() -> Iterator[bytes | str]:
        yield from body
        for line in lines or ():
            yield line.removesuffix(b"\n")

    with Pipeline(endpoint, timeout=timeout, retries=retries) as pipeline:
        for reply in pipeline.map(service, requests(), window=window):
            click.echo(b"".join(reply).removesuffix(b"\n"))
