"""Claiming what is to be dispatched: a request that a node has claimed, no other node looks at."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from titanic.errors import StoreFailed
from titanic.store.postgres.arrays import ids, numbers, texts
from titanic.store.postgres.incarnation import END, FREE, JOIN, identity
from titanic.store.postgres.queue_reads import READY_COLUMNS, ready_row
from titanic.store.postgres.transaction import Statement
from titanic.store.postgres.writing import Writing
from titanic.store.records import ReadyRow

_ALIVE = "EXISTS (SELECT FROM node WHERE incarnation = %s AND lease_until > '-infinity')"

_CLAIM = f"""
WITH wanted AS (
    SELECT * FROM unnest(%s::bytea[], %s::bigint[]) WITH ORDINALITY AS w (service, most, n)
), free AS (
    SELECT w.n, f.* FROM wanted AS w CROSS JOIN LATERAL (
        SELECT service, rank, uuid FROM ready WHERE service = w.service AND {FREE}
        ORDER BY rank, uuid LIMIT w.most FOR UPDATE SKIP LOCKED) AS f
), sized AS (
    SELECT f.*, row_number() OVER places AS place, sum(r.body_bytes) OVER places - r.body_bytes AS before,
        count(*) OVER () AS found
    FROM free AS f JOIN request AS r ON r.uuid = f.uuid WINDOW places AS (ORDER BY f.n, f.rank, f.uuid)
)
UPDATE ready AS q SET incarnation = %s FROM sized AS s JOIN request AS r ON r.uuid = s.uuid
WHERE q.service = s.service AND q.rank = s.rank AND q.uuid = s.uuid AND s.before < %s AND {_ALIVE}
RETURNING s.place, s.n, s.found, {READY_COLUMNS}"""

_IS_ALIVE = f"SELECT {_ALIVE}"

_MOVE = """
UPDATE ready AS q SET incarnation = %s
FROM unnest(%s::uuid[]) AS given (uuid) JOIN request AS r ON r.uuid = given.uuid
WHERE q.service = r.service AND q.rank = 9 - r.priority AND q.uuid = r.uuid AND q.incarnation = ANY(%s::bigint[])"""


def claim(tx: Writing, services: Sequence[tuple[bytes, int]], max_bytes: int) -> dict[bytes, list[ReadyRow]]:
    """What each of these services is to do next, so many requests at most: this node has claimed them now.

    Raises StoreFailed when others have ended this node's incarnation.
    """
    if not services:
        return {}
    me = tx.incarnation.current()
    names, limits = zip(*services, strict=True)
    asked = Statement(_CLAIM, (texts(names), numbers(limits), me, max_bytes, me))
    rows, ((alive,),) = tx.fetch_all(asked, Statement(_IS_ALIVE, (me,)))
    if not alive:
        fact = "other nodes have not heard of it for the time of its lease"
        raise StoreFailed("what this node had claimed is free for others", fact, "it begins anew")
    rows.sort()
    claimed: dict[bytes, list[ReadyRow]] = {name: [] for name in names}
    for _, n, _, *columns in rows:
        claimed[names[n - 1]].append(ready_row(names[n - 1], *columns))
    if rows and len(rows) < rows[0][2]:  # it ended at `max_bytes`: those behind were not looked at
        for name in names[rows[-1][1] :]:
            del claimed[name]
    return claimed


def release(tx: Writing, uuids: Sequence[bytes]) -> None:
    """Give back what this node has claimed and does not execute now."""
    if uuids and (own := tx.incarnation.own):
        tx.fetch(_MOVE, None, ids(uuids), numbers(own))


def release_all_but(tx: Writing, uuids: Collection[bytes]) -> None:
    """Give back all that this node has claimed, but not these. It goes on under another number: nobody has to find what
    the former one has claimed, nor what it claims when a statement that is still on its way arrives."""
    incarnation = tx.incarnation
    if own := [*incarnation.own]:
        number = incarnation.new_number()
        incarnation.own.append(number)
        moved = Statement(_MOVE, (number, ids(list(uuids)), numbers(own)))
        tx.fetch_all(Statement(JOIN, (number, *identity())), moved, Statement(END, (numbers(own),)))
        tx.renumbered = number
