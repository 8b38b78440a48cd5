"""A Spark session for the commands of this package, what it needs, and what its errors say."""

from __future__ import annotations

import logging
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

_QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

LEAST_JAVA = 17
INSTALL_JAVA = "install a Java 17 or newer; on Debian: apt-get install openjdk-17-jre-headless"
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Java options for a session of one short job, which ends before a better compiler pays."""


def session(name: str = "titanic-data", *, quick: bool = False, settings: dict[str, str] | None = None) -> SparkSession:
    """The Spark session of this process, or a new one: times in UTC, no web page, this Python.

    It runs on SPARK_MASTER, by default on the processors of this machine. `quick` starts sooner and runs slower. Raises
    MissingPart without Java or pyspark.
    """
    expect_java()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pyspark.sql import SparkSession
    except ImportError as error:
        advice = f"{sys.executable} -m pip install 'pyspark>=4.2,<5'"
        raise MissingPart("pyspark is not installed", str(error), advice) from error
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
    """A path for Spark's readers of files, which read a path as a pattern: its special characters are escaped."""
    return "file:" + re.sub(r"([\\*?\[\]{},])", r"\\\1", str(path.absolute()))


def expect_java() -> None:
    """Raise MissingPart unless Spark finds a Java that it can use."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        fact = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java in PATH"
        raise MissingPart("Spark needs Java", fact, INSTALL_JAVA)
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    if match is None:
        raise MissingPart(f"{java} does not report a version", (said.stderr or said.stdout)[:200].strip(), INSTALL_JAVA)
    if int(match[1]) < LEAST_JAVA:
        raise MissingPart(f"the Java at {java} is too old", f"it is version {match[1]}", INSTALL_JAVA)


def silence_query_logs() -> None:
    """Drop what Spark itself logs about a failed query: `explain` says it in a line."""
    for name in _QUERY_LOGGERS:
        logging.getLogger(name).disabled = True


def is_of_spark(error: Exception) -> bool:
    """Whether pyspark or py4j has raised an error."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def explain(error: Exception) -> str:
    """An error of Spark in a line: our own message if there is one in it, else the first line of Spark's."""
    text = str(error)
    ours = re.search(r"titanic: [^\n]+", text) or re.search(r"titanic\.errors\.\w+: ([^\n]+)", text)
    if ours is not None:
        return ours[ours.lastindex or 0]
    csv = re.search(r"Malformed CSV record: .*?(?= SQLSTATE|$)|Unescaped quote .*? CSV field", text, re.MULTILINE)
    if csv is not None:
        return f"{csv[0]}; put values with commas, quotes or line breaks in quotes, and double the quotes in them"
    lines = [line for line in text.splitlines() if line.strip()] or [type(error).__name__]
    if lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        lines = [re.sub(r"^: ([\w.$]+: )?", "", lines[1])]  # without the name of the Java class
    return re.sub(r"^\[[\w.]+\] | SQLSTATE: .*", "", lines[0])
