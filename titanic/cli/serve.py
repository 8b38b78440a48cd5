"""`titanic serve` and `titanic broker`: the commands that run until they are stopped."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from broker import AccessError, Broker
from titanic import logs
from titanic.cli import serve_run
from titanic.cli.options import command, key_option
from titanic.cli.running import say
from titanic.cli.serve_options import (
    access_faults,
    broker_access_option,
    broker_bind_option,
    open_option,
    queue_options,
    rule,
    running_options,
    server_config,
    take_wire,
    wire_options,
)
from titanic.errors import CallerError, NotInMemory, StoreFailed, TitanicError
from titanic.server.server import Server
from titanic.server.server_access import ServerAccess, new_broker
from titanic.server.snapshot import bounded, refusals
from titanic.server.watchdog import Watchdog
from titanic.settings import OperatorSettings, ServerConfig, access_contradictions, live_settings
from titanic.util import files
from titanic.util.files import IN_MEMORY, file_system
from titanic.util.text import counted
from titanic.util.units import write_size

log = logging.getLogger(__name__)

M_MMAP_THRESHOLD = -3

FIRST_ANSWER = 1.0
"""Seconds that a broker elsewhere has until the command says that it connects."""


@command(rule=rule)
@queue_options
@running_options
def serve(bind: tuple[str, ...], log_level: str, log_format: str, **settings: Any) -> None:
    """Run Titanic: the persistent queue, with its broker in the same process.

    With --broker the server uses the broker at that endpoint; set up access control at that broker. The server exits
    if another queue already serves that broker.

    Servers whose --store is the same database share it. Each dispatches requests to its own workers; `titanic nodes`
    lists the servers.

    On SIGTERM or SIGINT the server refuses new requests, finishes the running ones and exits with 0. A second signal
    stops it at once, without loss of stored requests. On SIGHUP it reloads its configuration and the access file, and
    reports settings that need a restart. A file with an error is not applied.

    Without --access, any client may do anything, so the server binds only addresses that other machines cannot reach,
    unless --open is given. With --access, TCP connections require a key and are encrypted; the access file may also
    admit local users through an ipc:// endpoint.

    \b
    Example:
      titanic serve --store /var/lib/titanic/store --capacity 20GiB --max-body 1MiB
      titanic serve --store S --bind tcp://10.0.0.1:5555 --access access.toml --key-file server.key_secret
      titanic serve --store S --broker tcp://10.0.0.5:5555
      titanic serve --store S --gather tcp://127.0.0.1:5557
    """
    _refuse_unused(settings)
    try:
        config = server_config({"bind": bind, **settings})
    except CallerError as error:  # a restart would not help
        raise click.UsageError(str(error).replace("_", "-")) from error
    signals = serve_run.begin(log_level, log_format)
    store: Path | str = config.store
    if isinstance(store, Path) and not os.path.lexists(store.parent):
        raise click.UsageError(
            f"cannot create the store {store}; {store.parent} does not exist; create it, or name another directory"
        )
    new = isinstance(store, Path) and not (store / "data.mdb").exists()
    _prepare()
    try:
        server = Server(config)
    except (NotInMemory, AccessError) as error:
        raise click.UsageError(str(error)) from error
    server.start()
    queue = ServedQueue(server)
    if config.broker is not None:
        queue.wait_for_broker(signals)
    with server.store.read() as transaction:
        counts = transaction.counts()
    where = ", ".join(server.endpoints)
    if config.broker is None:
        way = f"serving at {where}"
    else:
        way = f"{'serving' if server.ready else 'connecting to'} the broker at {where}"
    if server.gathers:
        way += f", gathering at {', '.join(server.gathers)}"
    if new or (isinstance(store, str) and counts.requests == counts.closed == 0):
        stored = f"new, for {write_size(counts.capacity)}"
    else:
        stored = f"{counted(counts.requests, 'request')}, {counts.waiting} waiting"
    if config.durability != "synced":
        stored += f"; durability {config.durability}"
    if server.control is not None:
        stored += f"; {server.control}"
    say(f"{way}; store {server.store.place}: {stored}", "serving")
    if config.durability != "memory" and isinstance(store, Path) and (kind := file_system(store)) in IN_MEMORY:
        text = "the store %s is on %s, in memory: it is lost when the machine stops, whatever --durability is; %s"
        advice = "move it to a disk, or confirm with --durability memory"
        log.warning(text, store, kind, advice, extra=logs.event("in-memory"))
    serve_run.run(queue, signals, settings["metrics"], open=config.open)


def _refuse_unused(settings: Mapping[str, Any]) -> None:
    """Raise click.UsageError for options that would not be used with the others."""
    chosen = click.get_current_context().get_parameter_source
    if settings["broker"] is not None and chosen("bind") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--bind is for the integrated broker; with --broker there is none")
    if settings["broker"] is None and chosen("mdp") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--mdp is for a separate broker (--broker); the integrated one speaks all versions")
    if not isinstance(settings["store"], str):
        for name in ("node_name", "advertise", "lease"):
            if chosen(name) is ParameterSource.COMMANDLINE:
                option = f"--{name.replace('_', '-')}"
                raise click.UsageError(
                    f"{option} is for servers that share a store in PostgreSQL; this store is a directory"
                )
    for name, others in (("key", ("access", "broker")), ("server_key", ("broker",))):
        if chosen(name) is ParameterSource.COMMANDLINE and all(settings[other] is None for other in others):
            needs = " or ".join(f"--{other}" for other in others)
            option = "--key-file" if name == "key" else "--server-key"
            raise click.UsageError(f"{option} has no effect without {needs}")


@command("broker", rule=access_faults)
@broker_bind_option
@broker_access_option
@key_option("Secret key file that identifies this broker to clients; requires --access.")
@open_option
@wire_options
@running_options
def broker(
    bind: tuple[str, ...], access: Path | None, key: Path | None, log_level: str, log_format: str, **settings: Any
) -> None:
    """Run a Majordomo broker (MDP 0.1 and 0.2) without the queue. Nothing is stored.

    `titanic serve --broker ENDPOINT` adds the persistent queue to it, from another process. With --access, TCP
    connections require a key and are encrypted. Without it, the broker binds only addresses that other machines cannot
    reach, unless --open is given.

    \b
    Example:
      titanic broker --bind tcp://0.0.0.0:5555 --access access.toml --key-file server.key_secret
      titanic broker --bind tcp://0.0.0.0:5555 --open
    """
    signals = serve_run.begin(log_level, log_format)
    _prepare()
    metrics = settings.pop("metrics")
    open = settings.pop("open")
    if access is None and click.get_current_context().get_parameter_source("key") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--key-file has no effect without --access")
    for wrong in access_contradictions(
        {"broker": None, "access": access, "key": key, "server_key": None, "open": open}
    ):
        raise click.UsageError(str(wrong))
    try:
        control = ServerAccess(access, key) if access and key else None
    except AccessError as error:
        raise click.UsageError(str(error)) from error
    here = new_broker(take_wire(settings), control, open=open)
    endpoints = [here.bind(endpoint) for endpoint in bind]
    if control is not None:
        control.warn_of_unbound(bind)
    here.start()
    say(f"broker at {', '.join(endpoints)}{f'; {control}' if control else ''}", "serving")
    serve_run.run(Switch(here, control), signals, metrics, open=open)


class Rate:
    """How fast a counter grows."""

    def __init__(self) -> None:
        self._last = (time.monotonic(), 0)

    def of(self, count: int) -> float:
        """Per second, since the last call."""
        now, (then, before) = time.monotonic(), self._last
        self._last = (now, count)
        return max(0, count - before) / max(now - then, 0.001)


class ServedQueue(serve_run.Subject):
    """A `Server`, as `serve_run.run` runs it."""

    live = live_settings(ServerConfig) | live_settings(OperatorSettings)

    def __init__(self, server: Server) -> None:
        self._server = server
        self._rate = Rate()
        self.watchdog, self.control = server.watchdog, server.control

    def wait_for_broker(self, signals: serve_run.Signals) -> None:
        """Wait a moment for the broker's answer: when another queue serves it, only that is reported."""
        until = time.monotonic() + FIRST_ANSWER
        while self.alive and not self.ready and time.monotonic() < until and not signals.end.wait(serve_run.STARTING):
            pass
        if (error := self.problem) is not None:
            self.stop()
            raise error

    @property
    def problem(self) -> TitanicError | None:
        return self._server.problem

    @property
    def grace(self) -> float:
        return self._server.config.grace

    @property
    def alive(self) -> bool:
        return self._server.alive

    @property
    def ready(self) -> bool:
        return self._server.ready

    @property
    def elsewhere(self) -> str:
        return self._server.elsewhere

    @property
    def drained(self) -> bool:
        return self._server.drained

    def reload(self, settings: dict[str, object]) -> None:
        self._server.reload(server_config(settings))

    def stop(self) -> None:
        self._server.stop()

    def withdraw(self) -> None:
        self._server.stop(started=False)

    def status(self) -> str:
        running, accepted = sum(self._server.dispatcher.in_flight().values()), self._server.accepted
        try:
            with self._server.store.read() as transaction:
                counts = transaction.counts()
        except StoreFailed as error:
            return f"{running} running; {error}"
        waiting = max(0, counts.waiting - running)
        full = f"; {100 * counts.used // counts.capacity} % of the store used"
        full += f"; {self._server.elsewhere}" if self._server.elsewhere else ""
        return f"{waiting} waiting, {running} running, {self._rate.of(accepted):.0f} accepted a second{full}"

    def workers(self) -> dict[bytes, int]:
        return self._server.workers or {}

    def shortages(self) -> dict[str, str]:
        return self._server.shortages()

    def collect(self) -> Iterable[Any]:
        from titanic.metrics import families

        return families.queue(self._server.snapshot())


class Switch(serve_run.Subject):
    """A `Broker`, as `serve_run.run` runs it."""

    def __init__(self, here: Broker, control: ServerAccess | None) -> None:
        self._broker = here
        self.control = control
        self._rate = Rate()
        self.watchdog = Watchdog({"broker": here.loop.call})

    @property
    def alive(self) -> bool:
        return self._broker.alive

    def workers(self) -> dict[bytes, int]:
        return self._broker.workers()

    def stop(self) -> None:
        self._broker.stop()

    def status(self) -> str:
        core = self._broker.core
        rate = self._rate.of(core.stats["requests"])
        return f"{core.waiting.count} waiting, {counted(len(core.workers), 'worker')}, {rate:.0f} requests a second"

    def reload(self, settings: dict[str, object]) -> None:
        if self.control is not None:
            access = self.control.read_again()
            self.control.swap(access)
            self._broker.reload(access)

    def collect(self) -> Iterable[Any]:
        from titanic.metrics import families

        workers = {name.decode(errors="replace"): count for name, count in self._broker.workers().items()}
        yield families.about()
        yield families.workers(bounded(workers))
        yield families.threads(self.watchdog.lags(time.monotonic()))
        yield from families.broker(self._broker.counters())
        yield from families.refusals(refusals(self._broker.refusals()))


def _prepare() -> None:
    files.raise_open_files_limit()
    # Left to itself, glibc keeps freed memory of large messages in pieces that fit nothing: several times as much as
    # is in use. Memory that it maps for each goes back at once. Other C libraries have no such function.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 512 << 10)
