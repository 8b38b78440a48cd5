"""`titanic pattern scatter-gather`."""

from __future__ import annotations

import sys
from typing import BinaryIO

import click

from broker import TimedOut
from broker.patterns import Gather, Scatter, Unsent, pack
from titanic.cli.patterns.roles import COUNT, each_message, role
from titanic.cli.running import Ending, say
from titanic.protocol import tsp

ENDPOINT = "tcp://127.0.0.1:5557"


@click.group()
def scatter_gather() -> None:
    """Messages one way: each goes to one of those who gather, in turn. There are no replies.

    Needs draft sockets: pip install 'titanic-queue[drafts]'.
    """


@role(
    scatter_gather,
    endpoint={"help": "Where to connect to; may be given repeatedly."},
    to_service={
        "names": ["--service", "to_service"],
        "metavar": "SERVICE",
        "help": "Make each a request for `titanic serve --gather`.",
    },
    timeout={"help": "Wait for somebody who takes a message."},
)
def scatter(
    message: tuple[str, ...],
    lines: BinaryIO | None,
    endpoint: tuple[str, ...] = (ENDPOINT,),
    to_service: str | None = None,
    timeout: float = 5.0,
) -> None:
    """Send each MESSAGE. Exits with 3 when nobody takes one, with 1 when not all could be sent before the end.

    \b
    Example:
      titanic pattern scatter-gather scatter one two three
      titanic pattern scatter-gather scatter --lines addresses.txt
      titanic pattern scatter-gather scatter hello --service upper
    """
    texts = each_message(message, lines, "MESSAGE")
    if to_service is not None and (fault := tsp.request_fault([to_service.encode(), b""])):
        raise click.BadParameter(fault, param_hint="--service")
    with Scatter() as sending:
        for one in endpoint:
            sending.connect(one)
        for text in texts:
            _send(sending, text if to_service is None else pack([to_service.encode(), text]), timeout, endpoint)


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


@role(
    scatter_gather,
    bind={"multiple": True, "help": "Where to listen; may be given repeatedly."},
    count={**COUNT, "help": "End after so many messages."},
)
def gather(bind: tuple[str, ...] = (ENDPOINT,), count: int | None = None) -> None:
    """Print messages, a line each, until a signal; then print what still arrives, until there is a pause.

    Exits with 1 when there is no pause within five seconds: messages that are under way then are lost.

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
