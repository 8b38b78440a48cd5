"""What a node reads of the others, and the recalls that they leave for each other (titanic/store/sharing.py)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from titanic.store.postgres.connection import ids, numbers
from titanic.store.postgres.transaction import Looking, Statement
from titanic.store.postgres.writing import Writing
from titanic.store.sharing import Question, Recall, Sight

CLAIMED = """(q.incarnation IS NOT NULL AND NOT EXISTS (
    SELECT FROM titanic.node n WHERE n.incarnation = q.incarnation AND n.lease_until = '-infinity'))"""
"""Of a row `q` of `ready`: an incarnation has claimed it that has not ended."""

_ENDED = """
SELECT w.uuid FROM unnest(%s::uuid[]) AS w (uuid)
WHERE NOT EXISTS (SELECT FROM titanic.request AS r WHERE r.uuid = w.uuid)
    OR EXISTS (SELECT FROM titanic.reply AS p WHERE p.uuid = w.uuid)"""

_CLOSED = """
SELECT w.uuid FROM unnest(%s::uuid[]) AS w (uuid)
WHERE NOT EXISTS (SELECT FROM titanic.request AS r WHERE r.uuid = w.uuid)"""

_LIVES = "EXISTS (SELECT FROM titanic.node AS n WHERE n.incarnation = c.incarnation AND n.lease_until > '-infinity')"

_RECALLS = f"SELECT c.uuid, c.incarnation, NOT {_LIVES} FROM titanic.recall AS c"
_RECALLS_OF = f"{_RECALLS} WHERE c.incarnation = ANY(%s::bigint[])"
_RECALLED = f"{_RECALLS} WHERE c.uuid = ANY(%s::uuid[])"

_OTHERS = """
SELECT count(*), count(*) FILTER (WHERE name IN (
    SELECT name FROM titanic.node WHERE incarnation = ANY(%s::bigint[]) AND lease_until > '-infinity'))
FROM titanic.node WHERE lease_until > '-infinity' AND incarnation <> ALL(%s::bigint[])"""

_CLAIMED = f"""
SELECT r.uuid FROM unnest(%s::uuid[]) AS w (uuid) JOIN titanic.request AS r ON r.uuid = w.uuid
JOIN titanic.ready AS q ON q.service = r.service AND q.rank = 9 - r.priority AND q.uuid = r.uuid
WHERE {CLAIMED}"""

_SETTLE = f"""
DELETE FROM recall AS c USING unnest(%s::uuid[], %s::bigint[]) AS given (uuid, incarnation)
WHERE (c.uuid = given.uuid AND c.incarnation = given.incarnation)
    OR (c.since < now() - interval '1 hour' AND NOT {_LIVES})"""
# The second: who has left it may have ended as well, and then nobody else removes it.


def look_around(tx: Looking, question: Question) -> Sight:
    """What has happened at other nodes, in one round trip."""
    own = numbers(list(question.incarnations))
    ended, closed, recalls, recalled, ((others, namesakes),) = tx.fetch_all(
        Statement(_ENDED, (ids(list(question.awaited)),)),
        Statement(_CLOSED, (ids(list(question.flights)),)),
        Statement(_RECALLS_OF, (own,)),
        Statement(_RECALLED, (ids(list(question.recalled)),)),
        Statement(_OTHERS, (own, own)),
    )
    return Sight(
        [uuid for (uuid,) in ended],
        [uuid for (uuid,) in closed],
        [Recall(*row) for row in recalls],
        [Recall(*row) for row in recalled],
        others,
        namesakes,
    )


def recalled(tx: Looking, uuids: Collection[bytes]) -> Sequence[Recall]:
    """Those of these closed requests that a node has still to take back."""
    return [Recall(*row) for row in tx.fetch(_RECALLED, ids(list(uuids)))]


def running(tx: Looking, uuids: Collection[bytes]) -> set[bytes]:
    """Those of these requests that a node has claimed."""
    return {uuid for (uuid,) in tx.fetch(_CLAIMED, ids(list(uuids)))} if uuids else set()


def settle(tx: Writing, recalls: Iterable[tuple[bytes, int]]) -> None:
    """No worker can be given these requests any more by these incarnations."""
    if pairs := list(recalls):
        uuids, incarnations = zip(*pairs, strict=True)
        tx.fetch(_SETTLE, ids(uuids), numbers(incarnations))
