"""The walk of data/README.md, with fewer rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

WALK = Path(__file__).parents[2] / "data" / "sample" / "walk.py"


def test_the_walk(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "walk"}
    exec(compile(WALK.read_text(), str(WALK), "exec"), names)
    names["walk"](spark, 200, tmp_path)
    said = capfd.readouterr().out
    assert "200 replies are what Spark's own sha2 says" in said
    assert "200 requests closed" in said
    assert "200 rows in 1 file: all there" in said
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")
