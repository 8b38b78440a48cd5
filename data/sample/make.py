"""Makes closed.parquet: two days of a small shop's queue. The same seed makes the same rows.

    python data/sample/make.py [FILE]

Four services with a day's rhythm; `mail` has a bad hour on the second day, when its server refuses connections, and
`report` is slow and sometimes expires.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from titanic_data.tables import CLOSED, SCHEMA_VERSION

SEED = 1912
COUNT = 2400
BEGIN = 1_775_001_600_000_000  # 2026-04-01, UTC
SECOND, HOUR = 1_000_000, 3_600_000_000
HERE = Path(__file__).parent
SERVICES = {"resize": (0.5, 0.4), "mail": (0.3, 0.15), "report": (0.1, 30.0), "invoice": (0.1, 1.5)}
"""Its share of the requests, and the seconds that it usually takes."""


def rows(seed: int = SEED, count: int = COUNT) -> list[dict[str, Any]]:
    """The rows of tables.CLOSED, in the order of closing. A column that they lack is null."""
    dice = random.Random(seed)
    found = sorted(_requests(dice, count), key=lambda row: int(row["closed_at"]))
    return [{**row, "seq": number, "date": row["closed_at"] // (24 * HOUR)} for number, row in enumerate(found, 1)]


def _requests(dice: random.Random, count: int) -> Iterator[dict[str, Any]]:
    names, shares = list(SERVICES), [share for share, _ in SERVICES.values()]
    made = 0
    while made < count:
        moment = dice.uniform(0, 48)
        if dice.random() > 0.55 - 0.45 * math.cos((moment - 3) * math.pi / 12):
            continue  # at night there is less to do
        made += 1
        (service,) = dice.choices(names, shares)
        yield _request(dice, made, service, BEGIN + int(moment * HOUR), bad=service == "mail" and 34 <= moment < 35)


def _request(dice: random.Random, number: int, service: str, submitted: int, *, bad: bool) -> dict[str, Any]:
    usual = SERVICES[service][1]
    attempts = 10 if bad else 1 + (dice.random() < 0.04) + (dice.random() < 0.01)
    waited = dice.lognormvariate(-3, 1.2) + (0 if attempts == 1 else 2.0**attempts)
    ran = dice.lognormvariate(math.log(usual), 0.6)
    status = "failed" if bad else dice.choices(["ok", "failed", "expired", "cancelled"], [95, 2, 2, 1])[0]
    sent = submitted + int(waited * SECOND)
    ended = sent + int(ran * SECOND)
    fetched = int(dice.lognormvariate(2, 1.5) * SECOND)
    errors = {
        "failed": "connection refused" if service == "mail" else "exit 1\nno space left",
        "expired": "its time was over",
    }
    body = b'{"order": %d}' % number
    reply = None if status in ("expired", "cancelled") else b"failed" if status == "failed" else b"done %d" % number
    started = status in ("ok", "failed")
    unclaimed = dice.random() < 0.02
    return {
        "request_id": f"{dice.getrandbits(128):032x}",
        "service": service,
        "idempotency_key": f"order {number}" if dice.random() < 0.6 else None,
        "status": status,
        "attempts": attempts if started else 0,
        "submitted_at": submitted,
        "dispatched_at": sent if started else None,
        "replied_at": None if status == "cancelled" else ended,
        "closed_at": ended + (24 * HOUR if unclaimed else fetched),
        "request": body,
        "reply": reply,
        "error": errors.get(status),
        "priority": 4,
        "unclaimed": unclaimed,
        "request_bytes": len(body) if service != "resize" else dice.randrange(1000, 3_000_000),
        "reply_bytes": len(reply or b""),
        "source": f"192.0.2.{1 + number % 3}",
        "schema_version": SCHEMA_VERSION,
    }


def main() -> None:
    """Write the file."""
    usage = argparse.ArgumentParser(description="Make two days of a small shop's queue, as Parquet.")
    usage.add_argument("file", metavar="FILE", nargs="?", type=Path, default=HERE / "closed.parquet")
    file: Path = usage.parse_args().file
    table = pa.Table.from_pylist(rows(), CLOSED.schema)
    try:
        pq.write_table(table, file, compression="zstd")
    except OSError as error:
        usage.error(f"{file} cannot be written: {error.strerror or error}")
    print(f"{file}: {len(table)} rows, {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
