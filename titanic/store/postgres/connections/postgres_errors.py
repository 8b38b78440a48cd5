"""PostgreSQL's errors, turned into the store's own."""

from __future__ import annotations

import psycopg
from psycopg import errors

from titanic.errors import DiskFull, OutcomeUnknown, Outrun, StoreAway, StoreCorrupt, StoreError, StoreFailed

KEPT_NOTHING = "nothing was kept of the transaction"

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
        return DiskFull(f"the disk of the database {place} is full", reason, f"{KEPT_NOTHING}; make room")
    if error.sqlstate in _DAMAGE:
        return StoreCorrupt(f"the database {place} is damaged", reason, "restore it from a backup")
    if error.sqlstate == _READ_ONLY:
        return StoreAway(f"the database {place} can't be written", reason, f"{KEPT_NOTHING}; look for the primary")
    if is_away(error):
        return unreachable(place, reason)
    if isinstance(error, errors.QueryCanceled):
        return StoreFailed(f"the database {place} is too slow", reason, f"{KEPT_NOTHING}; look at its load and locks")
    return StoreFailed(f"the database {place} failed", reason, f"{KEPT_NOTHING}; {advice(reason, 'look at its log')}")


def unreachable(place: str, reason: str) -> StoreAway:
    """Nothing can be done now; as soon as the server is there, all goes on."""
    otherwise = "look at its log" if "FATAL:" in reason and "shutting down" not in reason else "start it"
    todo = f"it is tried again each second; {advice(reason, otherwise)}"
    return StoreAway(f"the database {place} can't be reached", reason, todo)


def advice(reason: str, otherwise: str) -> str:
    """What to do about what the server or libpq says, if that is clear."""
    if _PREPARED in reason:
        return "a pooler in transaction mode loses prepared statements: set PgBouncer's pool_mode = session"
    if any(words in reason for words in _BEGINS):
        return "wait until it has started"
    if "password" in reason:
        return "give the right one in ~/.pgpass or PGPASSWORD"
    if "read-only" in reason or "hot standby" in reason:
        return "look for the primary, or at its default_transaction_read_only"
    if "connection slots" in reason or "too many c" in reason:  # clients, or connections for a role or database
        return "raise its max_connections, or end others' connections"
    return otherwise


def outrun(place: str, error: psycopg.Error) -> Outrun:
    """Done again, the transaction may be kept."""
    return Outrun(f"another node changes the same in the database {place}", reason_of(error), "try again")


def unknown_outcome(place: str, error: psycopg.Error) -> OutcomeUnknown:
    """COMMIT was sent, and no answer came."""
    what = f"the connection to the database {place} was lost in a commit"
    return OutcomeUnknown(what, reason_of(error), "it is not known whether its changes were kept; ask again")


def unsure_outcome(place: str, reason: str) -> OutcomeUnknown:
    """COMMIT was done, but not by the standbys that it is to wait for."""
    what = f"the database {place} did not wait for its standby in a commit"
    return OutcomeUnknown(what, reason, "a fail-over may take its changes back; ask again")
