"""The programs beside those of other libraries: the table is right, and none is shorter than ours."""

from __future__ import annotations

import re

from benchmarks.side_by_side.lines import HERE, LIBRARIES, PROGRAMS, lines_of


def test_the_table() -> None:
    rows = re.findall(r"^\| ([\w -]+) \|((?: \d+ \|){6})$", (HERE / "README.md").read_text(), re.MULTILINE)
    table = {name: [int(number) for number in re.findall(r"\d+", row)] for name, row in rows}
    names = {"web_hook": "webhook", "fan_out": "fan-out"}
    counted = {names.get(one, one): [lines_of(library, one) for library in LIBRARIES] for one in PROGRAMS}
    assert table == counted
    assert all(ours <= min(others) for ours, *others in counted.values())
