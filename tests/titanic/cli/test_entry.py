"""The first moments of a command: a Ctrl-C ends it without a word, whatever is being imported."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli_titanic import CLEAN, running, titanic
from support.processes import IN_ITS_FOLDER
from support.waiting import PATIENCE


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What is started can be interrupted, also when the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("module", ["typing", "zmq", "titanic.cli.printing"])
def test_an_interrupt_while_it_is_imported(module: str) -> None:
    """The interpreter tells what it has imported. Then it would wait: somebody listens, who never answers."""
    command = [sys.executable, "-X", "importtime", "-m", "titanic", "status", "--timeout", f"{PATIENCE}", "--endpoint"]
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        subprocess.Popen(
            [*command, f"tcp://127.0.0.1:{silent.getsockname()[1]}"], stderr=subprocess.PIPE, text=True, env=CLEAN
        ) as process,
    ):
        assert process.stderr is not None
        for line in process.stderr:
            if re.fullmatch(rf"import time:.*\| +{re.escape(module)}\n", line):
                break
        process.send_signal(signal.SIGINT)
        rest = [line for line in process.stderr if not line.startswith("import time:")]
    assert (process.returncode, rest) == (130, [])


LOSING = """
import collections, ctypes, operator, time
import zmq
import titanic.bench.programme


def run(*arguments):
    come = ctypes.CDLL(None)["raise"]
    # First the signal, then the frame is freed, and Python has no turn in between.
    collections.deque(map(come, map(operator.itemgetter(0), [(2, zmq.Frame(b"x"))])), 0)
    while True:
        time.sleep(0.001)


titanic.bench.programme.run = run
from titanic.entry import main
main()
"""


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_not_lost_while_a_frame_is_freed() -> None:
    command = [sys.executable, "-c", LOSING, "bench", "accept"]
    done = subprocess.run(command, capture_output=True, text=True, env=CLEAN, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_around_a_command_is_its_exit_code() -> None:
    """It comes when the command is made interruptible already, and not yet run."""
    program = """
import signal, titanic.cli, titanic.entry as entry
def main(prog_name):
    entry.interruptible()
    signal.raise_signal(signal.SIGINT)
titanic.cli.main = main
entry.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=CLEAN, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_inside_an_exec_is_an_exit_code_too(tmp_path: Path) -> None:
    """It comes while a command imports something that executes a text, as every dataclass does."""
    (tmp_path / "command.py").write_text(
        "import signal, sys\n"
        "def main(prog_name):\n"
        "    try:\n"
        "        exec('signal.default_int_handler(2, None)')\n"
        "    except KeyboardInterrupt:\n"
        "        sys.exit(130)\n"
    )
    (tmp_path / "run.py").write_text("from titanic.entry import start; start('command', 'command')")
    command, env = [sys.executable, "-m", "run"], CLEAN | IN_ITS_FOLDER
    done = subprocess.run(command, cwd=tmp_path, env=env, timeout=PATIENCE, check=False)
    assert done.returncode == 130


def test_an_interrupt_that_is_ignored_stays_so() -> None:
    """As a shell does for what it starts in the background."""
    program = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import titanic.entry as e; e.main()"
    command = [sys.executable, "-c", program, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout.startswith("titanic, version ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_the_very_end_changes_no_exit_code(tmp_path: Path, number: int) -> None:
    """Python has no handlers any more when it frees what is left."""
    (tmp_path / "command.py").write_text(
        "import os, signal, sys\n"
        "class Late:\n"
        f"    def __del__(self, kill=os.kill, pid=os.getpid()): kill(pid, {number})\n"
        "def main(prog_name):\n"
        "    signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "    signal.signal(signal.SIGINT, lambda *_: None)\n"
        "    sys.late = Late()\n"
        "    sys.exit(7)\n"
    )
    script = "from titanic.entry import start; start('command', 'command')"
    command, env = [sys.executable, "-c", script], CLEAN | IN_ITS_FOLDER
    done = subprocess.run(command, cwd=tmp_path, env=env, timeout=60, check=False)
    assert done.returncode == 7


IMPORTS = """
import os
from importlib import import_module
from titanic.cli.main import COMMANDS

for module in sorted({module for module, _ in COMMANDS.values()}):
    if not os.fork():
        import_module(f"titanic.cli.{module}")
        os._exit(0)
    assert os.wait()[1] == 0, module
"""


def test_each_command_imports_all_that_it_needs() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, env=CLEAN, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_commands_of_tests_start_as_all_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are forks of a process that has imported all."""
    monkeypatch.chdir(tmp_path)
    mask = os.umask(0o027)
    try:
        with running(tmp_path / "log", "broker", "--bind", "tcp://127.0.0.1:*") as broker:
            broker.says("broker at")
            pid = broker.process.pid
            status = Path(f"/proc/{pid}/status").read_text()
            assert {f"PPid:\t{os.getpid()}", "Umask:\t0027"} <= set(status.splitlines())
            assert (os.getsid(pid), Path(f"/proc/{pid}/cwd").resolve()) == (pid, tmp_path)
            files = [Path(f"/proc/{pid}/fd/{number}").resolve() for number in (0, 2)]
            assert files == [Path(os.devnull), tmp_path / "log"]
            broker.send(signal.SIGTERM)
            assert broker.ends() == 0
    finally:
        os.umask(mask)
    words = "submit", "\udcff", "x", "--timeout", "0"
    cold = subprocess.run([sys.executable, "-m", "titanic", *words], capture_output=True, env=CLEAN, check=False)
    assert titanic(*words) == (cold.returncode, cold.stdout, cold.stderr.decode())
