"""A session that has no more than one of Spark Connect: nothing of the JVM.

A real server of Spark Connect needs another 200 MB of packages, so the tests have the session of this process without
what its kind of client lacks.
"""

from __future__ import annotations

from typing import Any

from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

LACKING = ("sparkContext", "_sc", "_jsparkSession", "_jsc", "_jvm")


class Remote:
    """Hands everything else on to a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        if name in LACKING:
            raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": name})
        return getattr(self._spark, name)
