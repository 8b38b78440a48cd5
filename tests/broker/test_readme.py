"""The tour in the README runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import broker

README = Path(broker.__file__).parent / "README.md"


def test_the_tour(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) > 5
    exec(compile("\n".join(blocks), str(README), "exec"), {"__name__": "tour"})
    out = capsys.readouterr().out
    assert out == "[b'0']\n[b'1']\n[b'2']\n"


@pytest.mark.parametrize("config", [broker.BrokerConfig, broker.WorkerConfig, broker.ClientConfig])
def test_the_command_prints_every_setting(config: type) -> None:
    done = subprocess.run([sys.executable, "-m", "broker.config"], capture_output=True, text=True, check=True)
    text = done.stdout.partition(f"{config.__name__}\n")[2]
    for one in fields(config):
        assert f"  {one.name} = {one.default!r}" in text
        assert broker.settings_of(config)[one.name].help.split()[0] in text
