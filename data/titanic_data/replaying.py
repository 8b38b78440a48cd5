"""Archived requests, submitted again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker import DEFAULT_ENDPOINT
from titanic_data.collecting import known
from titanic_data.errors import Incomplete, InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FRAMES = """
    CASE WHEN request_sizes IS NULL THEN array(request)
    ELSE transform(request_sizes, (size, n) ->
        substring(request, 1 + aggregate(slice(request_sizes, 1, n), 0, (sum, one) -> sum + one), size)) END"""


MOST_NAME = 200
"""Bytes of a name: a key has 255, with the UUID in it."""


class Replayed(NamedTuple):
    """How many requests were handed in, and how many of these were `new`: the queue had the others under this name."""

    requests: int
    new: int


def requests_again(closed: DataFrame, name: str = "replay") -> DataFrame:
    """Rows for `df.write.format("titanic").option("bodyColumn", "frames")`: the requests as they were, each with a key
    made of `name` and its old UUID, so that it comes once under this name, however often it is handed in."""
    from pyspark.sql.functions import concat, lit

    if not 0 < len(name.encode()) <= MOST_NAME:
        raise InvalidOption(f"the name cannot be {name!r}", f"it must have 1 to {MOST_NAME} bytes")
    key = concat(lit(f"{name} "), "request_id").alias("key")
    return closed.selectExpr("*", f"{FRAMES} AS frames").select(key, "service", "frames", "priority")


def replay(
    closed: DataFrame, endpoint: str = DEFAULT_ENDPOINT, *, name: str = "replay", skip_missing: bool = False
) -> Replayed:
    """Submit closed requests again. Raises Incomplete, before anything is submitted, when some bodies were too large
    for the ring to keep and `skip_missing` does not say to leave them out."""
    whole = closed.where("request IS NOT NULL")
    rows = requests_again(whole, name)
    missing = closed.where("request IS NULL").count()
    if missing and not skip_missing:
        fact = f"the bodies of {missing} were larger than the ring keeps"
        raise Incomplete("not all of these requests can be submitted again", fact, "leave them out with --skip-missing")
    count = rows.count()
    before = known(rows, endpoint)
    writer = rows.write.format("titanic").mode("append").option("bodyColumn", "frames")
    writer.option("endpoint", endpoint).save()
    return Replayed(count, count - before)
