"""deploy/titanic-backup, as its timer runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from titanic.store import open_store
from titanic.store.lmdb.tools import check

SCRIPT = Path(__file__).parents[2] / "deploy/titanic-backup"


@pytest.fixture
def command(tmp_path: Path) -> Sequence[str]:
    """A backup of a store."""
    open_store(tmp_path / "store", capacity=16 << 20).close()
    config = tmp_path / "titanic.toml"
    config.write_text(f"store = '{tmp_path}/store'\n")
    titanic = tmp_path / "titanic"
    titanic.write_text(f'#!/bin/sh\nexec {sys.executable} -m titanic "$@"\n')
    titanic.chmod(0o755)
    (tmp_path / "backups").mkdir()
    return (str(SCRIPT), str(titanic), str(config), str(tmp_path / "backups"))


def start(command: Sequence[str], keep: int) -> subprocess.Popen[str]:
    where = {"cwd": SCRIPT.parents[1], "env": os.environ}
    return subprocess.Popen([*command, str(keep)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **where)


def test_those_of_one_second_do_not_meet(tmp_path: Path, command: Sequence[str]) -> None:
    said = [(one.communicate(timeout=120)[0], one.returncode) for one in [start(command, 3), start(command, 3)]]
    assert [code for _, code in said] == [0, 0], said
    copies = list((tmp_path / "backups").iterdir())
    assert len(copies) == 2
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d", one.name) for one in copies)
    for one in copies:
        with open_store(one, capacity=16 << 20) as store:
            assert check(store) == []


def test_the_last_ones_are_kept(tmp_path: Path, command: Sequence[str]) -> None:
    for year in range(2001, 2006):
        (tmp_path / f"backups/{year}-01-01T00-00-00").mkdir()
    (tmp_path / "backups/mine").mkdir()
    one = start(command, 3)
    said = one.communicate(timeout=120)[0]
    assert one.returncode == 0, said
    assert "2001-01-01T00-00-00: removed, 3 are kept" in said
    left = sorted(each.name for each in (tmp_path / "backups").iterdir())
    assert [name for name in left if name < "2006"] == ["2004-01-01T00-00-00", "2005-01-01T00-00-00"]
    assert (len(left), left[-1]) == (4, "mine")
