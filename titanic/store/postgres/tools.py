"""What the counters of the store must say, counted from what is there. `{size}` is the bytes of a request `r`.

The check of the store: all facts that two tables both contain, and every frame.

All of it is seen at one moment. That a page can be read, and that an index has what its table has, is for PostgreSQL to
say (data checksums, pg_amcheck).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from titanic.store.moving import Progress
from titanic.store.postgres.changes import LOADS, RECOUNT, REPLY_SIZE
from titanic.store.postgres.rows import KEY, REPLY, REQUEST
from titanic.store.postgres.store import PostgresStore
from titanic.store.postgres.transaction import REQUEST_SIZE, Row
from titanic.util.ids import SIZE

_USED = f"""
    (SELECT coalesce(sum({{size}} + {REQUEST}), 0) FROM titanic.request r)
    + (SELECT coalesce(sum({REPLY_SIZE} + {REPLY}), 0) FROM titanic.reply p)
    + (SELECT coalesce(sum(cost), 0) FROM titanic.closed WHERE seq >= (SELECT closed_first FROM titanic.meta))
    + (SELECT coalesce(sum({KEY} + {SIZE} * cardinality(uuids)), 0) FROM titanic.key)"""

USAGE = f"""
    SELECT 'requests' AS what, count(*)::numeric AS found FROM titanic.request
    UNION ALL SELECT 'waiting', count(*) FROM titanic.ready
    UNION ALL SELECT 'delayed', count(*) FROM titanic.later
    UNION ALL SELECT 'replies', count(*) FROM titanic.reply
    UNION ALL SELECT 'used', {_USED}"""


# -- check -----------------------------------------------------------------------------------------------------


MOST = 1000
"""Problems of one kind that are reported."""

_SETTINGS = """
    SELECT set_config('enable_seqscan', 'on', true), set_config('enable_hashjoin', 'on', true),
        set_config('enable_mergejoin', 'on', true), set_config('statement_timeout', '0', true),
        set_config('work_mem', '64MB', true)"""
"""What is slow for one request is quick for all."""

_RELEASE_ORPHANS = """
    UPDATE titanic.ready SET incarnation = NULL WHERE incarnation = ANY (ARRAY(
        SELECT q.incarnation FROM titanic.ready AS q LEFT JOIN titanic.node AS n ON n.incarnation = q.incarnation
        WHERE q.incarnation IS NOT NULL AND n.incarnation IS NULL))"""
"""No number of a node is used again, so this does no harm to what a node claims meanwhile."""


class TableProblem(NamedTuple):
    """Something that must not be. `where` names the table and the row, `what` the fact, `repair` what `repair` does
    about it: nothing, mostly."""

    where: str
    what: str
    repair: str = ""


class _Look(NamedTuple):
    """A statement that finds what is wrong in a table: the row's name, and the fact."""

    table: str
    query: str
    repair: str = ""


def _frames(frames: str, count: str, size: str) -> str:
    """A test for frames that are not those that were counted."""
    there = f"(SELECT coalesce(sum(octet_length(f)), 0) FROM unnest({frames}) AS f)"
    return f"({frames} IS NOT NULL AND (cardinality({frames}) <> {count} OR {there} <> {size}))"


_PLACES = """
    LEFT JOIN titanic.ready q ON q.uuid = r.uuid
    LEFT JOIN titanic.later l ON l.uuid = r.uuid
    LEFT JOIN titanic.reply p ON p.uuid = r.uuid"""
_EXPIRES = "coalesce(q.expires_at, l.expires_at, 0)"
_NO_REQUEST = "SELECT {0}.uuid::text, 'there is no such request' FROM titanic.{0} LEFT JOIN titanic.request r"
_NO_REQUEST += " ON r.uuid = {0}.uuid WHERE r.uuid IS NULL"

_CHECKS = (
    _Look(
        "request",
        f"""SELECT r.uuid::text, CASE WHEN num_nonnulls(q.uuid, l.uuid, p.uuid) = 0
            THEN 'it is in no queue and has no reply'
            ELSE 'it is in ' || concat_ws(' and ', CASE WHEN q.uuid IS NOT NULL THEN 'ready' END,
                CASE WHEN l.uuid IS NOT NULL THEN 'later' END, CASE WHEN p.uuid IS NOT NULL THEN 'reply' END) END
        FROM titanic.request r {_PLACES} WHERE num_nonnulls(q.uuid, l.uuid, p.uuid) <> 1""",
    ),
    _Look(
        "request",
        f"""SELECT uuid::text, 'its frames are not those that were counted' FROM titanic.request
        WHERE {_frames("body", "body_frames", "body_bytes")}""",
    ),
    _Look(
        "request",
        f"""SELECT r.uuid::text, 'it would never expire' FROM titanic.request r {_PLACES}
            LEFT JOIN titanic.expiring e ON e.uuid = r.uuid AND e.expires_at = {_EXPIRES}
        WHERE {_EXPIRES} <> 0 AND e.uuid IS NULL""",
    ),
    _Look("ready", _NO_REQUEST.format("ready")),
    _Look(
        "ready",
        """SELECT q.uuid::text, 'it is in the queue of another service or priority'
        FROM titanic.ready q JOIN titanic.request r ON r.uuid = q.uuid
        WHERE r.service <> q.service OR q.rank <> 9 - r.priority""",
    ),
    _Look(
        "ready",
        """SELECT q.uuid::text, 'it is claimed by node ' || q.incarnation || ', which does not exist'
        FROM titanic.ready q LEFT JOIN titanic.node n ON n.incarnation = q.incarnation
        WHERE q.incarnation IS NOT NULL AND n.incarnation IS NULL""",
        "its claim is released",
    ),
    _Look("later", _NO_REQUEST.format("later")),
    _Look(
        "later",
        """SELECT l.uuid::text, 'it has another service or priority than its request'
        FROM titanic.later l JOIN titanic.request r ON r.uuid = l.uuid
        WHERE r.service <> l.service OR r.priority <> l.priority""",
    ),
    _Look(
        "expiring",
        f"""SELECT e.uuid::text, 'it does not expire then' FROM titanic.expiring e
            LEFT JOIN titanic.request r ON r.uuid = e.uuid {_PLACES}
        WHERE e.expires_at IS DISTINCT FROM {_EXPIRES}""",
    ),
    _Look("reply", _NO_REQUEST.format("reply")),
    _Look(
        "reply",
        f"""SELECT p.uuid::text, 'it is invalid' FROM titanic.reply p JOIN titanic.request r ON r.uuid = p.uuid
        WHERE p.status NOT IN (4, 5, 6, 7) OR r.service <> p.service OR r.owner <> p.owner
            OR {_frames("p.frames", "p.frames_count", "p.frames_bytes")}""",
    ),
    _Look("key", "SELECT encode(key, 'escape'), 'it stands for no request' FROM titanic.key WHERE uuids = '{}'"),
    _Look(
        "closed",
        """SELECT 'number ' || before + 1, CASE WHEN seq = before + 2 THEN 'it is missing'
            ELSE 'it is missing, and all up to ' || seq - 1 END
        FROM (
            SELECT seq, lag(seq, 1, m.closed_first - 1) OVER (ORDER BY seq) AS before FROM (
                SELECT seq FROM titanic.closed UNION ALL SELECT closed_last + 1 FROM titanic.meta
            ) all_of_them, titanic.meta m WHERE seq >= m.closed_first
        ) one WHERE seq > before + 1""",
    ),
    _Look(
        "closed",
        """SELECT 'number ' || seq, 'it was never given out' FROM titanic.closed
        WHERE seq > (SELECT closed_last FROM titanic.meta)""",
    ),
    _Look(
        "closed",
        f"""SELECT 'number ' || seq, 'it is invalid' FROM titanic.closed
        WHERE seq >= (SELECT closed_first FROM titanic.meta) AND (
            status NOT IN (4, 5, 6, 7) OR {_frames("request", "request_frames", "request_bytes")}
            OR {_frames("reply", "reply_frames", "reply_bytes")})""",
    ),
    _Look(
        "meta",
        """SELECT 'closed_first', 'it is ' || closed_first || ', but the last number is ' || closed_last
        FROM titanic.meta WHERE closed_first > closed_last + 1
        UNION ALL SELECT 'archived_upto', 'it is ' || archived_upto || ', but the last number is ' || closed_last
        FROM titanic.meta WHERE archived_upto > closed_last""",
    ),
    _Look(
        "load",
        f"""SELECT CASE coalesce(found.kind, counted.kind) WHEN 's' THEN 'service ' ELSE 'owner ' END
                || encode(coalesce(found.name, counted.name), 'escape'),
            'it counts ' || coalesce(counted.waiting, 0) || ' requests of ' || coalesce(counted.bytes, 0) || ' bytes, '
                || coalesce(counted.ready, 0) || ' ready, but there are ' || coalesce(found.waiting, 0) || ' of '
                || coalesce(found.bytes, 0) || ', ' || coalesce(found.ready, 0) || ' ready'
        FROM ({LOADS}) found FULL JOIN (
            SELECT kind, name, sum(waiting) AS waiting, sum(bytes) AS bytes, sum(ready) AS ready
            FROM titanic.load GROUP BY kind, name
        ) counted ON counted.kind = found.kind AND counted.name = found.name
        WHERE (coalesce(found.waiting, 0), coalesce(found.bytes, 0), coalesce(found.ready, 0))
            <> (coalesce(counted.waiting, 0), coalesce(counted.bytes, 0), coalesce(counted.ready, 0))""",
        "it is corrected",
    ),
    _Look(
        "usage",
        f"""SELECT what, 'it counts ' || counted || ', but there are ' || found FROM (
            SELECT what, found, CASE what WHEN 'requests' THEN u.requests WHEN 'waiting' THEN u.waiting
                WHEN 'delayed' THEN u.delayed WHEN 'replies' THEN u.replies ELSE u.used END AS counted
            FROM ({USAGE.format(size=REQUEST_SIZE)}) f, (
                SELECT coalesce(sum(requests), 0) AS requests, coalesce(sum(waiting), 0) AS waiting,
                    coalesce(sum(delayed), 0) AS delayed, coalesce(sum(replies), 0) AS replies,
                    coalesce(sum(used), 0) AS used
                FROM titanic.usage
            ) u
        ) one WHERE found <> counted""",
    ),
)


def check(store: PostgresStore, progress: Progress | None = None) -> list[TableProblem]:
    """Find all problems of the store; an empty list means that it is sound. `progress` is called with the name of the
    table that is being checked. The store can be used meanwhile."""
    with store.read() as transaction:
        return check_all(transaction.fetch, progress)


def repair(store: PostgresStore) -> None:
    """Release the claims of nodes that do not exist, and correct loads. Nodes may use the store meanwhile."""
    with store.pool.borrow() as connection:
        connection.execute(_RELEASE_ORPHANS)
        connection.execute(RECOUNT)


def check_all(
    fetch: Callable[[str], list[Row]], progress: Progress | None = None, most: int = MOST
) -> list[TableProblem]:
    """Check everything in the transaction in which `fetch` executes a statement; report at most so many of one kind."""
    problems: list[TableProblem] = []
    fetch(_SETTINGS)
    for n, (table, query, remedy) in enumerate(_CHECKS):
        if progress is not None:
            progress(table, n, len(_CHECKS))
        rows = fetch(f"{query} LIMIT {most + 1}")
        problems += [TableProblem(f"{table} {row}", what, remedy) for row, what in rows[:most]]
        if len(rows) > most:
            problems.append(TableProblem(table, "there are more of this kind"))
    return problems
