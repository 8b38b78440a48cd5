"""Which permission each of Titanic's services needs, and what who lacks it is told.

    service                          needs                              without it
    -------------------------------  ---------------------------------  ------------------------------------
    titanic.request                  submit, for the service in it      400 forbidden
    titanic.submit                   submit, for the service in it      403 forbidden
    titanic.reply, titanic.wait      read: the request's owner          as for an unknown UUID
    titanic.close                    close, and read: its owner         403 without close; else as for an unknown UUID
    titanic.list                     read                               403; of others' requests: nothing
    titanic.stats                    metrics, or read = "all"           403
    titanic.admin retry              submit, and read: its owner        403 without read; else it is not done
    titanic.admin purge              close, and read: its owner         403 without close; else it is not done
    titanic.admin archive            admin                              403

`RULES` is for a broker, which asks before it hands a request on. A rule refuses what needs no look into the store. What
it lets pass is not allowed by that: the services look again, at what they have read from the body. So a body that a
rule cannot read is none that a service takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker import Permission, Reach, User
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames

Rule = Callable[[User, Frames], Frames | None]
"""The body of the refusal of a user's request with this body; None: it goes on to the service."""


def lacks_submit(user: User, service: bytes) -> str | None:
    """Why a user may not submit requests for a service; None: he may."""
    if user.may(Permission.SUBMIT, service):
        return None
    name = service.decode(errors="replace")
    return f"{_who(user)} may not submit to '{name}'; it needs submit = [\"{name}\"]"


def _who(user: User) -> str:
    return f"user '{user.name}'" if user.name else "a connection without a user"


def refused_submit(name: bytes, fault: str) -> Frames:
    """The answer of titanic.request or titanic.submit; RFC 9 has no 403."""
    return tsp.bad_request(f"forbidden: {fault}") if name == tsp.REQUEST else tsp.forbidden(fault)


def lacks_list(user: User) -> str | None:
    """Why a user may list nothing, nor retry anything."""
    if user.admin or user.read is not Reach.NONE:
        return None
    return f'{_who(user)} may not read requests; it needs read = "own" or "all"'


def lacks_stats(user: User) -> str | None:
    """Why a user may not ask for figures. Who may serve titanic.stats himself, a queue apart, finds out about others
    with it."""
    if user.metrics or user.reads_all or user.may(Permission.WORK, tsp.STATS):
        return None
    return f"{_who(user)} may not see figures; it needs metrics = true"


def lacks_close(user: User) -> str | None:
    """Why a user may close nothing, nor purge. Who took a 200 for it would rely on a request that is not closed."""
    if user.admin or (user.close and user.read is not Reach.NONE):
        return None
    return f'{_who(user)} may not close requests; it needs close = true and read = "own" or "all"'


def lacks_archive(user: User) -> str | None:
    """Why a user may not say what an archive has."""
    return None if user.admin else f"{_who(user)} may not manage the archive; it needs admin = true"


def _request(user: User, body: Frames) -> Frames | None:
    if tsp.request_fault(body):  # first: names of any length must not reach the memory of `User.may`
        return None
    fault = lacks_submit(user, body[0])
    return None if fault is None else refused_submit(tsp.REQUEST, fault)


def _submit(user: User, body: Frames) -> Frames | None:
    if tsp.request_fault(body[1:]):
        return None
    fault = lacks_submit(user, body[1])
    return None if fault is None else refused_submit(tsp.SUBMIT, fault)


def _close(user: User, body: Frames) -> Frames | None:
    return _refused(lacks_close(user))


def _list(user: User, body: Frames) -> Frames | None:
    return _refused(lacks_list(user))


def _stats(user: User, body: Frames) -> Frames | None:
    return _refused(lacks_stats(user))


def _refused(fault: str | None) -> Frames | None:
    return None if fault is None else tsp.forbidden(fault)


def _by_owner(user: User, body: Frames) -> Frames | None:
    """The service looks whose the request is."""
    return None


RULES: Mapping[bytes, Rule] = {
    tsp.REQUEST: _request,
    tsp.SUBMIT: _submit,
    tsp.REPLY: _by_owner,
    tsp.WAIT: _by_owner,
    tsp.CLOSE: _close,
    tsp.LIST: _list,
    tsp.STATS: _stats,
    tsp.ADMIN: _list,
}
