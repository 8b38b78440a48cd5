"""Which build the tests run: source or compiled. Processes that they start run the same."""

from __future__ import annotations

from pathlib import Path

from support.cli_titanic import titanic as titanic_command
from support.processes import Process
from support.waiting import until

import broker.core.mdp
import titanic.protocol.tsp

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
