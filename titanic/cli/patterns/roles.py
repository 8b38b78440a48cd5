"""The roles of patterns: their options and how they run, shared by several of them."""

from __future__ import annotations

import functools
import inspect
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import click
from click.core import ParameterSource

from broker import DEFAULT_ENDPOINT, UsageError
from broker.patterns import server_keys
from titanic import logs
from titanic.cli.options import (
    ENDPOINTS,
    Decorator,
    Duration,
    Function,
    GroupedCommand,
    key_option,
    key_options,
    option,
    together,
)
from titanic.cli.running import StopSignal, say
from titanic.cli.work import CommandHandler
from titanic.protocol.tsp import Frames

Settings = dict[str, Any]

ARGUMENTS: dict[str, Settings] = {
    "service": {},
    "which": {"type": click.Choice(["primary", "backup"])},
    "body": {"nargs": -1, "required": True},
    "bodies": {"nargs": -1, "metavar": "[BODY]..."},
    "message": {"nargs": -1},
    "command": {"nargs": -1, "type": click.UNPROCESSED, "metavar": "[-- COMMAND...]"},
}

COUNT: Settings = {"type": click.IntRange(1), "metavar": "N"}
TIME: Settings = {"type": Duration(least=0.001), "metavar": "TIME"}

OPTIONS: dict[str, Settings] = {
    "bind": {"metavar": "ENDPOINT", "default": DEFAULT_ENDPOINT, "help": "Endpoint to listen on."},
    "endpoint": {**ENDPOINTS, "help": "Endpoint of the server; repeatable: each attempt goes to the next one."},
    "timeout": {**TIME, "help": "Maximum time to wait for a reply, per attempt."},
    "retries": {"type": click.IntRange(0), "metavar": "N", "help": "Number of retries."},
    "heartbeat": {
        "type": Duration(least=0.01),
        "metavar": "TIME",
        "default": 1.0,
        "help": "Heartbeat interval; must be the same at both ends.",
    },
    "jobs": {
        "names": ["--jobs", "-j"],
        "type": click.IntRange(1, 500),
        "metavar": "N",
        "default": 1,
        "help": "Requests processed at once.",
    },
    "open": {
        "is_flag": True,
        "help": "Allow endpoints that other machines can reach, without keys: any client may connect.",
    },
    "allow": {
        "multiple": True,
        "metavar": "FILE|Z85",
        "default": (),
        "help": "With --key-file: public key of a client or worker that may connect; repeatable.",
    },
    "lines": {"type": click.File("rb"), "metavar": "FILE", "help": "One message per line of FILE (- for stdin)."},
}


def role(group: click.Group, **more: Settings) -> Callable[[Function], click.Command]:
    """Make a function a command of a group, which is called like the last word of the function.

    Its parameters are the command's: those of ARGUMENTS, `curve` for the keys of a role that connects, `keys` for
    those of a role that listens, and options. An option has the settings of OPTIONS, those in `more`, and the default
    of the parameter, as far as there are any.
    """

    def make(function: Function) -> click.Command:
        for name, parameter in reversed([*inspect.signature(function).parameters.items()]):
            if name in KEYS:
                function = KEYS[name](function)
                continue
            if name in ARGUMENTS:
                function = click.argument(name, **ARGUMENTS[name])(function)
                continue
            settings = {**OPTIONS.get(name, {}), **more.get(name, {})}
            if parameter.default is not parameter.empty:
                settings["default"] = parameter.default
            names = settings.pop("names", [f"--{name.replace('_', '-')}"])
            function = option(*names, **settings)(function)
        return group.command(function.__name__.rpartition("_")[2], cls=GroupedCommand)(function)

    return make


def _with_server_keys(function: Function) -> Function:
    """Give a role its options for keys as one `keys`."""

    @functools.wraps(function)
    def with_keys(*args: Any, key: Path | None, allow: tuple[str, ...], open: bool, **settings: Any) -> Any:
        given = click.get_current_context().get_parameter_source("key")
        if not allow and given is not ParameterSource.COMMANDLINE:
            key = None  # the environment may have it for clients
        try:
            keys = server_keys(key, allow, open=open)
        except UsageError as error:
            raise click.UsageError(str(error)) from error
        for name, endpoint in settings.items():
            if name.startswith("bind") and endpoint is not None and not open:
                keys.protect(endpoint)  # before anything is made
        return function(*args, keys=keys, **settings)

    return cast(Function, with_keys)


KEYS: dict[str, Decorator] = {
    "curve": key_options(),
    "keys": together(
        key_option("Secret key file of this server; clients and workers then need a key given by --allow."),
        option("--allow", **OPTIONS["allow"]),
        option("--open", **OPTIONS["open"]),
        _with_server_keys,
    ),
}


class Runs(Protocol):
    """A server, queue or worker."""

    def run(self) -> None:
        """Serve until `stop`."""

    def stop(self) -> None:
        """End `run`."""


def run(role: Runs, text: str) -> None:
    """Run until the first signal, which lets what is in hand finish; a second one ends the process at once."""
    logs.begin("info", "auto")
    ending = StopSignal(role.stop)
    say(text, "serving")
    role.run()
    sys.exit(ending.code)


def handler(command: tuple[str, ...]) -> Callable[[Frames], Any]:
    """A function that runs a command for each request; without one, the request is its own reply."""
    if not command:
        return lambda body: body
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"command not found: {command[0]}")
    return CommandHandler(command, None)


def each_message(given: Iterable[str], lines: BinaryIO | None, name: str) -> Iterator[bytes]:
    """The messages of arguments called `name`, or of `--lines`. Raises UsageError when it is not one of the two."""
    texts = list(given)
    if bool(texts) == (lines is not None):
        raise click.UsageError(f"give either {name} or --lines")
    return (text.encode() for text in texts) if lines is None else (line.removesuffix(b"\n") for line in lines)
