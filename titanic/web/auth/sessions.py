"""The sessions of browsers, and the secret that signs them. A grant, of a session or of other credentials, knows the
requests that are in progress with it. When it ends, so do they: an event stream would last for hours.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

from titanic import logs
from titanic.errors import CallerError
from titanic.util.files import locked, state_of

log = logging.getLogger("titanic.web")

SECRET = re.compile(r"[!-~]{32,512}")

MAX_SECRETS = 2
"""Secrets in a file. The first one signs, and both are valid: the second is the previous one."""


class SessionSecret:
    """The secret that signs sessions, and the ended sessions. Without a file, both end with the process."""

    def __init__(self, path: Path | None) -> None:
        """Create the file if it does not exist. Raises CallerError when it cannot be used."""
        self._path = path
        self._ended_path = None if path is None else path.with_name(f"{path.name}.ended")
        self.ended: dict[str, int] = {}
        """Sessions that users signed out of, by the hash of their cookies, and when they would have expired; likewise
        for users of whom all sessions were ended."""
        self.keys: tuple[bytes, ...] = (secrets.token_bytes(32),)
        if path is None:
            return
        if not os.path.lexists(path):
            _make_secret(path)
        self.keys = _read_secrets(path)
        self._state: object = None
        self.refresh()

    def sign(self, text: str, key: bytes | None = None) -> str:
        """Sign a text with the first secret or with `key`."""
        made = hmac.digest(key or self.keys[0], text.encode(errors="replace"), "sha256")
        return urlsafe_b64encode(made).decode().rstrip("=")

    def signer(self, text: str, signature: str) -> bytes | None:
        """The secret that signed a text; None: the signature is invalid."""
        given = signature.encode(errors="replace")
        return next((key for key in self.keys if hmac.compare_digest(self.sign(text, key).encode(), given)), None)

    def refresh(self) -> bool:
        """Reload changed files; return whether they changed. An invalid secret is not used."""
        if self._path is None or self._ended_path is None:
            return False
        state = state_of(self._path), state_of(self._ended_path)
        if state == self._state:
            return False
        self._state = state
        try:
            self.keys = _read_secrets(self._path)
            self.merge(_read_ended(self._ended_path), time.time())
        except (CallerError, OSError) as error:
            text = "not reloaded, the previous session secret stays in use: %s"
            log.error(text, error, extra=logs.event("reload-refused"))
        return True

    def merge(self, found: Mapping[str, int], now: float) -> None:
        """Add ended sessions. Times of a clock that was ahead become those of now: else a user of whom all sessions
        were ended then could not sign in until that time."""
        latest = int(now) + SESSION_LIFETIME
        most = latest + CLOCK_TOLERANCE
        self.ended = {name: until if until <= most else latest for name, until in self.ended.items()}
        for name, until in found.items():
            known = self.ended.get(name, 0)
            self.ended[name] = max(until, known) if until <= most else known or latest

    def all_ended_at(self, user: str) -> int:
        """Until when sessions of a user began that were all ended."""
        return self.ended.get(_mark_of(user), 0) - SESSION_LIFETIME

    def end(self, name: str, until: int, now: float) -> None:
        """Record that a user signed out of a session."""
        self.ended = {one: end for one, end in self.ended.items() if end > now}
        self.merge({name: until}, now)
        if self._ended_path is None:
            return
        folder = self._ended_path.parent
        try:
            with locked(folder):  # other gateways write it, too
                self.merge({one: end for one, end in _read_ended(self._ended_path).items() if end > now}, now)
                lines = "".join(f"{one} {end}\n" for one, end in self.ended.items())
                _write_file(folder, lines).replace(self._ended_path)
        except OSError as error:
            text = "sign-out not recorded in %s: %s; the session stays valid on other gateways, and after a restart"
            log.error(text, self._ended_path, error.strerror, extra=logs.event("log-out-not-kept"))


def _make_secret(path: Path) -> None:
    """Create a secret, unless another gateway does at the same moment. The file is created atomically."""
    try:
        temporary = _write_file(path.parent, secrets.token_urlsafe(32) + "\n")
        with suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
    except OSError as error:
        what, fact = "cannot create the session secret", f"{path}: {error.strerror}"
        raise CallerError(what, fact, "name a file in a writable directory: --session-secret") from error


def _write_file(folder: Path, text: str) -> Path:
    """Create a file that only its owner may read."""
    path = folder / f".{secrets.token_hex(8)}"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, text.encode())
        os.fsync(file)
    finally:
        os.close(file)
    return path


def _read_secrets(path: Path) -> tuple[bytes, ...]:
    what = "cannot use the session secret"
    try:
        with path.open("rb") as file:
            mode, lines = os.fstat(file.fileno()).st_mode, file.read(4096).decode(errors="replace").split()
    except OSError as error:
        raise CallerError(what, f"{path}: {error.strerror}", "name another file: --session-secret") from error
    if mode & 0o077:
        raise CallerError(what, f"others can read or change {path} (mode {mode & 0o7777:04o})", f"chmod 600 {path}")
    if not 0 < len(lines) <= MAX_SECRETS or not all(map(SECRET.fullmatch, lines)):
        fact = f"{path} must have one line, or two, each of 32 to 512 printable ASCII characters"
        raise CallerError(what, fact, "delete it to create a new one, which ends all sessions")
    return tuple(line.encode() for line in lines)


def _read_ended(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text("ascii", "replace").splitlines()
    except FileNotFoundError:
        return {}
    found = (line.partition(" ") for line in lines)
    return {name: int(until) for name, _, until in found if until.isdecimal()}


SESSION_LIFETIME = 12 * 3600
"""Seconds after which a session ends."""

CLOCK_TOLERANCE = 300
"""Seconds by which the clock of another gateway may be ahead."""

MAX_SESSIONS = 10_000
"""Sessions that are cached as valid. Others are verified for each request."""


class Kind(Enum):
    """The kind of credentials."""

    NOTHING = "nothing"
    TOKEN = "token"
    SESSION = "session"
    CERTIFICATE = "certificate"
    LOGIN = "login"


@dataclass(slots=True, eq=False)
class Grant:
    """Permission to act as a user."""

    user: str
    kind: Kind
    proof: str = field(default="", repr=False)
    """The hash of the token or certificate, or the login; for a session, the hash of the token that opened it."""
    csrf: str = field(default="", repr=False)
    """The CSRF token of its forms."""
    began: float = 0.0
    tasks: set[asyncio.Task[Any]] = field(default_factory=set, repr=False)
    """Its requests in progress."""
    ended: bool = False

    def end(self) -> None:
        """Cancel its requests. Called in the loop."""
        self.ended = True
        for task in list(self.tasks):
            task.cancel()


class Sessions:
    """The sessions of browsers, with their requests. A session's cookie contains its user, its start and the hash of
    its token, and is signed. So it outlives the process, and is valid at all gateways with the same secret."""

    def __init__(self, secret: SessionSecret, most: int = MAX_SESSIONS) -> None:
        self._secret = secret
        self._most = most
        self._grants: dict[str, tuple[Grant, bytes]] = {}
        """By the hash of the cookie, so that no comparison depends on the cookie itself; with the secret that signed
        it."""

    def __len__(self) -> int:
        return len(self._grants)

    def __iter__(self) -> Iterator[Grant]:
        return iter([grant for grant, _ in self._grants.values()])

    def begin(self, user: str, proof: str, now: float) -> str:
        """Open a session and return its cookie. `proof`: the hash of the user's token."""
        began = max(int(now), self._secret.all_ended_at(user) + 1)
        said = f"{user}:{began}:{proof}:{secrets.token_urlsafe(16)}"
        return f"{said}:{self._secret.sign(f'session:{said}')}"

    def find(self, cookie: str, now: float) -> Grant | None:
        """The session of this cookie; None: it is invalid or has ended."""
        name = _cookie_hash(cookie)
        found = self._grants.get(name) or self._read(cookie)
        if found is None or found[0].ended or self._is_over(name, found[0], now):
            return None
        if name not in self._grants:
            if len(self._grants) >= self._most:
                self._make_room()
            self._grants[name] = found
        return found[0]

    def end(self, cookie: str, now: float) -> None:
        """End a session because its user signs out."""
        if (grant := self.find(cookie, now)) is not None:
            self._secret.end(_cookie_hash(cookie), int(grant.began) + SESSION_LIFETIME, now)
            grant.end()

    def end_all(self, user: str, now: float) -> None:
        """End all sessions of a user that began until now: with the next `sweep`."""
        self._secret.end(_mark_of(user), int(now) + SESSION_LIFETIME, now)

    def sweep(self, now: float) -> None:
        """End sessions that have expired, were ended at another gateway, or were signed with a revoked secret."""
        self._secret.merge({}, now)
        for name, (grant, key) in list(self._grants.items()):
            if self._is_over(name, grant, now) or key not in self._secret.keys:
                del self._grants[name]
                grant.end()

    def _read(self, cookie: str) -> tuple[Grant, bytes] | None:
        said, _, signature = cookie.rpartition(":")
        if (key := self._secret.signer(f"session:{said}", signature)) is None:
            return None
        user, began, proof, _ = said.split(":")
        csrf = self._secret.sign(f"csrf:{said}", key)
        return Grant(user, Kind.SESSION, proof, csrf, float(began)), key

    def _make_room(self) -> None:
        """Forget a session without requests in progress; ended ones are remembered as long as possible."""
        idle = (name for name, (grant, _) in self._grants.items() if not grant.tasks)
        forgotten = min(idle, key=self._has_ended, default="")
        self._grants.pop(forgotten, None)

    def _has_ended(self, name: str) -> bool:
        return self._grants[name][0].ended

    def _is_over(self, name: str, grant: Grant, now: float) -> bool:
        over = not -CLOCK_TOLERANCE <= now - grant.began <= SESSION_LIFETIME
        return over or name in self._secret.ended or grant.began <= self._secret.all_ended_at(grant.user)


def _mark_of(user: str) -> str:
    """What stands for all sessions of a user among those that were ended; no cookie has this hash."""
    return _cookie_hash(f"all:{user}")


def _cookie_hash(cookie: str) -> str:
    return sha256(cookie.encode(errors="replace")).hexdigest()
