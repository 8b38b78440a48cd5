"""How a server runs: until a signal ends it or it cannot go on, reporting to the service manager.

    SIGTERM, SIGINT     stop; a second one ends it at once
    SIGHUP              read the configuration again
    NOTIFY_SOCKET       READY when clients are served, STATUS, RELOADING, STOPPING
    WATCHDOG_USEC       WATCHDOG as long as every thread that does the work answers

The main thread does nothing else, so it still answers when the others are stuck.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any, Protocol

import click

from broker import AccessError, Callback, is_exposed
from titanic import logs
from titanic.cli.config_file import strangers
from titanic.cli.endpoint import Address
from titanic.cli.options import names_in_file, parse_again
from titanic.cli.running import EXIT_FAILED, StopSignal, say
from titanic.dispatch.service_log import PresenceLog
from titanic.errors import CallerError, StoreError, TitanicError
from titanic.logs import Incident
from titanic.server.server_access import ServerAccess
from titanic.server.watchdog import Watchdog
from titanic.util.sd_notify import Notifier

log = logging.getLogger("titanic")

NOTICE = 0.5
"""Maximum seconds until a signal is noticed."""

STARTING = 0.02
"""Seconds between checks whether it serves."""

STATUS_EVERY = 5.0
"""Seconds between STATUS lines."""

PRESENCE_EVERY = 2.0
"""Seconds between checks which services have workers."""

LATE = 10.0
"""Seconds without an answer after which a thread counts as stuck."""

LAST_STEPS = 20.0
"""Seconds that stopping may take besides the grace for running requests."""


UNREADY = ("disk", "database")
"""Shortages with which a server is not ready. A full store still gives replies and takes them."""


class Subject(Protocol):
    """A server that `run` runs."""

    watchdog: Watchdog
    live: frozenset[str] = frozenset()
    """Parameters of the command that `reload` takes over."""
    control: ServerAccess | None = None
    """Access control; None: clients may do everything."""

    @property
    def problem(self) -> TitanicError | None:
        """Why it cannot go on, if that is to be said."""
        return None

    @property
    def grace(self) -> float:
        """Seconds that running requests are given at the end."""
        return 0.0

    @property
    def alive(self) -> bool:
        """Whether it can go on."""

    @property
    def ready(self) -> bool:
        """Whether clients are served."""
        return self.alive

    @property
    def elsewhere(self) -> str:
        """Why clients and workers are sent to others of its kind; empty: they are not."""
        return ""

    @property
    def drained(self) -> bool:
        """Whether it has nothing left to do since then."""
        return False

    def workers(self) -> Mapping[bytes, int]:
        """Which services have workers, and how many, as far as it knows."""

    def stop(self) -> None:
        """End it."""

    def status(self) -> str:
        """A line about it."""

    def shortages(self) -> Mapping[str, str]:
        """What is short, so that requests are refused."""
        return {}

    def collect(self) -> Iterable[Any]:
        """Its metrics, as Prometheus has them."""

    def reload(self, settings: dict[str, object]) -> None:
        """Take over the parameters in `live`."""
        return

    def withdraw(self) -> None:
        """End it, because it can't be run after all."""
        self.stop()


class Signals:
    """What signals asked for. Make it before anything starts."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.reload = threading.Event()
        StopSignal(self.end.set)
        signal.signal(signal.SIGHUP, lambda *_: self.reload.set())
        with contextlib.suppress(Exception):  # stderr may be no file
            faulthandler.enable()  # the watchdog ends us with SIGABRT: then every thread says where it was


def begin(level: str, format: str) -> Signals:
    """Start the log, and listen to signals."""
    logs.begin(level, format)
    for text in strangers(click.get_current_context()):
        log.warning(text, extra=logs.event("stranger"))
    return Signals()


def run(subject: Subject, signals: Signals, metrics: Address | None, *, open: bool) -> None:
    """Run it until its end; exit with an error unless a signal ended it, or it is drained. `metrics`: where to serve
    its metrics; `open`: other machines may read them."""
    ending = Stop(subject.stop)
    try:
        listener = None if metrics is None else _listen(subject, signals, metrics, open=open)
    except (TitanicError, click.UsageError):
        subject.withdraw()
        raise
    _run(subject, signals, Notifier())
    ending.now()
    if listener is not None:
        listener.stop()


class Listener(Protocol):
    """Serves metrics."""

    def stop(self) -> None:
        """End."""


def _listen(subject: Subject, signals: Signals, address: Address, *, open: bool) -> Listener:
    """Serve the metrics."""
    from titanic.metrics.listener import MetricsListener  # not every server pays for it

    exposed = is_exposed(f"tcp://{address}")
    if exposed and not open and subject.control is None:
        raise click.UsageError(
            f"cannot serve metrics at {address}: other machines could read them; serve them at"
            f" 127.0.0.1:{address.port}, give --access with a user that has metrics = true and a token, or allow it"
            " without access control: --open"
        )
    admits = subject.control.admits if exposed and subject.control is not None else None

    def unhealthy() -> str:
        late = subject.watchdog.late(time.monotonic(), LATE)
        if late:
            return f"stuck for {LATE:g} s or more: {', '.join(late)}"
        return "" if subject.alive else "it cannot continue; see its log"

    def unready() -> str:
        if signals.end.is_set():
            return "stopping"
        if subject.elsewhere:
            return subject.elsewhere
        if fault := unhealthy():
            return fault
        shortages = subject.shortages()
        for name in UNREADY:
            if name in shortages:
                return shortages[name]
        return "" if subject.ready else "its broker does not answer yet"

    listener = MetricsListener(*address, subject.collect, unhealthy=unhealthy, unready=unready, admits=admits)
    say(f"metrics at http://{Address(address.host, listener.port)}/metrics", "metrics")
    return listener


def _run(subject: Subject, signals: Signals, notifier: Notifier) -> None:
    ready, status_at, presence_at = False, 0.0, 0.0
    presence, shortages = PresenceLog(), ShortageLog()
    while not signals.end.wait(NOTICE if ready else STARTING):
        now = time.monotonic()
        if (error := subject.problem) is not None:
            subject.stop()
            raise error
        if not subject.alive:
            say("stopping: cannot continue; see the log above", "failed")
            with contextlib.suppress(Exception):
                subject.stop()
            sys.exit(EXIT_FAILED)
        if subject.drained:
            log.info("drained: nothing left to do", extra=logs.event("drained"))
            break
        if signals.reload.is_set():
            signals.reload.clear()
            notifier.reloading()
            _reload(subject, click.get_current_context())
            notifier.ready(subject.status())
        if subject.watchdog.probe(now):
            notifier.alive()
            if not ready and subject.ready:
                ready = True
                notifier.ready(subject.status())
        if now >= presence_at:
            presence_at = now + PRESENCE_EVERY
            presence.update(subject.workers())
            shortages.update(subject.shortages())
        if notifier.wanted and ready and now >= status_at:
            status_at = now + STATUS_EVERY
            notifier.status(subject.status())
    notifier.stopping(subject.grace + LAST_STEPS)


class ShortageLog:
    """Logs shortages: when they begin, now and then while they last, and when they end."""

    def __init__(self) -> None:
        self._troubles = (
            ("store", Incident(log, "accept new requests"), logs.event("store-full"), logs.event("store-not-full")),
            ("disk", Incident(log, "write"), logs.event("disk-full"), logs.event("disk-not-full")),
        )

    def update(self, shortages: Mapping[str, str]) -> None:
        """Log what has changed."""
        for name, trouble, begins, ends in self._troubles:
            if text := shortages.get(name):
                trouble.failed(text, **begins)
            else:
                trouble.recovered(**ends)


class Stop:
    """A thread that stops something. It starts beforehand: at the end the system may have no thread left."""

    def __init__(self, stop: Callback) -> None:
        self._stop = stop
        self._begun = threading.Event()
        self._over: Future[None] = Future()
        threading.Thread(target=self._run, name="stop", daemon=True).start()

    def now(self) -> None:
        """Stop it, and wait until that is done; what it raises is raised here."""
        self._begun.set()
        # A signal that comes just before a thread begins to wait is seen only when the wait ends: so waits are short.
        while not wait([self._over], NOTICE).done:
            pass
        self._over.result()

    def _run(self) -> None:
        self._begun.wait()
        try:
            self._stop()
        except BaseException as error:
            self._over.set_exception(error)
        else:
            self._over.set_result(None)


def _reload(subject: Subject, context: click.Context) -> None:
    """Read the configuration again. When it has a fault, nothing changes."""
    try:
        settings = parse_again(context)
        changed = {name for name, value in settings.items() if value != context.params[name]}
        subject.reload(settings)
        logs.set_level(settings["log_level"])
    except click.UsageError as error:
        fault = error.format_message().replace("\n", " | ")
        log.error("not reloaded, nothing has changed: %s", fault, extra=logs.event("reload-refused"))
        return
    except (CallerError, StoreError, AccessError) as error:
        fault = str(error).replace("\n", " | ")
        log.error("not reloaded, nothing has changed: %s", fault, extra=logs.event("reload-refused"))
        return
    taken = names_in_file(context, changed & (subject.live | {"log_level"}))
    waiting = names_in_file(context, changed - subject.live - {"log_level"})
    for name in changed & (subject.live | {"log_level"}):
        context.params[name] = settings[name]
    nothing = "no setting has changed" if settings.get("access") else "nothing has changed"
    log.info("reloaded: %s", ", ".join(taken) or nothing, extra=logs.event("reloaded"))
    if waiting:
        log.warning("a restart is needed for: %s", ", ".join(waiting), extra=logs.event("restart-needed"))
