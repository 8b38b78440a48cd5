"""The demonstration: real processes, real files, and nothing lost while they are killed.

A request per file goes to a service that has no worker. The server is killed with -9 in the middle of the
submissions and started again; two workers start, one of them is killed with -9 while it is at work. In the
end each reply must be what hashlib says of the file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from titanic.client import Client
from titanic.errors import TitanicError

SERVICE = "sha256"
MOST_FILES = 500
MOST_BYTES = 1 << 20
PATIENCE = 50.0
"""Seconds after which the demonstration counts as failed."""


class Demo:
    """One run. `run` returns whether all was well."""

    def __init__(self, folder: Path, console: Console | None = None) -> None:
        self._files = list(_files_below(folder))
        self._folder = folder
        self._console = console or Console(highlight=False)
        self._work = Path(tempfile.mkdtemp(prefix="titanic-demo-"))
        self._endpoint = f"tcp://127.0.0.1:{_free_port()}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._started = time.monotonic()

    def run(self) -> bool:
        """The whole story; True when every reply was right."""
        if not self._files:
            self._say(f"there is no file below {self._folder} to submit")
            return False
        try:
            return self._story()
        except TitanicError as error:
            self._say(f"[red]{error}[/red]; the logs are in {self._work}")
            return False
        finally:
            for process in self._processes:
                self._kill(process)

    def _story(self) -> bool:
        server = self._start("serve", "serve", "--bind", self._endpoint, "--store", str(self._work / "store"))
        self._say(f"[bold]titanic serve[/bold] runs as process {server.pid} at {self._endpoint}")
        with Client(self._endpoint, timeout=2.0, retries=10) as client:
            half = len(self._files) // 2
            uuids = self._submit(client, self._files[:half])
            self._say(f"{half} of {len(self._files)} files submitted to '{SERVICE}', which has no worker")
            killer = threading.Thread(target=self._replace, args=(server,))
            killer.start()
            uuids |= self._submit(client, self._files[half:])
            killer.join()
            self._say(f"the other {len(self._files) - half} submitted while the server was killed and started again")
            stats = client.stats()
            waiting = stats["services"].get(SERVICE, 0)
            self._say(f"{waiting} requests wait on disk; nobody is there to do them")
            if waiting < len(uuids):
                self._say(f"[red]{len(uuids) - waiting} acknowledged requests are missing[/red]")
                return False
            self._let_workers_run(client)
            wrong = self._collect(client, uuids)
            client.close_many(uuids)
            left = waiting - len(uuids)
            self._report(uuids, wrong, left)
            if self._processes[-1].poll() is None:
                shutil.rmtree(self._work, ignore_errors=True) if not wrong else None
            return not wrong

    def _submit(self, client: Client, files: list[Path]) -> dict[str, Path]:
        uuids: dict[str, Path] = {}
        for at in range(0, len(files), 10):
            part = files[at : at + 10]
            uuids.update(zip(client.submit_many(SERVICE, [file.read_bytes() for file in part]), part, strict=True))
        return uuids

    def _replace(self, server: subprocess.Popen[bytes]) -> None:
        """Kill the server without warning and start another on the same store."""
        self._kill(server)
        self._say(f"[bold red]kill -9 {server.pid}[/bold red]: the server is gone")
        again = self._start("serve-again", "serve", "--bind", self._endpoint, "--store", str(self._work / "store"))
        self._say(f"[bold]titanic serve[/bold] runs again, as process {again.pid}")

    def _let_workers_run(self, client: Client) -> None:
        """Start two workers and kill one of them while it is at work."""
        slow = self._start("worker-1", "work", SERVICE, "--endpoint", self._endpoint, "--", *_hash_command(slow=True))
        self._say(f"[bold]titanic work {SERVICE}[/bold] runs as process {slow.pid}, slowed down to be caught at work")
        self._until(lambda: client.stats()["running"] > 0, "the worker to be busy")
        self._kill(slow)
        self._say(f"[bold red]kill -9 {slow.pid}[/bold red]: the worker is gone, with a request in its hands")
        fast = self._start("worker-2", "work", SERVICE, "--endpoint", self._endpoint, "-j", "4", "--", *_hash_command())
        self._say(f"[bold]titanic work {SERVICE}[/bold] runs as process {fast.pid}")

    def _collect(self, client: Client, uuids: dict[str, Path]) -> list[Path]:
        """Take all replies and compare each with what hashlib says; the files whose reply was wrong."""
        wrong = []
        bar = Progress(
            TextColumn("collecting replies"), BarColumn(), MofNCompleteColumn(), console=self._console, transient=True
        )
        with bar:
            task = bar.add_task("", total=len(uuids))
            for uuid, reply in client.replies(uuids, timeout=PATIENCE):
                expected = hashlib.sha256(uuids[uuid].read_bytes()).hexdigest().encode()
                if isinstance(reply, TitanicError) or b"".join(reply).split()[:1] != [expected]:
                    wrong.append(uuids[uuid])
                bar.advance(task)
        return wrong

    def _report(self, uuids: dict[str, Path], wrong: list[Path], left: int) -> None:
        for file in wrong:
            self._say(f"[red]wrong reply for {file}[/red]")
        right = len(uuids) - len(wrong)
        self._say(
            f"[bold]{len(uuids)} requests acknowledged, {right} replies right, {len(wrong)} wrong, 0 lost[/bold];"
            f" all closed; {time.monotonic() - self._started:.1f} s"
        )
        if left:
            self._say(
                f"({left} were stored twice: the answer was lost with the server, so the client submitted them again)"
            )

    def _start(self, log: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._work / f"{log}.log").open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "titanic", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env={key: value for key, value in os.environ.items() if not key.startswith("TITANIC_")},
            )
        self._processes.append(process)
        return process

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _until(self, condition: object, what: str) -> None:
        assert callable(condition)
        until = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > until:
                raise TitanicError(f"waited {PATIENCE:g} s in vain for {what}")
            time.sleep(0.02)

    def _say(self, text: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._started:5.1f} s[/dim]  {text}")


def _files_below(folder: Path) -> Iterator[Path]:
    """Files to submit, in order: no hidden ones, none over a megabyte, at most 500."""
    count = 0
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        for name in sorted(files):
            file = Path(root, name)
            if name.startswith(".") or not file.is_file() or file.stat().st_size > MOST_BYTES:
                continue
            yield file
            count += 1
            if count == MOST_FILES:
                return


def _hash_command(*, slow: bool = False) -> list[str]:
    command = "sha256sum" if shutil.which("sha256sum") else "shasum -a 256"
    return ["sh", "-c", f"sleep 0.5 && {command}"] if slow else command.split()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
