"""Processes that a command starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.waiting import until

from titanic.util.processes import Children

PROGRAM = 'import os; print(*sorted(name for name in os.environ if name.startswith("TITANIC_")), ".")'


def test_they_are_the_same_build_and_have_none_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TITANIC_STORE", "elsewhere")
    monkeypatch.setenv("TITANIC_PURE", "1")
    log, children = tmp_path / "log", Children()
    children.start(log, "-c", PROGRAM)
    try:
        until(lambda: log.read_text().endswith("\n"))
    finally:
        children.end()
    assert log.read_text() == "TITANIC_PURE .\n"
