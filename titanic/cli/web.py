"""`titanic web`: pages and HTTP for a Titanic."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import click

from broker import AccessError
from titanic import logs
from titanic.cli.options import (
    command,
    configured,
    endpoint_option,
    key_file_options,
    log_options,
    option,
    seconds,
    size,
    together,
)
from titanic.cli.running import StopSignal, say
from titanic.errors import CallerError, Contradiction
from titanic.util import files
from titanic.util.sd_notify import Notifier
from titanic.util.text import how_to_install

Network = IPv4Network | IPv6Network


class Bind(click.ParamType[tuple[str, int]]):
    """HOST:PORT."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            self.fail(f"{value!r} is not an address; write it like 127.0.0.1:8080", param, ctx)
        return host, int(port)


PEM = click.Path(dir_okay=False, path_type=Path)

YOUNG = 20_000
"""Objects that are made, and not gone yet, before the garbage collector looks at them."""

tls_options = together(
    option("--tls-certificate", type=PEM, metavar="FILE", default=None, help="Serve HTTPS with this certificate, PEM."),
    option("--tls-key", type=PEM, metavar="FILE", default=None, help="The secret key of that, PEM."),
    option(
        "--client-ca",
        type=PEM,
        metavar="FILE",
        default=None,
        help="Users may come with certificates of these authorities, PEM; the access file says which is whose.",
    ),
    option(
        "--behind-tls",
        is_flag=True,
        help="Browsers come by HTTPS only, through a proxy before this: cookies are sent to nothing else.",
    ),
    option(
        "--open",
        is_flag=True,
        help="Serve plain HTTP where other machines can connect: who listens on the way has the tokens.",
    ),
)


def networks(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[Network, ...]:
    """What is given as 10.1.0.0/16."""
    return tuple(map(network, values))


def network(value: str) -> Network:
    """One of them."""
    try:
        return ip_network(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a network ({error}); write it like 10.1.0.0/16") from error


hooks_options = together(
    option("--hooks", is_flag=True, help="Take and deliver web hooks."),
    option("--hooks-user", metavar="NAME", default=None, help="As whom web hooks are delivered, with --access."),
    option(
        "--hooks-allow",
        multiple=True,
        callback=networks,
        metavar="CIDR",
        default=(),
        help="An inner network that web hooks may speak to, beside the Internet; may be given repeatedly.",
    ),
)


CHECKED = (
    "bind",
    "access",
    "keys",
    "tls_certificate",
    "tls_key",
    "client_ca",
    "behind_tls",
    "open",
    "hooks",
    "hooks_user",
)


def rule(values: Mapping[str, Any], own: Set[str]) -> Iterator[Contradiction]:
    """What contradicts itself in a file."""
    from titanic.cli.serve_options import access_faults
    from titanic.web.settings import WebSettings

    try:
        WebSettings(endpoint=(), **{name: values[name] for name in CHECKED})
    except Contradiction as error:
        yield error
    yield from access_faults(values, own)


@command(rule=rule)
@option("--bind", type=Bind(), metavar="HOST:PORT", default="127.0.0.1:8080", help="Where to listen.")
@endpoint_option()
@key_file_options()
@seconds("--timeout", least=0.001, default=15.0, help="Wait for an answer of the server; it is asked again meanwhile.")
@option(
    "--access",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    default=None,
    help="The access file: who may log in.",
)
@option(
    "--keys",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    default=None,
    help="The users' secret keys, each NAME.key_secret.",
)
@option(
    "--session-secret",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    default=None,
    show_default="none; under systemd, session-secret in the unit's state directory",
    help="Sessions outlive a restart, and are shared by gateways with this secret; made if it is not there.",
)
@option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    default=(),
    help="A name that browsers reach it by, beside its address; may be given repeatedly.",
)
@tls_options
@option(
    "--max-connections",
    "most_connections",
    type=click.IntRange(16, 100_000),
    metavar="N",
    default=4096,
    help="Connections at a time; those beyond are closed.",
)
@size("--max-body", default="64MiB", help="Bytes of a request's body, at most.")
@hooks_options
@log_options
@configured
def web(log_level: str, log_format: str, key_file: str | None, endpoint: tuple[str, ...], **settings: Any) -> None:
    """Pages to look at a Titanic with, and HTTP for programs that do not speak ZeroMQ.

    It is a client of the server at --endpoint, in a process of its own. Without --access it listens on loopback
    addresses only, and whoever reaches it may do everything. With --access users log in with a token, or with a
    certificate; each acts with his own key from --keys, so the server decides what he may do. Other addresses than
    loopback's then take TLS, or --open.

    Stops on SIGTERM or SIGINT: answers what was asked within three seconds, and exits with 0. On SIGHUP, and when it
    has changed, it reads the access file again, and the certificate; a file with a mistake changes nothing.

    \b
    Example:
      titanic web --bind 127.0.0.1:8080
      titanic web --endpoint ipc:///run/titanic/titanic.sock --access access.toml --keys keys --server-key server.key
    """
    try:
        from titanic.web.serving import WebServer
        from titanic.web.settings import WebSettings
    except ImportError as error:
        what = f"titanic web needs {error.name}, which is not installed"
        raise click.UsageError(f"{what}; {how_to_install('web')}") from error
    if settings["session_secret"] is None and (folder := os.environ.get("STATE_DIRECTORY")):
        settings["session_secret"] = Path(folder, "session-secret")
    logs.begin(log_level, log_format)
    # Each lease is a worker that comes and goes: that one is registered is no news here.
    logging.getLogger("broker.worker").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # that it starts and ends is said here
    files.raise_open_files_limit()
    try:
        server = WebServer(WebSettings(endpoint=tuple(endpoint), key=key_file, **settings))
    except (CallerError, AccessError) as error:
        raise click.UsageError(str(error)) from error
    run(server)


class Runs(Protocol):
    """A `WebServer`, of a package that may not be installed."""

    def run(self, ready: Callable[[], None], alive: Callable[[], None]) -> None:
        """Serve until `stop`."""

    def stop(self) -> None:
        """Have it end."""

    def reload(self) -> None:
        """Have its files read again."""


def run(server: Runs) -> None:
    """Serve until a signal ends it, reporting to the service manager."""
    notifier = Notifier()
    ending = StopSignal(server.stop, server.stop)

    def reload(number: int, _: FrameType | None) -> None:
        server.reload()

    def ready() -> None:
        # What is here now stays: it is not gone through again each time that the collector looks for what may go. And
        # it looks less often than after 700 objects, which a burst of requests has on their way without any garbage.
        gc.freeze()
        gc.set_threshold(YOUNG)
        say(f"serving {server}", "serving")
        notifier.ready(f"serving {server}")

    signal.signal(signal.SIGHUP, reload)
    server.run(ready, notifier.alive)
    sys.exit(ending.code)
