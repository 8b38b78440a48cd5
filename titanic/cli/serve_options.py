"""The options of `titanic serve` and `titanic broker`, and the settings that they make."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

import broker
from broker import AccessError, BrokerConfig, WorkerConfig
from titanic.cli.endpoint import BOUND, BROKER, Listen
from titanic.cli.options import (
    FILE,
    KEY_NAMES,
    MDP_HELP,
    STORE,
    broker_version,
    configured,
    declared,
    log_options,
    together,
)
from titanic.errors import Contradiction
from titanic.protocol.submit_options import AT_ONCE, NEVER
from titanic.settings import TRAFFIC, OperatorSettings, ServerConfig, ServiceLimits, contradictions
from titanic.store import LeaseConfig
from titanic.util.units import MAX_SECONDS, READ_LIMIT, read_duration

listening: dict[str, Any] = {"type": BOUND, "metavar": "ENDPOINT"}
file: dict[str, Any] = {"type": FILE, "metavar": "FILE"}

running_options = together(
    log_options,
    declared(OperatorSettings, "metrics", type=Listen(), metavar="HOST:PORT"),
    configured,
)
"""Those of both commands."""

bind_option = declared(ServerConfig, "bind", **listening)
broker_bind_option = declared(
    ServerConfig, "bind", help="Endpoint to listen on; * or 0 for any free port.", **listening
)
access_option = declared(ServerConfig, "access", **file)
broker_access_option = declared(
    ServerConfig, "access", help="Access file: the users and their permissions; requires `key`.", **file
)
open_option = declared(ServerConfig, "open")

wire_options = together(
    declared(BrokerConfig, "max_body"),
    declared(BrokerConfig, "heartbeat_interval"),
    declared(BrokerConfig, "request_expiry"),
    declared(BrokerConfig, "max_waiting_per_service"),
    declared(BrokerConfig, "worker_return"),
    declared(BrokerConfig, "max_deliveries"),
)
"""The broker's options."""

MAX_NAME = 100
"""Characters in the name of a server."""


class NodeName(click.ParamType[str]):
    """The name of a server."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text.isprintable() or not 0 < len(text) <= MAX_NAME or text.isdigit():
            self.fail(f"{text!r} is not a valid name; use 1 to {MAX_NAME} characters, not only digits", param, ctx)
        return text


NAME = NodeName()


def take_wire(settings: dict[str, Any]) -> BrokerConfig:
    """Take the broker's settings out of all settings."""
    names = {field.name for field in fields(BrokerConfig)} & settings.keys()
    return BrokerConfig(**{name: settings.pop(name) for name in names})


def _kept(text: str) -> float:
    return read_duration(text, least=0.001, most=MAX_SECONDS)


_LIMITS: dict[str, Callable[[str], float | str]] = {
    **READ_LIMIT,
    "keep": lambda text: AT_ONCE if text == NEVER else _kept(text),
    "keep_failed": _kept,
    "keep_body": lambda text: NEVER if text == NEVER else _kept(text),
}
"""How the limits of a service are read."""


def service_limits(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> Mapping[bytes, ServiceLimits]:
    """Read `--service-limit` options: NAME:waiting=N,bytes=SIZE,running=N,rate=N/s,keep=TIME,keep_failed=TIME, and
    keep_body=TIME."""
    limits: dict[bytes, ServiceLimits] = {}
    for value in values:
        name, colon, rest = value.rpartition(":")
        chosen: dict[str, Any] = {}
        for part in rest.split(","):
            what, _, number = part.partition("=")
            if not name or not colon or what not in _LIMITS or what in chosen:
                example = "NAME:waiting=1000,bytes=64MiB,running=4,rate=10/s,keep=1h,keep_failed=7d,keep_body=never"
                raise click.BadParameter(f"{value!r} is not a limit; write it like {example}")
            try:
                chosen[what] = _LIMITS[what](number)
            except ValueError as error:
                raise click.BadParameter(str(error)) from error
        if os.fsencode(name) in limits:
            raise click.BadParameter(
                f"{name} is given twice; write its limits as one, like {name}:waiting=1000,running=4"
            )
        limits[os.fsencode(name)] = ServiceLimits(**chosen)
    return limits


queue_options = together(
    declared(ServerConfig, "store", type=STORE, metavar="DIR"),
    declared(ServerConfig, "capacity"),
    declared(ServerConfig, "durability"),
    bind_option,
    declared(ServerConfig, "broker", type=BROKER, metavar="ENDPOINT"),
    declared(ServerConfig, "gather", **listening),
    access_option,
    declared(ServerConfig, "key", **file, **KEY_NAMES),
    declared(ServerConfig, "server_key", metavar="FILE|Z85"),
    open_option,
    declared(ServerConfig, "node_name", type=NAME, metavar="NAME"),
    declared(ServerConfig, "advertise", type=BROKER, metavar="ENDPOINT"),
    declared(OperatorSettings, "lease"),
    declared(ServerConfig, "grace"),
    declared(OperatorSettings, "keep_replies"),
    declared(OperatorSettings, "keep_dead"),
    declared(OperatorSettings, "keep_closed"),
    declared(ServerConfig, "keep_body"),
    declared(ServerConfig, "closed_body_limit"),
    declared(ServerConfig, "drop_unarchived"),
    declared(ServerConfig, "preallocate"),
    declared(ServerConfig, "max_attempts"),
    declared(ServerConfig, "poison_deaths"),
    declared(ServerConfig, "retry_first"),
    declared(ServerConfig, "retry_most"),
    declared(ServerConfig, "unready_timeout"),
    declared(ServerConfig, "limits", metavar="NAME:WHAT=N,…", callback=service_limits),
    declared(ServerConfig, "attempt_timeout"),
    wire_options,
    broker_version("0.2", "0.1", "majortomo", group=TRAFFIC, help=f"With --broker: {MDP_HELP}"),
    declared(ServerConfig, "lanes"),
)
"""The queue's options. Their parameters are fields of `ServerConfig`, `BrokerConfig` or `OperatorSettings`."""


def rule(values: Mapping[str, Any], own: Set[str]) -> Iterator[Contradiction]:
    """What contradicts itself in a file. (Above the tables `bind` may be meant for `titanic broker`.)"""
    yield from contradictions(values)
    yield from access_faults(values, own)
    if {"bind", "broker"} <= own:
        what, fact = "bind is for the integrated broker", "broker names another one"
        yield Contradiction(("bind", "broker"), what, fact, "leave one out")


def access_faults(values: Mapping[str, Any], own: Set[str]) -> Iterator[Contradiction]:
    """The mistakes in the access file that a settings file names, if the current user may read it."""
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
    retention = OperatorSettings.retention(settings)
    wire = take_wire(settings)
    mdp = settings["mdp"]
    versions = (mdp,) if mdp else WorkerConfig().versions
    worker = WorkerConfig(heartbeat_interval=wire.heartbeat_interval, versions=versions)
    settings["lease"] = LeaseConfig.of(settings["lease"])
    settings["node_name"] = settings.get("node_name") or ""
    names = {field.name for field in fields(ServerConfig)} & settings.keys()
    return ServerConfig(wire=wire, worker=worker, retention=retention, **{name: settings[name] for name in names})
