"""The README's programs run as they stand there, and its tables are those of the source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.each import each

from broker import patterns
from broker.core.mdp import Command
from broker.patterns.binary_star import core as star
from broker.patterns.pirate_queue import core as queue

TEXT = (Path(patterns.__file__).parent / "README.md").read_text()


def test_the_programs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) >= 3
    exec(compile("\n".join(blocks), "README.md", "exec"), {"__name__": "tour"})


def test_every_setting_is_in_the_tables() -> None:
    for config in (patterns.QueueConfig, patterns.StarConfig, patterns.FreelanceConfig):
        assert [name for name in config.__dataclass_fields__ if f"`{name}`" not in TEXT] == []


@pytest.mark.parametrize("state", [None, *queue.PirateState])
def test_the_table_of_the_pirate_queue(state: queue.PirateState | None) -> None:
    name = state.value if state else "unknown"
    row = re.search(rf"^ +{name} +(.*)$", TEXT, re.MULTILINE)
    assert row is not None
    acts = re.split(" {2,}", row[1])[:3]
    order = (Command.READY, Command.HEARTBEAT, Command.FINAL)
    real = [queue.TRANSITIONS[state, command].__name__.strip("_") for command in order]
    assert [act.rpartition(" ")[2] for act in acts] == real


@each("state", star.StarState)
def test_the_table_of_binary_star(state: star.StarState) -> None:
    row = re.search(rf"^ +{state.name.lower()} +{state.value.decode()} +(.*)$", TEXT, re.MULTILINE)
    assert row is not None
    steps = [star.TRANSITIONS.get((state, event)) for event in star.StarEvent]
    assert row[1].split() == [step.value if step else "–" for step in steps]
