"""The example in titanic/README.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.coroutines import in_loop
from support.serving import QUICK

import titanic
from broker import Worker
from titanic import Server

README = Path(titanic.__file__).parent / "README.md"


@in_loop
async def test_the_example(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "aio" in one]
    names: dict[str, Any] = {}
    exec(compile(block, str(README), "exec"), names)
    with Worker("upper", lambda frames: frames[0].upper(), server.endpoints[0], config=QUICK):
        await names["main"](server.endpoints[0])
    assert sorted(line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()) == [
        "[b'A']",
        "[b'B']",
        "[b'C']",
    ]
