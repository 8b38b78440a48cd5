"""Users: what the visitor may do himself; for admins, what everybody may."""

from __future__ import annotations

import asyncio
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from broker import Access, AccessError, User, load_access
from titanic.aio import Client
from titanic.protocol.documents import Refusal
from titanic.web.gateway import gateway_of, visitor_of
from titanic.web.pages.asking import Missing, unless_forbidden
from titanic.web.words import number, size

MOST_REFUSALS = 100

READS = {"none": "nothing", "own": "his own requests", "all": "all requests"}


class Row(NamedTuple):
    """A user, for the page."""

    name: str
    services: list[tuple[str, str]]
    """What he may do with which services."""
    reads: str
    also: str
    limits: str
    ways: str
    """By what he is known."""


class Refusals(NamedTuple):
    """What the server refused."""

    users: list[Refusal]
    reasons: list[tuple[str, int]]
    """How often for which reason."""


def row_of(user: User, access: Access) -> Row:
    """What the access file says of a user: no key, no token, and no hash of one."""
    services = [(one.value, ", ".join(patterns)) for one, patterns in user.services.items() if patterns]
    also = [name for name in ("admin", "archive", "close", "metrics") if getattr(user, name)]
    limits = user.limits
    told = [
        f"{number(limits.waiting)} waiting" if limits.waiting else "",
        size(limits.bytes) if limits.bytes else "",
        f"{number(limits.messages)} messages a second" if limits.messages else "",
        f"{number(limits.connections)} connections" if limits.connections else "",
    ]
    known = {
        "key": access.keys,
        "token": access.tokens,
        "certificate": access.certificates,
        "endpoint": access.endpoints,
    }
    ways = [way for way, users in known.items() if any(one.name == user.name for one in users.values())]
    reads = READS["all" if user.admin else user.read.value]
    return Row(user.name, services, reads, ", ".join(also), ", ".join(filter(None, told)), ", ".join(ways))


async def users(request: Request) -> Response:
    """The page."""
    gateway, visitor = gateway_of(request), visitor_of(request)
    path, fault, rows, own = gateway.settings.access, "", [], None
    refusals: Refusals | Missing | None = None
    if path is not None:
        try:
            access = await asyncio.to_thread(load_access, Path(path))
        except AccessError:  # what is wrong with it is for who runs this, not for every visitor
            fault = "the access file cannot be read now; what was read before stays in force"
        else:
            me = access.users.get(visitor.user)
            own = None if me is None else row_of(me, access)
            if me is not None and me.admin:
                rows = [row_of(user, access) for _, user in sorted(access.users.items())]
                refusals = await unless_forbidden("what was refused", _refusals(visitor.client))
    return gateway.page(
        request, "users.html", guarded=path is not None, rows=rows, own=own, fault=fault, refusals=refusals
    )


async def _refusals(client: Client) -> Refusals:
    """Those since the start of the server, the most frequent first."""
    stats = await client.stats(services=True)
    return Refusals(
        sorted(stats.get("refusals", ()), key=itemgetter("count"), reverse=True)[:MOST_REFUSALS],
        sorted(stats.get("refused", {}).items(), key=itemgetter(1), reverse=True),
    )


ROUTES = [Route("/users", users)]
