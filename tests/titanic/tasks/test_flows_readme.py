"""The blocks of the README run as they stand there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from titanic import tasks

README = Path(tasks.__file__).parent / "FLOWS.md"


def test_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    module = ModuleType("flows_tour")
    monkeypatch.setitem(sys.modules, "flows_tour", module)  # types are looked up there
    tour: dict[str, Any] = vars(module)
    exec(compile("\n".join(blocks), str(README), "exec", dont_inherit=True), tour)
    with tour["app"].testing() as queue:
        for function in ("chain", "chord", "for_each"):
            tour[function]()
        queue.advance(1)
        assert [row["state"] for row in queue.requests()] == ["done"]
