"""Who asks: a bearer token, a session that began with one, or a client's certificate, of a user of the access file.

Without an access file everybody is the same visitor.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from broker import Access, AccessError, hash_token, load_access, load_secret
from titanic import logs
from titanic.aio import Client
from titanic.util.files import state_of
from titanic.util.text import counted
from titanic.web.auth.clients import ANYBODY
from titanic.web.auth.sessions import Grant, Kind, Sessions, SessionSecret
from titanic.web.problems import Problem
from titanic.web.request_headers import header_of, headers_of, is_repeated
from titanic.web.settings import WebSettings

log = logging.getLogger("titanic.web")

MAX_TOKEN = 512
"""Characters; what is longer is none of ours."""


class KnownUsers:
    """The access file, and which of its users have a key here."""

    def __init__(self, path: Path, keys: Path) -> None:
        """Raises broker.AccessError for a file with a fault."""
        self._path = path
        self._keys = keys
        self._state = self._seen = state_of(path)
        self._access = load_access(path)

    def __str__(self) -> str:
        return f"access control on, {counted(len(self._by_secret()), 'user')}"

    def warn_of_keyless(self) -> None:
        """Log those who have a token or a certificate, but no key by which they could be served."""
        for user in sorted(self._by_secret()):
            self.has_key(user)

    def has_key(self, user: str) -> bool:
        """Whether a user can be served; the log says why not."""
        path = self.key_of(user)
        try:
            load_secret(path)
        except AccessError as error:
            text = "user '%s' cannot come in: %s"
            log.warning(text, user, error, extra=logs.event("no-key", user=user))
            return False
        return True

    def key_of(self, user: str) -> Path:
        """The secret key file of a user. His name has no slash in it, by what names are."""
        return self._keys / f"{user}.key_secret"

    def by_token(self, token: str) -> Grant | None:
        """What a bearer token gives."""
        if not 0 < len(token) <= MAX_TOKEN:
            return None
        found = hash_token(token).removeprefix("sha256:")
        user = self._access.tokens.get(found)
        return Grant(user.name, Kind.TOKEN, found) if user is not None else None

    def by_certificate(self, fingerprint: str) -> Grant | None:
        """What a client's certificate gives, by the SHA-256 of its DER in hexadecimal digits."""
        user = self._access.certificates.get(fingerprint)
        return Grant(user.name, Kind.CERTIFICATE, fingerprint) if user is not None else None

    def holds(self, grant: Grant) -> bool:
        """Whether the file still says so."""
        proofs = self._access.certificates if grant.kind is Kind.CERTIFICATE else self._access.tokens
        user = proofs.get(grant.proof)
        return user is not None and user.name == grant.user

    def look(self, *, always: bool = False) -> bool:
        """Read the file if it is another one than before, or `always`; whether it was taken over. One with a fault is
        not, and what was read before stays in force. Nor is one that has changed since the last look: somebody may be
        writing it, and half of it would end the sessions of those in the other half."""
        before, self._seen = self._seen, state_of(self._path)
        if not always and (self._seen == self._state or self._seen != before):
            return False
        self._state = self._seen
        try:
            access = load_access(self._path)
        except AccessError as error:
            fault = str(error).replace("\n", " | ")
            text = "not reloaded, who could come in still can: %s"
            log.error(text, fault, extra=logs.event("reload-refused"))
            return False
        self._access = access
        log.info("%s read again: %s", self._path, self, extra=logs.event("access-reloaded"))
        self.warn_of_keyless()
        return True

    def _by_secret(self) -> set[str]:
        known: Access = self._access
        return {user.name for found in (known.tokens, known.certificates) for user in found.values()}


REFUSED_BURST, REFUSED_INTERVAL = 10, 6.0
"""So many at once, and one more each so many seconds."""

MAX_ADDRESSES = 10_000
"""Addresses that are remembered; a new one then takes the place of the oldest."""


class LoginThrottle:
    """A bucket for each address that fills with refusals and empties with time."""

    def __init__(self) -> None:
        self._filled: dict[str, float] = {}
        """When the bucket of an address will be empty; the one refused last is the last."""

    def wait(self, address: str, now: float) -> float:
        """Seconds until somebody from there may try again; 0: now."""
        empty = self._filled.get(_network_of(address), now)
        return max(0.0, empty - now - (REFUSED_BURST - 1) * REFUSED_INTERVAL)

    def note(self, address: str, now: float) -> None:
        """One from there was refused."""
        name = _network_of(address)
        empty = max(now, self._filled.pop(name, now))
        if len(self._filled) >= MAX_ADDRESSES:
            del self._filled[next(iter(self._filled))]
        self._filled[name] = empty + REFUSED_INTERVAL


def _network_of(address: str) -> str:
    """Of an IPv6 address its /64, which is what one customer has."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64))) if found.version == 6 else address


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
        self._throttle = LoginThrottle()
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
        if b"authorization" in headers_of(scope):
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
        if b"cookie" not in headers_of(scope):
            return {}
        given = Request(scope).cookies
        names = [name for name in given if COOKIE.fullmatch(name) and name.startswith("__Host-") == self._secure]
        return {name: given[name] for name in sorted(names, key=self._cookie.__ne__)}  # that of our port first

    def _sign(self, grant: Grant) -> None:
        """Make what the forms carry of who has no session."""
        grant.csrf = self._secret.sign(f"csrf:{grant.kind.value}:{grant.user}:{grant.proof}")

    def _by_token(self, scope: Scope) -> Grant:
        scheme, _, token = header_of(scope, b"authorization").partition(" ")
        if is_repeated(scope, b"authorization") or scheme.lower() != "bearer":
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
            if (wait := self._throttle.wait(address, now)) > 0:
                text = "too many log-ins were refused from where you are; try again later"
                raise Problem(429, text, headers={"Retry-After": str(int(wait) + 1)})
            self._throttle.note(address, now)
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
