"""`titanic serve` and `titanic broker`: the commands that run until they are stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import click

from broker import DEFAULT_ENDPOINT, Broker, BrokerConfig
from titanic.cli.options import Function, configured, option, size
from titanic.config import ServerConfig
from titanic.server import Server
from titanic.version import __version__

WIRE, SERVER = BrokerConfig(), ServerConfig()


def wire_options(function: Function) -> Function:
    """The broker's options; they arrive as one `BrokerConfig`."""

    def with_config(
        heartbeat: float, request_expiry: float, max_deliveries: int, max_waiting: int, max_body: int, **rest: Any
    ) -> Any:
        wire = BrokerConfig(
            heartbeat_interval=heartbeat,
            request_expiry=request_expiry,
            max_deliveries=max_deliveries,
            max_waiting_per_service=max_waiting,
            max_body=max_body,
        )
        return function(wire=wire, **rest)

    with_config.__doc__ = function.__doc__
    with_config.__name__ = function.__name__
    with_config.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for add in (
        option("--max-body", type=size, default="64MiB", metavar="SIZE", help="Largest body of a request."),
        option(
            "--max-waiting",
            type=click.IntRange(1),
            default=WIRE.max_waiting_per_service,
            help="Plain MDP requests that may wait for one service in the broker's memory.",
        ),
        option(
            "--max-deliveries",
            type=click.IntRange(1),
            default=WIRE.max_deliveries,
            help="Workers that may die of one request before it is given up.",
        ),
        option(
            "--request-expiry",
            type=click.FloatRange(0),
            default=WIRE.request_expiry,
            metavar="S",
            help="How long a plain MDP request waits for a worker; 0: for ever.",
        ),
        option(
            "--heartbeat",
            type=click.FloatRange(0.01),
            default=WIRE.heartbeat_interval,
            metavar="S",
            help="Seconds between heartbeats; a worker that is silent for four is gone.",
        ),
        option("--bind", multiple=True, default=(DEFAULT_ENDPOINT,), help="Where to listen; may be given repeatedly."),
        option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default="info",
            help="How much to log on stderr.",
        ),
    ):
        with_config = add(with_config)
    return configured(with_config)  # type: ignore[return-value]


@click.command()
@option("--store", type=click.Path(path_type=Path), default=SERVER.store, help="Directory of the store.")
@option("--capacity", type=size, default="1GiB", metavar="SIZE", help="What the store may hold.")
@option("--broker", default=None, metavar="ENDPOINT", help="Use the broker that is there instead of an own one.")
@option("--lanes", type=click.IntRange(1, 300), default=SERVER.lanes, help="With --broker: sockets per service.")
@option("--max-attempts", type=click.IntRange(1), default=SERVER.max_attempts, help="Failures until a request is dead.")
@option(
    "--retry-first",
    type=click.FloatRange(0),
    default=SERVER.retry_first,
    metavar="S",
    help="Wait after the first failure; it doubles.",
)
@option("--retry-most", type=click.FloatRange(0), default=SERVER.retry_most, metavar="S", help="The longest such wait.")
@option(
    "--attempt-timeout",
    type=click.FloatRange(0.1),
    default=SERVER.attempt_timeout,
    metavar="S",
    help="With a --broker that is not of this project: no reply for this long is a failure.",
)
@option(
    "--grace",
    type=click.FloatRange(0),
    default=SERVER.grace,
    metavar="S",
    help="On shutdown: how long running requests may still take.",
)
@wire_options
def serve(*, wire: BrokerConfig, bind: tuple[str, ...], log_level: str, **settings: Any) -> None:
    """Run Titanic: the persistent queue, with its broker in the same process.

    Stops on SIGTERM or SIGINT: refuses new requests, finishes what is in hand, exits with 0. A second signal
    ends it at once; nothing is lost then either.
    """
    _log_to_stderr(log_level)
    server = Server(ServerConfig(bind=bind, wire=wire, **settings))
    server.start()
    with server.store.read() as transaction:
        counts = transaction.counts()
    where = ", ".join(server.endpoints)
    way = f"serving at {where}" if server.config.broker is None else f"working for the broker at {where}"
    _say(f"{way}; store {server.store.path}: {counts.requests} requests, {counts.waiting} waiting")
    _run_until_signal(lambda: server.alive, server.stop)


@click.command("broker")
@wire_options
def broker_command(*, wire: BrokerConfig, bind: tuple[str, ...], log_level: str) -> None:
    """Run a Majordomo broker alone: MDP 0.1 and 0.2, nothing stored.

    `titanic serve --broker ENDPOINT` adds the persistent queue to it, from another process.
    """
    _log_to_stderr(log_level)
    here = Broker(wire, version=__version__)
    endpoints = [here.bind(endpoint) for endpoint in bind]
    here.start()
    _say(f"broker at {', '.join(endpoints)}")
    _run_until_signal(lambda: here.alive, here.stop)


def _say(text: str) -> None:
    click.echo(f"titanic {__version__} {text}", err=True)


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def _run_until_signal(alive: Callable[[], bool], stop: Callable[[], None]) -> None:
    """Wait for SIGTERM or SIGINT and stop cleanly; the second one ends the process at once."""
    asked = threading.Event()

    def on_signal(number: int, _: FrameType | None) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    while not asked.wait(0.5):
        if not alive():
            _say("stopping: a thread has ended, see the log above")
            with contextlib.suppress(Exception):
                stop()
            sys.exit(1)
    _say("stopping")
    stop()
