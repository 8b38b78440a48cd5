"""`titanic web`: the web console and the HTTP API."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Set
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import click

from broker import AccessError, Callback
from titanic import logs
from titanic.cli.options import (
    command,
    configured,
    declared,
    endpoint_option,
    key_file_options,
    log_options,
    names_in_file,
    parse_again,
)
from titanic.cli.running import StopSignal, say
from titanic.errors import CallerError, Contradiction
from titanic.util import files
from titanic.util.sd_notify import Notifier
from titanic.util.text import how_to_install
from titanic.web.settings import WebSettings

log = logging.getLogger("titanic")

Network = IPv4Network | IPv6Network


class Bind(click.ParamType[tuple[str, int]]):
    """HOST:PORT, or unix:PATH."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        if str(value).startswith("unix:/"):
            return str(value).removeprefix("unix:"), 0
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            self.fail(f"{value!r} is not an address; write it like 127.0.0.1:8080", param, ctx)
        return host, int(port)


pem: dict[str, Any] = {"type": click.Path(dir_okay=False, path_type=Path), "metavar": "FILE"}

YOUNG = 20_000
"""New objects before the garbage collector checks them."""


def networks(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[Network | Path, ...]:
    """Parse the values of a repeatable option, of which proxies' may be paths of sockets."""
    unix = "unix:/" if param.name == "login_from" else ()
    return tuple(Path(one.removeprefix("unix:")) if one.startswith(unix) else network(one) for one in values)


def network(value: str) -> Network:
    """Parse a network such as 10.1.0.0/16."""
    try:
        return ip_network(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a network ({error}); write it like 10.1.0.0/16") from error


CHECKED = (
    "bind",
    "prefix",
    "access",
    "keys",
    "tls_certificate",
    "tls_key",
    "client_ca",
    "login_header",
    "login_from",
    "behind_tls",
    "open",
    "hooks",
    "hooks_user",
)


def rule(values: Mapping[str, Any], own: Set[str]) -> Iterator[Contradiction]:
    """Contradictions among settings."""
    from titanic.cli.serve_options import access_faults

    try:
        WebSettings(endpoint=(), **{name: values[name] for name in CHECKED})
    except Contradiction as error:
        yield error
    yield from access_faults(values, own)


@command(rule=rule)
@declared(WebSettings, "bind", type=Bind(), metavar="HOST:PORT")
@endpoint_option()
@key_file_options()
@declared(WebSettings, "timeout")
@declared(WebSettings, "access", **pem)
@declared(WebSettings, "keys", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@declared(
    WebSettings,
    "session_secret",
    **pem,
    show_default="none; under systemd, session-secret in the unit's state directory",
)
@declared(WebSettings, "prefix", metavar="PATH")
@declared(WebSettings, "hosts", metavar="NAME")
@declared(WebSettings, "tls_certificate", **pem)
@declared(WebSettings, "tls_key", **pem)
@declared(WebSettings, "client_ca", **pem)
@declared(WebSettings, "login_header", metavar="NAME")
@declared(WebSettings, "login_from", metavar="CIDR", callback=networks)
@declared(WebSettings, "behind_tls")
@declared(WebSettings, "open")
@declared(WebSettings, "most_connections")
@declared(WebSettings, "max_body")
@declared(WebSettings, "hooks")
@declared(WebSettings, "hooks_user", metavar="NAME")
@declared(WebSettings, "hooks_allow", metavar="CIDR", callback=networks)
@log_options
@configured
def web(log_level: str, log_format: str, key_file: str | None, endpoint: tuple[str, ...], **settings: Any) -> None:
    """Serve a web console, and an HTTP API for programs that do not speak ZeroMQ.

    It is a client of the server at --endpoint, in a separate process. Without --access it listens on loopback addresses
    only, and any local user may do anything. With --access, users sign in with a token or a certificate, and their
    requests use their own keys from --keys, so the server enforces permissions. Non-loopback addresses then require TLS
    or --open.

    On SIGTERM or SIGINT it answers pending requests within three seconds and exits with 0. The access file and the
    certificate are reloaded on SIGHUP and when they change; a file with an error is not applied.

    \b
    Example:
      titanic web --bind 127.0.0.1:8080 --prefix /queue
      titanic web --endpoint ipc:///run/titanic/titanic.sock --access access.toml --keys keys --server-key server.key
    """
    try:
        from titanic.web.serving import WebServer
    except ImportError as error:
        what = f"titanic web needs {error.name}, which is not installed"
        raise click.UsageError(f"{what}; {how_to_install('web')}") from error
    if settings["session_secret"] is None and (folder := os.environ.get("STATE_DIRECTORY")):
        settings["session_secret"] = Path(folder, "session-secret")
    logs.begin(log_level, log_format)
    # Each lease is a short-lived worker: do not log its registration.
    logging.getLogger("broker.worker").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # start and end are logged here
    files.raise_open_files_limit()
    try:
        server = WebServer(WebSettings(endpoint=tuple(endpoint), key=key_file, **settings))
    except (CallerError, AccessError) as error:
        raise click.UsageError(str(error)) from error
    run(server)


class WebRunner(Protocol):
    """The interface of `WebServer`, whose package may not be installed."""

    def run(self, ready: Callback, alive: Callback) -> None:
        """Serve until `stop`."""

    def stop(self) -> None:
        """Stop serving."""

    def reload(self) -> None:
        """Reload its files."""


def run(server: WebRunner) -> None:
    """Serve until a signal ends it, reporting to the service manager."""
    notifier = Notifier()
    ending = StopSignal(server.stop, server.stop)

    context = click.get_current_context()

    def reload(number: int, _: FrameType | None) -> None:
        server.reload()
        try:
            settings = parse_again(context)
        except (click.UsageError, CallerError, AccessError) as error:
            fault = (error.format_message() if isinstance(error, click.UsageError) else str(error)).replace("\n", " | ")
            text = "access file and certificate are read again, the settings are not: %s"
            log.error(text, fault, extra=logs.event("reload-refused"))
            return
        changed = {name for name, value in settings.items() if value != context.params[name]}
        if waiting := names_in_file(context, changed):
            log.warning("a restart is needed for: %s", ", ".join(waiting), extra=logs.event("restart-needed"))

    def ready() -> None:
        # Existing objects stay: exempt them from garbage collection. And collect less often than after 700 new
        # objects: a burst of requests creates more without any garbage.
        gc.freeze()
        gc.set_threshold(YOUNG)
        say(f"serving {server}", "serving")
        notifier.ready(f"serving {server}")

    signal.signal(signal.SIGHUP, reload)
    server.run(ready, notifier.alive)
    sys.exit(ending.code)
