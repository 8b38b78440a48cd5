"""Who asks: a bearer token, a session that began with one, or a client's certificate, of a user of the access file.

Without an access file everybody is the same visitor.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from titanic import logs
from titanic.aio import Client
from titanic.web.fields import field, fields, several
from titanic.web.problems import Problem
from titanic.web.settings import WebSettings
from titanic.web.visitors.clients import ANYBODY
from titanic.web.visitors.grants import Grant, Kind, Sessions
from titanic.web.visitors.known_users import KnownUsers
from titanic.web.visitors.refusals import Refusals

log = logging.getLogger("titanic.web")

CERTIFICATE = "certificate"
"""Of a scope's state: the SHA-256 of the client's certificate, in hexadecimal digits; `protocol.py` puts it there."""


class Visitor(NamedTuple):
    """Who asks. `user`: his name in the access file, or ANYBODY. `csrf`: what his forms carry."""

    user: str
    client: Client
    csrf: str
    needs_csrf: bool = True
    """False for who shows a bearer token."""
    can_log_out: bool = False


class Identity:
    """Tells who asks, lets them log in and out, and ends what goes on by something that is not in force any more."""

    def __init__(self, settings: WebSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises broker.AccessError for an access file with a fault."""
        self._clock = clock
        self._known: KnownUsers | None = None
        if settings.access is not None and settings.keys is not None:
            self._known = KnownUsers(settings.access, settings.keys)
            self._known.warn_of_keyless()
        self._anybody = Grant(ANYBODY, Kind.NOTHING)
        self._shown: dict[tuple[Kind, str], Grant] = {}
        """Of tokens and certificates that were shown before: their requests end with them."""
        self.sessions = Sessions()
        self._refusals = Refusals()
        self._secure = settings.is_https
        self._cookie = f"{'__Host-' if self._secure else ''}titanic-{settings.bind[1]}"
        """The port is in it: browsers send a cookie to all ports of a machine."""

    def __str__(self) -> str:
        return str(self._known) if self._known is not None else "without access control"

    @property
    def is_open(self) -> bool:
        """Whether nobody logs in here."""
        return self._known is None

    def of(self, scope: Scope) -> Grant | None:
        """What lets the sender of a request in; None: nothing. Raises Problem when what he shows is wrong."""
        if self._known is None:
            return self._anybody
        if b"authorization" in fields(scope):
            return self._by_token(scope)
        if (number := self._number(scope)) and (grant := self.sessions.find(number, self._clock())):
            return grant
        if fingerprint := scope.get("state", {}).get(CERTIFICATE, ""):
            grant = self._same(self._known.by_certificate(fingerprint))
            if grant is None:
                text = "refused %s: no user has its certificate, sha256:%s"
                log.warning(text, _address(scope), fingerprint, extra=logs.event("refused-login"))
            return grant
        return None

    def _number(self, scope: Scope) -> str | None:
        """The number of a request's session, if it has one."""
        return Request(scope).cookies.get(self._cookie) if b"cookie" in fields(scope) else None

    def _by_token(self, scope: Scope) -> Grant:
        scheme, _, token = field(scope, b"authorization").partition(" ")
        if several(scope, b"authorization") or scheme.lower() != "bearer":
            raise unauthorized("this is not one bearer token; send: Authorization: Bearer TOKEN")
        assert self._known is not None
        grant = self._same(self._known.by_token(token.strip()))
        if grant is None:
            log.warning("refused %s: no user has its token", _address(scope), extra=logs.event("refused-login"))
            raise unauthorized("no user has this bearer token; `titanic keys token` makes one")
        return grant

    def _same(self, grant: Grant | None) -> Grant | None:
        """The grant of before, which knows the requests that go on, if it is the same."""
        if grant is None:
            return None
        found = self._shown.get((grant.kind, grant.proof))
        if found is None or found.ended or found.user != grant.user:
            found = self._shown[grant.kind, grant.proof] = grant
        return found

    def log_in(self, scope: Scope, token: str) -> str:
        """A new session for who has this token; its number. Raises Problem, with the same words whatever is wrong."""
        assert self._known is not None
        address, now = _address(scope), self._clock()
        grant = self._known.by_token(token.strip())
        if grant is None:
            # Only wrong tokens wait: behind a proxy, all users come from one address.
            if (wait := self._refusals.wait(address, now)) > 0:
                text = "too many log-ins were refused from where you are; try again later"
                raise Problem(429, text, headers={"Retry-After": str(int(wait) + 1)})
            self._refusals.note(address, now)
            log.warning("refused %s: no user has its token", address, extra=logs.event("refused-login"))
        if grant is None or not self._known.has_key(grant.user):
            raise Problem(403, "nobody can log in with this token; copy it again, or ask who runs this Titanic")
        number = self.sessions.begin(grant.user, grant.proof, now)
        log.info("user '%s' logged in from %s", grant.user, address, extra=logs.event("login", user=grant.user))
        return number

    def log_out(self, request: Request) -> None:
        """End the session of a request, if it has one."""
        if number := self._number(request.scope):
            self.sessions.end(number)

    def set_cookie(self, response: Response, number: str) -> None:
        """Have a browser keep the number of its session; without one, forget it."""
        response.set_cookie(
            self._cookie,
            number,
            max_age=None if number else 0,
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="strict",
        )

    def look(self, *, always: bool = False) -> bool:
        """End sessions whose time is over, and what goes on by a token or certificate that the access file does not
        have any more; whether that file was read again. To be called in the loop, often; `always`: read the file
        though it looks as before."""
        self.sessions.sweep(self._clock())
        changed = self._known is not None and self._known.look(always=always)
        if self._known is not None and changed:
            for grant in [*self.sessions, *self._shown.values()]:
                if not self._known.holds(grant):
                    grant.end()
            self._shown = {shown: grant for shown, grant in self._shown.items() if not grant.ended}
            self.sessions.sweep(self._clock())
        return changed


def unauthorized(detail: str) -> Problem:
    """Who asks has shown nothing that lets him in."""
    return Problem(401, detail, headers={"WWW-Authenticate": 'Bearer realm="titanic"'})


def _address(scope: Scope) -> str:
    """Where a request comes from: the peer of its connection, whatever its headers say."""
    client = scope.get("client")
    return str(client[0]) if client else "an unknown address"
