"""The Spark source `titanic`. Spark finds it by the name of this package; it need not be registered.

spark.read.format("titanic").load("/var/lib/titanic/store")
spark.readStream.format("titanic").option("maxOffsetsPerTrigger", 10_000).load("/var/lib/titanic/store")
df.write.format("titanic").mode("append").option("endpoint", "tcp://queue:5555").save()
"""

from pyspark_titanic.source import DefaultSource

__all__ = ["DefaultSource"]
