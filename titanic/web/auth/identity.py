"""Who asks: a bearer token, a session that began with one, or a client's certificate, of a user of the access file.

Without an access file everybody is the same visitor.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from titanic import logs
from titanic.aio import Client
from titanic.web.auth.clients import ANYBODY
from titanic.web.auth.grants import Grant, Kind, Sessions
from titanic.web.auth.known_users import KnownUsers
from titanic.web.auth.refusals import Refusals
from titanic.web.auth.session_secret import SessionSecret
from titanic.web.fields import field, fields, several
from titanic.web.problems import Problem
from titanic.web.settings import WebSettings

log = logging.getLogger("titanic.web")

CERTIFICATE = "certificate"
"""Of a scope's state: the SHA-256 of the client's certificate, in hexadecimal digits; `protocol.py` puts it there."""


COOKIE = re.compile(r"(__Host-)?titanic-\d{1,5}")
"""The names of the cookies of sessions, at any port."""


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

    def __init__(self, settings: WebSettings, *, clock: Callable[[], float] = time.time) -> None:
        """Raises broker.AccessError for an access file with a fault, and CallerError for a secret with one. `clock`:
        that of other gateways, too."""
        self._clock = clock
        self._known: KnownUsers | None = None
        if settings.access is not None and settings.keys is not None:
            self._known = KnownUsers(settings.access, settings.keys)
            self._known.warn_of_keyless()
        self._secret = SessionSecret(settings.session_secret)
        self._anybody = Grant(ANYBODY, Kind.NOTHING)
        self._shown: dict[tuple[Kind, str], Grant] = {}
        """Of tokens and certificates that were shown before: their requests end with them."""
        self._sign(self._anybody)
        self.sessions = Sessions(self._secret)
        self._refusals = Refusals()
        self._secure = settings.is_https
        self._cookie = f"{'__Host-' if self._secure else ''}titanic-{settings.bind[1]}"
        """The port is in it: browsers send a cookie to all ports of a machine. That of another gateway is good if it
        has the same secret."""

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
        for cookie in self._cookies(scope).values():
            grant = self.sessions.find(cookie, self._clock())
            if grant is not None and self._known.holds(grant):
                return grant
        if fingerprint := scope.get("state", {}).get(CERTIFICATE, ""):
            grant = self._same(self._known.by_certificate(fingerprint))
            if grant is None:
                text = "refused %s: no user has its certificate, sha256:%s"
                log.warning(text, _address(scope), fingerprint, extra=logs.event("refused-login"))
            return grant
        return None

    def _cookies(self, scope: Scope) -> Mapping[str, str]:
        """The cookies of a request that may be of sessions."""
        if b"cookie" not in fields(scope):
            return {}
        given = Request(scope).cookies
        names = [name for name in given if COOKIE.fullmatch(name) and name.startswith("__Host-") == self._secure]
        return {name: given[name] for name in sorted(names, key=self._cookie.__ne__)}  # that of our port first

    def _sign(self, grant: Grant) -> None:
        """Make what the forms carry of who has no session."""
        grant.csrf = self._secret.sign(f"csrf:{grant.kind.value}:{grant.user}:{grant.proof}")

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
            self._sign(grant)
        return found

    def log_in(self, scope: Scope, token: str) -> str:
        """The cookie of a new session for who has this token. Raises Problem, with the same words whatever is wrong."""
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
        cookie = self.sessions.begin(grant.user, grant.proof, now)
        log.info("user '%s' logged in from %s", grant.user, address, extra=logs.event("login", user=grant.user))
        return cookie

    def log_out(self, request: Request, response: Response) -> None:
        """End the sessions of a request, and have the browser forget them."""
        now = self._clock()
        for name, cookie in self._cookies(request.scope).items():
            if self.sessions.find(cookie, now) is not None:
                self.sessions.end(cookie, now)
                self.set_cookie(response, "", name)

    def set_cookie(self, response: Response, value: str, name: str = "") -> None:
        """Have a browser keep a cookie, if none is named that of its session; without a value, forget it."""
        response.set_cookie(
            name or self._cookie,
            value,
            max_age=None if value else 0,
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="lax",  # with links from elsewhere, too; no GET changes anything
        )

    def look(self, *, always: bool = False) -> bool:
        """End sessions whose time is over, and what goes on by a token or certificate that the access file does not
        have any more; whether that file was read again. To be called in the loop, often; `always`: read the file
        though it looks as before."""
        if self._secret.look():
            for grant in (self._anybody, *self._shown.values()):
                self._sign(grant)
        self.sessions.sweep(self._clock())
        changed = self._known is not None and self._known.look(always=always)
        if self._known is not None and changed:
            for grant in [*self.sessions, *self._shown.values()]:
                if not self._known.holds(grant):
                    grant.end()
            self._shown = {shown: grant for shown, grant in self._shown.items() if not grant.ended}
        return changed


def unauthorized(detail: str) -> Problem:
    """Who asks has shown nothing that lets him in."""
    return Problem(401, detail, headers={"WWW-Authenticate": 'Bearer realm="titanic"'})


def _address(scope: Scope) -> str:
    """Where a request comes from: the peer of its connection, whatever its headers say."""
    client = scope.get("client")
    return str(client[0]) if client else "an unknown address"
