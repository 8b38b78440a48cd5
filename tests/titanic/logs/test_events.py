"""The table of log events: code, table and help agree."""

from __future__ import annotations

import re
from pathlib import Path

from support.cli_titanic import here

from titanic.logs.events import EVENTS, names

ROOT = Path(__file__).parents[3]
UNNAMED = {"expired", "other-lease", "store-too-new", "hooks-user"}
"""Events that are named only by a variable."""
STATUS_LINES = {"missing", "metrics"}
"""Lines about the command itself, which never reach the log."""


def logged() -> set[str]:
    calls = r'(?:\bevent\(|"event": |\bline\([^"\n]*"[^"]*", )"([a-z-]+)"|\bsay\([^\n]*, "([a-z-]+)"\)'
    found = set[str]()
    for package in ("titanic", "broker"):
        for path in (ROOT / package).rglob("*.py"):
            for pair in re.findall(calls, path.read_text()):
                found.update(filter(None, pair))
    return found


def test_the_table_has_every_event_once() -> None:
    listed = list(names())
    assert len(listed) == len({*listed})
    assert logged() - {*listed} - STATUS_LINES == set()


def test_the_table_has_no_event_that_is_never_logged() -> None:
    assert {*names()} - logged() == UNNAMED


def test_the_help_explains_every_event() -> None:
    said = " ".join(here("help", "log-events").out.decode().split())
    assert [row for row, when in EVENTS if f"{row} {when}" not in said] == []
