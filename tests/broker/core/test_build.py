"""Which build the tests run: source or compiled. Processes that they start run the same, and both take the same."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from copy import copy, deepcopy
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.cli_titanic import titanic as titanic_command
from support.processes import Process
from support.waiting import PATIENCE, until

import broker.core.mdp
import titanic.protocol.tsp
from broker import Broker, BrokerConfig, Client, Worker, WorkerConfig, execute
from broker.patterns import FreelanceConfig, Idempotent, QueueConfig, Replies, ReplyStore, Stamp, StarConfig
from titanic import ServerConfig
from titanic.settings import ServiceLimits

MODULES = [broker.core.mdp.__file__, titanic.protocol.tsp.__file__]


def test_processes_run_what_the_tests_run(tmp_path: Path) -> None:
    program, told = tmp_path / "program.py", tmp_path / "told"
    names = "broker.core.mdp, titanic.protocol.tsp"
    program.write_text(f"import {names}\nfor module in ({names}):\n    print(module.__file__)\n")
    with Process(program, output=told) as process:
        until(lambda: not process.running)
    assert told.read_text().splitlines() == MODULES
    build = "compiled" if MODULES[0].endswith(".so") else "pure Python"
    assert titanic_command("--version").line.endswith(f"({build})")


@pytest.mark.parametrize("kind", [float, Decimal, Fraction])
def test_settings_take_numbers_of_other_kinds_and_lists(kind: Callable[[Any], Any]) -> None:
    """As pure Python did: the modules that are compiled take int, float and tuple only."""
    broker = Broker(BrokerConfig(max_body=kind(1_000_000), max_workers=kind(8), liveness=kind(3)))
    config = WorkerConfig(liveness=kind(3), reconnect_first=kind(1), versions=["0.2"])  # type: ignore[arg-type]
    endpoint = broker.bind("tcp://127.0.0.1:*")
    client = Client(endpoint, timeout=kind(PATIENCE), retries=kind(0))
    with broker, client, Worker("echo", lambda frames: frames, endpoint, config=config):
        assert client.call("echo", b"x", timeout=kind(PATIENCE), retries=kind(1)) == [b"x"]
    assert BrokerConfig(max_waiting=math.inf).max_waiting > 1 << 60  # type: ignore[arg-type]
    server = ServerConfig(capacity=kind(1 << 30), limits={b"echo": ServiceLimits(running=kind(2))})
    assert repr((server.capacity, server.limits[b"echo"].running)) == "(1073741824, 2)"


@pytest.mark.parametrize("config", [StarConfig(0.5), QueueConfig(max_waiting=3), FreelanceConfig(retries=1)])
def test_settings_are_copied_and_pickled(config: Any) -> None:
    """Also by multiprocessing."""
    assert config == copy(config) == deepcopy(config) == pickle.loads(pickle.dumps(config))


def test_replies_are_kept_by_classes_of_a_program() -> None:
    class Counted(Replies):
        gets = 0

        def get(self, stamp: Stamp, now: float) -> list[list[bytes]] | None:
            self.gets += 1
            return super().get(stamp, now)

    class Nowhere(ReplyStore):
        def get(self, stamp: Stamp, now: float) -> None:
            return None

        def put(self, stamp: Stamp, reply: list[list[bytes]], now: float) -> None:
            pass

    stores = Counted(), Nowhere()
    for store in stores:
        handler = Idempotent(lambda frames: frames, store)
        answers = [execute(handler, [b"client", b"1", b"x"], lambda part: None) for _ in range(2)]
        assert answers == [[b"x"]] * 2
    assert stores[0].gets == 2
