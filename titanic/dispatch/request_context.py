"""What a worker is told of a request beside its body: a JSON object, see PROTOCOL.md."""

from __future__ import annotations

import json
from functools import lru_cache

from titanic.dispatch.attempts import Flight
from titanic.store import ReadyRow
from titanic.util.ids import text

_GENERATED = b"~"
"""How the keys of clients begin whose callers have given none."""


@lru_cache(maxsize=4096)
def _numbers(attempt: int, most: int, priority: int) -> bytes:
    """Most requests have these and nothing more, and most have the same."""
    return b'","attempt":%d,"of":%d,"priority":%d}' % (attempt, most, priority)


def context_of(row: ReadyRow, flight: Flight, wall_us: int, *, alone: bool = False) -> bytes:
    """The context of an attempt that begins now. `wall_us`: the time of day. `alone`: its worker's process is to do
    nothing else meanwhile; that is for the broker (`broker.core.requests`)."""
    policy, key = flight.policy, row.idempotency_key
    again = flight.deliveries > flight.attempts
    said = b'{"uuid":"' + text(row.uuid) + _numbers(flight.attempts + 1, flight.max_attempts, flight.priority)
    if not (again or alone or policy.limit or policy.trace or policy.type or (key and not key.startswith(_GENERATED))):
        return said
    said = said[:-1]
    if again:
        said += b',"delivery":%d' % (flight.deliveries + 1)
    if alone:
        said += b',"alone":true'
    if policy.limit:
        said += b',"deadline":%.3f' % (wall_us / 1e6 + policy.limit)
    if policy.trace:
        said += b',"trace":' + json.dumps(policy.trace).encode()
    if policy.type:
        said += b',"type":' + json.dumps(policy.type).encode()
    if key and not key.startswith(_GENERATED):
        said += b',"key":' + json.dumps(key.decode(errors="replace")).encode()
    return said + b"}"
