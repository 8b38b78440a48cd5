"""The end-to-end example of data/README.md, with fewer rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.cli_data import titanic_data
from support.processes import PYTHONPATH

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "data" / "sample" / "end_to_end.py"


def test_from_rows_to_a_report(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(SCRIPT.read_text(), str(SCRIPT), "exec"), names)
    start = names["data"]

    def data(command: str, *arguments: object) -> None:
        """The report comes from the session that there is; the others from processes of their own."""
        if command == "report":
            assert titanic_data(command, *map(str, arguments)).code == 0
        else:
            start(command, *arguments)

    names["data"] = data
    names["run"](spark, 200, tmp_path)
    said = capfd.readouterr().out
    assert "200 replies are what Spark's own sha2 says" in said
    assert "200 requests closed" in said
    assert "is intact: 1 file read, 200 rows, numbers 1 to 200" in said
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")


def test_it_leaves_nothing_behind(tmp_path: Path) -> None:
    """Not even when it is ended by an error: here, that there is no Java."""
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    env |= {"TMPDIR": str(tmp_path), "JAVA_HOME": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, SCRIPT, "10"], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert "Spark needs Java" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", ["end_to_end.py", "make.py"])
def test_asked_for_help_they_do_nothing(script: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, SCRIPT.with_name(script), "--help"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.startswith(f"usage: {script} ")
    assert list(tmp_path.iterdir()) == []
