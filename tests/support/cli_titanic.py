"""The command line as its users run it: processes, signals, what they print, how they end."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner
from support.processes import Fork, is_warm
from support.waiting import PATIENCE, until

from titanic.cli import main

CLEAN = {key: value for key, value in os.environ.items() if not key.startswith("TITANIC_")}


class Ended(NamedTuple):
    """What a command left behind."""

    code: int
    out: bytes
    err: str

    @property
    def line(self) -> str:
        """Its only line of output."""
        (line,) = self.out.decode().splitlines()
        return line

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def titanic(*arguments: str | bytes | Path, stdin: bytes | int = b"", network: str = "", **env: str) -> Ended:
    """Run `titanic …` in a process of its own until it ends. `stdin`: its input, or a descriptor that it gets.
    `network`: of a Fork."""
    if is_warm(env):
        pipe = subprocess.PIPE
        given, said = (pipe, stdin) if isinstance(stdin, bytes) else (stdin, None)
        files = {"stdin": given, "stdout": pipe, "stderr": pipe}
        with Fork("-m", "titanic", *arguments, **files, env=CLEAN | env, network=network) as command:
            try:
                out, err = command.communicate(said, PATIENCE)
            finally:
                command.kill()
        return _ended(command.returncode, out, err)
    assert isinstance(stdin, bytes)
    assert not network
    done = subprocess.run(
        [sys.executable, "-m", "titanic", *arguments],
        input=stdin,
        capture_output=True,
        env=CLEAN | env,
        timeout=PATIENCE,
        check=False,
    )
    return _ended(done.returncode, done.stdout, done.stderr)


def here(*arguments: str | Path, stdin: bytes = b"", **env: str) -> Ended:
    """The same in this process, which is quicker."""
    unset = {key: None for key in os.environ if key.startswith("TITANIC_")}
    words = [str(one) for one in arguments]
    with _own_log():
        done = CliRunner().invoke(main, words, input=stdin, env=unset | env, prog_name="titanic")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return _ended(done.exit_code, done.stdout_bytes, done.stderr.encode())


@contextmanager
def _own_log() -> Iterator[None]:
    """A command that starts the log does so for itself, and not for the tests that come later."""
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    try:
        yield
    finally:
        root.setLevel(before[0])
        root.handlers[:] = before[1]


def _ended(code: int, out: bytes, err: bytes) -> Ended:
    text = err.decode()
    assert "Traceback" not in text, text
    return Ended(code, out, text)


def on_terminal(*arguments: str | Path, stdin: bytes = b"") -> str:
    """Run `titanic …` with a terminal as its stderr; what is written there. It must end well."""
    terminal, stderr = os.openpty()
    pipe, null, env = subprocess.PIPE, subprocess.DEVNULL, CLEAN | {"TERM": "xterm"}
    with Fork("-m", "titanic", *arguments, stdin=pipe, stdout=null, stderr=stderr, env=env) as process:
        os.close(stderr)
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        text = b""
        with suppress(OSError):  # there is no terminal any more
            while chunk := os.read(terminal, 10_000):
                text += chunk
        os.close(terminal)
        assert process.wait(PATIENCE) == 0, text
    return text.decode().replace("\r\n", "\n")


class Running:
    """A `titanic …` that goes on; its stderr is in a file."""

    def __init__(
        self,
        log: Path,
        *arguments: str | Path,
        program: Sequence[str] = (),
        folder: Path | None = None,
        network: str = "",
        **env: str,
    ) -> None:
        self.log = log
        null, pipe, all_env = subprocess.DEVNULL, subprocess.PIPE, CLEAN | env
        with log.open("wb") as stderr:
            if is_warm(env) and not program:
                self.process: subprocess.Popen[bytes] = Fork(
                    "-m",
                    "titanic",
                    *arguments,
                    stdin=null,
                    stdout=pipe,
                    stderr=stderr,
                    env=all_env,
                    cwd=folder,
                    start_new_session=True,
                    network=network,
                )
                return
            assert not network
            command = [*(program or (sys.executable, "-m", "titanic")), *map(str, arguments)]
            self.process = subprocess.Popen(
                command, stdin=null, stdout=pipe, stderr=stderr, env=all_env, cwd=folder, start_new_session=True
            )

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until it has said something."""

        def found() -> re.Match[str] | None:
            match = re.search(pattern, self.log.read_text())
            assert match or self.process.poll() is None, f"it ended: {self.log.read_text()}"
            return match

        return until(found)

    def send(self, number: int) -> None:
        self.process.send_signal(number)
        if number == signal.SIGSTOP:  # its threads go on until the last one has heard of it
            until(lambda: os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT))

    def ends(self) -> int:
        """Wait for its end; the exit code."""
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """End it, whatever it is at, and let it end what it runs: the second signal makes it do so at once."""
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            self.send(number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def running(
    log: Path,
    *arguments: str | Path,
    program: Sequence[str] = (),
    folder: Path | None = None,
    network: str = "",
    **env: str,
) -> Iterator[Running]:
    """A command that runs until the block is left."""
    one = Running(log, *arguments, program=program, folder=folder, network=network, **env)
    try:
        yield one
    finally:
        one.end()


@contextmanager
def serving(folder: Path, *options: str, bind: str = "tcp://127.0.0.1:*") -> Iterator[tuple[Running, str]]:
    """`titanic serve` on a store in a folder, and where it is to be reached."""
    with running(folder / "serve.log", "serve", "--bind", bind, "--store", folder / "store", *options) as server:
        yield server, server.says(r"serving at (\S+);")[1]


@contextmanager
def working(folder: Path, endpoint: str, service: str, *command: str, options: Sequence[str] = ()) -> Iterator[Running]:
    """`titanic work` on a service."""
    log = folder / f"work-{service}.log"
    with running(log, "work", service, "--endpoint", endpoint, *options, "--", *command) as worker:
        worker.says("is registered at")
        yield worker


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
