"""Programs that tests compile or install once, for all test processes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

INTEROP = Path(__file__).parents[1] / "interop"
ZEROMQ_NODE = "6.8.0"


def needs(*programs: str, package: str) -> pytest.MarkDecorator:
    there = all(shutil.which(program) or Path(program).exists() for program in programs)
    return pytest.mark.skipif(not there and "CI" not in os.environ, reason=f"needs {package} (make tools)")


def shared_folder(factory: pytest.TempPathFactory, name: str = "zmtp-peers") -> Path:
    """A folder that test processes share: one makes what is in it, while the others wait."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def builder(factory: pytest.TempPathFactory) -> Path:
    """A Python as that in which pip builds: without libraries of extras, and without this project, whose faults mypy
    does not tell where it is installed. All tests that compile use it, so what is compiled can be compiled there."""
    folder = shared_folder(factory, "builder")
    with alone(folder):
        if not (folder / "venv").exists():
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "new"], check=True)
            (packages,) = (folder / "new/lib").glob("*/site-packages")
            for path in Path(sysconfig.get_path("purelib")).iterdir():
                if not path.name.startswith(("psycopg", "starlette", "uvicorn")) and "titanic" not in path.name:
                    (packages / path.name).symlink_to(path)
            (folder / "new").rename(folder / "venv")
    return folder / "venv/bin/python"


def make(command: list[str | Path], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def in_node(folder: Path, program: str = "peer.cjs") -> list[str | Path]:
    with alone(folder):
        if not (folder / "package-lock.json").exists():
            (folder / "package.json").write_text(json.dumps({"dependencies": {"zeromq": ZEROMQ_NODE}}))
            make(["npm", "install", "--no-audit", "--no-fund", "--fetch-retries=5"], folder)
        shutil.copy(INTEROP / program, folder)
    return ["node", folder / program]
