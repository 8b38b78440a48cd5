"""What every request passes before a handler runs: is it for us, is it from a page of ours, and who sends it.

A name in `Host` that is none of ours is refused, so that no page of the Web can reach this one through a name of its
own (DNS rebinding). A change that a page from elsewhere asks for is refused by what browsers say of where it comes
from, and once more by the CSRF token: of forms in `pages/forms.py`, of calls of /v1 by a session here.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from contextlib import suppress
from urllib.parse import quote, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from broker import AccessError
from titanic import logs
from titanic.web.app_state import problem_response
from titanic.web.auth.clients import Clients
from titanic.web.auth.identity import Identity, Visitor, unauthorized
from titanic.web.auth.quota import release_body
from titanic.web.auth.sessions import Grant, Kind
from titanic.web.problems import Problem, is_for_programs
from titanic.web.request_headers import header_of, headers_of, is_repeated
from titanic.web.settings import WebSettings, is_loopback

log = logging.getLogger("titanic.web")

SAFE = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""

OWN = (b"same-origin", b"none")
"""What browsers say of where a request comes from that no page from elsewhere has asked for."""

PUBLIC = ("/healthz", "/readyz", "/login")
"""What everybody may ask for; and what is below /static."""

HOST = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:\d{1,5})?")

STATUS = "titanic.status"
"""Where a scope has the status of its answer, once that has begun; `app.py` puts it there."""

MAX_HOSTS = 100
"""Values of `Host` that are known to be ours."""


class AuthMiddleware:
    """Middleware for HTTP: gives each request its `visitor`, or refuses it."""

    def __init__(self, app: ASGIApp, settings: WebSettings, identity: Identity, clients: Clients) -> None:
        self._app = app
        self._settings = settings
        self._identity = identity
        self._clients = clients
        self._hosts: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check_source(scope)
            path = scope["path"]
            if path in PUBLIC or path.startswith("/static/"):
                await self._app(scope, receive, send)
                return
            grant = self._identity.of(scope)
            if grant is None:
                await _challenge(Request(scope))(scope, receive, send)
                return
            if grant.kind is Kind.SESSION:
                _check_csrf(scope, grant)
            await self._serve(grant, scope, receive, send)
        except Problem as problem:
            await problem_response(Request(scope), problem)(scope, receive, send)
        except ClientDisconnect:
            return  # nobody is there to be answered

    async def _serve(self, grant: Grant, scope: Scope, receive: Receive, send: Send) -> None:
        """Have it handled, until the grant ends."""
        try:
            taken = self._clients.acquire(grant.user)
        except AccessError as error:
            text = "user '%s' cannot come in: %s"
            log.warning(text, grant.user, error, extra=logs.event("no-key", user=grant.user))
            raise Problem(403, "nobody can come in so; ask who runs this Titanic") from error
        task = asyncio.current_task()
        assert task is not None
        grant.tasks.add(task)
        by_token = grant.kind is Kind.TOKEN
        visitor = Visitor(grant.user, taken.client, grant.csrf, not by_token, grant.kind is Kind.SESSION)
        scope.setdefault("state", {})["visitor"] = visitor
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not grant.ended:
                raise
            task.uncancel()
            if STATUS in scope:  # of a stream, this is the end; what has a length is cut off
                with suppress(RuntimeError):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            raise unauthorized("this log-in has ended; log in again") from None
        finally:
            release_body(scope)
            grant.tasks.discard(task)
            self._clients.release(taken)
            if scope["method"] not in SAFE:
                _log_action(scope, visitor)

    def _check_source(self, scope: Scope) -> None:
        found = headers_of(scope)
        host = b"" if is_repeated(scope, b"host") else found.get(b"host", b"")
        if host not in self._hosts:
            self._check_host(host, scope)
        foreign = found.get(b"sec-fetch-site", b"none") not in OWN
        if scope["method"] in SAFE:
            _check_read(scope, foreign)
        elif foreign or (b"origin" in found and urlsplit(header_of(scope, b"origin")).netloc != host.decode("latin-1")):
            raise Problem(403, "a page from elsewhere asks for a change; only its own pages may")

    def _check_host(self, given: bytes, scope: Scope) -> None:
        """Raise Problem unless it is a name that this goes by: one of --host, or the address that was connected to."""
        host = given.decode("latin-1")
        match = HOST.fullmatch(host)
        name = match[1].strip("[]").lower() if match is not None else ""
        settings = self._settings
        address = (scope.get("server") or ("", 0))[0]
        own = name != "" and (name in settings.hosts or name == address or name == settings.bind[0].strip("[]"))
        if not own and not (is_loopback(name) and is_loopback(settings.bind[0])):
            what = f"this gateway is not known as {host[:200]!r}"
            raise Problem(403, f"{what}; use its address, or start it with --host {name or 'NAME'}")
        if len(self._hosts) < MAX_HOSTS:
            self._hosts.add(given)


def _check_csrf(scope: Scope, grant: Grant) -> None:
    """Of calls by a session; forms are checked where they are read."""
    if scope["method"] in SAFE or not is_for_programs(scope):
        return
    given = header_of(scope, b"x-csrf-token")
    if not hmac.compare_digest(given.encode(), grant.csrf.encode()):
        what, fact = "nothing was changed", "a call with a session needs its token in X-CSRF-Token"
        raise Problem(403, f"{what}: {fact}; send a bearer token instead, or call from a page")


def _check_read(scope: Scope, foreign: bool) -> None:
    """Raise Problem when a page from elsewhere reads behind its visitor's back. He may follow a link."""
    if foreign and header_of(scope, b"sec-fetch-mode") != "navigate":
        raise Problem(403, "a page from elsewhere asks for this; only its own pages may")


def _challenge(request: Request) -> Response:
    """To who has shown nothing: a program is told how, a person gets the page to log in at."""
    if is_for_programs(request.scope):
        return problem_response(request, unauthorized("log in; send: Authorization: Bearer TOKEN"))
    if request.method not in SAFE:
        return RedirectResponse("/login", 303)
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse("/login" if path == "/" else f"/login?next={quote(path, safe='/')}", 303)


def _log_action(scope: Scope, visitor: Visitor) -> None:
    """Who did what to which request. Programs' calls, of which there may be thousands a second, at debug level."""
    path = scope["path"]
    level = logging.DEBUG if is_for_programs(scope) and not path.startswith("/v1/hooks") else logging.INFO
    if not log.isEnabledFor(level):
        return
    shown = path[:300].encode("unicode_escape").decode("ascii")
    about = scope["state"].get("about", "")
    who = f"user '{visitor.user}'" if visitor.user else "somebody"
    extra = logs.event("action", user=visitor.user, action=f"{scope['method']} {shown}") | logs.COUNTED
    about, status = f" ({about})" if about else "", scope.get(STATUS, 0)
    log.log(level, "%s: %s %s%s: %d", who, scope["method"], shown, about, status, extra=extra)
