"""The blocks of the README run as they stand there."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from titanic import tasks

README = Path(tasks.__file__).parent / "README.md"


def test_the_tour(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) > 7
    module = ModuleType("tour")
    monkeypatch.setitem(sys.modules, "tour", module)  # types are looked up there
    tour: dict[str, Any] = vars(module)
    exec(compile("\n".join(blocks), str(README), "exec", dont_inherit=True), tour)
    tour["test_fetch"]()
    with tour["app"].testing() as queue:
        for function in ("submit", "more", "failures"):
            tour[function]()
        asyncio.run(tour["sums"]())
        assert tour["add"].submit(1, 2).reply() == 3
        assert queue.wait(queue.submit("upper", b"a")) == [b"A"]
    out = capsys.readouterr().out
    assert "Size(width=120, height=90)\n" in out
    assert "OutOfStock: missing.png" in out
    assert "410 Gone failed" in out
    assert tour["done"]["resize"] == 5
