"""`titanic pattern scatter-gather`."""

from __future__ import annotations

import sys
from itertools import chain
from typing import BinaryIO

import click

from broker import TimedOut
from broker.patterns import Gather, Scatter, Unsent, pack
from titanic.cli.endpoint import PEER
from titanic.cli.help import Command
from titanic.cli.options import option, seconds
from titanic.cli.running import Ending, say
from titanic.protocol import tsp

ENDPOINT = "tcp://127.0.0.1:5557"


@click.group()
def scatter_gather() -> None:
    """Messages one way: each goes to one of those who gather, in turn. Nobody answers.

    Needs draft sockets: pip install 'titanic-queue[drafts]'.
    """


@scatter_gather.command(cls=Command)
@click.argument("message", nargs=-1)
@option("--lines", type=click.File("rb"), metavar="FILE", help="A message for each line; - is standard input.")
@option(
    "--endpoint",
    type=PEER,
    multiple=True,
    metavar="ENDPOINT",
    default=(ENDPOINT,),
    help="Where to connect to; repeatable.",
)
@option("--service", metavar="SERVICE", default=None, help="Make each a request for `titanic serve --gather`.")
@seconds("--timeout", least=0.001, default=5.0, help="Wait for somebody who takes a message.")
def scatter(
    message: tuple[str, ...], lines: BinaryIO | None, endpoint: tuple[str, ...], service: str | None, timeout: float
) -> None:
    """Send each MESSAGE. Exits with 3 when nobody takes one, with 1 when not all could be sent before the end.

    \b
    Example:
      titanic pattern scatter-gather scatter one two three
      titanic pattern scatter-gather scatter --lines addresses.txt
      titanic pattern scatter-gather scatter hello --service upper
    """
    if bool(message) == (lines is not None):
        raise click.UsageError("give MESSAGE or --lines, one of them")
    if service is not None and (fault := tsp.request_fault([service.encode(), b""])):
        raise click.BadParameter(fault, param_hint="--service")
    texts = chain((text.encode() for text in message), (line.removesuffix(b"\n") for line in lines or ()))
    with Scatter() as sending:
        for one in endpoint:
            sending.connect(one)
        for text in texts:
            _send(sending, text if service is None else pack([service.encode(), text]), timeout, endpoint)


def _send(sending: Scatter, text: bytes, timeout: float, endpoint: tuple[str, ...]) -> None:
    try:
        sending.send(text, timeout)
    except TimedOut:
        raise TimedOut(
            f"nobody took a message at {' or '.join(endpoint)} in {timeout:g} s; {_before(sending, timeout)}; "
            "is somebody there to gather?"
        ) from None


def _before(sending: Scatter, timeout: float) -> str:
    """What became of the messages before one that nobody took."""
    if not sending.sent:
        return "nothing was sent"
    try:
        sending.close(int(timeout * 1000))
    except Unsent as error:
        return str(error)
    return f"only the first {sending.sent} were sent"


@scatter_gather.command(cls=Command)
@option("--bind", multiple=True, metavar="ENDPOINT", default=(ENDPOINT,), help="Where to listen; repeatable.")
@option("--count", type=click.IntRange(1), metavar="N", default=None, help="End after so many messages.")
def gather(bind: tuple[str, ...], count: int | None) -> None:
    """Print messages, a line each, until a signal comes; then what is still coming, until it stops for a moment.

    Exits with 1 when that has not stopped after five seconds: what is under way then is lost.

    \b
    Example:
      titanic pattern scatter-gather gather --count 3
    """
    receiving = Gather()
    ending = Ending(receiving.stop)
    say(f"gathering at {', '.join([receiving.bind(one) for one in bind])}", "serving")
    for number, message in enumerate(receiving, 1):
        sys.stdout.buffer.write(message + b"\n")
        sys.stdout.buffer.flush()
        if number == count:
            break
    receiving.close()
    sys.exit(ending.code)
