"""Log in by token, and out."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from titanic.web.gateway import gateway_of
from titanic.web.pages import forms
from titanic.web.problems import Problem

MOST_BYTES = 8 << 10
"""Of a form with a token."""

LOCAL = re.compile(r"/(?![/\\])[!-\[\]-~]{0,2000}")
"""A path of ours: nothing that a browser would take for another machine, and no backslash, which is a slash to it."""


async def log_in(request: Request) -> Response:
    """GET: the form. POST: a new session for who has the token in it, and on to where he wanted to go."""
    gateway = gateway_of(request)
    if gateway.identity.is_open:
        return RedirectResponse("/", 303)
    if request.method != "POST":
        return gateway.page(request, "login.html", next=local(request.query_params.get("next", "")), refused="")
    fields = dict(parse_qsl(await _body(request)))
    onward = local(fields.get("next", ""))
    try:
        cookie = gateway.identity.log_in(request.scope, fields.get("token", ""))
    except Problem as problem:
        page = gateway.page(request, "login.html", problem.status, next=onward, refused=problem.detail)
        page.headers.update(problem.headers)
        return page
    answer = RedirectResponse(onward, 303)
    gateway.identity.log_out(request, answer)  # the session of before, if there was one, is not taken over
    gateway.identity.set_cookie(answer, cookie)
    return answer


async def log_out(request: Request) -> Response:
    """End the session."""
    await forms.read(request)
    identity = gateway_of(request).identity
    answer = RedirectResponse("/login", 303)
    identity.log_out(request, answer)
    return answer


def local(path: str) -> str:
    """A path of ours to go on to, whatever was asked for."""
    found = urlsplit(path) if LOCAL.fullmatch(path) else None
    return path if found is not None and not found.netloc and found.path not in ("/login", "/logout") else "/"


async def _body(request: Request) -> str:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != forms.TYPE:
        raise Problem(415, f"this takes a form, {forms.TYPE}; log in at /login")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise Problem(413, "this is no token; it is too long")
    return body.decode(errors="replace")


ROUTES = [
    Route("/login", log_in, methods=["GET", "POST"]),
    Route("/logout", log_out, methods=["POST"]),
]
