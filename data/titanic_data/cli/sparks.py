"""What Spark has to say, in a line."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ACCOUNTS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def quiet() -> None:
    """Leave out Spark's own account of what we tell in a line."""
    for name in _ACCOUNTS:
        logging.getLogger(name).disabled = True


def is_of_spark(error: Exception) -> bool:
    """Whether it comes from there."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def explain(error: Exception) -> str:
    """What went wrong: our own words if they are in there, else the first of Spark's."""
    text = str(error)
    ours = re.search(r"titanic: [^\n]+", text) or re.search(r"titanic\.errors\.\w+: ([^\n]+)", text)
    if ours is not None:
        return ours[ours.lastindex or 0]
    lines = [line for line in text.splitlines() if line.strip()] or [type(error).__name__]
    if lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        lines = [re.sub(r"^: ([\w.$]+: )?", "", lines[1])]  # py4j's word for it, then Java's
    return re.sub(r"^\[[\w.]+\] | SQLSTATE: .*", "", lines[0])


def only(frame: DataFrame, where: str) -> DataFrame:
    """The rows for which the condition of --where is true. Says that it is this which cannot be."""
    try:
        return frame.where(where)
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise click.UsageError(f"--where cannot be {where!r}: {explain(error)}") from error
