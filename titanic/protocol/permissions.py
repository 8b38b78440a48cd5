"""Which permission each of Titanic's services needs, and what who lacks it is told.

    service                          needs                              without it
    -------------------------------  ---------------------------------  ------------------------------------
    titanic.request                  submit, for the service in it      400 forbidden
    titanic.submit                   submit, for the service in it      403 forbidden
    titanic.reply                    read: the request's owner          400 without read; else as for an unknown UUID
    titanic.wait                     read: the request's owner          403 without read; else as for an unknown UUID
    titanic.close                    close, and read: its owner         400 without close; else as for an unknown UUID
    titanic.list                     read                               403; of others' requests: nothing
    titanic.stats                    metrics, or read = "all"           403
    titanic.admin retry              submit, and read: its owner        403 without read; else it is not done
    titanic.admin purge              close, and read: its owner         403 without close; else it is not done
    titanic.admin archive            archive, or admin                  403
    titanic.admin drain              admin                              403
    titanic.admin set                admin                              403

`RULES` is for a broker, which asks before it hands a request on. A rule refuses what needs no look into the store. What
it lets pass is not allowed by that: the services look again, at what they have read from the body. So a body that a
rule cannot read is none that a service takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker import Permission, Reach, Rule, User
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames


def lacks_submit(user: User, service: bytes) -> str | None:
    """Why a user may not submit requests for a service; None: he may."""
    if user.may(Permission.SUBMIT, service):
        return None
    name = service.decode(errors="replace")
    return f"{user} may not submit to '{name}'; it needs submit = [\"{name}\"]"


def lacks_read(user: User) -> str | None:
    """Why a user may read nothing, nor retry anything."""
    if user.admin or user.read is not Reach.NONE:
        return None
    return f'{user} may not read requests; it needs read = "own" or "all"'


def lacks_stats(user: User) -> str | None:
    """Why a user may not ask for figures. Who may serve titanic.stats himself, a queue apart, finds out about others
    with it."""
    if user.metrics or user.reads_all or user.may(Permission.WORK, tsp.STATS):
        return None
    return f"{user} may not see figures; it needs metrics = true"


def lacks_close(user: User) -> str | None:
    """Why a user may close nothing, nor purge. Who took a 200 for it would rely on a request that is not closed."""
    if user.admin or (user.close and user.read is not Reach.NONE):
        return None
    return f'{user} may not close requests; it needs close = true and read = "own" or "all"'


def lacks_archive(user: User) -> str | None:
    """Why a user may not say what an archive has."""
    return None if user.admin or user.archive else f"{user} may not manage the archive; it needs archive = true"


def lacks_drain(user: User) -> str | None:
    """Why a user may not have nodes end."""
    return None if user.admin else f"{user} may not drain nodes; it needs admin = true"


def lacks_set(user: User) -> str | None:
    """Why a user may not set anything for a service."""
    return None if user.admin else f"{user} may not change services; it needs admin = true"


def _request(user: User, body: Frames) -> str | None:
    if tsp.request_fault(body):  # first: names of any length must not reach the memory of `User.may`
        return None
    return lacks_submit(user, body[0])


def _submit(user: User, body: Frames) -> str | None:
    return _request(user, body[1:])


_LACKS: Mapping[bytes, Callable[[User, Frames], str | None]] = {
    tsp.REQUEST: _request,
    tsp.SUBMIT: _submit,
    tsp.REPLY: lambda user, body: lacks_read(user),
    tsp.WAIT: lambda user, body: lacks_read(user),
    tsp.CLOSE: lambda user, body: lacks_close(user),
    tsp.LIST: lambda user, body: lacks_read(user),
    tsp.STATS: lambda user, body: lacks_stats(user),
    tsp.ADMIN: lambda user, body: None if user.archive else lacks_read(user),
}


def _rule(service: bytes, lacks: Callable[[User, Frames], str | None]) -> Rule:
    def rule(user: User, body: Frames) -> Frames | None:
        fault = lacks(user, body)
        return None if fault is None else tsp.forbidden(service, fault)

    return rule


RULES: Mapping[bytes, Rule] = {service: _rule(service, lacks) for service, lacks in _LACKS.items()}
