"""Unique requests: of those of an owner with the same service, rule and `unique`, one is accepted while it counts.

Each has a row among the idempotency keys, under a name that no such key can have. The rows follow another rule: whether
one still counts depends on the state of its request, which is read when the next one comes. Nothing is written when a
request starts or ends, and after a crash nothing has to be repaired.

A request that waits again, after a failed attempt or a retry, counts again. So a row keeps the requests before its
newest one that may do so, and goes when all its requests are closed. With a time it has one request, which alone can be
retried: a request before it may not succeed as well.
"""

from __future__ import annotations

from collections.abc import Mapping

from titanic.protocol.submit_options import STARTED, read_policy
from titanic.store.request import NewRequest, RequestFields
from titanic.store.rules import LATEST
from titanic.store.states import State, Status

NAMES = b"\xff"
"""How the names of such rows begin: it is in no UTF-8, so in no key."""

_STARTED, _DONE, _TIME = b"S", b"D", b"T"
"""The rule in a name: it counts until a worker has the request, until it ends, or until a time."""

_DIGEST = 20

MAX_REQUESTS = 16
"""Requests of a row: the newest ones."""


def made_unique(new: NewRequest, unique: str, until: str, ends_at: int) -> NewRequest:
    """A request that is unique: `until` "started" or "done", or up to a time (µs since the epoch, 0: none)."""
    rule = _TIME if ends_at else _STARTED if until == STARTED else _DONE
    return new._replace(unique=_name(rule, new.service, unique), unique_until=ends_at or LATEST)


def unique_name(request: RequestFields | NewRequest) -> bytes:
    """The name of the row of a stored request; empty: it is not unique."""
    if b'"unique"' not in request.options:
        return b""  # mostly
    policy = read_policy(request.options)
    if not policy.unique:
        return b""
    rule = _TIME if policy.unique_for else _STARTED if policy.unique_until == STARTED else _DONE
    return _name(rule, request.service, policy.unique)


def _name(rule: bytes, service: bytes, unique: str) -> bytes:
    from hashlib import sha256  # only when used: it would delay each start

    return NAMES + rule + sha256(service + b"\0" + unique.encode()).digest()[:_DIGEST]


def counts(name: bytes, state: State | None, ends_at: int, sure_us: int) -> bool:
    """Whether a row counts. `state` is that of its request, None if that is closed."""
    rule = name[1:2]
    if rule == _TIME:
        return ends_at > sure_us and state not in (State.FAILED, State.EXPIRED)
    return state in (State.WAITING, State.DELAYED) or (state is State.RUNNING and rule == _DONE)


def counting(
    name: bytes, states: Mapping[bytes, State | None], ends_at: int, sure_us: int
) -> tuple[bytes | None, list[bytes]]:
    """The first request of a row that counts; if none does, those that may count again. `states`: of its requests."""
    first = next((uuid for uuid, found in states.items() if counts(name, found, ends_at, sure_us)), None)
    may = () if name[1:2] == _TIME else (State.RUNNING, State.FAILED, State.EXPIRED)
    return first, [uuid for uuid, found in states.items() if found in may][: MAX_REQUESTS - 1]


def name_to_retry(request: RequestFields | NewRequest, submitted_at: int, now_us: int) -> bytes:
    """The name of the row that a request must have to be retried; empty: it needs none, as one of a time ahead."""
    name = unique_name(request)
    if name[1:2] != _TIME or not 0 <= now_us - submitted_at < int(read_policy(request.options).unique_for * 1e6):
        return b""
    return name


def outlives(name: bytes, unclaimed: bool, status: Status) -> bool:
    """Whether a row stays when its request is closed: after a success that no client closed, until its time."""
    return name[1:2] == _TIME and unclaimed and status is Status.DONE
