"""`titanic work`: any command as a worker of a service."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Container
from typing import Any

import click

from broker import DELIVERY, Curve, Delivery, RemoteError, Worker, WorkerConfig, is_exposed
from titanic import logs, telemetry
from titanic.cli.endpoint import Address, Listen
from titanic.cli.options import (
    broker_version,
    command,
    configured,
    declared,
    endpoint_option,
    key_options,
    log_options,
    option,
    seconds,
    together,
)
from titanic.cli.printing import as_text
from titanic.cli.running import StopSignal, say
from titanic.jobs.context import Failed, RequestContext, current_or_none
from titanic.pool.core import ChildConfig, PoolObserver
from titanic.protocol.tsp import Frames
from titanic.util.processes import end_with_parent
from titanic.util.sd_notify import VARIABLES, Notifier
from titanic.util.text import duration
from titanic.version import __version__

log = logging.getLogger("titanic.work")

STDERR_KEPT = 4096
"""Bytes of a failed command's stderr that go into the error reply: its end, where the message is."""

BEATS = 4
"""Signs of life within the watchdog's time."""

LAST_WORDS = 1.0
"""Seconds that the pipes of a killed command may stay open: something it started may have left its group."""

TEMPORARY = 75
"""EX_TEMPFAIL: the exit code of a command that is to be run again."""


def read_codes(text: Any) -> frozenset[int]:
    """Exit codes and ranges of them, with commas: 1,64-78."""
    codes: set[int] = set()
    for part in str(text).split(","):
        first, dash, last = part.strip().partition("-")
        if not (
            first.isdecimal() and (last.isdecimal() if dash else True) and 1 <= int(first) <= int(last or first) <= 255
        ):
            raise click.BadParameter(
                f"{part.strip()!r} is not an exit code from 1 to 255 or a range of them; write it like 1,64-78"
            )
        codes.update(range(int(first), int(last or first) + 1))
    if codes == {TEMPORARY}:
        raise click.BadParameter("75 (EX_TEMPFAIL) always means retry; leave it out")
    return frozenset(codes - {TEMPORARY})


class CommandHandler:
    """Runs a command for each request: the body on its stdin, its stdout is the reply."""

    def __init__(
        self, command: tuple[str, ...], limit: float | None, fatal: Container[int] = (), kill_after: float = 10.0
    ) -> None:
        """`fatal`: the exit codes with which a request has failed for good. `kill_after`: seconds that a command has to
        end in when its request is cancelled."""
        self._kill_after = kill_after
        self._command = command
        self._fatal = fatal
        self._limit = limit
        self._running: set[subprocess.Popen[bytes]] = set()
        self._over = False
        self._lock = threading.Lock()  # between them, a command that was just started could be missed by kill_all

    def __call__(self, body: Frames) -> bytes:
        """The reply. Raises RemoteError when the command fails or takes too long."""
        delivery = DELIVERY.get() or Delivery(b"")
        with self._start() as process:
            cancelling = _Cancelling(process, self._kill_after)
            delivery.on_cancel(cancelling.begin)
            try:
                output, errors = process.communicate(b"".join(body), timeout=self._limit)
            except subprocess.TimeoutExpired:
                raise self._failure(
                    f"the command took longer than {duration(self._limit or 0)}", self._end(process)
                ) from None
            finally:
                cancelling.over()
                self._running.discard(process)
        if delivery.is_cancelled:
            raise self._failure("cancelled: the request was closed, or the attempt exceeded its limit", errors)
        if process.returncode < 0:
            raise self._failure(f"the command was killed by signal {-process.returncode}", errors)
        if process.returncode:
            fatal = process.returncode in self._fatal
            raise self._failure(f"the command exited with {process.returncode}", errors, fatal=fatal)
        return output

    def kill_all(self) -> None:
        """End all running commands with all that they started; no other command is started."""
        with self._lock:
            self._over = True
            for process in list(self._running):
                signal_all(process, signal.SIGKILL)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._over:
                raise RemoteError(503, "the worker is stopping")
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # so that it can be ended with all that it started
                env=_environment(current_or_none()),
                # A worker that is killed cannot end its command, and another worker soon gets the same request. What it
                # calls of libc takes no lock.
                preexec_fn=end_with_parent,  # noqa: PLW1509
            )
            self._running.add(process)
            return process

    def _end(self, process: subprocess.Popen[bytes]) -> bytes:
        """Kill a command; returns what it wrote to stderr."""
        signal_all(process, signal.SIGKILL)
        try:
            return process.communicate(timeout=LAST_WORDS)[1]
        except subprocess.TimeoutExpired as error:
            return error.stderr or b""

    @staticmethod
    def _failure(text: str, errors: bytes, *, fatal: bool = False) -> RemoteError:
        kept = errors[-STDERR_KEPT:]
        where = f"{request.uuid}: " if (request := current_or_none()) else ""
        log.warning("%s%s%s", where, text, f": {said}" if (said := as_text([kept])) else "")
        return Failed(text, kept) if fatal else RemoteError(500, text, [kept])


def signal_all(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a command and to all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


class _Cancelling:
    """Ends the command of a cancelled request: SIGTERM, and after a while SIGKILL."""

    def __init__(self, process: subprocess.Popen[bytes], kill_after: float) -> None:
        self._process = process
        self._kill_after = kill_after
        self._killing: threading.Timer | None = None
        self._over = False
        self._lock = threading.Lock()  # what has ended gets no signal: another process may have its number

    def begin(self) -> None:
        """It is cancelled. Called in the worker's thread."""
        with self._lock:
            if not self._over:
                signal_all(self._process, signal.SIGTERM)
                self._killing = threading.Timer(self._kill_after, self._kill)
                self._killing.daemon = True
                self._killing.start()

    def over(self) -> None:
        """The command has ended."""
        with self._lock:
            self._over = True
            if self._killing is not None:
                self._killing.cancel()

    def _kill(self) -> None:
        with self._lock:
            if not self._over:
                signal_all(self._process, signal.SIGKILL)


def _environment(request: RequestContext | None) -> dict[str, str]:
    """That of a command: ours, and what is known of its request; of a pattern's, which has no queue, that is nothing.
    (TITANIC_KEY means a key file.)"""
    request = request or RequestContext()
    known = {
        "TITANIC_UUID": request.uuid if request else "",
        "TITANIC_ATTEMPT": str(request.attempt) if request else "",
        "TITANIC_ATTEMPTS": str(request.attempts or ""),
        "TITANIC_DELIVERY": str(request.delivery) if request else "",
        "TITANIC_DEADLINE": "" if request.deadline is None else f"{request.deadline:.3f}",
        "TRACEPARENT": telemetry.current_trace() or request.trace,
        "TRACESTATE": request.tracestate,
        "TITANIC_TYPE": request.type,
    }
    return {name: value for name, value in os.environ.items() if name not in known} | {
        name: value for name, value in known.items() if value
    }


metrics_options = together(
    option(
        "--metrics",
        type=Listen(),
        metavar="HOST:PORT",
        envvar="TITANIC_WORKER_METRICS",
        help="Address for /metrics (Prometheus), /healthz and /readyz; port 0 picks a free port.",
    ),
    option(
        "--open",
        "metrics_open",
        is_flag=True,
        envvar="TITANIC_WORKER_METRICS_OPEN",
        help="Allow other machines to read --metrics.",
    ),
)
"""Those of both workers."""


def serve_metrics(address: Address, *, open: bool) -> PoolObserver:
    """Serve a worker's metrics until they are closed. Return what observes it."""
    if is_exposed(f"tcp://{address}") and not open:
        advice = f"serve them at 127.0.0.1:{address.port}, or allow it: --open"
        raise click.UsageError(f"cannot serve metrics at {address}: other machines could read them; {advice}")
    from titanic.metrics.worker import WorkerMetrics  # not every worker pays for it

    made = WorkerMetrics()
    made.serve(*address)
    return made


def _watch(worker: Worker) -> None:
    """Report to the service manager, if it asks for that, that the worker's loop runs. Commands may take any time:
    they run in threads of their own."""
    notifier = Notifier()
    for name in VARIABLES:
        os.environ.pop(name, None)
    if notifier.watchdog:
        with contextlib.suppress(Exception):  # stderr may be no file
            faulthandler.enable()  # the watchdog ends us with SIGABRT: then every thread says where it was
        worker.every(notifier.watchdog / BEATS, notifier.alive)


@command()
@click.argument("service")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@endpoint_option()
@key_options()
@broker_version("0.2", "0.1", "majortomo")
@declared(WorkerConfig, "heartbeat_interval")
@seconds(
    "--time-limit",
    old=("--limit",),
    envvar=["TITANIC_TIME_LIMIT", "TITANIC_LIMIT"],
    least=0.001,
    help="Maximum run time of a command; it is killed when it takes longer.",
)
@option(
    "--fatal-exit",
    type=read_codes,
    metavar="CODES",
    help="Exit codes that fail the request for good, such as 1,64-78; 75 always means retry.",
)
@seconds(
    "--kill-after",
    least=0.0,
    default=10.0,
    help="When a request is cancelled, its command gets SIGTERM, and SIGKILL after this time.",
)
@option("--everywhere", is_flag=True, help="Register with every endpoint.")
@declared(ChildConfig, "otel", help="Record OpenTelemetry spans and metrics; `opentelemetry-instrument` exports them.")
@option("--jobs", "-j", type=click.IntRange(1, 500), metavar="N", default=1, help="Requests processed at once.")
@log_options
@metrics_options
@configured
def work(
    service: str,
    command: tuple[str, ...],
    jobs: int,
    everywhere: bool,
    otel: bool,
    time_limit: float | None,
    fatal_exit: Container[int] | None,
    kill_after: float,
    heartbeat_interval: float,
    mdp: str | None,
    endpoint: tuple[str, ...],
    curve: Curve | None,
    log_level: str,
    log_format: str,
    metrics: Address | None,
    metrics_open: bool,
) -> None:
    """Run COMMAND for each request of SERVICE.

    The frames of the request's body, joined, are the command's standard input; its standard output becomes the reply.
    The attempt fails if the command exits with a code other than 0, is killed, or exceeds --time-limit. Then the end of
    its standard error is stored with the request, which is retried later. Exit codes in --fatal-exit fail the request
    for good; --fatal-exit 64-78 covers those of sysexits.h except 75 (EX_TEMPFAIL), which is always retried.

    A request is cancelled when it is closed, or when an attempt exceeds the --limit of its submission: the command and
    all processes that it started get SIGTERM, and SIGKILL after --kill-after.

    For a stored request, the command's environment contains TITANIC_UUID, TITANIC_ATTEMPT (from 1), TITANIC_ATTEMPTS
    (the maximum), TITANIC_DELIVERY (more than TITANIC_ATTEMPT if some deliveries did not count as attempts), and, if
    the request has them, TITANIC_DEADLINE (of its --limit, in seconds since 1970), TRACEPARENT, TRACESTATE and
    TITANIC_TYPE (the content type).

    With --everywhere the worker registers with every endpoint, and runs --jobs requests at once in all. When all jobs
    have been busy for 0.2 s, it returns waiting requests, and gets no more until one is done.

    Stops on SIGTERM or SIGINT when the running commands are done. A second signal stops the commands and the worker at
    once; their requests go to other workers.

    \b
    Example:
      titanic work upper --jobs 4 -- tr a-z A-Z
      titanic work upper --fatal-exit 64-78 --kill-after 1m -- tr a-z A-Z
    """
    logs.begin(log_level, log_format)
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"command not found: {command[0]}")
    if otel:
        telemetry.instrument(endpoint=endpoint)
    handler = CommandHandler(command, time_limit, fatal_exit or (), kill_after)
    versions = (mdp,) if mdp else WorkerConfig().versions
    config = WorkerConfig(heartbeat_interval, versions=versions, deploy=__version__)
    worker = Worker(service, handler, endpoint, jobs=jobs, everywhere=everywhere, config=config, key=curve)

    observer = None if metrics is None else serve_metrics(metrics, open=metrics_open)
    if observer is not None:
        observer.watch(worker)

    def stop() -> None:
        if observer is not None:
            observer.close()
        worker.stop()

    def at_once() -> None:
        worker.abandon()  # first: that a command was killed is no reply
        handler.kill_all()

    _watch(worker)
    ending = StopSignal(stop, at_once)
    say(f"connecting to {(' and ' if everywhere else ' or ').join(endpoint)} to work on {service}", "serving")
    worker.run()
    sys.exit(ending.code)
