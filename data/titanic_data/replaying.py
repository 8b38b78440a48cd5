"""Archived requests, submitted again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker import DEFAULT_ENDPOINT
from titanic_data.errors import Incomplete

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FRAMES = """
    CASE WHEN request_sizes IS NULL THEN array(request)
    ELSE transform(request_sizes, (size, n) ->
        substring(request, 1 + aggregate(slice(request_sizes, 1, n), 0, (sum, one) -> sum + one), size)) END"""


def requests_again(closed: DataFrame, name: str = "replay") -> DataFrame:
    """Rows for `df.write.format("titanic").option("bodyColumn", "frames")`: the requests as they were, each with a key
    made of `name` and its old UUID, so that it comes once under this name, however often it is handed in."""
    key = f"concat('{name.replace(chr(39), '')} ', request_id) AS key"
    return closed.selectExpr(key, "service", f"{FRAMES} AS frames", "priority")


def replay(
    closed: DataFrame, endpoint: str = DEFAULT_ENDPOINT, *, name: str = "replay", skip_missing: bool = False
) -> int:
    """Submit closed requests again; how many. Raises Incomplete, before anything is submitted, when some bodies were
    too large for the ring to keep and `skip_missing` does not say to leave them out."""
    whole = closed.where("request IS NOT NULL")
    missing = closed.where("request IS NULL").count()
    if missing and not skip_missing:
        fact = f"the bodies of {missing} were larger than the ring keeps"
        raise Incomplete("not all of these requests can be submitted again", fact, "leave them out with --skip-missing")
    rows = requests_again(whole, name)
    count = rows.count()
    writer = rows.write.format("titanic").mode("append").option("bodyColumn", "frames")
    writer.option("endpoint", endpoint).save()
    return count
