"""`titanic-data --config`: a file of its own, or the server's."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli_data import titanic_data
from support.ring import ring

from titanic_data.cli import COMMANDS


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "titanic.toml"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_it(command: str) -> None:
    assert b"  --config FILE " in titanic_data("help", command).out


def test_the_servers_file_has_the_store(tmp_path: Path, toml: Path) -> None:
    """What is for `titanic` alone is passed over, also where both have a command of that name."""
    store, archive = ring(tmp_path / "store", 10), tmp_path / "archive"
    toml.write_text(
        f'store = "{store}"\nendpoint = ["tcp://127.0.0.1:9"]\nmetrics = "127.0.0.1:9469"\n'
        "[serve]\ngrace = 1\n[work]\njobs = 4\n"
    )
    done = titanic_data("archive", "--config", toml, "--archive", archive)
    assert done.code == 0, done
    assert done.line.startswith(f"{archive}: 10 rows added, ")
    assert "ring no longer waits for an archive" in titanic_data("unregister", TITANIC_CONFIG=str(toml)).line


def test_a_file_of_its_own(tmp_path: Path, toml: Path) -> None:
    store, archive = ring(tmp_path / "store", 10), tmp_path / "archive"
    toml.write_text(f'[archive]\nstore = "{store}"\narchive = "{archive}"\n[verify]\narchive = "{archive}"\n')
    assert titanic_data("archive", "--config", toml).line.startswith(f"{archive}: 10 rows added")
    assert titanic_data("verify", "--config", toml).line.startswith(f"{archive} is intact: 1 file read, 10 rows")


def test_faults_have_their_line(toml: Path) -> None:
    toml.write_text("[archive]\nrows-per-rnage = 5\nbytes-per-range = 'many'\n[srve]\n")
    done = titanic_data("archive", "--config", toml)
    assert done.code == 2
    assert done.err.replace("titanic-data: ", "").splitlines() == [
        f"{toml}:2: unknown key [archive] rows-per-rnage; did you mean rows-per-range?",
        f"{toml}:3: [archive] bytes-per-range: 'many' is not a size; write it like 500, 64MiB or 1.5GB",
        f"{toml}:4: unknown key [srve]; did you mean serve?",
    ]
