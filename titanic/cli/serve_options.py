"""The options of `titanic serve` and `titanic broker`, and the settings that they make."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields
from typing import Any

import click

from broker import DEFAULT_ENDPOINT, BrokerConfig, WorkerConfig
from titanic.cli.endpoint import BOUND, BROKER
from titanic.cli.listen import Listen
from titanic.cli.options import (
    FOLDER,
    Function,
    broker_version,
    configured,
    log_options,
    option,
    read_size,
    seconds,
    size,
)
from titanic.config import MOST_LANES, Contradiction, ServerConfig, ServiceLimits, contradictions
from titanic.store import MIN_CAPACITY, Retention

WIRE, SERVER = BrokerConfig(), ServerConfig()


KEPT, TRIED, TRAFFIC = "What is kept", "How it is tried", "The broker's traffic"
OPERATION = "Operation"


def running_options(function: Function) -> Function:
    """Those of both commands. The last of this list stands first in the help, as with decorators."""
    for add in (
        configured,
        option(
            "--metrics",
            type=Listen(),
            metavar="HOST:PORT",
            default=None,
            group=OPERATION,
            help="Where to serve /metrics for Prometheus, /healthz and /readyz; :PORT is at every address, port 0 any"
            " free one; default: nowhere.",
        ),
        *log_options,
    ):
        function = add(function)
    return function


bind_option = option(
    "--bind",
    type=BOUND,
    multiple=True,
    metavar="ENDPOINT",
    default=(DEFAULT_ENDPOINT,),
    help="Where to listen, * or 0 for any free port; may be given repeatedly.",
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
            help="Between heartbeats. Who is silent for four, of these or of its own if those are longer, is gone.",
        ),
        size("--max-body", default="64MiB", group=TRAFFIC, help="Largest body of a request."),
    ):
        function = add(function)
    return function


KEEPING = ("keep_replies", "keep_dead", "keep_closed")
"""The parameters that make up the retention."""


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
        if os.fsencode(name) in limits:
            raise click.BadParameter(f"{name} has two; write them as one, like {name}:waiting=1000,running=4")
        limits[os.fsencode(name)] = ServiceLimits(**chosen)
    return limits


def queue_options(function: Function) -> Function:
    """The queue's options. Their parameters have the names of `ServerConfig`'s fields, or are what `server_config`
    makes a field of. The last of this list stands first in the help, as with decorators."""
    for add in (
        option(
            "--lanes",
            type=click.IntRange(1, MOST_LANES),
            metavar="N",
            default=SERVER.lanes,
            group=TRAFFIC,
            help="With --broker: sockets per service.",
        ),
        broker_version("0.2", "0.1", group=TRAFFIC),
        wire_options,
        seconds(
            "--attempt-timeout",
            least=0.1,
            default=SERVER.attempt_timeout,
            group=TRIED,
            help="With a --broker that is not of this project: no reply for this long is a failure.",
        ),
        option(
            "--service-limit",
            "limits",
            multiple=True,
            metavar="NAME:WHAT=N,…",
            default=(),
            callback=service_limits,
            group=TRIED,
            help="Limits of one service: waiting=N requests, bytes=SIZE of them, running=N at once; may be given"
            " repeatedly.",
        ),
        seconds("--retry-most", least=0, default=SERVER.retry_most, group=TRIED, help="The longest such wait."),
        seconds(
            "--retry-first",
            least=0,
            default=SERVER.retry_first,
            group=TRIED,
            help="Wait after the first failure; it doubles.",
        ),
        option(
            "--max-attempts",
            type=click.IntRange(1, 65535),
            metavar="N",
            default=SERVER.max_attempts,
            group=TRIED,
            help="Failures until a request has failed for good.",
        ),
        option("--preallocate", is_flag=True, group=KEPT, help="Take the whole capacity from the disk at the start."),
        option(
            "--drop-unarchived",
            is_flag=True,
            group=KEPT,
            help="When room is needed, forget closed requests that no archive has copied yet, instead of refusing"
            " new ones.",
        ),
        size(
            "--closed-body-limit",
            least=0,
            default="64KiB",
            group=KEPT,
            help="Larger bodies of closed requests are not remembered.",
        ),
        seconds(
            "--keep-closed",
            least=0,
            default=0,
            group=KEPT,
            help="How long closed requests are remembered; 0: while there is room.",
        ),
        seconds(
            "--keep-dead",
            least=0,
            default="30d",
            group=KEPT,
            help="How long failed and expired requests are kept; 0: for ever.",
        ),
        seconds(
            "--keep-replies",
            least=0,
            default="7d",
            group=KEPT,
            help="How long replies that nobody closes are kept; 0: for ever.",
        ),
        seconds(
            "--grace", least=0, default=SERVER.grace, help="On shutdown: how long running requests may still take."
        ),
        option(
            "--gather",
            type=BOUND,
            multiple=True,
            metavar="ENDPOINT",
            default=(),
            help="Where to take requests that want no answer, from SCATTER sockets; may be given repeatedly.",
        ),
        option(
            "--broker",
            type=BROKER,
            default=None,
            metavar="ENDPOINT",
            help="Use the broker that is there instead of an own one.",
        ),
        bind_option,
        size(
            "--capacity", least=MIN_CAPACITY, default=None, help="What the store may hold; default: as before, or 1GiB."
        ),
        option(
            "--store",
            type=FOLDER,
            metavar="DIR",
            default=SERVER.store,
            help="Directory of the store.",
        ),
    ):
        function = add(function)
    return function


def rule(values: Mapping[str, Any], own: Set[str]) -> Iterator[Contradiction]:
    """What contradicts itself in a file. (Above the tables `bind` may be meant for `titanic broker`.)"""
    yield from contradictions(values)
    if {"bind", "broker"} <= own:
        what, fact = "bind is for the integrated broker", "with another one there is none"
        yield Contradiction(("bind", "broker"), what, fact, "leave one out")


def server_config(settings: dict[str, Any]) -> ServerConfig:
    """All settings of `titanic serve` as one. Raises CallerError for those that contradict each other."""
    settings = dict(settings)
    retention = Retention(*(int(settings.pop(name) * 1e6) for name in KEEPING))
    wire = take_wire(settings)
    mdp = settings["mdp"]
    versions = (mdp,) if mdp else WorkerConfig().versions
    worker = WorkerConfig(heartbeat_interval=wire.heartbeat_interval, versions=versions)
    names = {field.name for field in fields(ServerConfig)} & settings.keys()
    return ServerConfig(wire=wire, worker=worker, retention=retention, **{name: settings[name] for name in names})
