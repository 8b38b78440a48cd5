"""The tour in the README runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import broker

README = Path(broker.__file__).parent / "README.md"


def test_the_tour(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) > 5
    exec(compile("\n".join(blocks), str(README), "exec"), {"__name__": "tour"})
    out = capsys.readouterr().out
    assert out.startswith("[b'0']\n[b'1']\n[b'2']\n")
    assert sorted(out.splitlines()[3:]) == ["x [b'X'] None", "y [b'Y'] None", "z [b'Z'] None"]


@pytest.mark.parametrize("config", [broker.BrokerConfig, broker.WorkerConfig, broker.ClientConfig])
def test_every_setting_is_in_the_tables(config: type) -> None:
    text = README.read_text()
    assert [name for name in config.__dataclass_fields__ if f"`{name}`" not in text] == []  # type: ignore[attr-defined]
