"""The only middleware: checks the host, origin and credentials of every request before its handler runs, answers its
errors, and adds the security headers.

Unknown names in `Host` are refused, so that no site can reach this one through a name of its own (DNS rebinding).
Cross-origin changes are refused by the headers that browsers send, and again by the CSRF token. That of forms is
checked in `pages/forms.py`, that of /v1 calls with a session here.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from contextlib import suppress
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker import AccessError
from titanic import logs
from titanic.client.calls import VIA
from titanic.errors import TitanicError
from titanic.web import problems
from titanic.web.app_state import AppState, problem_response, release_body
from titanic.web.auth.identity import Visitor, unauthorized
from titanic.web.auth.sessions import Grant, Kind
from titanic.web.problems import HTTPProblem, is_for_programs
from titanic.web.request_headers import CERTIFICATE, ROOT, below_root, header_of, headers_of, is_repeated
from titanic.web.settings import is_loopback

log = logging.getLogger("titanic.web")

SAFE = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""

OWN = (b"same-origin", b"none")
"""Values of Sec-Fetch-Site for requests that no other site has caused."""

PUBLIC = ("/healthz", "/readyz", "/login")
"""Paths without authentication, besides those below /static."""

HOST = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:\d{1,5})?")

STATUS = "titanic.status"
"""The key of the scope for the status of its answer, once that has started."""

MAX_HOSTS = 100
"""Accepted values of `Host` that are cached."""

PAGES = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer browsers send the forms of our own pages with `Origin: null`
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Default headers of pages."""

DOCUMENTS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Default headers of the API, without those that concern links and windows: each costs time, thousands of times a
second."""

YEAR = 365 * 24 * 3600
"""Seconds for which browsers use HTTPS only, once they have used it (HSTS)."""


def _encoded(headers: dict[str, str], https: bool) -> list[tuple[bytes, bytes]]:
    """Encode headers for ASGI, with HSTS if this is HTTPS."""
    said = headers | ({"Strict-Transport-Security": f"max-age={YEAR}"} if https else {})
    return [(name.lower().encode(), value.encode()) for name, value in said.items()]


class GatewayMiddleware:
    """Sets the `visitor` of each request, or refuses it. Answers get `DOCUMENTS` from the API and `PAGES` otherwise, as
    far as they do not have these headers."""

    def __init__(self, app: ASGIApp, state: AppState) -> None:
        self._app = app
        self._settings = state.settings
        self._identity = state.identity
        self._clients = state.clients
        self._state = state
        self._hosts: set[bytes] = set()
        https = state.settings.is_https
        self._pages, self._documents = _encoded(PAGES, https), _encoded(DOCUMENTS, https)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if CERTIFICATE in scope.get("state", {}) and not self._settings.prefix:
            await self._answer(scope, receive, send)
            return
        try:
            root, scope = below_root(scope, self._settings.prefix)
            if CERTIFICATE not in scope["state"]:
                self._check_host_application(scope)
        except HTTPProblem as problem:
            await problems.answer(problem)(scope, receive, send)
            return
        token = ROOT.set(root)
        try:
            await self._answer(scope, receive, send)
        finally:
            ROOT.reset(token)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, with the paths below the root."""
        headers = self._documents if is_for_programs(scope) else self._pages

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope[STATUS] = message["status"]
                said = message["headers"]
                names = {name for name, _ in said}  # in lower case, as in ASGI
                if b"location" in names and (ROOT.get() or message["status"] == 307):
                    said = [(name, _below_root(value) if name == b"location" else value) for name, value in said]
                message["headers"] = said + [header for header in headers if header[0] not in names]
            await send(message)

        began = time.perf_counter()
        try:
            self._check_source(scope)
            path = scope["path"]
            if path in PUBLIC or path.startswith("/static/"):
                await self._app(scope, receive, hardened)
                return
            grant = self._identity.of(scope, await self._login(scope))
            if grant is None:
                await _challenge(Request(scope))(scope, receive, hardened)
                return
            if grant.kind in (Kind.SESSION, Kind.LOGIN):
                _check_csrf(scope, grant)
            await self._serve(grant, scope, receive, hardened)
        except ClientDisconnect:
            return  # there is no one to answer
        except Exception as error:
            self._note(error, scope)
            await _answer_error(error, scope, receive, hardened)
        finally:
            self._state.answers.add(scope, scope.get(STATUS, 499), time.perf_counter() - began)

    async def _serve(self, grant: Grant, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request until its grant ends."""
        try:
            taken = self._clients.acquire(grant.user)
        except AccessError as error:
            text = "user '%s' cannot sign in: %s"
            log.warning(text, grant.user, error, extra=logs.event("no-key", user=grant.user))
            raise HTTPProblem(403, "this user cannot sign in; contact the administrator") from error
        task = asyncio.current_task()
        assert task is not None
        grant.tasks.add(task)
        kind = grant.kind
        scope["state"]["visitor"] = visitor = Visitor(
            grant.user,
            taken.client,
            grant.csrf,
            kind is not Kind.TOKEN,
            self._identity.source_of(scope, grant),
        )
        way = "http" if is_for_programs(scope) else "page"
        via = VIA.set(f"{way} {visitor.source}".rstrip() if visitor.source or self._identity.is_open else "")
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not grant.ended:
                raise
            task.uncancel()
            if STATUS in scope:  # ends a stream; an answer with a Content-Length is truncated
                with suppress(RuntimeError):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            raise unauthorized("this session has ended; sign in again") from None
        except ClientDisconnect:
            return
        except Exception as error:
            fault = error
            if taken.closed and isinstance(error, TitanicError | HTTPProblem):
                what, fact = "the connection to the server was closed", "its key changed, or this gateway is stopping"
                fault = HTTPProblem(503, f"{what}; {fact}; try again", headers={"Retry-After": "5"})
            self._note(fault, scope, grant.user)
            await _answer_error(fault, scope, receive, send)
        finally:
            VIA.reset(via)
            release_body(scope)
            grant.tasks.discard(task)
            self._clients.release(taken)
            if scope["method"] not in SAFE:
                _log_action(scope, visitor)

    def _note(self, error: Exception, scope: Scope, user: str = "") -> None:
        """Note what this gateway refuses, for the audit. The server notes what it refuses itself."""
        if isinstance(error, HTTPProblem) and error.status in (401, 403):
            path = scope["path"][:300].encode("unicode_escape").decode("ascii")
            self._identity.refused(scope, "login" if error.status == 401 else f"{scope['method']} {path}", user)

    async def _login(self, scope: Scope) -> str | None:
        """The name of the visitor that the host, or a trusted proxy, knows; None: neither does."""
        if self._state.login is not None:
            return await self._state.login(scope)
        name, is_own = (self._settings.login_header or "").encode(), CERTIFICATE in scope["state"]
        address = (scope.get("client") or ("",))[0]  # other servers may have it from a header
        if not is_own or name not in headers_of(scope) or not self._settings.trusts(address):
            return None
        if is_repeated(scope, name):
            raise HTTPProblem(400, f"the header {name.decode()} is given twice; the proxy must replace it, not add one")
        return headers_of(scope)[name].decode(errors="replace") or None

    def _check_host_application(self, scope: Scope) -> None:
        """Check what the application that has mounted this one must do. Raises HTTPProblem."""
        if not self._state.running:
            what, fact = "this gateway does not run", "the application that has mounted it did not start it"
            raise HTTPProblem(503, f"{what}; {fact}; run Gateway.lifespan in that application's lifespan")
        address = (scope.get("server") or ("an unknown address",))[0]
        if self._identity.is_open and not is_loopback(address):
            what, fact = "this gateway has no access file", f"other machines may reach {address}"
            raise HTTPProblem(403, f"{what}; {fact}; give it `access` and `keys`, or listen on a loopback address")

    def _check_source(self, scope: Scope) -> None:
        found = headers_of(scope)
        host = b"" if is_repeated(scope, b"host") else found.get(b"host", b"")
        if host not in self._hosts:
            self._check_host(host, scope)
        foreign = found.get(b"sec-fetch-site", b"none") not in OWN
        if scope["method"] in SAFE:
            if foreign and header_of(scope, b"sec-fetch-mode") != "navigate":
                raise HTTPProblem(403, "cross-origin request rejected; only this site's own pages may load this")
        elif foreign or (b"origin" in found and found[b"origin"].partition(b"://")[2].partition(b"/")[0] != host):
            raise HTTPProblem(
                403, "cross-origin request rejected; changes are accepted from this site's own pages only"
            )

    def _check_host(self, given: bytes, scope: Scope) -> None:
        """Raise HTTPProblem unless the host is one of --host, or the address that the client connected to."""
        host = given.decode("latin-1")
        match = HOST.fullmatch(host)
        name = match[1].strip("[]").lower() if match is not None else ""
        settings = self._settings
        address = (scope.get("server") or ("", 0))[0]
        own = name != "" and (name in settings.hosts or name == address or name == settings.bind[0].strip("[]"))
        if not own and not (is_loopback(name) and is_loopback(settings.bind[0])):
            what = f"{host[:200]!r} is not a name of this gateway"
            raise HTTPProblem(403, f"{what}; use its address, or start it with --host {name or 'NAME'}")
        if len(self._hosts) < MAX_HOSTS:
            self._hosts.add(given)


def _below_root(location: bytes) -> bytes:
    """A redirection to a path below the root. Starlette's to a path without its last slash begin with the scheme and
    host of this connection, which may be those of a proxy, but not of the browser."""
    return ROOT.get().encode() + b"/" + re.sub(rb"^(https?://[^/]*)?/*", b"", location)


async def _answer_error(error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer an error, unless the answer has started. Unexpected ones are raised again, for the log."""
    if STATUS in scope:
        raise error
    request = Request(scope)
    problem = _problem_of(error, request)
    response = (
        PlainTextResponse("Internal Server Error", 500) if problem is None else problem_response(request, problem)
    )
    await response(scope, receive, send)
    if problem is None:
        raise error


def _problem_of(error: Exception, request: Request) -> HTTPProblem | None:
    """The problem that an error is reported as; None: it is unexpected."""
    if isinstance(error, HTTPProblem):
        return error
    if isinstance(error, TitanicError):
        return problems.of(error)
    if not isinstance(error, HTTPException):
        return None
    detail = error.detail
    if error.status_code == 404:
        programs = "no such endpoint; /v1/openapi.json describes all of them"
        detail = programs if is_for_programs(request.scope) else ""
    elif error.status_code == 405:
        detail = f"this address does not allow {request.method}; open the page and use its forms"
    return HTTPProblem(error.status_code, detail, headers=dict(error.headers or {}))


def _check_csrf(scope: Scope, grant: Grant) -> None:
    """Check the CSRF token of API calls with a session or a login; forms are checked where they are read."""
    if scope["method"] in SAFE or not is_for_programs(scope):
        return
    given = header_of(scope, b"x-csrf-token")
    if not hmac.compare_digest(given.encode(), grant.csrf.encode()):
        what, fact = "nothing was changed", "a call of a session or a login needs its CSRF token in X-CSRF-Token"
        raise HTTPProblem(403, f"{what}: {fact}; send a bearer token instead, or call from a page")


def _challenge(request: Request) -> Response:
    """Answer a request without credentials: 401 for the API, the sign-in page for browsers."""
    if is_for_programs(request.scope):
        return problem_response(request, unauthorized("sign in; send: Authorization: Bearer TOKEN"))
    if request.method not in SAFE:
        return RedirectResponse("/login", 303)
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse("/login" if path == "/" else f"/login?next={quote(path, safe='/')}", 303)


def _log_action(scope: Scope, visitor: Visitor) -> None:
    """Log a change: the user, the action and the requests. API calls, of which there may be thousands a second, are
    logged at debug level."""
    path = scope["path"]
    level = logging.DEBUG if is_for_programs(scope) and not path.startswith("/v1/hooks") else logging.INFO
    if not log.isEnabledFor(level):
        return
    shown = path[:300].encode("unicode_escape").decode("ascii")
    about = scope["state"].get("about", "")
    actor = f"user '{visitor.user}'" if visitor.user else "anonymous"
    extra = logs.event("action", user=visitor.user, action=f"{scope['method']} {shown}") | logs.COUNTED
    about, status = f" ({about})" if about else "", scope.get(STATUS, 0)
    log.log(level, "%s: %s %s%s: %d", actor, scope["method"], shown, about, status, extra=extra)
