"""The long runs: which they are, their seed, and what they did, summed up at the end of `make torture`.

A test marked `torture` runs in `make torture` only. One marked `torture(short=True)` always runs, and does much more
when LONG. Each counts in `tally` what it did. With pytest-xdist every process has its own; they are added up.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from support.faults import Lost

from titanic.errors import StoreError

LONG = "TITANIC_TORTURE" in os.environ
SEED = int(os.environ.get("TITANIC_SEED", "3"))
MOST_SECONDS = 1800

COUNTED = (
    "crash points tried",
    "crash points fired",
    "disk errors injected",
    "disk errors noticed",
    "power-cut images checked",
    "operations modelled",
    "steps of claims",
    "faults of a cluster",
    "fail-overs",
    "processes killed",
    "readers killed",
    "acknowledged requests checked",
    "executions compared",
    "parts of replies sent",
    "errors of workers",
    "submissions refused",
    "malformed handshakes",
    "malformed ZAP requests",
    "byte strings for ZMTP",
    "odd messages",
)
FAULTS = ("lost", "wrong", "unreadable stores")
tally: Counter[str] = Counter()
figures: list[str] = []
"""What was measured on the way, in words."""


def seeds(few: int, many: int) -> list[Any]:
    """The values of a parameter `seed`: the first few always, the others in `make torture`."""
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.torture) for seed in range(few, many))]


def part(items: list[Any], few: int) -> list[Any]:
    """All of them when LONG, otherwise a few from the first to the last."""
    if LONG or len(items) <= few:
        return items
    return [items[n * (len(items) - 1) // (few - 1)] for n in range(few)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if LONG and item.get_closest_marker("torture"):
            item.add_marker(pytest.mark.timeout(MOST_SECONDS))
    if not LONG:
        marks = {item: item.get_closest_marker("torture") for item in items}
        long = [item for item, mark in marks.items() if mark and not mark.kwargs.get("short")]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    fault = dict(report.user_properties).get("fault")
    if fault and report.failed:
        tally[str(fault)] += 1


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Say what kind of fault a failed long run has found."""
    if call.excinfo is None or not item.get_closest_marker("torture"):
        return
    kinds = ((Lost, "lost"), (StoreError, "unreadable stores"), (Exception, "wrong"))
    kind = next((name for error, name in kinds if call.excinfo.errisinstance(error)), "wrong")
    item.user_properties.append(("fault", kind))


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["tally"], output["figures"] = dict(tally), figures


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of pytest-xdist has ended."""
    output = getattr(node, "workeroutput", {})
    tally.update({name: count for name, count in output.get("tally", {}).items() if name in COUNTED})
    figures.extend(output.get("figures", []))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not LONG:
        return
    terminalreporter.section(f"torture with seed {SEED} (TITANIC_SEED={SEED} repeats it)")
    for name in COUNTED + FAULTS:
        terminalreporter.write_line(f"{tally[name]:>12,}  {name}")
    for figure in figures:
        terminalreporter.write_line(f"{'':>12}  {figure}")
