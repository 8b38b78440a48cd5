"""`titanic work`: any command as the worker of a service."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from types import FrameType

import click

from broker import DEFAULT_ENDPOINT, RemoteError, Worker, WorkerConfig
from titanic.cli.options import configured, option
from titanic.tsp import Frames

log = logging.getLogger("titanic.work")

STDERR_KEPT = 4096
"""Bytes of a failed command's stderr that go into the error reply: its end, where the message is."""


class CommandHandler:
    """Runs a command for each request: the body on its stdin, its stdout is the reply."""

    def __init__(self, service: str, command: tuple[str, ...], limit: float | None) -> None:
        self._command = command
        self._limit = limit
        self._environment = {**os.environ, "TITANIC_SERVICE": service}
        self._running: set[subprocess.Popen[bytes]] = set()

    def __call__(self, body: Frames) -> bytes:
        """The reply. Raises RemoteError when the command fails or takes too long."""
        with subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,  # so that it can be ended with all that it started
        ) as process:
            self._running.add(process)
            try:
                output, errors = process.communicate(b"".join(body), timeout=self._limit)
            except subprocess.TimeoutExpired:
                self._kill(process)
                errors = process.communicate()[1]
                raise self._failure(f"the command took longer than {self._limit:g} s", errors) from None
            finally:
                self._running.discard(process)
        if process.returncode < 0:
            raise self._failure(f"the command was ended by signal {-process.returncode}", errors)
        if process.returncode:
            raise self._failure(f"the command exited with {process.returncode}", errors)
        return output

    def kill_all(self) -> None:
        """End all commands that run, with all that they started."""
        for process in list(self._running):
            self._kill(process)

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    @staticmethod
    def _failure(text: str, errors: bytes) -> RemoteError:
        kept = errors[-STDERR_KEPT:]
        log.warning("%s%s", text, f": {kept.decode(errors='replace').strip()}" if kept.strip() else "")
        return RemoteError(500, text, [kept])


@click.command()
@click.argument("service")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@option("--jobs", "-j", type=click.IntRange(1, 500), default=1, help="Requests to work on at the same time.")
@option("--limit", type=click.FloatRange(0.001), default=None, metavar="S", help="End a command that takes longer.")
@option("--heartbeat", type=click.FloatRange(0.01), default=2.5, metavar="S", help="Seconds between heartbeats.")
@option("--endpoint", default=DEFAULT_ENDPOINT, help="Where the broker is.")
@configured
def work(
    service: str, command: tuple[str, ...], jobs: int, limit: float | None, heartbeat: float, endpoint: str
) -> None:
    """Serve SERVICE with a command: COMMAND is run for each request.

    The request's body is its standard input, its standard output becomes the reply. When it exits with anything
    but 0, is killed or takes longer than --limit, the attempt has failed: the end of its standard error is kept
    with the request, which is tried again later.

    Stops on SIGTERM or SIGINT when the commands in hand are done; a second signal ends them and itself at once.

    \b
    Example:
      titanic work upper --jobs 4 -- tr a-z A-Z
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"command not found: {command[0]}")
    handler = CommandHandler(service, command, limit)
    worker = Worker(service, handler, endpoint, jobs=jobs, config=WorkerConfig(heartbeat_interval=heartbeat))
    stopping = threading.Event()

    def on_signal(number: int, _: FrameType | None) -> None:
        if stopping.is_set():
            handler.kill_all()
            os._exit(128 + number)
        stopping.set()
        worker.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    worker.run()
