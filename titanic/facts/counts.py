"""Counts of what a service has done in a period, with histograms of waiting and run times, and their stored form.

A tally is a list of numbers: one for each of COUNTS, then the buckets of the waiting times, then those of the run
times. Tallies of nodes and of periods add up.

A row holds the tallies of many services, as msgpack: [[service, counts, waiting, run], …]. Zeros at the end of `counts`
are left out; of the buckets only those that are not empty are stored: [bucket, number, bucket, number, …].
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec

COUNTS = (
    "accepted",
    "dispatched",
    "succeeded",
    "failed",
    "retried",
    "expired",
    "closed",
    "cancelled",
    "requeued",
)
"""`dispatched`: deliveries to workers. `retried`: attempts that failed and were followed by another. `closed` contains
`cancelled`, those that had not ended. `requeued`: failed and expired ones that were sent again by a user."""
ACCEPTED, DISPATCHED, SUCCEEDED, FAILED, RETRIED, EXPIRED, CLOSED, CANCELLED, REQUEUED = range(len(COUNTS))

BOUNDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0),
    *(180.0, 600.0, 1800.0, 3600.0, 10800.0, 86400.0),
)
"""The upper ends of the buckets, in seconds; one more bucket counts longer times."""

BUCKETS = len(BOUNDS) + 1
WAIT, RUN = len(COUNTS), len(COUNTS) + BUCKETS
"""Where the buckets of the waiting and of the run times begin in a tally."""
SIZE = RUN + BUCKETS

OTHER = b""
"""Stands for the services that are not counted by name; no service has this name."""

MAX_SERVICES = 1000
"""Services that are counted by name in one period."""

MAX_ROW = 60_000
"""Bytes of a row. The services of a period are divided into as many rows as they need."""

Tally = list[int]
Tallies = dict[bytes, Tally]
StoredTally = tuple[bytes, list[int], list[int], list[int]]
"""A service, its counts, and the buckets of its waiting and run times."""

_ROWS = msgspec.msgpack.Decoder(list[StoredTally])
_ENCODER = msgspec.msgpack.Encoder()
_MANY = struct.Struct(">BI")
_ARRAY = 0xDD


def bucket(seconds: float) -> int:
    """The number of the bucket of this time."""
    return bisect_left(BOUNDS, seconds)


def add(tallies: Tallies, service: bytes, tally: Sequence[int]) -> None:
    """Add a tally to that of a service."""
    known = tallies.get(service)
    tallies[service] = list(tally) if known is None else [one + more for one, more in zip(known, tally, strict=True)]


def add_all(tallies: Tallies, more: Mapping[bytes, Tally]) -> None:
    """Add the tallies of many services."""
    for service, tally in more.items():
        add(tallies, service, tally)


def fold(tallies: Tallies) -> Tallies:
    """Keep the most active services by name; the others become OTHER."""
    if len(tallies) <= MAX_SERVICES:
        return tallies
    ranked = sorted(tallies, key=lambda name: (name != OTHER, sum(tallies[name][:WAIT])), reverse=True)
    folded = {name: tallies[name] for name in ranked[:MAX_SERVICES]}
    for name in ranked[MAX_SERVICES:]:
        add(folded, OTHER, tallies[name])
    return folded


def encode(tallies: Tallies) -> list[bytes]:
    """The rows of a period, each at most MAX_ROW bytes."""
    rows: list[bytes] = []
    parts: list[bytes] = []
    size = 0
    for service, tally in tallies.items():
        part = _ENCODER.encode(stored(service, tally))
        if parts and size + len(part) > MAX_ROW:
            rows.append(_row(parts))
            parts, size = [], 0
        parts.append(part)
        size += len(part)
    if parts:
        rows.append(_row(parts))
    return rows


def stored(service: bytes, tally: Tally) -> StoredTally:
    """A tally as it is stored."""
    counts = tally[:WAIT]
    while counts and not counts[-1]:
        counts.pop()
    return service, counts, _sparse(tally[WAIT:RUN]), _sparse(tally[RUN:])


def _row(parts: Sequence[bytes]) -> bytes:
    return _MANY.pack(_ARRAY, len(parts)) + b"".join(parts)


def _sparse(buckets: Sequence[int]) -> list[int]:
    return [number for at, count in enumerate(buckets) if count for number in (at, count)]


def decode(row: bytes) -> list[StoredTally]:
    """The tallies in a row, as they are stored: mostly they have few numbers. Raises ValueError for a damaged row."""
    try:
        rows = _ROWS.decode(row)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a row of counts: {error}") from error
    for _, counts, *times in rows:
        if len(counts) > WAIT or any(len(each) % 2 or max(each[::2], default=0) >= BUCKETS for each in times):
            raise ValueError("not a row of counts: it has too many numbers")
    return rows


def add_stored(tally: Tally, stored: StoredTally) -> None:
    """Add a stored tally."""
    _, counts, wait, run = stored
    for at, count in enumerate(counts):
        tally[at] += count
    for at in range(0, len(wait), 2):
        tally[WAIT + wait[at]] += wait[at + 1]
    for at in range(0, len(run), 2):
        tally[RUN + run[at]] += run[at + 1]


def percentile(buckets: Sequence[int], share: float) -> float | None:
    """About the time that this share of the counted times does not exceed, in seconds; None: none was counted.

    Within a bucket the times are taken to be spread evenly on a logarithmic scale.
    """
    left = share * sum(buckets)
    for at, count in enumerate(buckets):
        if count and left <= count:
            if at >= len(BOUNDS):
                return BOUNDS[-1]
            low = BOUNDS[at - 1] if at else BOUNDS[0] / 2
            return float(low * (BOUNDS[at] / low) ** (left / count))
        left -= count
    return None
