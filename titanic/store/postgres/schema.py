"""The tables, in the schema `titanic` of a database: one store a database. And how an older store becomes one of today.

The state of a request is *where it is*, as in LMDB: every request that is not closed has one row in `request`, which
is never updated, and one in `ready`, `later` or `reply`. What changes are narrow rows. Times are µs since the epoch,
0 = none. Texts of clients and workers are bytea: what came is what is kept.

Counters (`load`, `usage`) are counted per shard, which is a node's number, so that nodes do not wait for each other's
row; the sum over the shards, of which there are few, is the figure.

Two rules keep transactions of several nodes apart. A transaction that changes the state of a request has locked its row
in `request`, several in the order of their ids. A transaction that assigns numbers of `closed` (which are without gaps,
and in the order of commits) updates `meta` last of all.
"""

from __future__ import annotations

from typing import NamedTuple

from psycopg import Connection

from titanic.errors import NotAStore, StoreTooNew, StoreTooOld
from titanic.store.postgres.changes import RECOUNT
from titanic.store.postgres.partitions import make_partitions
from titanic.store.postgres.rows import CLOSED_COLUMNS, REQUEST_COLUMNS, declared
from titanic.store.records import DEFAULT_CAPACITY
from titanic.store.rules import unreleased

FORMAT = 5
"""Of the tables as this version makes and knows them. The first release has format 1.

A node serves a store if `meta.oldest` ≤ its FORMAT ≤ `meta.store_format`. It upgrades a store of an earlier format when
it opens it. If nodes of earlier versions can go on with the new tables, they do; if not, the upgrade raises `oldest`,
and they are refused at their next renewal. So nodes can be replaced by those of another version one after another.

Stores from before the first release have `meta.format` instead of `meta.store_format`: they are refused.
"""

SERVED = f"EXISTS (SELECT FROM titanic.meta WHERE {FORMAT} BETWEEN oldest AND store_format)"
"""Of a statement: this version may touch the store."""

META, UNFINISHED = "titanic.meta", "titanic.unfinished_migration"
"""The table that every store has, and what it is called in one that is being made: without it there is no store."""

_LOCK = 0x7469_7461_6E69_6300
"""The advisory lock for making or changing the tables: "titanic" in ASCII."""

_BUSY = "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0"
"""Rows come and go all the time."""
_TINY = "fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0"
"""A few rows that change with each commit."""

_UNTIL = """
COMMENT ON COLUMN titanic.reply.until IS 'Until when it is kept by an option of the request; 0: by the settings';
CREATE INDEX reply_replied ON titanic.reply (finished_at, uuid) WHERE status IN (4, 7) AND until = 0;
CREATE INDEX reply_dead ON titanic.reply (finished_at, uuid) WHERE status IN (5, 6) AND until = 0;
CREATE INDEX reply_kept ON titanic.reply (until, uuid) WHERE until > 0;
""".strip()

_BODIES = """
COMMENT ON COLUMN titanic.reply.body_until IS 'Until when the body is kept by an option of the request; 0: with it';
CREATE INDEX reply_bodies ON titanic.reply (body_until, uuid) WHERE body_until > 0;
""".strip()

_ABOUT_KEPT = """
COMMENT ON COLUMN titanic.meta.delivery_key IS 'By which nodes know the secrets of each other''s deliveries';
COMMENT ON COLUMN titanic.node.abandoned IS 'It has ended, and its workers do not come with what it kept any more';
COMMENT ON COLUMN titanic.ready.kept IS 'Claimed for a worker that may come to another node with it';
"""

_FACTS = f"""
CREATE TABLE titanic.facts (
    key             bytea PRIMARY KEY,
    value           bytea NOT NULL
) WITH ({_BUSY});
COMMENT ON TABLE titanic.facts IS 'What the servers remember of their work; the first byte of a key is its kind';
"""

_RANDOM = "decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')"


class Upgrade(NamedTuple):
    """`text` makes the tables of a format those of the next one. `oldest`: nodes that know this format, or a later one,
    can go on with them. A column with a default does no harm to nodes that do not know it. But they would not count the
    bytes of a field of requests: in `request` and `closed`, only rows that are there get a default (`ADD tenant bytea
    NOT NULL DEFAULT ''; … ALTER tenant DROP DEFAULT`), and `oldest` is the new format. What else would do harm, gets
    another name: until its next renewal a node goes on as it did, and its statements must fail."""

    text: str
    oldest: int


UPGRADES = {
    1: Upgrade(
        "ALTER TABLE titanic.reply ADD until bigint NOT NULL DEFAULT 0;"
        f" DROP INDEX titanic.reply_replied, titanic.reply_dead; {_UNTIL}",
        oldest=2,  # earlier nodes would read all replies to find those to close
    ),
    2: Upgrade(
        f"ALTER TABLE titanic.meta ADD delivery_key bytea NOT NULL DEFAULT {_RANDOM};"
        " ALTER TABLE titanic.node ADD abandoned boolean NOT NULL DEFAULT false;"
        f" ALTER TABLE titanic.ready ADD kept boolean NOT NULL DEFAULT false; {_ABOUT_KEPT}",
        oldest=2,
    ),
    3: Upgrade(_FACTS, oldest=2),
    # Of what ends at an earlier node, the body stays as long as the request.
    4: Upgrade(f"ALTER TABLE titanic.reply ADD body_until bigint NOT NULL DEFAULT 0; {_BODIES}", oldest=2),
}
"""By the format that they begin with."""

OLDEST = max(step.oldest for step in UPGRADES.values())
"""Of nodes that can go on with tables as this version makes them."""

TABLES = f"""
CREATE SCHEMA titanic;

CREATE TYPE titanic.frames AS (frames bytea[]);
COMMENT ON TYPE titanic.frames IS 'An element of an array of lists; PostgreSQL has none of its own';

CREATE TABLE titanic.meta (
    one             boolean PRIMARY KEY DEFAULT true CHECK (one),
    store_format    integer NOT NULL,
    oldest          integer NOT NULL,
    store_id        uuid NOT NULL DEFAULT gen_random_uuid(),
    made_at         timestamptz NOT NULL DEFAULT now(),
    capacity        bigint NOT NULL,
    registered      boolean NOT NULL DEFAULT false,
    archivist_id    uuid,
    archivist_name  text NOT NULL DEFAULT '',
    archived_upto   bigint NOT NULL DEFAULT 0,
    lost            bigint NOT NULL DEFAULT 0,
    closed_first    bigint NOT NULL DEFAULT 1,
    closed_last     bigint NOT NULL DEFAULT 0,
    delivery_key    bytea NOT NULL DEFAULT {_RANDOM}
) WITH ({_TINY});
COMMENT ON COLUMN titanic.meta.oldest IS 'Nodes that know an earlier format only must not touch the store';

CREATE TABLE titanic.request (
{declared(REQUEST_COLUMNS)},
    PRIMARY KEY (uuid)
) WITH ({_BUSY});

CREATE INDEX request_owned ON titanic.request (owner, uuid) WHERE owner <> '';

CREATE TABLE titanic.ready (
    service         bytea NOT NULL,
    rank            smallint NOT NULL,
    uuid            uuid NOT NULL,
    attempts        integer NOT NULL,
    dispatched_at   bigint NOT NULL,
    expires_at      bigint NOT NULL,
    incarnation     bigint,
    reason          bytea NOT NULL,
    deliveries      integer NOT NULL DEFAULT 0,
    kept            boolean NOT NULL DEFAULT false,
    PRIMARY KEY (service, rank, uuid)
) WITH (fillfactor = 50, {_BUSY});
COMMENT ON COLUMN titanic.ready.rank IS '9 - priority';
COMMENT ON COLUMN titanic.ready.deliveries IS 'How often workers have had it, if that is more often than attempts';
COMMENT ON COLUMN titanic.ready.incarnation IS 'The node that has claimed it: a row of node that must be alive';
COMMENT ON COLUMN titanic.ready.expires_at IS 'Until when it counts now; the request has what was asked for';

CREATE TABLE titanic.later (
    uuid            uuid PRIMARY KEY,
    due             bigint NOT NULL,
    attempts        integer NOT NULL,
    dispatched_at   bigint NOT NULL,
    expires_at      bigint NOT NULL,
    priority        smallint NOT NULL,
    service         bytea NOT NULL,
    reason          bytea NOT NULL,
    deliveries      integer NOT NULL DEFAULT 0
) WITH ({_BUSY});
CREATE INDEX later_due ON titanic.later (due, uuid);

CREATE TABLE titanic.expiring (
    expires_at      bigint NOT NULL,
    uuid            uuid NOT NULL,
    PRIMARY KEY (expires_at, uuid)
) WITH ({_BUSY});

CREATE TABLE titanic.reply (
    uuid            uuid PRIMARY KEY,
    status          smallint NOT NULL,
    attempts        integer NOT NULL,
    dispatched_at   bigint NOT NULL,
    finished_at     bigint NOT NULL,
    frames_count    integer NOT NULL,
    frames_bytes    bigint NOT NULL,
    frames          bytea[] NOT NULL,
    reason          bytea NOT NULL,
    service         bytea NOT NULL,
    owner           bytea NOT NULL,
    until           bigint NOT NULL DEFAULT 0,
    body_until      bigint NOT NULL DEFAULT 0
) WITH ({_BUSY});
COMMENT ON COLUMN titanic.reply.status IS '4 done, 5 failed, 6 expired, 7 cancelled';
{_UNTIL}
{_BODIES}
CREATE INDEX reply_dead_ids ON titanic.reply (uuid) WHERE status IN (5, 6);

CREATE TABLE titanic.closed (
{declared(CLOSED_COLUMNS)},
    request         bytea[],
    reply           bytea[],
    PRIMARY KEY (seq)
) PARTITION BY RANGE (seq);
COMMENT ON COLUMN titanic.closed.request IS 'NULL: it was left out';
COMMENT ON COLUMN titanic.closed.cost IS 'Bytes that count as used';
COMMENT ON TABLE titanic.closed IS 'Those from meta.closed_first on count; earlier ones go with their partition';

CREATE TABLE titanic.key (
    owner           bytea NOT NULL,
    key             bytea NOT NULL,
    until           bigint NOT NULL,
    given           bigint NOT NULL,
    uuids           uuid[] NOT NULL,
    PRIMARY KEY (owner, key)
) WITH ({_BUSY});
CREATE INDEX key_until ON titanic.key (until);

CREATE TABLE titanic.load (
    kind            "char" NOT NULL,
    name            bytea NOT NULL,
    shard           integer NOT NULL,
    waiting         bigint NOT NULL,
    bytes           bigint NOT NULL,
    ready           bigint NOT NULL,
    PRIMARY KEY (kind, name, shard)
) WITH ({_TINY});
COMMENT ON COLUMN titanic.load.kind IS 's: of a service; o: of an owner';
COMMENT ON COLUMN titanic.load.waiting IS 'Requests that have not ended';
COMMENT ON COLUMN titanic.load.ready IS 'Rows in ready; 0 for an owner';

CREATE TABLE titanic.usage (
    shard           integer PRIMARY KEY,
    requests        bigint NOT NULL DEFAULT 0,
    waiting         bigint NOT NULL DEFAULT 0,
    delayed         bigint NOT NULL DEFAULT 0,
    replies         bigint NOT NULL DEFAULT 0,
    used            bigint NOT NULL DEFAULT 0
) WITH ({_TINY});

CREATE TABLE titanic.node (
    incarnation     bigint PRIMARY KEY,
    name            text NOT NULL,
    version         text NOT NULL,
    endpoints       text[] NOT NULL,
    started_at      timestamptz NOT NULL DEFAULT now(),
    lease_until     timestamptz NOT NULL,
    services        jsonb NOT NULL DEFAULT '{{}}',
    draining        boolean NOT NULL DEFAULT false,
    shard           integer NOT NULL DEFAULT 0,
    lease           float8 NOT NULL DEFAULT 10,
    ended_at        timestamptz,
    access          text NOT NULL DEFAULT '',
    abandoned       boolean NOT NULL DEFAULT false
) WITH ({_TINY});
COMMENT ON COLUMN titanic.node.services IS 'Of each service that it has workers or requests of: how many of both';
COMMENT ON COLUMN titanic.node.draining IS 'An operator drains it: the node reads that when it renews its lease';
COMMENT ON COLUMN titanic.node.lease IS 'Seconds: all have the same';
COMMENT ON COLUMN titanic.node.shard IS 'Where it counts: tools, and nodes for which no number is left, under 0';
COMMENT ON COLUMN titanic.node.ended_at IS 'When its end was first seen by those who remove the rows of dead nodes';
COMMENT ON COLUMN titanic.node.access IS 'Which access file it has: a hash, open, or empty if it does not say';
ALTER TABLE titanic.ready ADD CONSTRAINT ready_incarnation FOREIGN KEY (incarnation) REFERENCES titanic.node;

CREATE TABLE titanic.bounded (
    service         bytea NOT NULL,
    uuid            uuid NOT NULL,
    incarnation     bigint NOT NULL,
    PRIMARY KEY (service, uuid, incarnation)
) WITH ({_BUSY});
COMMENT ON TABLE titanic.bounded IS 'Claimed under a limit of the service: a worker may run it while the node lives';

CREATE TABLE titanic.rate (
    service         bytea PRIMARY KEY,
    next_at         float8 NOT NULL
) WITH ({_TINY});
COMMENT ON COLUMN titanic.rate.next_at IS 'When its next request may be claimed, in seconds since the epoch';

CREATE TABLE titanic.recall (
    uuid            uuid PRIMARY KEY,
    incarnation     bigint NOT NULL,
    since           timestamptz NOT NULL DEFAULT now()
) WITH ({_TINY});
COMMENT ON TABLE titanic.recall IS 'Closed while this node had them: it removes the row when no worker can get them';

CREATE TABLE titanic.service (
    name            bytea PRIMARY KEY,
    paused          boolean NOT NULL,
    on_end          bytea NOT NULL
) WITH ({_TINY});
COMMENT ON TABLE titanic.service IS 'What operators have set';

CREATE TABLE titanic.service_limit (
    service         bytea PRIMARY KEY,
    waiting         bigint NOT NULL,
    bytes           bigint NOT NULL,
    running         bigint NOT NULL,
    rate            float8 NOT NULL
) WITH ({_TINY});
COMMENT ON TABLE titanic.service_limit IS 'What holds for a service at all nodes; 0: no limit';

{_FACTS}
{_ABOUT_KEPT}
INSERT INTO titanic.meta (store_format, oldest, capacity) VALUES ({FORMAT}, {OLDEST}, {DEFAULT_CAPACITY});
"""


def prepare(connection: Connection, place: str) -> bool:
    """Make the tables, or bring them to today's format; others wait meanwhile. True when they were made now.

    Raises StoreTooNew, StoreTooOld, and NotAStore when the schema belongs to another program.
    """
    with connection.transaction():
        for patience in ("statement_timeout", "lock_timeout"):  # an upgrade may take long
            connection.execute(f"SET LOCAL {patience} = 0")
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        found = connection.execute(
            "SELECT to_regnamespace('titanic'), to_regclass(%s), to_regclass(%s)", (META, UNFINISHED)
        ).fetchone()
        assert found is not None
        made = found[0] is None
        if made:
            connection.execute(TABLES, prepare=False)
        elif found[2] is not None:
            what, fact = f"the store in {place} is unfinished", "its migration was interrupted"
            raise NotAStore(what, fact, "run titanic migrate again, or drop the schema 'titanic'")
        elif found[1] is None:
            what = f"the database {place} has a schema 'titanic' that is not Titanic's"
            raise NotAStore(what, "it has no table 'meta'", "choose another database")
        else:
            _upgrade(connection, place)
        make_partitions(connection)
    return made


def _upgrade(connection: Connection, place: str) -> None:
    found = formats(connection, place)
    if found is None:
        what = f"the database {place} has a schema 'titanic' that is not Titanic's"
        raise NotAStore(what, "its table 'meta' has no format", "choose another database")
    for format_ in range(found[0], FORMAT):
        if format_ not in UPGRADES:
            what, fact = (
                f"the store in {place} can't be upgraded",
                f"it has format {format_}, which no version writes",
            )
            raise NotAStore(what, fact, "restore a backup")
        text, oldest = UPGRADES[format_]
        connection.execute(text, prepare=False)
        statement = "UPDATE titanic.meta SET store_format = %s, oldest = greatest(oldest, %s)"
        connection.execute(statement, [format_ + 1, oldest])
    if found[0] < 2:
        connection.execute(RECOUNT)  # it may be without closed requests that wait for the archive
    refuse_later(*found, place)


def formats(connection: Connection, place: str) -> tuple[int, int] | None:
    """The store's format, and the earliest one that nodes must know to touch it. None: `meta` names none.

    Raises StoreTooOld when the store is from before the first release.
    """
    columns = ", ".join(f"(to_jsonb(m) ->> '{name}')::integer" for name in ("store_format", "oldest", "format"))
    found, oldest, earlier = connection.execute(f"SELECT {columns} FROM {META} AS m").fetchone() or (None,) * 3
    if found is None and earlier is not None:
        raise unreleased(place, earlier)
    return (found, oldest) if found is not None else None


def refuse_later(format_: int, oldest: int, place: str) -> None:
    """Raise StoreTooNew if the store is one that this version must not touch."""
    if oldest > FORMAT:
        fact = f"it has format {format_}, this version reads {FORMAT}"
        raise StoreTooNew(f"the store in {place} was written by a later version of Titanic", fact, "use that version")


def refuse_others(format_: int, oldest: int, place: str) -> None:
    """Raise StoreTooNew or StoreTooOld if a node of this version that has opened the store must not go on with it."""
    refuse_later(format_, oldest, place)
    if format_ < FORMAT:
        fact = f"it has format {format_}, this version reads {FORMAT}"
        raise StoreTooOld(f"the store in {place} was replaced by an earlier one", fact, "start this server again")


def remove_untouched(connection: Connection) -> None:
    """Drop the tables if nothing was ever stored."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        touched = connection.execute(
            "SELECT closed_last > 0 OR registered OR EXISTS (SELECT 1 FROM titanic.request)"
            " OR EXISTS (SELECT 1 FROM titanic.key)"
            " OR EXISTS (SELECT 1 FROM titanic.service)"
            " OR EXISTS (SELECT 1 FROM titanic.node WHERE lease_until > '-infinity') FROM titanic.meta"
        ).fetchone()
        if touched is not None and not touched[0]:
            connection.execute("DROP SCHEMA titanic CASCADE")
