"""Choosing requests: by id, by state, by service, page by page or part by part."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from titanic.store.postgres.nodes.sharing import CLAIMED
from titanic.store.postgres.reading.request_reads import expect_frames
from titanic.store.postgres.transaction import PLACES, REASON, SEEN, STATE, Looking, seen
from titanic.store.records import Description, Page
from titanic.store.states import ENDED, State
from titanic.util.ids import SIZE

LOOKED_AT = 10_000
"""Requests that one call of `list` looks at, at most."""

_DEAD = {State.FAILED, State.EXPIRED}
_BEYOND = "ff" * SIZE

Query = tuple[Any, ...]
"""SQL and its parameters."""


class _Order(NamedTuple):
    """The direction of a listing, in SQL: `behind` is the comparison with the place to go on from."""

    behind: str
    order: str
    place: bytes

    @property
    def limited(self) -> str:
        return f"ORDER BY uuid {self.order} LIMIT %s"


_OLDEST = _Order(">", "", b"\0")
_NEWEST = _Order("<", "DESC", b"\xff")

_MENTIONS = "position(%s in lower(encode({}, 'escape') COLLATE \"C\")) > 0"
"""Whether bytes contain a text, in capitals or not as far as letters are ASCII. A text can look like escaped bytes: the
rows that are found are looked at again."""

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
    newest: bool = False,
    text: str | None = None,
) -> Page:
    """`select` of one state, or of all."""
    states = None if state is None else (state,)
    return select(tx, states, service=service, owner=owner, after=after, limit=limit, newest=newest, text=text)


def select(
    tx: Looking,
    states: Collection[State] | None = None,
    *,
    service: bytes | None = None,
    older_than: int | None = None,
    owner: bytes | None = None,
    after: bytes | None = None,
    limit: int = 100,
    newest: bool = False,
    text: str | None = None,
) -> Page:
    """Up to `limit` requests in the order of their ids (oldest first), of these states, service and owner if given.
    `newest`: newest first. `text`: only those whose reason or key contains it."""
    order = _NEWEST if newest else _OLDEST
    candidates = _candidates(states, service, owner, after, order)
    query = _select(candidates, states, service, older_than, owner, text, order, limit + 1)
    return _page(tx, candidates, query, after, limit, order, text)


def list_running(
    tx: Looking,
    *,
    service: bytes | None,
    owner: bytes | None,
    after: bytes | None,
    limit: int,
    newest: bool = False,
    text: str | None = None,
) -> Page:
    """`list_requests` of those that a node has claimed."""
    order = _NEWEST if newest else _OLDEST
    candidates = _candidates((State.WAITING,), service, owner, after, order)
    query = _select(candidates, (State.WAITING,), service, None, owner, text, order, limit + 1, CLAIMED)
    return _page(tx, candidates, query, after, limit, order, text)


def _page(
    tx: Looking, candidates: Query, query: Query, after: bytes | None, limit: int, order: _Order, text: str | None
) -> Page:
    rows = [seen(row).description for row in tx.fetch(*query)]
    page = Page(row for row in rows[:limit] if text is None or row.mentions(text))
    if len(rows) > limit:
        page.next = rows[limit - 1].uuid if limit else after
        return page
    candidate, *parameters = candidates
    sought = f"SELECT uuid FROM ({candidate}) c ORDER BY uuid {order.order} OFFSET %s LIMIT 1"
    last = tx.fetch(sought, *parameters, LOOKED_AT - 1)
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
    states: Collection[State] | None,
    service: bytes | None,
    owner: bytes | None,
    after: bytes | None,
    order: _Order,
) -> Query:
    """A query for ids behind `after`, in order, all of those that can be in these states among them.

    It walks over the smallest index that has them all.
    """
    wanted = set(State if states is None else states)
    behind = _whole(after or b"", order.place)
    beyond, limited = f"uuid {order.behind} %s::uuid", order.limited
    requests = f"SELECT uuid FROM titanic.request WHERE {beyond}"
    replies = f"SELECT uuid FROM titanic.reply WHERE {beyond}"
    if owner:
        return (f"{requests} AND owner = %s AND owner <> '' {limited}", behind, owner, LOOKED_AT)
    if wanted <= _DEAD:
        return (f"{replies} AND status IN (5, 6) {limited}", behind, LOOKED_AT)
    if wanted <= ENDED:
        return (f"{replies} {limited}", behind, LOOKED_AT)
    if wanted == {State.DELAYED}:
        return (f"SELECT uuid FROM titanic.later WHERE {beyond} {limited}", behind, LOOKED_AT)
    if service is not None:
        queue = f"""
    SELECT one.uuid FROM generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL (
        SELECT uuid FROM titanic.ready WHERE service = %s AND rank = p.rank AND {beyond} {limited}
    ) one"""
        if wanted == {State.WAITING}:
            return (f"{queue} {limited}", service, behind, LOOKED_AT, LOOKED_AT)
        later = f"SELECT uuid FROM titanic.later WHERE {beyond}"
        places = f"{queue} UNION ALL ({later} {limited}) UNION ALL ({replies} {limited})"
        return (f"{places} {limited}", service, behind, LOOKED_AT, *[behind, LOOKED_AT] * 2, LOOKED_AT)
    return (f"{requests} {limited}", behind, LOOKED_AT)


def _select(
    candidates: Query,
    states: Collection[State] | None,
    service: bytes | None,
    older_than: int | None,
    owner: bytes | None,
    text: str | None,
    order: _Order,
    limit: int,
    test: str = "TRUE",
) -> Query:
    """A query for those candidates that are asked for."""
    query, *parameters = candidates
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
    if text is not None:
        tests.append(f"({_MENTIONS.format(REASON)} OR {_MENTIONS.format('r.key')})")
        parameters += [_escaped(text)] * 2
    where = " AND ".join(tests)
    query = f"SELECT {SEEN} FROM ({query}) c JOIN titanic.request r ON r.uuid = c.uuid {PLACES} WHERE {where}"
    return (f"{query} ORDER BY r.uuid {order.order} LIMIT %s", *parameters, limit)


def _escaped(text: str) -> str:
    """A text as `_MENTIONS` wants it."""
    shown = {0: "\\000", ord("\\"): "\\\\"} | {byte: f"\\{byte:03o}" for byte in range(128, 256)}
    return "".join(shown.get(byte) or chr(byte) for byte in text.encode(errors="replace")).lower()


def _whole(place: bytes, fill: bytes = b"\0") -> str:
    """An id that is not below a beginning of ids, as text; with another `fill`, not above it."""
    return place.ljust(SIZE, fill)[:SIZE].hex()
