"""Authentication: a bearer token, a session that was opened with one, or a client certificate of a user in the access
file. Without an access file all visitors are the same user.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from broker import Access, AccessError, User, hash_token, load_access, load_secret
from titanic import logs
from titanic.aio import Client
from titanic.facts.audit import Audit
from titanic.util.clock import elapsed
from titanic.util.files import state_of
from titanic.util.text import counted, quoted
from titanic.web.auth.clients import ANYBODY
from titanic.web.auth.sessions import Grant, Kind, Sessions, SessionSecret
from titanic.web.problems import HTTPProblem
from titanic.web.request_headers import CERTIFICATE, ROOT, header_of, headers_of, is_repeated
from titanic.web.settings import WebSettings

log = logging.getLogger("titanic.web")

MAX_TOKEN = 512
"""Maximum length of a token."""


class KnownUsers:
    """The users of the access file, and their keys at this gateway."""

    def __init__(self, path: Path, keys: Path) -> None:
        """Raises broker.AccessError for a file with a fault."""
        self._path = path
        self._keys = keys
        self._state = self._seen = state_of(path)
        self._access = load_access(path)

    def __str__(self) -> str:
        return f"access control on, {counted(len(self._by_secret()), 'user')}"

    def warn_of_keyless(self) -> None:
        """Log users that have a token, a certificate or a login, but no usable key."""
        for user in sorted(self._by_secret()):
            self.has_key(user)

    def has_key(self, user: str) -> bool:
        """Whether a user's key is usable; logs why not."""
        path = self.key_of(user)
        try:
            load_secret(path)
        except AccessError as error:
            text = "user '%s' cannot sign in: %s"
            log.warning(text, user, error, extra=logs.event("no-key", user=user))
            return False
        return True

    def find(self, name: str) -> User | None:
        """The user of this name."""
        return self._access.users.get(name)

    def key_of(self, user: str) -> Path:
        """The secret key file of a user. Names of users cannot contain a slash."""
        return self._keys / f"{user}.key_secret"

    def by_token(self, token: str) -> Grant | None:
        """The grant of a bearer token; None: unknown."""
        if not 0 < len(token) <= MAX_TOKEN:
            return None
        found = hash_token(token).removeprefix("sha256:")
        user = self._access.tokens.get(found)
        return self._grant(user, Kind.TOKEN, found)

    def by_certificate(self, fingerprint: str) -> Grant | None:
        """The grant of a client certificate, by the hexadecimal SHA-256 of its DER; None: unknown."""
        user = self._access.certificates.get(fingerprint)
        return self._grant(user, Kind.CERTIFICATE, fingerprint)

    def by_login(self, login: str) -> Grant | None:
        """The grant of a name that the host or a proxy has found; None: unknown."""
        user = self._access.logins.get(login)
        return self._grant(user, Kind.LOGIN, login)

    @staticmethod
    def _grant(user: User | None, kind: Kind, proof: str) -> Grant | None:
        if user is not None and user.is_expired(time.time()):
            text = "user '%s' has expired; set expires to a later time"
            log.warning(text, user.name, extra=logs.event("refused-login", user=user.name))
            return None
        return Grant(user.name, kind, proof) if user is not None else None

    def holds(self, grant: Grant) -> bool:
        """Whether a grant is still in the access file."""
        known = self._access
        user = {Kind.CERTIFICATE: known.certificates, Kind.LOGIN: known.logins}.get(grant.kind, known.tokens).get(
            grant.proof
        )
        return user is not None and user.name == grant.user and not user.is_expired(time.time())

    @property
    def has_expiry(self) -> bool:
        """Whether users expire."""
        return any(user.expires < math.inf for user in self._access.users.values())

    def reporter(self) -> str | None:
        """A user with the permission `gateway`, or else an admin, that has a key here; None: there is none."""
        users = [user for user in self._access.users.values() if user.gateway or user.admin]
        names = [user.name for user in sorted(users, key=lambda user: (user.admin, user.name))]
        return next((name for name in names if self.key_of(name).is_file()), None)

    def refresh(self, *, always: bool = False) -> bool:
        """Reload the file if it has changed, or `always`; return whether it is now in force. If it has an error, the
        previous one stays in force. The same holds while it is being changed: half a file would end the sessions of
        the users in the other half."""
        before, self._seen = self._seen, state_of(self._path)
        if not always and (self._seen == self._state or self._seen != before):
            return False
        self._state = self._seen
        try:
            access = load_access(self._path)
        except AccessError as error:
            fault = str(error).replace("\n", " | ")
            text = "not reloaded, the previous access file stays in force: %s"
            log.error(text, fault, extra=logs.event("reload-refused"))
            return False
        self._access = access
        log.info("%s reloaded: %s", self._path, self, extra=logs.event("access-reloaded"))
        self.warn_of_keyless()
        return True

    def _by_secret(self) -> set[str]:
        known: Access = self._access
        return {user.name for found in (known.tokens, known.certificates, known.logins) for user in found.values()}


REFUSED_BURST, REFUSED_INTERVAL = 10, 6.0
"""Rejected sign-ins allowed at once, and seconds after which one more is allowed."""

MAX_ADDRESSES = 10_000
"""Addresses that are remembered; a new one replaces the oldest."""


class LoginThrottle:
    """Limits rejected sign-ins by address: a bucket that fills with each and drains over time."""

    def __init__(self) -> None:
        self._filled: dict[str, float] = {}
        """When the bucket of each address will be empty; the most recently refused address is last."""

    def wait(self, address: str, now: float) -> float:
        """Seconds until a client from this address may try again; 0: now."""
        empty = self._filled.get(_network_of(address), now)
        return max(0.0, empty - now - (REFUSED_BURST - 1) * REFUSED_INTERVAL)

    def note(self, address: str, now: float) -> None:
        """Record a rejected sign-in from this address."""
        name = _network_of(address)
        empty = max(now, self._filled.pop(name, now))
        if len(self._filled) >= MAX_ADDRESSES:
            del self._filled[next(iter(self._filled))]
        self._filled[name] = empty + REFUSED_INTERVAL


def _network_of(address: str) -> str:
    """The /64 of an IPv6 address, which usually belongs to one customer; other addresses as they are."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64))) if found.version == 6 else address


COOKIE = r"titanic-\d{1,5}"
"""The pattern of the names of session cookies, at any port, without what `cookie_name` adds to them."""


class Visitor(NamedTuple):
    """The authenticated sender of a request. `user`: a name in the access file, or ANYBODY. `csrf`: the CSRF token of
    the visitor's forms."""

    user: str
    client: Client
    csrf: str
    needs_csrf: bool = True
    """False for requests with a bearer token."""
    source: str = ""
    """The IP address that the user may state as the source of a request; empty: none."""


class Identity:
    """Authenticates requests, signs users in and out, and ends requests when their grant is revoked."""

    def __init__(self, settings: WebSettings) -> None:
        """Raises broker.AccessError for an invalid access file, and CallerError for an invalid session secret."""
        self._known: KnownUsers | None = None
        if settings.access is not None and settings.keys is not None:
            self._known = KnownUsers(settings.access, settings.keys)
            self._known.warn_of_keyless()
        self._secret = SessionSecret(settings.session_secret)
        self._anybody = Grant(ANYBODY, Kind.NOTHING)
        self._shown: dict[tuple[Kind, str], Grant] = {}
        """The grants of tokens and certificates in use: revoking one ends its requests."""
        self._sign(self._anybody)
        self.sessions = Sessions(self._secret)
        self._throttle = LoginThrottle()
        self.audit = Audit()
        """What was refused here, until the server has it."""
        self.refusals = {"credentials": 0, "permission": 0}
        """How often, by what was lacking."""
        self._secure = settings.is_https
        self._cookie = f"titanic-{settings.bind[1]}"
        """It contains the port, because browsers send a cookie to all ports of a machine. The cookie of another gateway
        is valid if both have the same secret."""

    def __str__(self) -> str:
        return str(self._known) if self._known is not None else "without access control"

    def find(self, name: str) -> User | None:
        """The user of this name; None: there is none, or no access control."""
        return None if self._known is None else self._known.find(name)

    def reads_all(self, name: str) -> bool:
        """Whether a user may read the requests of others."""
        user = self.find(name)
        return self._known is None or (user is not None and user.reads_all)

    @property
    def is_open(self) -> bool:
        """Whether access control is off."""
        return self._known is None

    def of(self, scope: Scope, login: str | None = None) -> Grant | None:
        """The grant of a request; None: it has no credentials. `login`: the name that the host or a proxy has found,
        which comes before other credentials. Raises HTTPProblem for wrong credentials."""
        if self._known is None:
            return self._anybody
        if login is not None:
            if (grant := self._same(self._known.by_login(login))) is None:
                text = "refused %s: no user has its login, %s"
                log.warning(text, _address(scope), quoted(login), extra=logs.event("refused-login"))
                what, advice = f"no user has the login {quoted(login)}", "the administrator adds it to the access file"
                raise HTTPProblem(403, f"{what}; {advice}")
            return grant
        if b"authorization" in headers_of(scope):
            return self._by_token(scope)
        for cookie in self._cookies(scope).values():
            grant = self.sessions.find(cookie, time.time())
            if grant is not None and self._known.holds(grant):
                return grant
        if fingerprint := scope.get("state", {}).get(CERTIFICATE, ""):
            grant = self._same(self._known.by_certificate(fingerprint))
            if grant is None:
                self.refused(scope)
                text = "refused %s: no user has its certificate, sha256:%s"
                log.warning(text, _address(scope), fingerprint, extra=logs.event("refused-login"))
            return grant
        return None

    def refused(self, scope: Scope, action: str = "login", user: str = "") -> None:
        """Note a refusal for the audit. `user`: empty for an unknown one."""
        self.refusals["credentials" if action == "login" else "permission"] += 1
        self.audit.refused(user, action, _address(scope) if scope.get("client") else "")

    def reporter(self) -> str | None:
        """The user that reports refusals to the server; None: none may."""
        return ANYBODY if self._known is None else self._known.reporter()

    def source_of(self, scope: Scope, grant: Grant) -> str:
        """The IP address of the client, if the user may state it as the source of a request; else empty."""
        user = self.find(grant.user)
        if user is None or not (user.gateway or user.admin) or not scope.get("client"):
            return ""
        return _address(scope).partition("%")[0]  # without the zone of a link-local one

    def _cookies(self, scope: Scope) -> Mapping[str, str]:
        """The cookies of a request that may be session cookies."""
        if b"cookie" not in headers_of(scope):
            return {}
        given = Request(scope).cookies
        own, known = self.cookie_name(self._cookie), self.cookie_name(COOKIE)
        names = [name for name in given if re.fullmatch(known, name)]
        return {name: given[name] for name in sorted(names, key=own.__ne__)}  # the one of our port first

    def cookie_name(self, plain: str) -> str:
        """The name of a cookie below the root of the request, with the prefix that makes browsers protect it."""
        root = ROOT.get()
        return ("__Secure-" if root else "__Host-") * self._secure + plain + re.sub(r"\W", "-", root, flags=re.ASCII)

    def _sign(self, grant: Grant) -> None:
        """Set the CSRF token of a grant that is not a session."""
        grant.csrf = self._secret.sign(f"csrf:{grant.kind.value}:{grant.user}:{grant.proof}")

    def _by_token(self, scope: Scope) -> Grant:
        scheme, _, token = header_of(scope, b"authorization").partition(" ")
        if is_repeated(scope, b"authorization") or scheme.lower() != "bearer":
            raise unauthorized("the header is not a single bearer token; send: Authorization: Bearer TOKEN")
        assert self._known is not None
        grant = self._same(self._known.by_token(token.strip()))
        if grant is None:
            log.warning("refused %s: no user has its token", _address(scope), extra=logs.event("refused-login"))
            raise unauthorized("no user has this bearer token; `titanic keys token` creates one")
        return grant

    def _same(self, grant: Grant | None) -> Grant | None:
        """The grant in use for the same credentials, which knows its requests, or a new one."""
        if grant is None:
            return None
        found = self._shown.get((grant.kind, grant.proof))
        if found is None or found.ended or found.user != grant.user:
            found = self._shown[grant.kind, grant.proof] = grant
            self._sign(grant)
        return found

    def log_in(self, scope: Scope, token: str) -> str:
        """Open a session for a token and return its cookie. The text of an HTTPProblem does not say what is wrong."""
        assert self._known is not None
        address, now = _address(scope), time.time()
        grant = self._known.by_token(token.strip())
        usable = grant is not None and self._known.has_key(grant.user)
        if not usable:
            self.refused(scope, user="" if grant is None else grant.user)
        if grant is None:
            # Only wrong tokens are throttled: behind a proxy, all users have the same address.
            if (wait := self._throttle.wait(address, elapsed())) > 0:
                text = "too many failed sign-ins from your address; try again later"
                raise HTTPProblem(429, text, headers={"Retry-After": str(int(wait) + 1)})
            self._throttle.note(address, elapsed())
            log.warning("refused %s: no user has its token", address, extra=logs.event("refused-login"))
        if grant is None or not usable:
            raise HTTPProblem(403, "this token cannot sign in; copy it again, or contact the administrator")
        cookie = self.sessions.begin(grant.user, grant.proof, now)
        log.info("user '%s' logged in from %s", grant.user, address, extra=logs.event("login", user=grant.user))
        return cookie

    def log_out(self, request: Request, response: Response) -> None:
        """End the sessions of a request, and delete their cookies."""
        now = time.time()
        for name, cookie in self._cookies(request.scope).items():
            if self.sessions.find(cookie, now) is not None:
                self.sessions.end(cookie, now)
                self.set_cookie(response, "", name)

    def set_cookie(self, response: Response, value: str, name: str = "") -> None:
        """Set a cookie, by default the session's; an empty value deletes it."""
        response.set_cookie(
            name or self.cookie_name(self._cookie),
            value,
            max_age=None if value else 0,
            path=ROOT.get() or "/",
            secure=self._secure,
            httponly=True,
            samesite="lax",  # sent with links from other sites, too; no GET changes anything
        )

    def refresh(self, *, always: bool = False) -> bool:
        """End expired sessions, and requests whose token or certificate is no longer in the access file. Return
        whether that file was reloaded. Called in the loop, often. `always`: reload it even if it seems unchanged."""
        if self._secret.refresh():
            for grant in (self._anybody, *self._shown.values()):
                self._sign(grant)
        self.sessions.sweep(time.time())
        changed = self._known is not None and self._known.refresh(always=always)
        if self._known is not None and (changed or self._known.has_expiry):
            for grant in [*self.sessions, *self._shown.values()]:
                if not self._known.holds(grant):
                    grant.end()
            self._shown = {shown: grant for shown, grant in self._shown.items() if not grant.ended}
        return changed


def unauthorized(detail: str) -> HTTPProblem:
    """The problem for missing or wrong credentials."""
    return HTTPProblem(401, detail, headers={"WWW-Authenticate": 'Bearer realm="titanic"'})


def _address(scope: Scope) -> str:
    """The address of the connection's peer; headers such as X-Forwarded-For are ignored."""
    client = scope.get("client")
    return str(client[0]) if client else "an unknown address"
