-- The tables of format 1, as the version made them that had it.

CREATE SCHEMA titanic;

CREATE TYPE titanic.frames AS (frames bytea[]);
COMMENT ON TYPE titanic.frames IS 'An element of an array of lists; PostgreSQL has none of its own';

CREATE TABLE titanic.meta (
    one             boolean PRIMARY KEY DEFAULT true CHECK (one),
    format          integer NOT NULL,
    store_id        uuid NOT NULL DEFAULT gen_random_uuid(),
    made_at         timestamptz NOT NULL DEFAULT now(),
    capacity        bigint NOT NULL,
    registered      boolean NOT NULL DEFAULT false,
    archivist_id    uuid,
    archivist_name  text NOT NULL DEFAULT '',
    archived_upto   bigint NOT NULL DEFAULT 0,
    lost            bigint NOT NULL DEFAULT 0,
    closed_first    bigint NOT NULL DEFAULT 1,
    closed_last     bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE titanic.request (
    uuid            uuid PRIMARY KEY,
    service         bytea NOT NULL,
    body            bytea[] NOT NULL,
    body_frames     integer NOT NULL,
    body_bytes      bigint NOT NULL,
    priority        smallint NOT NULL,
    submitted_at    bigint NOT NULL,
    not_before      bigint NOT NULL,
    expires_at      bigint NOT NULL,
    max_attempts    integer NOT NULL,
    options         bytea NOT NULL,
    key             bytea NOT NULL,
    owner           bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

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
    PRIMARY KEY (service, rank, uuid)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON COLUMN titanic.ready.rank IS '9 - priority';
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
    reason          bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX later_due ON titanic.later (due, uuid);

CREATE TABLE titanic.expiring (
    expires_at      bigint NOT NULL,
    uuid            uuid NOT NULL,
    PRIMARY KEY (expires_at, uuid)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

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
    owner           bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON COLUMN titanic.reply.status IS '4 done, 5 failed, 6 expired, 7 cancelled';
CREATE INDEX reply_replied ON titanic.reply (finished_at, uuid) WHERE status IN (4, 7);
CREATE INDEX reply_dead ON titanic.reply (finished_at, uuid) WHERE status IN (5, 6);
CREATE INDEX reply_dead_ids ON titanic.reply (uuid) WHERE status IN (5, 6);

CREATE TABLE titanic.closed (
    seq             bigint PRIMARY KEY,
    uuid            uuid NOT NULL,
    submitted_at    bigint NOT NULL,
    dispatched_at   bigint NOT NULL,
    replied_at      bigint NOT NULL,
    closed_at       bigint NOT NULL,
    request_bytes   bigint NOT NULL,
    reply_bytes     bigint NOT NULL,
    cost            bigint NOT NULL,
    attempts        integer NOT NULL,
    request_frames  integer NOT NULL,
    reply_frames    integer NOT NULL,
    status          smallint NOT NULL,
    priority        smallint NOT NULL,
    unclaimed       boolean NOT NULL,
    service         bytea NOT NULL,
    key             bytea NOT NULL,
    owner           bytea NOT NULL,
    error           bytea NOT NULL,
    request         bytea[],
    reply           bytea[]
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
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX key_until ON titanic.key (until);

CREATE TABLE titanic.load (
    kind            "char" NOT NULL,
    name            bytea NOT NULL,
    shard           integer NOT NULL,
    waiting         bigint NOT NULL,
    bytes           bigint NOT NULL,
    ready           bigint NOT NULL,
    PRIMARY KEY (kind, name, shard)
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
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
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

CREATE SEQUENCE titanic.incarnation;
CREATE TABLE titanic.node (
    incarnation     bigint PRIMARY KEY,
    name            text NOT NULL,
    version         text NOT NULL,
    endpoints       text[] NOT NULL,
    started_at      timestamptz NOT NULL DEFAULT now(),
    lease_until     timestamptz NOT NULL,
    services        jsonb NOT NULL DEFAULT '{}',
    draining        boolean NOT NULL DEFAULT false
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

INSERT INTO titanic.meta (format, capacity) VALUES (1, 1073741824);
