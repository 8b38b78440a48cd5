"""The one Spark session of a test process, made small: it starts in seconds and leaves nothing behind.

Tests that use it come first. A process of pytest-xdist begins with a stretch of them and what it gives away later is
from the other end, so that there is one session, or two, however many processes there are.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.processes import PYTHONPATH
from support.warm_spark import start

from titanic_data.session import QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST = 1000
"""Seconds that such a test may take: on a machine that is busy with other things Spark takes a minute to start."""

ROOT = Path(__file__).parents[2]
JAVA = f"{QUICK} -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Java's options, for JAVA_TOOL_OPTIONS. To verify the classes of Spark takes a sixth of its start."""
CLASSES = ROOT / "build" / f"spark-{Path(shutil.which('java') or ROOT).resolve().stat().st_mtime_ns}.jsa"
"""The classes that Java had loaded at the end of the first session here. With them it starts in half the time; where
they do not fit, it does without."""
if CLASSES.exists():
    os.environ["SPARK_SUBMIT_OPTS"] = f"-Xlog:disable -XX:SharedArchiveFile={CLASSES}"

SETTINGS = {
    "spark.master": "local[2,3]",  # two processors, and a task may fail twice
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if needs_spark(item):
            item.add_marker(pytest.mark.timeout(LONGEST))


def needs_spark(item: pytest.Item) -> bool:
    """Whether the test has the session, by its name or by a parameter of another fixture."""
    call = getattr(item, "callspec", None)
    return "spark" in getattr(item, "fixturenames", ()) or (call is not None and "spark" in call.params.values())


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this process. What it starts of Python are forks: warm_spark.py."""
    from titanic_data.errors import MissingPart
    from titanic_data.session import expect_java, session

    try:
        expect_java()
    except MissingPart as error:
        if "CI" in os.environ:
            pytest.fail(str(error))
        pytest.skip(str(error))
    scratch = tmp_path_factory.mktemp("spark")
    os.environ["PYTHONPATH"] = PYTHONPATH
    forking, python = start(scratch, PYTHONPATH)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = str(python)
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", JAVA)
    classes = scratch / "classes"
    if not CLASSES.exists() and "CI" not in os.environ:  # writing takes as long as two starts
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"-Xlog:disable -XX:ArchiveClassesAtExit={classes}")
    settings = {**SETTINGS, "spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = session("tests", quick=True, settings=settings)
    monkeypatch.undo()
    yield found
    java = found.sparkContext._gateway
    found.stop()
    java.shutdown()
    java.proc.communicate()
    if classes.exists() and not java.proc.returncode:  # Java ends at once with a part of them
        CLASSES.parent.mkdir(exist_ok=True)
        Path(shutil.copy(classes, CLASSES.with_suffix(f".{os.getpid()}"))).replace(CLASSES)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    forking.kill()
    forking.wait()
