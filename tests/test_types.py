"""What the types of the public names allow, as mypy sees it in a program of somebody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import broker
from titanic.client.client import Client
from titanic.protocol.submit_options import SubmitOptions

ROOT = Path(__file__).parent.parent

PROGRAM = """
from collections.abc import Generator
from datetime import timedelta

from broker import Handler, Worker
from titanic import Client, RequestInfo


def texts(frames: list[bytes]) -> list[str]:
    return [frame.decode() for frame in frames]


def mixed(frames: list[bytes]) -> tuple[bytes, str, memoryview]:
    return frames[0], "text", memoryview(b"")


def nothing(frames: list[bytes]) -> None:
    pass


def parts(frames: list[bytes]) -> Generator[str, None, list[str]]:
    yield "one"
    return ["two"]


handlers: list[Handler] = [texts, mixed, nothing, parts, lambda frames: "text"]
Worker("s", texts)
client = Client()
row: RequestInfo = client.show("")
at: int = row["submitted_at"]
rows, after = client.list()
state: str = rows[0]["state"]
client.submit_many("s", ["a"], keys=["k"], ttl=timedelta(1), priority=3)
client.submit_batch("s", ["a"], keys=["k"], ttl=1, priority=3)
wrong: Handler = lambda frames: 7
row["sate"]
if row["state"] == "doen":
    pass
"""

FAULTS = ['"Callable[[list[bytes]], int]"', 'got "int"', '"sate"', "Non-overlapping equality check"]
"""What it has to say of the last lines, and nothing else."""


def test_a_program_of_somebody_else(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == len(FAULTS), done.stdout + done.stderr
    for line, fault in zip(errors, FAULTS, strict=True):
        assert fault in line


def test_submitting_many_takes_all_options() -> None:
    for method in (Client.submit, Client.submit_batch, Client.submit_many):
        assert "SubmitOptions" in method.__annotations__["options"]
    assert "ttl" in SubmitOptions.__annotations__


def test_a_worker_shows_its_public_face() -> None:
    """And not what its loop calls."""
    names = {name for name in dir(broker.Worker) if not name.startswith("_")}
    assert names == {"run", "start", "stop", "abandon", "every", "registered", "sessions"}
