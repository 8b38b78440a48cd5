"""The permissions: what each allows, which one each service of Titanic needs, and the refusal without it.

    service                          needs                              without it
    -------------------------------  ---------------------------------  ------------------------------------
    titanic.request                  submit, for the service in it      400 forbidden
    titanic.submit                   submit, for the service in it      403 forbidden
    titanic.submit with on_failed    submit, for that service, too      403 forbidden
    titanic.submit with a source     gateway, too                       403 forbidden
    titanic.reply                    read: the request's owner          400 without read; else as for an unknown UUID
    titanic.wait                     read: the request's owner          403 without read; else as for an unknown UUID
    titanic.close                    close, and read: its owner         400 without close; else as for an unknown UUID
    titanic.list                     read                               403; of others' requests: nothing
    titanic.stats                    metrics, or read = "all"           403
    titanic.audit                    audit                              403
    titanic.admin refused            gateway                            403
    titanic.admin retry              submit, and read: its owner        403 without read; else it is not done
    titanic.admin purge              close, and read: its owner         403 without close; else it is not done
    titanic.admin redrive            as for retry or purge              403; then the job ends
    titanic.admin change             submit, close, and read: owner     403 without these; else as for an unknown UUID
    titanic.admin schedules          submit, and read                   403 without read; else rows are skipped
    titanic.admin archive            archive                            403
    titanic.admin drain              admin                              403
    titanic.admin set, sessions      admin                              403

`admin` includes all of these.

A broker applies `RULES` before it passes a request on. A rule refuses what can be decided without the store. A request
that passes is not permitted yet: the services check again with what they read from the body. A body that a rule cannot
read is refused by every service.

`MEANINGS` is what `titanic access` prints of each permission; `NEEDS` what services answer to users without it, with
`_permits` as the rule behind it, and `_LACKS` the broker's rules (its row for ADMIN admits users who may perform
any action): add a new permission to these and to the table. Which permissions there are, and how a user has them, is in
broker/access/users.py; broker/access/decision.py explains decisions to `titanic access test`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker import Permission, Reach, Rule, User
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames

Lacks = Callable[[User, Frames], str | None]
"""Returns what a user lacks for a request with this body, if anything."""

MEANINGS: Mapping[Permission, str] = {
    Permission.SUBMIT: "store requests for a service",
    Permission.WORK: "register as a worker of a service",
    Permission.CALL: "send plain requests to a service",
    Permission.READ: "see requests and replies: own or all",
    Permission.CLOSE: "close and purge requests that the user may read",
    Permission.METRICS: "see statistics",
    Permission.ARCHIVE: "manage the archive",
    Permission.GATEWAY: "state the IP address that requests come from",
    Permission.AUDIT: "see who acted on what, and refusals",
    Permission.ADMIN: "change services, drain nodes; "
    'implies submit, read = "all", close, metrics, archive, gateway, audit',
}
"""What each permission of the access file allows."""

NEEDS: Mapping[str, tuple[str, str]] = {
    "read": ("read requests", 'read = "own" or "all"'),
    "stats": ("see statistics", "metrics = true"),
    "close": ("close requests", 'close = true and read = "own" or "all"'),
    "archive": ("manage the archive", "archive = true"),
    "gateway": ("state the IP address that requests come from", "gateway = true"),
    "audit": ("read the audit", "audit = true"),
    "drain": ("drain nodes", "admin = true"),
    "set": ("change services", "admin = true"),
    "sessions": ("end sessions of others", "admin = true"),
}
"""For each action: what it is, and what the access file must contain for it. One that is named like a flag needs that
flag; `_permits` has the others."""


def lacks_submit(user: User, service: bytes) -> str | None:
    """Return why a user may not submit requests for a service; None: permitted."""
    if user.may(Permission.SUBMIT, service):
        return None
    name = service.decode(errors="replace")
    return f"{user} may not submit to '{name}'; it needs submit = [\"{name}\"]"


def lacks(user: User, action: str) -> str | None:
    """Return why a user may not do one of NEEDS; None: permitted."""
    if user.admin or _permits(user, action):
        return None
    what, need = NEEDS[action]
    return f"{user} may not {what}; it needs {need}"


def _permits(user: User, action: str) -> bool:
    if action == "read":
        return user.read is not Reach.NONE
    if action == "close":  # a 200 for a request that stays open would mislead
        return user.close and user.read is not Reach.NONE
    if action == "stats":  # a queue on its own serves titanic.stats, and learns about others by it
        return user.metrics or user.reads_all or user.may(Permission.WORK, tsp.STATS)
    return action in user.flags


def _request(user: User, body: Frames) -> str | None:
    if tsp.request_fault(body):  # first: names of any length must not reach the memory of `User.may`
        return None
    return lacks_submit(user, body[0])


def _submit(user: User, body: Frames) -> str | None:
    return _request(user, body[1:])


_LACKS: Mapping[bytes, Lacks] = {
    tsp.REQUEST: _request,
    tsp.SUBMIT: _submit,
    tsp.REPLY: lambda user, body: lacks(user, "read"),
    tsp.WAIT: lambda user, body: lacks(user, "read"),
    tsp.CLOSE: lambda user, body: lacks(user, "close"),
    tsp.LIST: lambda user, body: lacks(user, "read"),
    tsp.STATS: lambda user, body: lacks(user, "stats"),
    tsp.AUDIT: lambda user, body: lacks(user, "audit"),
    tsp.ADMIN: lambda user, body: None if user.archive or user.gateway else lacks(user, "read"),
}


def _rule(service: bytes, lacks: Lacks) -> Rule:
    def rule(user: User, body: Frames) -> Frames | None:
        fault = lacks(user, body)
        return None if fault is None else tsp.forbidden(service, fault)

    return rule


RULES: Mapping[bytes, Rule] = {service: _rule(service, lacks) for service, lacks in _LACKS.items()}
