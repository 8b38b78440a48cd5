"""All log events, with what each means. `titanic help log-events` prints them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

EVENTS = (
    (
        "serving, stopping, reloaded, reload-refused, restart-needed",
        "the server's life cycle; the first two without journal fields",
    ),
    ("failed, expired", "a request ended without a reply; the line has the reason"),
    (
        "store-full, store-not-full",
        "the store has no room for a small request; it has room again. Checked every two seconds",
    ),
    (
        "disk-full, disk-not-full",
        "the store's disk has no room for a small request, or refused the last write; it has room again",
    ),
    ("database-away, database-back", "the database cannot be used (once per outage); it works again"),
    (
        "lease, lease-over",
        "this node holds its lease and dispatches; it could not renew the lease in time, and other nodes take over",
    ),
    (
        "cut-off",
        "this node lost its lease and its database connection while other nodes are alive: it sends clients and"
        " idle workers to them, until `lease`",
    ),
    ("workers-sent-on", "this node has more than its share of workers and sends idle ones to other nodes"),
    ("same-name", "another node has used this node's name for two lease periods: give each its own `node-name`"),
    ("draining, drained", "an operator drains this node; it has finished, and exits"),
    ("limits", "another node changed a service's limits; a warning if this node's file differs"),
    ("other-lease", "nodes of this store differ in `lease`: the server exits"),
    ("store-too-new", "the store was upgraded beyond this version: start a later one"),
    ("in-memory", "the store is on a tmpfs though `durability` is not `memory`: it is lost when the machine stops"),
    (
        "message-failed",
        "a malformed error reply from a worker, or an internal error while handling a message; the attempt has failed",
    ),
    ("reader", "a process reading the store's files prevents reuse of a tenth of the store: see TitanicStoreReader"),
    ("no-room-for-reply", "a reply waits for room in the store"),
    ("no-room-for-end", "no room for the notification that a request ended (`on_end` of a service)"),
    (
        "access-reloaded, endpoint-unknown",
        "the access file was reloaded, and what changed; it names an endpoint where nothing listens",
    ),
    (
        "given-up, dispatched-again",
        "how many requests workers still had when the server stopped; how many were dispatched again",
    ),
    ("task-failed", "`titanic worker`: an attempt of a task failed"),
    ("login, refused-login", "`titanic web`: a user signed in; unknown token, certificate or log-in at a proxy"),
    (
        "log-out-not-kept",
        "`session-secret.ended` cannot be written: after a restart, signed-out cookies would work again",
    ),
    ("no-key", "`titanic web` lacks the key of a user with valid credentials"),
    (
        "hooks-user",
        "webhooks are not delivered: the server does not answer, or the hooks user may not deliver hooks; or"
        " delivery resumed",
    ),
    (
        "action",
        "a user acted through `titanic web`: see TITANIC_USER and TITANIC_ACTION; calls of `/v1`, except hooks, at"
        " level debug",
    ),
    ("certificate-reloaded", "`titanic web` reloaded its certificate"),
    ("audit", "an act on requests of others, a service, a node or the store: see `titanic audit`"),
    ("forbidden", "a missing permission, or a refused connection; counted in `titanic_refusals_total`"),
    ("worker, no-worker", "a service got its first worker; its last worker left"),
    ("stranger", "unknown TITANIC_ variable in the environment"),
    ("write-failed", "the disk refused a commit or a sync"),
)
"""Names of events, related ones in one row, and when they are logged."""


def names() -> Iterator[str]:
    """Yield every name."""
    for row, _ in EVENTS:
        yield from row.split(", ")


def help_text() -> str:
    """Return all rows as text, for `titanic help log-events`."""
    return "\n".join(f"{row}\n{textwrap.indent(textwrap.fill(when, 76), '    ')}" for row, when in EVENTS)
