"""What may take long begins first, or one process is still at it when the others have nothing left to do.

Long are the tests with a limit of their own, `pytest.mark.timeout`, also if it is that of all. pytest-xdist gives each
of its processes an equal part of the list to begin with: the long tests are dealt out to the beginnings of these parts.
Those of Spark stay together, as each process that has one of them starts a Java machine.
"""

from __future__ import annotations

import pytest
from support.spark import needs_spark


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    first: list[list[pytest.Item]] = [[] for _ in range(processes)]
    first[0] += [item for item in items if needs_spark(item)]
    long = sorted((item for item in items if _limit(item) and not needs_spark(item)), key=_limit, reverse=True)
    for number, item in enumerate(long):
        first[-1 - number % max(1, processes - 1)].append(item)
    begun = {item for part in first for item in part}
    short = [item for item in items if item not in begun]
    items.clear()
    left = len(begun) + len(short)
    for number, part in enumerate(first):
        size = left // (processes - number)
        left -= size
        room = max(0, size - len(part))
        items += [*part, *short[:room]]
        del short[:room]
    items += short


def _limit(item: pytest.Item) -> float:
    """Seconds that the test may take; 0 when it has the limit of all."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark is not None else 0.0
