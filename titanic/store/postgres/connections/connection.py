"""One connection to the database: how it is made, and what is asked of a server before anything is trusted to it.

The URL is libpq's, with all that libpq takes: several hosts, `passfile`, `service`, `sslmode`. What it does not say is
filled in so that a server which has died is noticed within seconds, and that of several the one is found that can be
written. The password is in no text that this package makes: people see `place`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import NamedTuple

import psycopg
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import Diagnostic

from titanic.errors import NotInMemory, StoreUnwritable
from titanic.store.postgres.connections.arrays import adapt
from titanic.store.postgres.connections.database_clock import ASK
from titanic.store.postgres.connections.stall_guard import StallGuard
from titanic.store.records import Durability
from titanic.util.clock import elapsed

log = logging.getLogger(__name__)
logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of errors that follow from one that it raises

OLDEST = 130000
"""The number of the oldest PostgreSQL that this engine works with."""

_NETWORK = {
    "connect_timeout": "4",
    "tcp_user_timeout": "8000",
    "keepalives": "1",
    "keepalives_idle": "4",
    "keepalives_interval": "2",
    "keepalives_count": "2",
    "application_name": "titanic",
}

_SETTINGS = {
    "search_path": "titanic",
    "default_transaction_isolation": "read committed",  # of statements that are transactions by themselves
    "statement_timeout": "20s",
    "lock_timeout": "15s",
    "idle_in_transaction_session_timeout": "60s",
    # The tables are empty now and have millions of rows a minute later. A plan that relied on statistics of them would
    # read all rows where there were few; so each statement has one plan, which goes by an index.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
"""Of each session."""

CATCH_UP = "SELECT pg_logical_emit_message(true, 'titanic', '')"
"""Says nothing, but is committed: so what was committed before is at the synchronous standbys, too, when it is over. A
server that was killed shows after its restart what they do not have yet. Whoever were told of that, or that something
is closed already, would be told wrong if a standby took over now."""

_WAITS_FOR_STANDBY = "SyncRepWaitForLSN"
"""Where in PostgreSQL's source it is that a commit waits."""

_LOW = ("off", "local", "remote_write")
"""`synchronous_commit` with which the operator may lose commits in a power cut or a fail-over."""


class Unsafe(Exception):
    """The server is set so that it would lose or damage what was committed; `fact` says how."""

    def __init__(self, fact: str, advice: str) -> None:
        super().__init__(f"{fact}; {advice}")
        self.fact, self.advice = fact, advice


class Session(NamedTuple):
    """A connection with what is to be known of its database. `lists` is the number of the type `titanic.frames`; 0 when
    it has none yet. `told_us` is its time, for which it was asked when `elapsed` was `asked`. `unsure` gets what is
    said of commits that may be lost."""

    connection: Connection
    lists: int
    synchronous_commit: str
    told_us: int
    asked: float
    unsure: list[str]


def parse(url: str, target: str = "read-write") -> dict[str, str]:
    """What the URL says, with what we add. Of several servers, one that is a `target` will do (libpq's
    target_session_attrs). Raises StoreUnwritable."""
    try:
        found = conninfo_to_dict(url)
    except psycopg.Error:
        found = None
    before_query = url.partition("?")[0]
    name = before_query.partition("://")[2].partition("/")[2]
    misread = before_query.count("@") > 1 or "@" in name  # of a password with @ or /, a part is taken for the host
    port = str(found.get("port", "")) if found else ""
    if found is None or misread or port.strip("0123456789,"):
        # What libpq says of it may have the password in it, as a piece that it did not understand.
        what, fact = "the store's URL can't be read", "libpq doesn't understand it"
        raise StoreUnwritable(what, fact, "write postgresql://USER@HOST:PORT/DATABASE, with %XX for special characters")
    ours = _NETWORK | {"target_session_attrs": target}
    return ours | {name: str(value) for name, value in found.items() if value is not None}


def place_of(url: str) -> str:
    """The URL for people: without the password and all that is not needed to find the place."""
    found = parse(url)
    hosts = (found.get("host") or found.get("hostaddr") or "").split(",")
    ports = found.get("port", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    where = ",".join(
        host + (f":{port}" if port else "") for host, port in zip(hosts, [*ports, *[""] * len(hosts)], strict=False)
    )
    user = f"{found['user']}@" if "user" in found else ""
    return f"postgresql://{user}{where}/{found.get('dbname', '')}"


def expect_durable(durability: Durability) -> None:
    """Raise NotInMemory for a durability that a database does not have."""
    if durability == "memory":
        what, fact = "a store in PostgreSQL can't be in memory only", "the durability is 'memory'"
        raise NotInMemory(what, fact, "choose 'relaxed', or a store in a directory")


def connect(parameters: dict[str, str], durability: Durability | None, guard: StallGuard | None = None) -> Session:
    """Make a connection; without a durability it is for reading, which any server may do. Raises psycopg.Error, or
    Unsafe."""
    connection = psycopg.connect(**parameters, autocommit=True, prepare_threshold=0)  # type: ignore[arg-type]
    guard = guard or StallGuard()
    guard.begin(connection)
    try:
        return _set_up(connection, durability)
    except BaseException:
        connection.close()
        raise
    finally:
        guard.end(connection)


def _set_up(connection: Connection, durability: Durability | None) -> Session:
    adapt(connection)
    settings = dict(_SETTINGS)
    if durability == "relaxed":
        settings["synchronous_commit"] = "off"
    sets = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
    unsure: list[str] = []
    connection.add_notice_handler(partial(_note_unsure, unsure))
    asked = elapsed()
    with connection.pipeline():
        given = connection.execute(
            "SELECT current_setting('fsync'), current_setting('full_page_writes'),"
            " current_setting('synchronous_commit'), current_setting('server_version_num')::integer,"
            f" coalesce(to_regtype('titanic.frames')::oid, 0), {ASK}"
        )
        connection.execute(f"SELECT {sets}")
        if durability is not None:
            connection.execute(CATCH_UP)
    row = given.fetchone()
    assert row is not None
    fsync, pages, synchronous, version, lists, told_us = row
    if version < OLDEST:
        raise Unsafe(f"it is PostgreSQL {version // 10000}", f"use {OLDEST // 10000} or later")
    for name, value in (("fsync", fsync), ("full_page_writes", pages)):
        if (
            value != "on" and durability is not None
        ):  # also with `relaxed`, which may lose the last commits, but has a sound store
            raise Unsafe(f"its {name} is {value}", "a power cut would damage it: turn it on")
    return Session(connection, int(lists), synchronous, int(told_us), asked, unsure)


def _note_unsure(unsure: list[str], notice: Diagnostic) -> None:
    """Who cancels a commit that waits for a standby gets no error: it is done, and only this server has it."""
    if notice.source_function == _WAITS_FOR_STANDBY:
        unsure.append(notice.message_primary or "")


def warn(session: Session, durability: Durability | None, place: str) -> None:
    """Say so when the operator has chosen that commits may be lost."""
    if durability == "synced" and session.synchronous_commit in _LOW:
        log.warning(
            "the database %s may lose the last commits; its synchronous_commit is %s; set it to 'on'",
            place,
            session.synchronous_commit,
        )
