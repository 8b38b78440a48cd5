"""Choosing requests: by id, by state, by service, page by page or part by part."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from titanic.store.postgres.foreseen import PLACES, SEEN, STATE, seen
from titanic.store.postgres.looking import Looking
from titanic.store.postgres.request_reads import expect_frames
from titanic.store.postgres.sharing import CLAIMED
from titanic.store.records import Description, Page
from titanic.store.states import ENDED, State
from titanic.util.ids import SIZE

LOOKED_AT = 10_000
"""Requests that one call of `list` looks at, at most."""

_DEAD = {State.FAILED, State.EXPIRED}
_BEYOND = "ff" * SIZE

Query = tuple[Any, ...]
"""SQL and its parameters."""

_IN_ORDER = "ORDER BY uuid LIMIT %s"
_FROM_REQUESTS = "SELECT uuid FROM titanic.request WHERE uuid > %s::uuid"
_FROM_REPLIES = "SELECT uuid FROM titanic.reply WHERE uuid > %s::uuid"
_FROM_QUEUE = """
    SELECT one.uuid FROM generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL (
        SELECT uuid FROM titanic.ready WHERE service = %s AND rank = p.rank AND uuid > %s::uuid
        ORDER BY uuid LIMIT %s
    ) one"""

_UNENDED = f"""
    SELECT * FROM (
        SELECT {SEEN}, CASE WHEN p.uuid IS NULL AND c.before < %s THEN r.body END, c.before >= %s FROM (
            SELECT r.uuid, coalesce(sum(CASE WHEN p.uuid IS NULL THEN r.body_bytes END) OVER
                (ORDER BY r.uuid ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
            FROM (
                SELECT uuid, body_bytes FROM titanic.request WHERE uuid >= %s::uuid AND uuid < %s::uuid
                ORDER BY uuid LIMIT %s
            ) r LEFT JOIN titanic.reply p ON p.uuid = r.uuid
        ) c JOIN titanic.request r ON r.uuid = c.uuid {PLACES}
    ) one ORDER BY 1"""


def list_requests(
    tx: Looking,
    *,
    service: bytes | None = None,
    state: State | None = None,
    owner: bytes | None = None,
    after: bytes | None = None,
    limit: int = 100,
) -> Page:
    """`select` of one state, or of all."""
    return select(tx, None if state is None else (state,), service=service, owner=owner, after=after, limit=limit)


def select(
    tx: Looking,
    states: Collection[State] | None = None,
    *,
    service: bytes | None = None,
    older_than: int | None = None,
    owner: bytes | None = None,
    after: bytes | None = None,
    limit: int = 100,
) -> Page:
    """Up to `limit` requests in the order of their ids (oldest first), of these states, service and owner if given."""
    candidates = _candidates(states, service, owner, after)
    query = _select(candidates, states, service, older_than, owner, limit + 1)
    return _page(tx, candidates, query, after, limit)


def list_running(tx: Looking, *, service: bytes | None, owner: bytes | None, after: bytes | None, limit: int) -> Page:
    """`list_requests` of those that a node has claimed."""
    candidates = _candidates((State.WAITING,), service, owner, after)
    query = _select(candidates, (State.WAITING,), service, None, owner, limit + 1, CLAIMED)
    return _page(tx, candidates, query, after, limit)


def _page(tx: Looking, candidates: Query, query: Query, after: bytes | None, limit: int) -> Page:
    page = Page(seen(row).description for row in tx.fetch(*query))
    if len(page) > limit:
        del page[limit:]
        page.next = page[-1].uuid if page else after
        return page
    text, *parameters = candidates
    last = tx.fetch(f"SELECT uuid FROM ({text}) c ORDER BY uuid OFFSET %s LIMIT 1", *parameters, LOOKED_AT - 1)
    page.next = last[0][0] if last else None
    return page


def request_ids(tx: Looking, every: int) -> list[bytes]:
    """The id of every stored request that begins a part of `every` of them, oldest first."""
    numbered = "SELECT uuid, row_number() OVER (ORDER BY uuid) - 1 AS n FROM titanic.request"
    rows = tx.fetch(
        f"SELECT uuid FROM ({numbered}) one WHERE n %% %s = 0 ORDER BY uuid",
        every,
    )
    return [uuid for (uuid,) in rows]


def unended(
    tx: Looking, begin: bytes, end: bytes | None, limit: int, max_bytes: int = 16 << 20
) -> tuple[list[tuple[Description, list[bytes]]], bytes | None]:
    """The requests of a range that wait or are delayed, with their bodies, and where to go on."""
    beyond = _BEYOND if end is None else _whole(end)
    rows = tx.fetch(_UNENDED, max_bytes, max_bytes, _whole(begin), beyond, limit + 1)
    left_out = next((n for n, row in enumerate(rows) if n == limit or row[-1]), len(rows))
    following = rows[left_out][0] if left_out < len(rows) else None
    found: list[tuple[Description, list[bytes]]] = []
    for *columns, body, _ in rows[:left_out]:
        one = seen(tuple(columns))
        if not one.has_ended:
            expect_frames(one.uuid, "request", body, one.body_frames, one.body_bytes)
            found.append((one.description, body))
    return found, following


def _candidates(
    states: Collection[State] | None, service: bytes | None, owner: bytes | None, after: bytes | None
) -> Query:
    """A query for ids above `after`, in order, all of those that can be in these states among them.

    It walks over the smallest index that has them all.
    """
    wanted = set(State if states is None else states)
    behind = _whole(after or b"")
    if owner:
        return (f"{_FROM_REQUESTS} AND owner = %s AND owner <> '' {_IN_ORDER}", behind, owner, LOOKED_AT)
    if wanted <= _DEAD:
        return (f"{_FROM_REPLIES} AND status IN (5, 6) {_IN_ORDER}", behind, LOOKED_AT)
    if wanted <= ENDED:
        return (f"{_FROM_REPLIES} {_IN_ORDER}", behind, LOOKED_AT)
    if wanted == {State.DELAYED}:
        return (f"SELECT uuid FROM titanic.later WHERE uuid > %s::uuid {_IN_ORDER}", behind, LOOKED_AT)
    if wanted == {State.WAITING} and service is not None:
        return (f"{_FROM_QUEUE} {_IN_ORDER}", service, behind, LOOKED_AT, LOOKED_AT)
    return (f"{_FROM_REQUESTS} {_IN_ORDER}", behind, LOOKED_AT)


def _select(
    candidates: Query,
    states: Collection[State] | None,
    service: bytes | None,
    older_than: int | None,
    owner: bytes | None,
    limit: int,
    test: str = "TRUE",
) -> Query:
    """A query for those candidates that are asked for."""
    text, *parameters = candidates
    tests = [test]
    for test, value in (
        (f"{STATE} = ANY(%s)", None if states is None else [int(state) for state in states]),
        ("r.service = %s", service),
        ("r.owner = %s", owner),
        ("coalesce(p.finished_at, r.submitted_at) < %s", older_than),
    ):
        if value is not None:
            tests.append(test)
            parameters.append(value)
    where = " AND ".join(tests)
    query = f"SELECT {SEEN} FROM ({text}) c JOIN titanic.request r ON r.uuid = c.uuid {PLACES} WHERE {where}"
    return (f"{query} ORDER BY r.uuid LIMIT %s", *parameters, limit)


def _whole(place: bytes) -> str:
    """An id that is not below a beginning of ids, as text."""
    return place.ljust(SIZE, b"\0")[:SIZE].hex()
