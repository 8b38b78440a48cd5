"""What a worker is told of a request beside its body: a JSON object, see PROTOCOL.md."""

from __future__ import annotations

import json

from titanic.dispatch.attempts import Flight
from titanic.store import ReadyRow

_GENERATED = b"~"
"""How the keys of clients begin whose callers have given none."""


def context_of(row: ReadyRow, flight: Flight, wall_us: int) -> bytes:
    """The context of an attempt that begins now. `wall_us`: the time of day.

    It is made for each request that is sent, and nearly always of the first four fields."""
    said = b'{"uuid":"%b","attempt":%d,"of":%d,"priority":%d' % (
        row.uuid.hex().encode(),
        flight.attempts + 1,
        flight.max_attempts,
        flight.priority,
    )
    policy = flight.policy
    if policy.limit:
        said += b',"deadline":%.3f' % (wall_us / 1e6 + policy.limit)
    if policy.trace:
        said += b',"trace":' + json.dumps(policy.trace).encode()
    key = row.idempotency_key
    if key and not key.startswith(_GENERATED):
        said += b',"key":' + json.dumps(key.decode(errors="replace")).encode()
    return said + b"}"
