"""`titanic pattern generaldomo`, `scatter-gather` and `tripping`: with draft sockets."""

from __future__ import annotations

import sys
from typing import BinaryIO

import click

from broker import TimedOut
from broker.patterns import (
    KINDS,
    Gather,
    Generaldomo,
    GeneraldomoBroker,
    GeneraldomoWorker,
    MissingDrafts,
    Scatter,
    Unsent,
    pack,
    trip,
)
from titanic.cli.options import GroupedCommand, option
from titanic.cli.patterns.roles import COUNT, each_message, handler, role, run
from titanic.cli.printing import print_body, print_table
from titanic.cli.running import StopSignal, say
from titanic.protocol import tsp
from titanic.version import __version__

SERVER = "tcp://127.0.0.1:5556"
GATHERS = "tcp://127.0.0.1:5557"


@click.group()
def generaldomo() -> None:
    """Majordomo over thread-safe CLIENT and SERVER sockets, in addition to the usual sockets.

    Needs draft sockets: pip install pyomq.
    """


@role(
    generaldomo,
    bind={"help": "Endpoint to listen on for Majordomo clients and workers."},
    bind_server={"metavar": "ENDPOINT", "help": "Endpoint to listen on for CLIENT sockets."},
)
def broker(bind: str, bind_server: str = SERVER, *, open: bool) -> None:
    """Run the broker.

    \b
    Example:
      titanic pattern generaldomo broker --bind tcp://0.0.0.0:5555 --bind-server tcp://0.0.0.0:5556 --open
    """
    here = GeneraldomoBroker(version=__version__, open=open)
    run(here, f"broker at {here.bind(bind)}, for CLIENT sockets at {here.bind_server(bind_server)}")


@role(generaldomo)
def client(
    service: str, body: tuple[str, ...], endpoint: tuple[str, ...] = (SERVER,), timeout: float = 5.0, retries: int = 3
) -> None:
    """Send a request to SERVICE: each BODY is a frame. Prints the reply; exits with 3 without one.

    \b
    Example:
      titanic pattern generaldomo client upper hello
    """
    with Generaldomo(endpoint, timeout=timeout, retries=retries) as asking:
        print_body(asking.call(service, *body))


@role(generaldomo, endpoint={"type": str, "multiple": False, "help": "Endpoint of the broker for CLIENT sockets."})
def worker(service: str, command: tuple[str, ...], *, endpoint: str = SERVER, jobs: int) -> None:
    """Run COMMAND for each request of SERVICE.

    \b
    Example:
      titanic pattern generaldomo worker upper --jobs 4 -- tr a-z A-Z
    """
    here = GeneraldomoWorker(service, handler(command), endpoint, jobs=jobs)
    run(here, f"connecting to {endpoint} to work on {service}")


@click.group()
def scatter_gather() -> None:
    """One-way messages: each goes to one of the receivers, in turn. There are no replies.

    Needs draft sockets: pip install pyomq.
    """


@role(
    scatter_gather,
    endpoint={"help": "Endpoint of a receiver; repeatable."},
    to_service={
        "names": ["--service", "to_service"],
        "metavar": "SERVICE",
        "help": "Send each as a request for this service, to `titanic serve --gather`.",
    },
    timeout={"help": "Maximum time to wait for a receiver that accepts a message."},
)
def scatter(
    message: tuple[str, ...],
    lines: BinaryIO | None,
    endpoint: tuple[str, ...] = (GATHERS,),
    to_service: str | None = None,
    timeout: float = 5.0,
) -> None:
    """Send each MESSAGE. Exits with 3 if no receiver accepts a message, with 1 if some remain unsent at the end.

    \b
    Example:
      titanic pattern scatter-gather scatter one two three
      titanic pattern scatter-gather scatter --lines addresses.txt
      titanic pattern scatter-gather scatter hello --service upper
    """
    texts = each_message(message, lines, "MESSAGE")
    if to_service is not None and (fault := tsp.request_fault([to_service.encode(), b""])):
        raise click.BadParameter(fault, param_hint="--service")
    with Scatter(early=False) as sending:
        for one in endpoint:
            sending.connect(one)
        for text in texts:
            _send(sending, text if to_service is None else pack([to_service.encode(), text]), timeout, endpoint)


def _send(sending: Scatter, text: bytes, timeout: float, endpoint: tuple[str, ...]) -> None:
    try:
        sending.send(text, timeout)
    except TimedOut:
        raise TimedOut(
            f"no receiver at {' or '.join(endpoint)} accepted a message in {timeout:g} s; {_before(sending, timeout)}; "
            "is a receiver running?"
        ) from None


def _before(sending: Scatter, timeout: float) -> str:
    """What became of the messages before one that no receiver took."""
    if not sending.sent:
        return "nothing was sent"
    try:
        sending.close(int(timeout * 1000))
    except Unsent as error:
        return str(error)
    return f"only the first {sending.sent} were sent"


@role(
    scatter_gather,
    bind={"multiple": True, "help": "Endpoint to listen on; repeatable."},
    count={**COUNT, "help": "Exit after N messages."},
)
def gather(bind: tuple[str, ...] = (GATHERS,), count: int | None = None, *, open: bool) -> None:
    """Print messages, one per line, until a signal; then print those that still arrive, until there is a pause.

    Exits with 1 if there is no pause within five seconds: messages still in transit are then lost.

    \b
    Example:
      titanic pattern scatter-gather gather --count 3
    """
    receiving = Gather(open=open)
    ending = StopSignal(receiving.stop)
    say(f"gathering at {', '.join([receiving.bind(one) for one in bind])}", "serving")
    for number, message in enumerate(receiving, 1):
        sys.stdout.buffer.write(message + b"\n")
        sys.stdout.buffer.flush()
        if number == count:
            break
    receiving.close()
    sys.exit(ending.code)


@click.command(cls=GroupedCommand)
@option(
    "--kind",
    type=click.Choice(list(KINDS)),
    multiple=True,
    default=tuple(KINDS),
    help="What to measure; repeatable.",
    show_default="all",
)
@option("--synchronous", type=click.IntRange(1), metavar="N", default=10_000, help="Calls that wait for each reply.")
@option("--asynchronous", type=click.IntRange(1), metavar="N", default=100_000, help="Calls that do not wait.")
def tripping(kind: tuple[str, ...], synchronous: int, asynchronous: int) -> None:
    """Measure round trips on this machine: waiting for each reply, and with many requests in flight.

    REQ, DEALER and CLIENT sockets are answered by an echo process; majordomo goes through a broker to a worker. CLIENT
    is skipped if draft sockets are not available.

    \b
    Example:
      titanic pattern tripping
      titanic pattern tripping --kind dealer --kind majordomo --asynchronous 2000
    """
    rows = []
    for one in dict.fromkeys(kind):
        try:
            found = trip(one, synchronous, asynchronous)
        except MissingDrafts as error:
            say(f"without {one}: {error}", "missing")
            continue
        many = "–" if found.asynchronous is None else f"{found.asynchronous:,.0f}"
        rows.append((one, f"{found.synchronous:,.0f}", many))
    print_table(("CALLS/S", "SYNCHRONOUS", "ASYNCHRONOUS"), rows, right=("SYNCHRONOUS", "ASYNCHRONOUS"))
