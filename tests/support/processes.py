"""Real processes, so that they can really be killed."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

from support.waiting import PATIENCE

import broker

ROOT = Path(__file__).parents[2]
PACKAGES = Path(broker.__file__).parents[1]
"""Where the packages are that are tested: here, or in the compiled build."""
PYTHONPATH = os.pathsep.join(map(str, (PACKAGES, ROOT / "data", ROOT / "tests")))
"""For processes of tests, so that they run what the tests run."""
IN_ITS_FOLDER = {"PYTHONSAFEPATH": ""}
"""For a process that imports from its folder, which `make test-compiled` forbids: most processes begin in ROOT."""
SUPPORT = Path(__file__).parent
_SCRIPTS = ("node_process", "random_worker", "server_process", "worker_process", "rfc7_broker")
FORKED = [(str(SUPPORT / f"{name}.py"),) for name in _SCRIPTS] + [("-m", "titanic")]
"""What Process starts as a Fork. Not programs that change modules before others import them."""
_FOR_A_FORK = "COLUMNS", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUNBUFFERED", "TMPDIR"
"""Other variables that a Fork takes over."""
_SUBREAPER = 36
"""Of prctl(2): orphans below this process become its children."""
_libc = ctypes.CDLL(None)


class Fork(subprocess.Popen[bytes]):
    """Python with `-m`, `-c` or a script that starts at once: warm_start.py. Tests of imports, interpreters and cold
    starts use subprocess.Popen instead."""

    parent: socket.socket | None = None
    _lock = Lock()

    def __init__(
        self,
        *arguments: str | bytes | Path,
        env: Mapping[str, str],
        network: str = "",
        imports: Sequence[str] = (),
        **more: Any,
    ) -> None:
        """`network`: the file of a namespace that it enters. `imports`: modules that the others had no need of."""
        self.extra = network, [*imports]
        super().__init__([os.fsdecode(one) for one in arguments], env=env, **more)

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        """What Popen calls to start it."""
        more, folder, env, files, session = (*rest[3:6], rest[9:15], rest[20])
        given = [number if one == -1 else one for number, one in enumerate((files[0], files[3], files[5]))]
        numbers = [0, 1, 2, *more]
        umask = os.umask(0)
        os.umask(umask)
        where = str(folder or Path.cwd()), *getattr(self, "extra", ("", []))
        text = json.dumps([list(args), numbers, dict(env), *where, umask, session]).encode()
        try:
            with Fork._lock:
                parent = Fork.parent = Fork.parent or _start_parent()
                _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
                try:
                    socket.send_fds(parent, [len(text).to_bytes(4, "big")], [*given, *more])
                    parent.sendall(text)
                    self.pid = int.from_bytes(parent.recv(4, socket.MSG_WAITALL), "big")
                finally:
                    _libc.prctl(_SUBREAPER, 0, 0, 0, 0)
        finally:
            self._close_pipe_fds(*files)  # type: ignore[attr-defined]
        assert self.pid, "the process that forks has ended"
        self._child_created = True


def fork(*arguments: str | Path) -> subprocess.Popen[str]:
    """One whose input and output are piped, as text."""
    pipe, env = subprocess.PIPE, {**os.environ, "PYTHONPATH": PYTHONPATH}
    return Fork(*arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env)  # type: ignore[return-value]


def run_fork(program: str, *arguments: str | Path) -> tuple[int, str, str]:
    """How a program given as text ended, its output and its errors."""
    with fork("-c", program, *arguments) as process:
        out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def is_warm(env: Mapping[str, str]) -> bool:
    """Whether a Fork can have these additional variables: Python itself reads others when it starts."""
    return all(name.startswith(("TITANIC_", *_FOR_A_FORK)) and name != "TITANIC_PURE" for name in env)


def _start_parent() -> socket.socket:
    """The process that forks, one for each test process."""
    ours, its = socket.socketpair()
    env = {key: value for key, value in os.environ.items() if not key.startswith("TITANIC_")}
    env["PYTHONPATH"] = PYTHONPATH
    command = [sys.executable, str(SUPPORT / "warm_start.py"), str(its.fileno())]
    with its:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, pass_fds=[its.fileno()])

    def end() -> None:
        process.kill()
        process.wait()

    atexit.register(end)
    return ours


class Process:
    """A process that runs until it is killed or the `with` block ends."""

    def __init__(self, *arguments: str | Path, output: Path, **more: str) -> None:
        """`more`: of the environment."""
        environment = {**os.environ, **more, "PYTHONPATH": PYTHONPATH}
        self._output = output
        words = [*map(str, arguments)]
        is_forked = is_warm(more) and any(words[: len(one)] == [*one] for one in FORKED)
        with output.open("ab") as file:
            self._process: subprocess.Popen[bytes] = (
                Fork(*words, env=environment, stdout=file, stderr=file)
                if is_forked
                else subprocess.Popen([sys.executable, *words], env=environment, stdout=file, stderr=file)
            )
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def stands_still(self) -> bool:
        """Whether it was stopped by a signal."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def signal(self, number: signal.Signals) -> None:
        """Send it, if the process is there."""
        if self.running:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: it has no time for anything."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """SIGTERM, and how it ended."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        self.signal(number)
        return self._process.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            print(f"--- {self._output}", self._output.read_text()[-3000:], sep="\n")


def worker_process(endpoint: str, service: str, log: Path, mode: str = "echo") -> Process:
    """A worker (worker_process.py)."""
    script = SUPPORT / "worker_process.py"
    return Process(script, endpoint, service, log, mode, output=log.with_suffix(".out"))


@contextmanager
def script(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program of this folder, in a process of its own; its output is piped. It is killed at the end."""
    pipe, env = subprocess.PIPE, {"PYTHONPATH": PYTHONPATH}
    with Fork(SUPPORT / name, *arguments, stdout=pipe, text=True, env=env) as process:
        try:
            yield process  # type: ignore[misc]
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    text = process.stdout.readline().strip()
    assert text, "the process ended without a word"
    return text
