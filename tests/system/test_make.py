"""The Makefile's first-time set-up, on machines that lack this and that.

A Python that lacks something is a shell script here, and so is what a virtual environment holds: with real ones
each of these would take a minute and the network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = [
    "help",
    "demo",
    "test",
    "quick",
    "test-compiled",
    "torture",
    "mutants",
    "lint",
    "format",
    "types",
    "check",
    "bench",
    "bench-peers",
    "bench-churn",
    "bench-nodes",
    "bench-calls",
    "bench-web",
    "bench-web-load",
    "bench-spark",
]
TARGETS += ["docs", "wheel", "release", "deb", "clean"]

PYTHON = """#!/bin/sh
# Options: OLD, it is older than it must be; a file `bare`, it has no ensurepip.
case "$*" in
    *"version_info < (3, 11)"*) exit ${OLD:-0} ;;
    *"import venv, ensurepip"*) ! [ -e BARE ] ;;
    "-m venv --clear "*)
        echo "made $4" >>LOG
        rm -rf "$4" && mkdir -p "$4/bin" && cp "$0" "$4/bin/python"
        cp TOOL "$4/bin/ruff" && cp TOOL "$4/bin/titanic"
        ! [ -e "$0.name" ] || cp "$0.name" "$4/bin/python.name" ;;
    "-m pip "*) echo "installed ${*##* }" >>LOG ;;
    *"sys.base_prefix"*) cat "$0.name" 2>/dev/null || echo usual ;;
    *) exec REAL "$@" ;;
esac
"""


class Machine:
    """A folder with the Makefile, and programs that come before the system's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir()
        self.log = folder / "log"
        self.bare = folder / "bare"
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        self.program("python3", PYTHON)
        self.program("tool", "#!/bin/sh\necho ${0##*/} $* >>LOG\n")

    def program(self, name: str, text: str) -> None:
        words = {"LOG": self.log, "TOOL": self.bin / "tool", "BARE": self.bare, "REAL": sys.executable}
        for word, path in words.items():
            text = re.sub(rf"\b{word}\b", str(path), text)
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def user(self, number: int) -> None:
        self.program("id", f"#!/bin/sh\necho {number}\n")

    def make(self, *arguments: str, **env: str) -> tuple[int, str]:
        """The exit code and what was said."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        environment |= {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", **env}
        done = subprocess.run(
            ["make", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def done(self) -> list[str]:
        """What was done since the last time."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


PLAIN = ["made .venv", "installed ."]
MADE = [*PLAIN, "installed .[dev]"]
LINTED = ["ruff format --check .", "ruff check ."]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_help_lists_every_target(machine: Machine) -> None:
    for arguments in ((), ("help",)):
        code, said = machine.make(*arguments)
        assert code == 0
        assert re.findall(r"^  make ([\w-]+) +\S", said, re.MULTILINE) == TARGETS
    assert machine.done() == []


def test_it_is_set_up_once(machine: Machine) -> None:
    assert machine.make("lint")[0] == 0
    assert machine.done() == MADE + LINTED
    assert machine.make("lint")[0] == 0
    assert machine.done() == LINTED


def test_the_demo_needs_no_tools(machine: Machine) -> None:
    """Those, and Spark, take minutes."""
    assert machine.make("demo")[0] == 0
    assert machine.done() == [*PLAIN, "titanic demo"]
    assert machine.make("lint")[0] == 0
    assert machine.done() == ["installed .[dev]", *LINTED]
    for target, ran in (("demo", ["titanic demo"]), ("lint", LINTED)):
        assert machine.make(target)[0] == 0
        assert machine.done() == ran


def test_it_is_set_up_once_for_targets_in_parallel(machine: Machine) -> None:
    assert machine.make("-j4", "lint", "format")[0] == 0
    assert sorted(machine.done()) == sorted([*MADE, *LINTED, "ruff format .", "ruff check --fix ."])


def test_it_is_set_up_again_when_dependencies_change(machine: Machine) -> None:
    machine.make("lint")
    machine.done()
    later = (machine.folder / ".venv/.ready").stat().st_mtime + 10
    os.utime(machine.folder / "pyproject.toml", (later, later))
    assert machine.make("lint")[0] == 0
    assert machine.done() == MADE + LINTED


def test_it_is_set_up_again_when_its_python_is_gone(machine: Machine) -> None:
    machine.make("lint")
    machine.done()
    (machine.folder / ".venv/bin/python").unlink()
    (machine.folder / ".venv/bin/python").symlink_to("/no/such/python")
    assert machine.make("lint")[0] == 0
    assert machine.done() == MADE + LINTED


def test_another_python_can_be_chosen(machine: Machine) -> None:
    machine.make("lint")
    machine.done()
    machine.program("python3.99", PYTHON)
    (machine.bin / "python3.99.name").write_text("another\n")
    assert machine.make("lint", "PYTHON=python3.99")[0] == 0
    assert machine.done() == MADE + LINTED
    for env in ({}, {"PYTHON": "python3.99"}):
        assert machine.make("lint", **env)[0] == 0
        assert machine.done() == LINTED
    assert machine.make("lint", PYTHON="python3")[0] == 0
    assert machine.done() == MADE + LINTED


def test_it_is_set_up_again_when_the_folder_was_moved(machine: Machine, tmp_path: Path) -> None:
    machine.make("lint")
    machine.done()
    machine.folder = tmp_path / "moved"
    machine.folder.mkdir()
    for name in ("Makefile", "pyproject.toml", ".venv"):
        (tmp_path / name).rename(machine.folder / name)
    assert machine.make("lint")[0] == 0
    assert machine.done() == MADE + LINTED


def test_what_failed_half_way_is_begun_again(machine: Machine) -> None:
    machine.program("python3", PYTHON.replace('echo "installed ${*##* }" >>LOG', "exit 1"))
    assert machine.make("lint")[0] != 0
    machine.program("python3", PYTHON)
    machine.done()
    assert machine.make("lint")[0] == 0
    assert machine.done() == MADE + LINTED


def test_a_python_that_is_too_old(machine: Machine) -> None:
    code, said = machine.make("lint", OLD="1")
    assert code != 0
    assert "Titanic needs Python 3.11 or newer, and python3 is Python 3" in said
    assert machine.done() == []


def test_no_python_at_all(machine: Machine) -> None:
    code, said = machine.make("lint", "PYTHON=python9")
    assert code != 0
    assert "There is no python9 here." in said


APT = "apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends"


def test_root_on_debian_gets_the_venv_module(machine: Machine) -> None:
    machine.bare.touch()
    machine.user(0)
    machine.program("apt-get", "#!/bin/sh\necho apt-get $* >>LOG\n[ $1 = update ] || rm BARE\n")
    assert machine.make("lint")[0] == 0
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    assert machine.done() == ["apt-get update -qq", f"{APT} {package}", *MADE, *LINTED]


def test_another_apt_get_is_waited_for(machine: Machine) -> None:
    """A fresh machine updates itself."""
    machine.bare.touch()
    machine.user(0)
    busy = machine.folder / "busy"
    busy.touch()
    fault = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)"
    begin = f"#!/bin/sh\nif [ $1 = update ] && [ -e {busy} ]; then echo '{fault}' >&2; exit 100; fi\n"
    machine.program("apt-get", begin + "echo apt-get $* >>LOG\n[ $1 = update ] || rm BARE\n")
    machine.program("sleep", f"#!/bin/sh\nrm {busy}\n")
    code, said = machine.make("lint")
    assert (code, "waiting for another apt-get" in said) == (0, True), said
    assert machine.done()[0] == "apt-get update -qq"


def test_others_are_told_what_to_do(machine: Machine) -> None:
    machine.bare.touch()
    machine.user(1000)
    code, said = machine.make("lint")
    assert code != 0
    assert re.search(r"python3 has no venv module. On Debian: apt-get install python3\.\d+-venv", said)


def test_clean_removes_what_make_made(machine: Machine) -> None:
    machine.make("lint")
    for name in ("dist", "build", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "a/__pycache__"):
        (machine.folder / name).mkdir(parents=True)
    assert machine.make("clean")[0] == 0
    assert {path.name for path in machine.folder.iterdir()} == {"Makefile", "pyproject.toml", "bin", "log", "a"}
    assert list((machine.folder / "a").iterdir()) == []
