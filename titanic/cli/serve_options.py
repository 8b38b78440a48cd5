"""The options of `titanic serve` and `titanic broker`, and the settings that they make."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import click

import broker
from broker import DEFAULT_ENDPOINT, AccessError, BrokerConfig, WorkerConfig
from titanic.cli.endpoint import BOUND, BROKER, Listen
from titanic.cli.options import (
    FILE,
    MAX_SIZE,
    STORE,
    broker_version,
    configured,
    key_option,
    log_options,
    option,
    seconds,
    size,
    together,
)
from titanic.config import MOST_LANES, ServerConfig, ServiceLimits, contradictions
from titanic.errors import Contradiction
from titanic.store import DURABILITIES, MIN_CAPACITY, LeaseConfig, Retention
from titanic.util.units import read_rate, read_size

WIRE, SERVER = BrokerConfig(), ServerConfig()

LEAST_LEASE, MOST_LEASE = 3.0, 3600.0
"""Seconds: a renewal is given up after a fifth of it, and what a killed server had must not wait for a day."""

KEPT, TRIED, TRAFFIC, OPERATION = "What is kept", "Attempts", "The broker's traffic", "Operation"
"""Groups of options in the help."""

kept = partial(seconds, least=0, group=KEPT)
tried = partial(seconds, least=0, group=TRIED)
listening = partial(option, type=BOUND, multiple=True, metavar="ENDPOINT")
traffic = partial(option, type=click.IntRange(1), metavar="N", group=TRAFFIC)

running_options = together(
    log_options,
    option(
        "--metrics",
        type=Listen(),
        metavar="HOST:PORT",
        default=None,
        group=OPERATION,
        help="Where to serve /metrics for Prometheus, /healthz and /readyz; :PORT listens at every address,"
        " port 0 takes any free one; default: none.",
    ),
    configured,
)
"""Those of both commands."""

bind_option = listening(
    "--bind",
    default=(DEFAULT_ENDPOINT,),
    help="Where to listen, * or 0 for any free port; may be given repeatedly.",
)

open_option = option(
    "--open",
    is_flag=True,
    help="Listen where other machines can connect, without access control: whoever does may submit, read, close and"
    " work.",
)


access_option = option(
    "--access",
    type=FILE,
    metavar="FILE",
    default=None,
    help="The file that says who may do what; needs --key. Default: whoever connects may do everything.",
)

wire_options = together(
    size("--max-body", default="64MiB", group=TRAFFIC, help="Largest body of a request."),
    seconds(
        "--heartbeat",
        "heartbeat_interval",
        least=0.01,
        default=WIRE.heartbeat_interval,
        group=TRAFFIC,
        help="Interval of heartbeats. A peer is considered dead after four intervals of silence (its own"
        " interval, if longer).",
    ),
    seconds(
        "--request-expiry",
        least=0,
        default=WIRE.request_expiry,
        group=TRAFFIC,
        help="How long a plain MDP request waits for a worker; 0: for ever.",
    ),
    traffic(
        "--max-waiting",
        "max_waiting_per_service",
        default=WIRE.max_waiting_per_service,
        help="Plain MDP requests that may wait for one service in the broker's memory.",
    ),
    traffic(
        "--max-deliveries",
        default=WIRE.max_deliveries,
        help="How many workers may die while they have the same plain MDP request, before it is given up. (For a stored"
        " one, each is an attempt.)",
    ),
)
"""The broker's options. Their parameters have the names of `BrokerConfig`'s fields."""

MOST_NAME = 100
"""Characters in the name of a server."""

KEEPING = ("keep_replies", "keep_dead", "keep_closed")
"""The parameters that make up the retention."""


class NodeName(click.ParamType[str]):
    """What a server is called."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text.isprintable() or not 0 < len(text) <= MOST_NAME or text.isdigit():
            self.fail(f"{text!r} is not a name; it has 1 to {MOST_NAME} characters, and is no number", param, ctx)
        return text


NAME = NodeName()


def take_wire(settings: dict[str, Any]) -> BrokerConfig:
    """Take the broker's settings out of all settings."""
    names = {field.name for field in fields(BrokerConfig)} & settings.keys()
    return BrokerConfig(**{name: settings.pop(name) for name in names})


def service_limits(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> Mapping[bytes, ServiceLimits]:
    """Read `--service-limit` options: NAME:waiting=N,bytes=SIZE,running=N,rate=N/s."""
    limits: dict[bytes, ServiceLimits] = {}
    for value in values:
        name, colon, rest = value.rpartition(":")
        chosen: dict[str, Any] = {}
        for part in rest.split(","):
            what, _, number = part.partition("=")
            if not name or not colon or what not in ("waiting", "bytes", "running", "rate") or what in chosen:
                raise click.BadParameter(f"{value!r} is not like NAME:waiting=1000,bytes=64MiB,running=4,rate=10/s")
            try:
                chosen[what] = read_rate(number) if what == "rate" else read_size(number, least=1, most=MAX_SIZE)
            except ValueError as error:
                raise click.BadParameter(str(error)) from error
        if os.fsencode(name) in limits:
            raise click.BadParameter(f"{name} has two; write them as one, like {name}:waiting=1000,running=4")
        limits[os.fsencode(name)] = ServiceLimits(**chosen)
    return limits


queue_options = together(
    option(
        "--store",
        type=STORE,
        metavar="DIR",
        default=SERVER.store,
        help="Directory of the store, or the URL of a database of PostgreSQL: postgresql://USER@HOST/DATABASE.",
    ),
    size(
        "--capacity",
        least=MIN_CAPACITY,
        default=None,
        help="Size limit of the store; default: the capacity of an existing store; 1GiB for a new one.",
    ),
    option(
        "--durability",
        type=click.Choice(DURABILITIES),
        default=SERVER.durability,
        help="When a request is acknowledged. synced: it is on the disk. relaxed: faster; a power cut may take what was"
        " acknowledged within the last second. memory: for tests and caches; the store is in RAM, so --store must name"
        " a folder there, like /dev/shm/titanic.",
    ),
    bind_option,
    option(
        "--broker",
        type=BROKER,
        default=None,
        metavar="ENDPOINT",
        help="Use the broker there instead of the built-in broker.",
    ),
    listening(
        "--gather",
        default=(),
        help="Where to receive requests that need no reply, from SCATTER sockets; may be given repeatedly.",
    ),
    access_option,
    key_option(
        "File with a secret key. With --access: the key by which clients know this server. With --broker: the one by"
        " which the broker knows who this is; then give --server-key, too."
    ),
    option(
        "--server-key",
        metavar="FILE|Z85",
        default=None,
        help="With --broker, when that has access control: its public key.",
    ),
    open_option,
    option(
        "--node-name",
        type=NAME,
        metavar="NAME",
        default=None,
        help="With a store in PostgreSQL: what this server is called among those that share it; default: the name of"
        " the machine.",
    ),
    option(
        "--advertise",
        type=BROKER,
        multiple=True,
        metavar="ENDPOINT",
        default=(),
        help="With a store in PostgreSQL: where others reach this server, for `titanic nodes`; may be given repeatedly;"
        " default: where it listens.",
    ),
    seconds(
        "--lease",
        least=LEAST_LEASE,
        most=MOST_LEASE,
        default=SERVER.lease.lease,
        help="With a store in PostgreSQL: for so long the others leave alone what a server has that was killed, or"
        " can't reach the database. All have the same.",
    ),
    seconds("--grace", least=0, default=SERVER.grace, help="On shutdown: how long running requests may still take."),
    kept("--keep-replies", default="7d", help="How long replies that no client closes are kept; 0: for ever."),
    kept("--keep-dead", default="30d", help="How long failed and expired requests are kept; 0: for ever."),
    kept("--keep-closed", default=0, help="How long closed requests are remembered; 0: while there is room."),
    size(
        "--closed-body-limit",
        least=0,
        default="64KiB",
        group=KEPT,
        help="Largest body that is remembered with a closed request.",
    ),
    option(
        "--drop-unarchived",
        is_flag=True,
        group=KEPT,
        help="When room is needed, forget closed requests that no archive has yet, instead of refusing new ones.",
    ),
    option("--preallocate", is_flag=True, group=KEPT, help="Take the whole capacity from the disk at the start."),
    option(
        "--max-attempts",
        type=click.IntRange(1, 65535),
        metavar="N",
        default=SERVER.max_attempts,
        group=TRIED,
        help="Failed attempts after which a request has failed for good.",
    ),
    tried("--retry-first", default=SERVER.retry_first, help="Back-off after the first failure; doubles with each."),
    tried("--retry-most", default=SERVER.retry_most, help="The longest back-off."),
    tried(
        "--unready-timeout",
        default=SERVER.unready_timeout,
        help="How long workers may give a request back, because they do not know its task or an argument, or cannot"
        " import a module, before it has failed.",
    ),
    option(
        "--service-limit",
        "limits",
        multiple=True,
        metavar="NAME:WHAT=N,…",
        default=(),
        callback=service_limits,
        group=TRIED,
        help="Limits of a service: waiting=N requests, bytes=SIZE of them, running=N at once, rate=N/s (or /m, /h)"
        " attempts that begin, evenly spread; may be given repeatedly. Servers that share a store have them in common.",
    ),
    seconds(
        "--attempt-timeout",
        least=0.1,
        default=SERVER.attempt_timeout,
        group=TRIED,
        help="With a --broker of another project: an attempt without a reply for this long has failed.",
    ),
    wire_options,
    broker_version("0.2", "0.1", "majortomo", group=TRAFFIC),
    option(
        "--lanes",
        type=click.IntRange(1, MOST_LANES),
        metavar="N",
        default=SERVER.lanes,
        group=TRAFFIC,
        help="With --broker: worker sockets for each service.",
    ),
)
"""The queue's options. Their parameters have the names of `ServerConfig`'s fields, or are what `server_config` makes a
field of."""


def rule(values: Mapping[str, Any], own: Set[str]) -> Iterator[Contradiction]:
    """What contradicts itself in a file. (Above the tables `bind` may be meant for `titanic broker`.)"""
    yield from contradictions(values)
    yield from access_faults(values, own)
    if {"bind", "broker"} <= own:
        what, fact = "bind is for the integrated broker", "with another one there is none"
        yield Contradiction(("bind", "broker"), what, fact, "leave one out")


def access_faults(values: Mapping[str, Any], own: Set[str]) -> Iterator[Contradiction]:
    """The faults of the access file that a file names, unless somebody looks who may not read it."""
    access: Path | None = values["access"]
    if access is None or (access.exists() and not os.access(access, os.R_OK)):
        return
    try:
        broker.load_access(access)
    except AccessError as error:
        yield Contradiction(("access",), str(error), "", "")


def server_config(settings: dict[str, Any]) -> ServerConfig:
    """All settings of `titanic serve` as one. Raises CallerError for those that contradict each other."""
    settings = dict(settings)
    retention = Retention(*(int(settings.pop(name) * 1e6) for name in KEEPING))
    wire = take_wire(settings)
    mdp = settings["mdp"]
    versions = (mdp,) if mdp else WorkerConfig().versions
    worker = WorkerConfig(heartbeat_interval=wire.heartbeat_interval, versions=versions)
    settings["lease"] = LeaseConfig.of(settings["lease"])
    settings["node_name"] = settings.get("node_name") or ""
    names = {field.name for field in fields(ServerConfig)} & settings.keys()
    return ServerConfig(wire=wire, worker=worker, retention=retention, **{name: settings[name] for name in names})
