"""What many tests ask of a store's transaction, in one call."""

from __future__ import annotations

from collections.abc import Sequence

from titanic.store import (
    NO_QUEUE,
    ClosedRequest,
    Load,
    NewRequest,
    ReadTransaction,
    State,
    WriteTransaction,
    ready_counts,
)


def accept_all(transaction: WriteTransaction, requests: Sequence[NewRequest], now_us: int) -> list[bytes]:
    """Accept requests; their ids."""
    return [accepted.uuid for accepted in transaction.accept(requests, now_us)]


def state_of(transaction: ReadTransaction, uuid: bytes) -> State | None:
    """The state of a request; None when it is unknown."""
    found = transaction.describe(uuid)
    return None if found is None else found.state


def closed_range(transaction: ReadTransaction) -> tuple[int, int]:
    """The first and the last number of closed requests; the first is one above the last when there are none."""
    found = transaction.archive()
    return found.first, found.last


def closed_in(
    transaction: ReadTransaction, after: int = 0, limit: int = 1000, max_bytes: int = 1 << 40
) -> list[ClosedRequest]:
    """Up to `limit` closed requests with numbers above `after`."""
    first, last = closed_range(transaction)
    first = max(first, after + 1)
    return transaction.closed_bulk(first, min(last, first + limit - 1), max_bytes).requests()


def waiting_in(transaction: ReadTransaction) -> dict[bytes, int]:
    """The number of requests in each service's queue."""
    return ready_counts(transaction.queues())


def load_of(transaction: ReadTransaction, service: bytes) -> Load:
    """The requests of a service that have not ended."""
    return transaction.queues([service]).get(service, NO_QUEUE).load


def holder_of(transaction: ReadTransaction, key: bytes, owner: bytes = b"") -> bytes | None:
    """The id of the request with an idempotency key; None when the key is unknown."""
    return transaction.holders([key], owner).get(key)
