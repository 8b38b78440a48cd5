"""Every command of ours, once, at brokers of other projects. Whatever else comes of it, the broker is still there.

The table in broker/README.md, "With programs of others", has those that were run by hand, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cli_titanic import Ended, here
from support.processes import SUPPORT, Process
from support.serving import QUICK, serving
from support.waiting import until

from broker import Worker
from titanic import Client

UUID = "0" * 32

COMMANDS = [
    ("call", "echo", "hello"),
    ("call", "mmi.service", "echo"),
    ("call", "mmi.broker", "x"),
    ("submit", "echo", "hello"),
    ("submit", "echo", "hello", "--wait", "0.1"),
    ("reply", UUID),
    ("reply", UUID, "--wait", "0.1"),
    ("close", UUID),
    ("status",),
    ("health",),
    ("ls",),
    ("show", UUID),
    ("retry", UUID),
    ("purge", "dead"),
    ("pause", "echo"),
    ("resume", "echo"),
    ("nodes",),
    ("drain",),
    ("cron", "pause", "nightly"),
]

MAJORTOMO = """
import sys
from majortomo.broker import Broker
Broker(sys.argv[1], heartbeat_interval=0.5, heartbeat_timeout=5).run()
"""


@contextmanager
def program(name: str, folder: Path) -> Iterator[tuple[Process, str]]:
    """A broker that is not ours, and its endpoint."""
    endpoint = f"ipc://{folder}/broker"
    arguments: list[str | Path] = [SUPPORT / "rfc7_broker.py", endpoint, "0.5", "strict"]
    if name == "majortomo":
        arguments = ["-c", MAJORTOMO, endpoint]
    with Process(*arguments, output=folder / "broker.out") as process:
        yield process, endpoint


def asked(process: Process, *command: str) -> Ended:
    """What a command says, whose question the broker outlives."""
    done = here(*command)
    assert process.running, command
    return done


@pytest.mark.parametrize(("name", "mdp"), [("the Guide's", None), ("majortomo", None), ("majortomo", "majortomo")])
def test_every_command(name: str, mdp: str | None, tmp_path: Path) -> None:
    options = ("--timeout", "0.05", *(("--mdp", mdp) if mdp else ()))
    with program(name, tmp_path) as (process, endpoint):
        until((tmp_path / "broker").exists)
        for command in COMMANDS:
            assert asked(process, *command, "--endpoint", endpoint, *options).code != 0 or command[1] == "mmi.service"


def test_a_worker_and_a_queue_at_the_guides(tmp_path: Path) -> None:
    with (
        program("the Guide's", tmp_path) as (process, endpoint),
        serving(tmp_path, broker=endpoint),
        Worker("echo", lambda frames: frames, endpoint, jobs=2, config=QUICK),
    ):
        with Client(endpoint, timeout=30) as client:
            until(lambda: client.stats()["store"])
            assert client.wait(client.submit("echo", "hello"), 60) == [b"hello"]
        for command in COMMANDS:
            asked(process, *command, "--endpoint", endpoint, "--timeout", "20")
        done = asked(process, "submit", "echo", "hello", "--wait", "60", "--endpoint", endpoint)
        assert (done.code, done.out) == (0, b"hello"), done.err
