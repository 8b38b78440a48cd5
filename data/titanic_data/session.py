"""A Spark session for the commands of this package, after a look at whether there can be one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from titanic_data.errors import MissingPart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA = 17
INSTALL_JAVA = "install a Java 17 or newer; on Debian: apt-get install openjdk-17-jre-headless"
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For a session of one short job: what a JVM learns over minutes is not worth its while."""


def session(name: str = "titanic-data", *, quick: bool = False, settings: dict[str, str] | None = None) -> SparkSession:
    """The Spark session of this process, a new one if there is none: times in UTC, no web page, this Python.

    The machines are those of SPARK_MASTER, or this one's processors. `quick` starts sooner and runs slower. Raises
    MissingPart without Java or pyspark.
    """
    expect_java()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pyspark.sql import SparkSession
    except ImportError as error:
        advice = "pip install 'titanic-queue[spark]'"
        raise MissingPart("there is no pyspark", str(error), advice) from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    usual = {
        "spark.master": os.environ.get("SPARK_MASTER", "local[*]"),
        "spark.app.name": name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    }
    if usual["spark.master"].startswith("local"):
        usual |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    java = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
    usual["spark.driver.extraJavaOptions"] = f"{java} {QUICK}" if quick else java
    builder = SparkSession.builder
    for key, value in {**usual, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def as_file(path: Path) -> str:
    """A path for Spark's readers of files. They take a path for a pattern: what it could mean there is escaped."""
    return "file:" + re.sub(r"([\\*?\[\]{},])", r"\\\1", str(path.absolute()))


def expect_java() -> None:
    """Raise MissingPart unless there is a Java that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        fact = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java in PATH"
        raise MissingPart("Spark needs Java", fact, INSTALL_JAVA)
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    if match is None:
        raise MissingPart(f"{java} does not say its version", (said.stderr or said.stdout)[:200].strip(), INSTALL_JAVA)
    if int(match[1]) < LEAST_JAVA:
        raise MissingPart(f"the Java at {java} is too old", f"it is version {match[1]}", INSTALL_JAVA)
