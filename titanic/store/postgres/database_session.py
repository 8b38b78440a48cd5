"""Arrays as PostgreSQL takes them in binary: rows of a whole batch as one parameter for each column.

psycopg can do this, too, for lists of anything; these know what is in them, and take a tenth of the time.

The time of day, as the database has it. Nodes share it, so they agree on what is over whatever their own clocks
show.

It is read with each new connection, and again at intervals. In between, a monotonic clock continues from there.

PostgreSQL's errors, turned into the store's own.

Ends connections to a server that is there, but does not answer.

PostgreSQL ends a statement that takes too long, and the kernel a connection to a machine that is gone. Neither notices
a server that stands still, or a proxy that lets nothing through: without this, the wait for the answer never ends.

A statement may rightly take long, so a server has PATIENCE. The statements of the lease never do: when one of them had
no answer within seconds, and a new connection has one, then the connections made before are suspect (`suspect`).

One connection to the database: how it is made, and what is asked of a server before anything is trusted to it.

The URL is libpq's, with all that libpq takes: several hosts, `passfile`, `service`, `sslmode`. What it does not say is
filled in so that a server which has died is noticed within seconds, and that of several the one is found that can be
written. The password is in no text that this package makes: people see `place`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, repeat
from typing import NamedTuple
from weakref import WeakSet

import psycopg
from psycopg import Connection, errors
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import Diagnostic
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper

from titanic.errors import (
    DiskFull,
    NotInMemory,
    OutcomeUnknown,
    StoreAway,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreUnwritable,
    WriteConflict,
)
from titanic.store.records import Durability
from titanic.util.clock import LATEST_US, elapsed, wall_us
from titanic.util.ids import SIZE

_BYTEA, _UUID, _BIGINT, _BYTEAS = 17, 2950, 20, 1001
"""PostgreSQL's numbers of these types, which never change."""

_HEAD = struct.Struct(">iiIii")  # dimensions, NULLs or not, type, elements, number of the first
_SIZE = struct.Struct(">i")
_EMPTY = struct.Struct(">iiI")
_COMPOSITE = struct.Struct(">iiIi")  # bytes, columns, type of the first, its bytes
_pack_size = _SIZE.pack


class Raw(bytes):
    """A parameter as it goes over the wire. The statement says what it is: `%s::uuid[]`."""


class _RawDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Raw) -> Buffer:
        return obj


class _IdLoader(Loader):
    """A `uuid` is 16 bytes here."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


def adapt(connection: Connection) -> None:
    """Let a connection take `Raw`, and return ids as bytes. All numbers go as `bigint`: psycopg would choose a type by
    their size, and prepare a new statement for each mixture of them."""
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.adapters.register_dumper(Raw, _RawDumper)
    connection.adapters.register_loader("uuid", _IdLoader)


def ids(values: Sequence[bytes]) -> Raw:
    """For `uuid[]`."""
    if not values:
        return Raw(_EMPTY.pack(0, 0, _UUID))
    size = _pack_size(SIZE)
    return Raw(_HEAD.pack(1, 0, _UUID, len(values), 1) + size + size.join(values))


def numbers(values: Sequence[int]) -> Raw:
    """For `bigint[]`."""
    n = len(values)
    if not n:
        return Raw(_EMPTY.pack(0, 0, _BIGINT))
    return Raw(
        _HEAD.pack(1, 0, _BIGINT, n, 1) + struct.pack(">" + "iq" * n, *chain.from_iterable(zip(repeat(8), values)))
    )


def texts(values: Sequence[bytes]) -> Raw:
    """For `bytea[]`."""
    return Raw(_texts(values))


def lists(values: Iterable[Sequence[bytes]], oid: int) -> Raw:
    """For `titanic.frames[]`, an array of lists of bytes. `oid` is the number that the type `titanic.frames` has."""
    parts = [_texts(one) for one in values]
    if not parts:
        return Raw(_EMPTY.pack(0, 0, oid))
    pack, pieces = _COMPOSITE.pack, [_HEAD.pack(1, 0, oid, len(parts), 1)]
    for part in parts:
        pieces += (pack(12 + len(part), 1, _BYTEAS, len(part)), part)
    return Raw(b"".join(pieces))


def _texts(values: Sequence[bytes]) -> bytes:
    n = len(values)
    if not n:
        return _EMPTY.pack(0, 0, _BYTEA)
    if n == 1:
        return _HEAD.pack(1, 0, _BYTEA, 1, 1) + _pack_size(len(values[0])) + values[0]
    sizes = map(_pack_size, map(len, values))
    return _HEAD.pack(1, 0, _BYTEA, n, 1) + b"".join(chain.from_iterable(zip(sizes, values, strict=True)))


# -- database clock --------------------------------------------------------------------------------------------


ASK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""The database's time in SQL, µs since the epoch."""

ASK_EVERY = 10.0
"""Seconds between readings, because the database's clock may be set."""

_SLOW = 1.0
"""Seconds after which an answer says nothing about the time any more."""


class DatabaseClock:
    """Any thread may call. Before it has heard anything, it is the clock of this machine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offset: int | None = None
        """What is to be added to `elapsed`, in µs."""
        self._asked = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the database is to be asked."""
        return elapsed() >= self._asked + ASK_EVERY

    def heard(self, told_us: int, asked: float) -> None:
        """Take the time of the database, from the answer to a statement that was sent when `elapsed` was `asked`."""
        answered = elapsed()
        offset, doubt = told_us - int((asked + answered) / 2 * 1e6), (answered - asked) / 2 * 1e6
        with self._lock:
            if self._offset is not None and answered - asked > _SLOW:
                return
            self._asked = answered
            if self._offset is None or abs(offset - self._offset) > doubt:
                self._offset = offset

    def now_us(self) -> int:
        """µs since the epoch, at least 1."""
        offset = self._offset
        return wall_us() if offset is None else min(max(int(elapsed() * 1e6) + offset, 1), LATEST_US)


# -- postgres errors -------------------------------------------------------------------------------------------


KEPT_NOTHING = "the transaction was rolled back"

_DISK_FULL = "53100"
_READ_ONLY = "25006"
_DEADLOCKS = ("40001", "40P01")
_DAMAGE = ("XX001", "XX002")
_AWAY = ("08", "57P", "53300")
"""SQLSTATEs, or how they begin, of a server that ends, begins, or has no place for us."""
_BEGINS = ("starting up", "in recovery", "not yet accepting connections", "not accepting connections")
"""What a server says of itself that is there, or soon will be."""
_PREPARED = '"_pg3_'
"""How the names begin that psycopg gives prepared statements."""


def is_away(error: psycopg.Error) -> bool:
    """Whether the server is at fault, or the way there, and another connection may find it well."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return state == _READ_ONLY or state.startswith(_AWAY)


def is_unsure(error: psycopg.Error) -> bool:
    """Whether it says nothing of a COMMIT that was sent. Only a server that goes on has undone what it has refused: one
    that ends a connection may have committed before, and libpq may not know yet that it is over."""
    severity = error.diag.severity_nonlocalized
    return is_away(error) if severity is None else severity != "ERROR"


def is_deadlock(error: psycopg.Error) -> bool:
    """Whether the transaction was chosen to make way for another one."""
    return error.sqlstate in _DEADLOCKS


def is_outrun(error: psycopg.Error) -> bool:
    """Whether others were quicker: with locks that both wanted, with an agreement, or with an idempotency key."""
    taken = isinstance(error, errors.UniqueViolation) and error.diag.constraint_name == "key_pkey"
    return taken or is_deadlock(error) or isinstance(error, errors.DivisionByZero)


def is_disk_full(error: psycopg.Error) -> bool:
    """Whether the server has no room for what was to be written."""
    return error.sqlstate == _DISK_FULL


def reason_of(error: psycopg.Error) -> str:
    """What the server or libpq says, in one line. Never what a statement was given."""
    text = error.diag.message_primary or str(error)
    if "pipeline mode" in text:
        return "the server ended the connection"  # libpq says what it could not do then
    for prefix in ("connection failed: ", "connection is bad: "):
        text = text.removeprefix(prefix)  # psycopg's own
    facts = " ".join(line for line in text.splitlines() if not line.startswith("\t"))  # libpq's guesses are indented
    return " ".join(facts.split()) or type(error).__name__


def translate(error: psycopg.Error, place: str) -> StoreError:
    """The exception to raise in place of `error`, which a transaction has met before its COMMIT was sent."""
    reason = reason_of(error)
    if is_disk_full(error):
        return DiskFull(f"the disk of the database {place} is full", reason, f"{KEPT_NOTHING}; free some disk space")
    if error.sqlstate in _DAMAGE:
        return StoreCorrupt(f"the database {place} is damaged", reason, "restore it from a backup")
    if error.sqlstate == _READ_ONLY:
        return StoreAway(f"the database {place} can't be written", reason, f"{KEPT_NOTHING}; connect to the primary")
    if is_away(error):
        return unreachable(place, reason)
    if isinstance(error, errors.QueryCanceled):
        return StoreFailed(f"the database {place} is too slow", reason, f"{KEPT_NOTHING}; check its load and locks")
    return StoreFailed(f"the database {place} failed", reason, f"{KEPT_NOTHING}; {advice(reason, 'check its log')}")


def unreachable(place: str, reason: str) -> StoreAway:
    """Make the error for a server that is away now; once it is back, everything continues."""
    otherwise = "check its log" if "FATAL:" in reason and "shutting down" not in reason else "start it"
    todo = f"retrying every second; {advice(reason, otherwise)}"
    return StoreAway(f"the database {place} can't be reached", reason, todo)


def advice(reason: str, otherwise: str) -> str:
    """What to do about what the server or libpq says, if that is clear."""
    if _PREPARED in reason:
        return "a pooler in transaction mode loses prepared statements: set PgBouncer's pool_mode = session"
    if any(words in reason for words in _BEGINS):
        return "wait until it has started"
    if "password" in reason:
        return "set the right one in ~/.pgpass or PGPASSWORD"
    if "read-only" in reason or "hot standby" in reason:
        return "connect to the primary, or check default_transaction_read_only"
    if "connection slots" in reason or "too many c" in reason:  # clients, or connections for a role or database
        return "raise its max_connections, or close other connections"
    return otherwise


def write_conflict(place: str, error: psycopg.Error) -> WriteConflict:
    """Done again, the transaction may be kept."""
    return WriteConflict(
        f"another node is changing the same rows of the database {place}", reason_of(error), "try again"
    )


def unknown_outcome(place: str, error: psycopg.Error) -> OutcomeUnknown:
    """COMMIT was sent, and no answer came."""
    what = f"the connection to the database {place} was lost during a commit"
    return OutcomeUnknown(what, reason_of(error), "whether its changes were committed is unknown; ask again")


def unsure_outcome(place: str, reason: str) -> OutcomeUnknown:
    """COMMIT was done, but not by the standbys that it is to wait for."""
    what = f"the database {place} did not wait for its standby during a commit"
    return OutcomeUnknown(what, reason, "a failover may undo its changes; ask again")


# -- stall guard -----------------------------------------------------------------------------------------------


PATIENCE = 30.0
"""Seconds that a server has for an answer: more than `statement_timeout`."""

CHECK_INTERVAL = 1.0
"""Seconds between checks of the connections that wait."""


class StallGuard:
    """Any thread may call."""

    def __init__(self, patience: float | None = None) -> None:
        """`patience`: instead of PATIENCE, in seconds."""
        self._patience = patience
        self._lock = threading.Lock()
        self.has_cut = False
        """Whether a connection was ended since this was set to false."""
        self._since: dict[Connection, float] = {}
        self._trusted: WeakSet[Connection] = WeakSet()
        self._suspects: WeakSet[Connection] = WeakSet()
        self._with_suspects = PATIENCE
        """Seconds that a suspect has for an answer."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, connection: Connection) -> None:
        """An answer is waited for from now on."""
        with self._lock:
            self._since[connection] = time.monotonic()
            if connection not in self._suspects:
                self._trusted.add(connection)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stall-guard", daemon=True)
                self._thread.start()

    def end(self, connection: Connection) -> None:
        """It is there."""
        with self._lock:
            self._since.pop(connection, None)

    def suspect(self, patience: float) -> None:
        """A connection to the same database was silent, and a new one is not: those that there are have so many seconds
        for an answer from now on."""
        with self._lock:
            self._suspects |= self._trusted
            self._trusted.clear()
            self._with_suspects = patience

    def stop(self) -> None:
        """Stop checking."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(CHECK_INTERVAL if self._patience is None else self._patience / 4):
            now, patience = time.monotonic(), PATIENCE if self._patience is None else self._patience
            with self._lock:
                for connection, since in list(self._since.items()):
                    if since < now - (self._with_suspects if connection in self._suspects else patience):
                        del self._since[connection]
                        self.has_cut = True
                        with contextlib.suppress(psycopg.Error, OSError):
                            _cut(connection)


def _cut(connection: Connection) -> None:
    """End a connection, so that the thread that waits for its answer gets an error."""
    with socket.socket(fileno=os.dup(connection.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)


# -- connection ------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)
logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of errors that follow from one that it raises

OLDEST_POSTGRESQL = 130000
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
"""A commit without content: when it returns, all earlier commits are at the synchronous standbys, too. A server that
was killed shows after its restart what they do not have yet. To report that, or that a request is closed already, would
be wrong if a standby took over now."""

_WAITS_FOR_STANDBY = "SyncRepWaitForLSN"
"""Where in PostgreSQL's source it is that a commit waits."""

_LOW = ("off", "local", "remote_write")
"""`synchronous_commit` with which the operator may lose commits in a power cut or a fail-over."""


class Unsafe(Exception):
    """The server is set so that it would lose or damage what was committed; `fact` says how."""

    def __init__(self, fact: str, advice: str) -> None:
        super().__init__(f"{fact}; {advice}")
        self.fact, self.advice = fact, advice


class DatabaseSession(NamedTuple):
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
        what, fact = "the store's URL is invalid", "libpq cannot parse it"
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


def connect(
    parameters: dict[str, str], durability: Durability | None, guard: StallGuard | None = None
) -> DatabaseSession:
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


def _set_up(connection: Connection, durability: Durability | None) -> DatabaseSession:
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
    if version < OLDEST_POSTGRESQL:
        raise Unsafe(f"it is PostgreSQL {version // 10000}", f"use {OLDEST_POSTGRESQL // 10000} or later")
    for name, value in (("fsync", fsync), ("full_page_writes", pages)):
        if (
            value != "on" and durability is not None
        ):  # also with `relaxed`, which may lose the last commits, but has a sound store
            raise Unsafe(f"its {name} is {value}", "a power failure could damage it: turn it on")
    return DatabaseSession(connection, int(lists), synchronous, int(told_us), asked, unsure)


def _note_unsure(unsure: list[str], notice: Diagnostic) -> None:
    """Note that a commit was canceled while it waited for a standby: that is no error, but only this server has it."""
    if notice.source_function == _WAITS_FOR_STANDBY:
        unsure.append(notice.message_primary or "")


def warn(session: DatabaseSession, durability: Durability | None, place: str) -> None:
    """Say so when the operator has chosen that commits may be lost."""
    if durability == "synced" and session.synchronous_commit in _LOW:
        log.warning(
            "the database %s may lose the last commits: its synchronous_commit is %s; set it to 'on'",
            place,
            session.synchronous_commit,
        )
