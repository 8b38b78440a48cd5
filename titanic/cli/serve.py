"""`titanic serve` and `titanic broker`: the commands that run until they are stopped."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from broker import DEFAULT_ENDPOINT, Broker, BrokerConfig
from titanic import descriptors
from titanic.cli.help import command
from titanic.cli.options import Function, configured, option, read_size, seconds, size
from titanic.cli.output import EXIT_FAILED
from titanic.cli.running import Ending, log_to_stderr, say
from titanic.config import MOST_LANES, ServerConfig, ServiceLimits
from titanic.errors import TitanicError
from titanic.server import Server
from titanic.store import Retention
from titanic.text import counted
from titanic.version import __version__

NOTICE = 0.5
"""Seconds after which a signal is noticed, at the latest."""

M_MMAP_THRESHOLD = -3

WIRE, SERVER = BrokerConfig(), ServerConfig()


KEPT, TRIED, TRAFFIC = "What is kept", "How it is tried", "The broker's traffic"


def running_options(function: Function) -> Function:
    """Those of both commands. The last of this list stands first in the help, as with decorators."""
    for add in (
        configured,
        option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default="info",
            help="How much to log on stderr.",
        ),
    ):
        function = add(function)
    return function


bind_option = option(
    "--bind",
    multiple=True,
    metavar="ENDPOINT",
    default=(DEFAULT_ENDPOINT,),
    help="Where to listen; may be given repeatedly.",
)


def wire_options(function: Function) -> Function:
    """The broker's options. Their parameters have the names of `BrokerConfig`'s fields."""
    for add in (
        option(
            "--max-deliveries",
            type=click.IntRange(1),
            metavar="N",
            default=WIRE.max_deliveries,
            group=TRAFFIC,
            help="Workers that may die of one request before it is given up.",
        ),
        option(
            "--max-waiting",
            "max_waiting_per_service",
            type=click.IntRange(1),
            metavar="N",
            default=WIRE.max_waiting_per_service,
            group=TRAFFIC,
            help="Plain MDP requests that may wait for one service in the broker's memory.",
        ),
        seconds(
            "--request-expiry",
            least=0,
            default=WIRE.request_expiry,
            group=TRAFFIC,
            help="How long a plain MDP request waits for a worker; 0: for ever.",
        ),
        seconds(
            "--heartbeat",
            "heartbeat_interval",
            least=0.01,
            default=WIRE.heartbeat_interval,
            group=TRAFFIC,
            help="Between heartbeats; a worker that is silent for four is gone.",
        ),
        size("--max-body", default="64MiB", group=TRAFFIC, help="Largest body of a request."),
    ):
        function = add(function)
    return function


def take_wire(settings: dict[str, Any]) -> BrokerConfig:
    """Take the broker's settings out of all settings."""
    names = {field.name for field in fields(BrokerConfig)} & settings.keys()
    return BrokerConfig(**{name: settings.pop(name) for name in names})


def service_limits(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> Mapping[bytes, ServiceLimits]:
    """Read `--service-limit` options: NAME:waiting=N,bytes=SIZE,running=N."""
    limits: dict[bytes, ServiceLimits] = {}
    for value in values:
        name, colon, rest = value.rpartition(":")
        chosen: dict[str, int] = {}
        for part in rest.split(","):
            what, _, number = part.partition("=")
            if not name or not colon or what not in ("waiting", "bytes", "running") or what in chosen:
                raise click.BadParameter(f"{value!r} is not like NAME:waiting=1000,bytes=64MiB,running=4")
            chosen[what] = read_size(number, least=1)
        limits[os.fsencode(name)] = ServiceLimits(**chosen)
    return limits


@command()
@option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=SERVER.store,
    help="Directory of the store.",
)
@size("--capacity", default=None, help="What the store may hold; default: as before, or 1GiB.")
@bind_option
@option("--broker", default=None, metavar="ENDPOINT", help="Use the broker that is there instead of an own one.")
@option(
    "--gather",
    multiple=True,
    metavar="ENDPOINT",
    default=(),
    help="Where to take requests that want no answer, from SCATTER sockets; may be given repeatedly.",
)
@seconds("--grace", least=0, default=SERVER.grace, help="On shutdown: how long running requests may still take.")
@seconds(
    "--keep-replies",
    least=0,
    default=7 * 86_400,
    group=KEPT,
    help="How long replies that nobody closes are kept; 0: for ever.",
)
@seconds(
    "--keep-dead", least=0, default=30 * 86_400, group=KEPT, help="How long failed requests are kept; 0: for ever."
)
@seconds(
    "--keep-closed",
    least=0,
    default=0,
    group=KEPT,
    help="How long closed requests are remembered; 0: while there is room.",
)
@size(
    "--closed-body-limit",
    least=0,
    default="64KiB",
    group=KEPT,
    help="Larger bodies of closed requests are not remembered.",
)
@option(
    "--drop-unarchived",
    is_flag=True,
    group=KEPT,
    help="Forget closed requests that an archive does not have, when room is needed.",
)
@option("--preallocate", is_flag=True, group=KEPT, help="Take the whole capacity from the disk at the start.")
@option(
    "--max-attempts",
    type=click.IntRange(1, 65535),
    metavar="N",
    default=SERVER.max_attempts,
    group=TRIED,
    help="Failures until a request has failed for good.",
)
@seconds(
    "--retry-first",
    least=0,
    default=SERVER.retry_first,
    group=TRIED,
    help="Wait after the first failure; it doubles.",
)
@seconds("--retry-most", least=0, default=SERVER.retry_most, group=TRIED, help="The longest such wait.")
@option(
    "--service-limit",
    "limits",
    multiple=True,
    metavar="NAME:WHAT=N,…",
    default=(),
    callback=service_limits,
    group=TRIED,
    help="Limits of one service: waiting=N requests, bytes=SIZE of them, running=N at once; may be given repeatedly.",
)
@seconds(
    "--attempt-timeout",
    least=0.1,
    default=SERVER.attempt_timeout,
    group=TRIED,
    help="With a --broker that is not of this project: no reply for this long is a failure.",
)
@wire_options
@option(
    "--lanes",
    type=click.IntRange(1, MOST_LANES),
    metavar="N",
    default=SERVER.lanes,
    group=TRAFFIC,
    help="With --broker: sockets per service.",
)
@running_options
def serve(bind: tuple[str, ...], log_level: str, **settings: Any) -> None:
    """Run Titanic: the persistent queue, with its broker in the same process.

    With --broker it uses the broker that is there, and ends when another queue serves that one already.

    Stops on SIGTERM or SIGINT: refuses new requests, finishes what is in hand, exits with 0. A second signal
    ends it at once; nothing is lost then either.

    \b
    Example:
      titanic serve --store /var/lib/titanic --capacity 20GiB --bind tcp://0.0.0.0:5555
      titanic serve --store S --broker tcp://10.0.0.5:5555
      titanic serve --store S --gather tcp://127.0.0.1:5557
    """
    chosen = click.get_current_context().get_parameter_source("bind")
    if settings["broker"] is not None and chosen is ParameterSource.COMMANDLINE:
        raise click.UsageError("--bind is for the integrated broker; with --broker there is none")
    log_to_stderr(log_level)
    _prepare()
    asked = _watch_signals()
    retention = Retention(*(int(settings.pop(name) * 1e6) for name in ("keep_replies", "keep_dead", "keep_closed")))
    server = Server(ServerConfig(bind=bind, wire=take_wire(settings), retention=retention, **settings))
    server.start()
    with server.store.read() as transaction:
        counts = transaction.counts()
    where = ", ".join(server.endpoints)
    way = f"serving at {where}" if server.config.broker is None else f"connecting to the broker at {where}"
    if server.gathers:
        way += f", gathering at {', '.join(server.gathers)}"
    say(f"{way}; store {server.store.path}: {counted(counts.requests, 'request')}, {counts.waiting} waiting")
    _run(asked, lambda: server.alive, server.stop, lambda: server.problem)


@command("broker")
@bind_option
@wire_options
@running_options
def broker_command(bind: tuple[str, ...], log_level: str, **settings: Any) -> None:
    """Run a Majordomo broker alone: MDP 0.1 and 0.2, nothing stored.

    `titanic serve --broker ENDPOINT` adds the persistent queue to it, from another process.

    \b
    Example:
      titanic broker --bind tcp://0.0.0.0:5555
    """
    log_to_stderr(log_level)
    _prepare()
    asked = _watch_signals()
    here = Broker(take_wire(settings), version=__version__)
    endpoints = [here.bind(endpoint) for endpoint in bind]
    here.start()
    say(f"broker at {', '.join(endpoints)}")
    _run(asked, lambda: here.alive, here.stop)


def _prepare() -> None:
    """Ask the system for what somebody needs who has many peers."""
    descriptors.raise_limit()
    # Left to itself, glibc keeps freed memory of large messages in pieces that fit nothing: several times as much as
    # is in use. Memory that it maps for each goes back at once. Other C libraries have no such function.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 512 << 10)


def _watch_signals() -> threading.Event:
    """Set when a signal asks for the end. The second signal ends the process at once."""
    asked = threading.Event()
    Ending(asked.set)
    return asked


def _run(
    asked: threading.Event,
    alive: Callable[[], bool],
    stop: Callable[[], None],
    problem: Callable[[], TitanicError | None] = lambda: None,
) -> None:
    """Wait until the end is asked for, and stop cleanly."""
    while not asked.wait(NOTICE):
        if (error := problem()) is not None:
            stop()
            raise error
        if not alive():
            say("stopping: it can't go on, see the log above")
            with contextlib.suppress(Exception):
                stop()
            sys.exit(EXIT_FAILED)
    # A signal that comes just before a thread begins to wait is only seen when that ends: this one looks up often.
    stopping = ThreadPoolExecutor(1, "stop").submit(stop)
    while not wait([stopping], NOTICE).done:
        pass
    stopping.result()
