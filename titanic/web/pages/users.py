"""Users: signing in and out, one's own permissions, for admins those of all users with denied actions; and the audit:
who acted on what, and what was refused."""

from __future__ import annotations

import asyncio
import re
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from broker import Access, AccessError, User, load_access
from titanic.aio import Client
from titanic.protocol.documents import Refusal
from titanic.web.api.routes import end_sessions
from titanic.web.api.services import audit_query
from titanic.web.app_state import app_state, visitor_of
from titanic.web.pages import forms
from titanic.web.pages.forms import NotPermitted, unless_forbidden
from titanic.web.problems import HTTPProblem
from titanic.web.template_filters import number, size

MAX_LOGIN_BYTES = 8 << 10
"""Of a form with a token."""

LOCAL = re.compile(r"/(?![/\\])[!-\[\]-~]{0,2000}")
"""A path on this host: nothing that a browser would take for another host, and no backslash, which is a slash to it."""

MAX_DENIALS = 100

AUDITED = 50
"""Acts on a page."""

SPANS = {"3600": "in the last hour", "86400": "in the last day", "604800": "in the last week"}

READS = {"none": "nothing", "own": "own requests", "all": "all requests"}


class UserRow(NamedTuple):
    """A user, for the page."""

    name: str
    services: list[tuple[str, str]]
    """Actions, each with the services it is permitted for."""
    reads: str
    also: str
    limits: str
    credentials: str
    """How the user can be identified."""


class Denials(NamedTuple):
    """What the server refused since its start."""

    users: list[Refusal]
    not_stored: list[tuple[str, int]]
    """Requests that were not stored, by reason: mostly for lack of room."""


def row_of(user: User, access: Access) -> UserRow:
    """What the access file says about a user, without keys, tokens and hashes."""
    services = [(one.value, ", ".join(patterns)) for one, patterns in user.services.items() if patterns]
    limits = user.limits
    texts = [
        f"{number(limits.waiting)} waiting" if limits.waiting else "",
        size(limits.bytes) if limits.bytes else "",
        f"{number(limits.messages)} messages per second" if limits.messages else "",
        f"{number(limits.connections)} connections" if limits.connections else "",
    ]
    known = {
        "key": access.keys,
        "token": access.tokens,
        "certificate": access.certificates,
        "login": access.logins,
        "endpoint": access.endpoints,
    }
    credentials = [kind for kind, users in known.items() if any(one.name == user.name for one in users.values())]
    reads = READS["all" if user.admin else user.read.value]
    also = ", ".join(user.flags)
    return UserRow(user.name, services, reads, also, ", ".join(filter(None, texts)), ", ".join(credentials))


async def users(request: Request) -> Response:
    """Show the visitor's permissions; to admins, those of all users."""
    state, visitor = app_state(request), visitor_of(request)
    path, fault, rows, own = state.settings.access, "", [], None
    denials: Denials | NotPermitted | None = None
    if path is not None:
        try:
            access = await asyncio.to_thread(load_access, Path(path))
        except AccessError:  # details are for the administrator, not for every visitor
            fault = "the access file cannot be read at the moment; the permissions last read stay in force"
        else:
            me = access.users.get(visitor.user)
            own = None if me is None else row_of(me, access)
            if me is not None and me.admin:
                rows = [row_of(user, access) for _, user in sorted(access.users.items())]
                denials = await unless_forbidden("denied actions", _denials(visitor.client))
    return state.page(request, "users.html", guarded=path is not None, rows=rows, own=own, fault=fault, denials=denials)


async def _denials(client: Client) -> Denials:
    """The denials since the start of the server, the most frequent first."""
    stats = await client.stats(services=True)
    return Denials(
        sorted(stats.get("refusals", ()), key=itemgetter("count"), reverse=True)[:MAX_DENIALS],
        sorted(filter(itemgetter(1), stats.get("refused", {}).items()), key=itemgetter(1), reverse=True),
    )


async def audit(request: Request) -> Response:
    """List acts, or refusals."""
    state, query = app_state(request), request.query_params
    names = ("show", "user", "act", "address", "last")
    given = {name: query.get(name, "").strip()[:255] for name in names}
    after, refusals = query.get("after", ""), given.get("show") == "refusals"
    shown = {name: text for name, text in given.items() if text}
    options = audit_query(shown | ({"after": after} if after else {}), AUDITED, refusals=refusals)
    found = await unless_forbidden("audit", visitor_of(request).client.audit(**options))
    start = f"/audit?{urlencode(shown)}" if shown else "/audit"
    following = None if isinstance(found, NotPermitted) else found["next"]
    return state.page(
        request,
        "audit.html",
        found=found,
        given=given,
        filtered=bool(shown),
        refusals=refusals,
        spans=SPANS,
        next=f"/audit?{urlencode({**shown, 'after': following})}" if following else "",
        start=start if after else "",
    )


async def log_in(request: Request) -> Response:
    """GET: show the form. POST: start a session for the user of the token, then redirect to the page asked for."""
    state = app_state(request)
    if state.identity.is_open:
        return RedirectResponse("/", 303)
    if request.method != "POST":
        return state.page(request, "login.html", next=local_path(request.query_params.get("next", "")), error="")
    fields = dict(parse_qsl((await forms.read_body(request, MAX_LOGIN_BYTES)).decode(errors="replace")))
    onward = local_path(fields.get("next", ""))
    try:
        cookie = state.identity.log_in(request.scope, fields.get("token", ""))
    except HTTPProblem as problem:
        page = state.page(request, "login.html", problem.status, next=onward, error=problem.detail)
        page.headers.update(problem.headers)
        return page
    answer = RedirectResponse(onward, 303)
    state.identity.log_out(request, answer)  # end an earlier session instead of taking it over
    state.identity.set_cookie(answer, cookie)
    return answer


async def log_out(request: Request) -> Response:
    """End the session."""
    await forms.read(request)
    answer = RedirectResponse("/login", 303)
    app_state(request).identity.log_out(request, answer)
    return answer


async def end_all(request: Request) -> Response:
    """End all sessions of the visitor, or of another user."""
    user = (await forms.read(request)).get("user", "")
    await end_sessions(request, user)
    return app_state(request).to(request, "/users", f"All sessions of {user or visitor_of(request).user} have ended.")


def local_path(path: str) -> str:
    """The path if it is a safe one on this host, else "/"."""
    found = urlsplit(path) if LOCAL.fullmatch(path) else None
    return path if found is not None and not found.netloc and found.path not in ("/login", "/logout") else "/"


ROUTES = [Route("/users", users), Route("/audit", audit)]

SESSION_ROUTES = [
    Route("/login", log_in, methods=["GET", "POST"]),
    Route("/logout", log_out, methods=["POST"]),
    Route("/actions/users/sessions", end_all, methods=["POST"]),
]
