"""`titanic dev`: an app with its server, worker, console and schedules in one terminal, for development.

Each part is the real command in a process of its own, and its lines are printed behind its name. Parts end with this
process, however it ends (on Linux). Changes of the app are the worker's business (`titanic worker --reload`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from urllib.parse import urlsplit

import click

from broker import DEFAULT_ENDPOINT
from titanic.cli.endpoint import BROKER
from titanic.cli.options import command, configured, declared, log_level_option, option
from titanic.cli.running import EXIT_FAILED, StopSignal, say
from titanic.cli.web import Bind
from titanic.errors import TitanicError
from titanic.pool.core import ChildConfig, PoolConfig
from titanic.pool.pool import Sources
from titanic.store import remove_store
from titanic.util.processes import without_options

FOLDER = Path(".titanic")
STORE = FOLDER / "store"

PROLOGUE = (
    "import sys; from titanic.util.processes import end_with_parent; end_with_parent(int(sys.argv.pop(1)));"
    " from titanic.entry import main; main()"
)
"""What runs `titanic` as a part."""

COLOURS = {"serve": "blue", "worker": "green", "web": "magenta", "cron": "yellow", "dev": "cyan"}

INTERVAL = 0.5
"""Seconds between checks of the file of schedules."""


class Output:
    """Prints lines of all parts, each as a whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._color = False if "NO_COLOR" in os.environ else None

    def line(self, name: str, text: str) -> None:
        """Print a line of a part."""
        with self._lock, suppress(OSError, ValueError):  # whatever reads it may be gone
            click.echo(f"{click.style(f'{name:6} │', fg=COLOURS[name])} {text}", err=True, color=self._color)


class DevProcess:
    """A command. When its process has ended, it puts itself into a queue."""

    def __init__(self, output: Output, ended: SimpleQueue[DevProcess | None], name: str, *arguments: str) -> None:
        self.name = name
        self.stopping = False
        self._arguments = arguments
        self._output = output
        self._ended = ended
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether it has a process."""
        return self._process is not None

    def start(self, environment: dict[str, str]) -> None:
        """Start its process."""
        self.stopping = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROLOGUE, str(os.getpid()), self.name, *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process alone: the server is to end last
        )
        threading.Thread(target=self._read, args=(self._process,), name=self.name, daemon=True).start()

    def stop(self) -> None:
        """Ask it to end; the second time it ends at once."""
        self.stopping = True
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def end(self, *, kill: bool = False) -> int:
        """Note that its process has ended, or `kill` it; the exit code."""
        process, self._process = self._process, None
        if process is not None and kill:
            process.kill()
        return 0 if process is None else process.wait()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._output.line(self.name, line.decode(errors="replace").rstrip("\r\n"))
        process.wait()
        self._ended.put(self)


class Dev:
    """All parts, until a signal, or until one of them ends."""

    def __init__(self, app: Sequence[str], endpoint: str, web: str, log_level: str, schedules: Path | None) -> None:
        """`app`: arguments of `titanic worker`. `schedules`: the file for `titanic cron`; None: none."""
        self.code = 0
        output = self._output = Output()
        self._events: SimpleQueue[DevProcess | None] = SimpleQueue()
        """Parts that have ended; None: a signal."""
        # What a task prints is seen at once.
        self._environment = without_options() | {"TITANIC_ENDPOINT": endpoint, "PYTHONUNBUFFERED": "1"}
        new, log = partial(DevProcess, output, self._events), ("--log-level", log_level, "--log-format", "text")
        self._server = new("serve", "--bind", endpoint, "--store", str(STORE), *log)
        self._others = [
            new("worker", *app, "--reload", "--endpoint", endpoint, *log),
            new("web", "--bind", web, "--endpoint", endpoint, *log),
        ]
        self._cron = None if schedules is None else new("cron", str(schedules), "--endpoint", endpoint, *log)
        self._schedules = Sources()
        if schedules is not None and self._cron is not None:
            self._others.append(self._cron)
            self._schedules.watch([str(schedules)])
        self._stopping = False
        self._hint = ""
        """What is printed if stopping takes a moment."""

    def signalled(self) -> None:
        """Stop; called again: at once. A signal handler may call this."""
        self._events.put(None)

    def run(self) -> None:
        """Run all parts, and return when all have ended."""
        try:
            for part in (self._server, *self._others):
                part.start(self._environment)
            while self._running():
                self._take_event()
        finally:
            for part in self._running():
                part.end(kill=True)

    def _take_event(self) -> None:
        try:
            part = self._events.get(timeout=INTERVAL)
        except Empty:
            if self._hint:
                self._output.line("dev", self._hint)
                self._hint = ""
            self._restart_cron()
            return
        if part is None:
            self._hint = "" if self._stopping else "waiting for running tasks; Ctrl-C again ends them at once"
            self._stop()
        else:
            self._ended(part, part.end())

    def _ended(self, part: DevProcess, code: int) -> None:
        if part is self._cron and not self._stopping and part.stopping:
            part.start(self._environment)
        elif part is self._cron and not self._stopping and code > 0:
            self._output.line("dev", "cron is waiting for its file to change")
        else:
            if not self._stopping:
                self._output.line("dev", f"{part.name} has ended with exit code {code}; stopping the others")
                code = code or EXIT_FAILED
            elif code == -signal.SIGTERM:  # it was still starting
                code = 0
            self.code = self.code or (128 - code if code < 0 else code)
            self._stop(again=False)

    def _stop(self, *, again: bool = True) -> None:
        """Stop the others, then the server, to which the worker returns its requests. `again`: those, too, that were
        stopped before."""
        self._stopping, running = True, self._running()
        for part in running:
            if again if part.stopping else part is not self._server or running == [part]:
                part.stop()

    def _running(self) -> list[DevProcess]:
        return [part for part in (self._server, *self._others) if part.running]

    def _restart_cron(self) -> None:
        if self._cron is None or self._stopping or not self._schedules.changed():
            return
        if self._cron.running:
            self._cron.stop()
        else:
            self._cron.start(self._environment)


@contextmanager
def own_folder() -> Iterator[None]:
    """The folder for what is stored; raises TitanicError while another `titanic dev` uses it."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    with (FOLDER / "dev.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pid = lock.read() or "starting"
            what, fact = f"titanic dev is already running in {Path.cwd()}", f"its process is {pid}"
            raise TitanicError(what, fact, "stop that one, or run this one in another folder") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def empty_store() -> str:
    """Remove what is stored; what that was. Raises StoreLocked while a server uses it."""
    if not STORE.exists():
        return f"there was nothing in {STORE} to remove"
    size = sum(path.stat().st_blocks // 2 for path in STORE.rglob("*"))
    remove_store(str(STORE))
    return f"removed {STORE}: {size} KiB"


def check_free(host: str, port: int, option: str) -> None:
    """Raise TitanicError for a port that is in use. What else is wrong with an address the command says."""
    with suppress(socket.gaierror), socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                what, advice = f"cannot listen on {host}:{port}", f"stop what uses it, or choose another port: {option}"
                raise TitanicError(what, "the port is in use", advice) from None


@command()
@click.argument("app", metavar="MODULE:APP")
@declared(PoolConfig, "processes", "-p")
@declared(ChildConfig, "jobs", "-j")
@option("--endpoint", type=BROKER, metavar="ENDPOINT", default=DEFAULT_ENDPOINT, help="Endpoint of the server.")
@option("--web", type=Bind(), metavar="HOST:PORT", default="127.0.0.1:8080", help="Address of the web console.")
@option(
    "--schedules",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Schedules for titanic cron; schedules of tasks always run.",
)
@option("--fresh", is_flag=True, help="Remove all stored requests first.")
@log_level_option
@configured
def dev(
    app: str,
    processes: int,
    jobs: int,
    endpoint: str,
    web: tuple[str, int],
    schedules: Path | None,
    fresh: bool,
    log_level: str,
) -> None:
    """Run an app and everything it needs in one terminal, for development: titanic serve, worker, web and cron.

    The worker restarts when a source file of the app changes; after an error it waits for the next change. Requests
    are stored in .titanic in the current directory. If the app's endpoint is not the default, pass it as
    --endpoint, too. TITANIC_ variables for other commands have no effect.

    Stops on Ctrl-C or SIGTERM when the running tasks are done, with exit code 0; a second signal stops everything at
    once. If one of the commands ends by itself, all are stopped, and its exit code is returned.

    \b
    Example:
      titanic dev shop:app
      titanic dev shop:app --fresh --web 127.0.0.1:8081
    """
    host, port = web
    url = f"{host}:{port}"
    with own_folder():
        at = urlsplit(endpoint if "://" in endpoint else f"tcp://{endpoint}")
        if at.scheme == "tcp" and at.hostname and at.port:
            check_free(at.hostname, at.port, "--endpoint tcp://127.0.0.1:PORT, and in the app")
        check_free(host.strip("[]"), port, "--web 127.0.0.1:PORT")
        say(f"running {app} at {endpoint}; its web console: http://{url}", "serving")
        if fresh:
            click.echo(empty_store(), err=True)
        work = (app, "--processes", str(processes), "--jobs", str(jobs))
        parts = Dev(work, endpoint, url, log_level, schedules)
        ending = StopSignal(parts.signalled, parts.signalled)
        parts.run()
    sys.exit(ending.code or parts.code)
