"""What lets somebody in: a bearer token, a certificate, or a session that began with a token. No clock is read here.

A grant knows the requests that go on by it. When it ends, so do they: an event stream would go on for hours.
"""

from __future__ import annotations

import asyncio
import fcntl
import hmac
import logging
import os
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

from titanic import logs
from titanic.errors import CallerError
from titanic.util.files import state_of

log = logging.getLogger("titanic.web")

SECRET = re.compile(r"[!-~]{32,512}")

MAX_SECRETS = 2
"""Secrets in a file. The first one signs, and both are valid: the second is the one of before."""


class SessionSecret:
    """The secret, and the sessions that have ended. Without a file, both end with the process."""

    def __init__(self, path: Path | None) -> None:
        """Makes the file if there is none. Raises CallerError when it cannot be used."""
        self._path = path
        self._ended_path = None if path is None else path.with_name(f"{path.name}.ended")
        self.ended: dict[str, int] = {}
        """Sessions that were logged out of, by their names, until when they would have gone on."""
        self.keys: tuple[bytes, ...] = (secrets.token_bytes(32),)
        if path is None:
            return
        if not os.path.lexists(path):
            _make_secret(path)
        self.keys = _read_secrets(path)
        self._state: object = None
        self.look()

    def sign(self, text: str, key: bytes | None = None) -> str:
        """The signature of a text, by the first secret or by `key`."""
        made = hmac.digest(key or self.keys[0], text.encode(errors="replace"), "sha256")
        return urlsafe_b64encode(made).decode().rstrip("=")

    def signer(self, text: str, signature: str) -> bytes | None:
        """The secret that has signed a text; None: it is none of these."""
        given = signature.encode(errors="replace")
        return next((key for key in self.keys if hmac.compare_digest(self.sign(text, key).encode(), given)), None)

    def look(self) -> bool:
        """Read the files if they are others than before; whether they are. A secret that cannot be used is not."""
        if self._path is None or self._ended_path is None:
            return False
        state = state_of(self._path), state_of(self._ended_path)
        if state == self._state:
            return False
        self._state = state
        try:
            self.keys = _read_secrets(self._path)
            self.ended |= _read_ended(self._ended_path)
        except (CallerError, OSError) as error:
            log.error("sessions go on with the secret of before: %s", error, extra=logs.event("reload-refused"))
        return True

    def end(self, name: str, until: int, now: float) -> None:
        """Note that a session was logged out of."""
        self.ended = {one: end for one, end in self.ended.items() if end > now} | {name: until}
        if self._ended_path is None:
            return
        folder = self._ended_path.parent
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)  # other gateways write it, too
                self.ended |= {one: end for one, end in _read_ended(self._ended_path).items() if end > now}
                lines = "".join(f"{one} {end}\n" for one, end in self.ended.items())
                _write_file(folder, lines).replace(self._ended_path)
                os.fsync(lock)
            finally:
                os.close(lock)
        except OSError as error:
            text = "a log-out could not be kept in %s: %s; the session goes on at other gateways, and after a restart"
            log.error(text, self._ended_path, error.strerror, extra=logs.event("log-out-not-kept"))


def _make_secret(path: Path) -> None:
    """Make a new secret, unless another gateway does at the same moment. It is never there half."""
    try:
        temporary = _write_file(path.parent, secrets.token_urlsafe(32) + "\n")
        with suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
    except OSError as error:
        what, fact = "cannot make the secret of sessions", f"{path}: {error.strerror}"
        raise CallerError(what, fact, "name a file in a folder that this may write to: --session-secret") from error


def _write_file(folder: Path, text: str) -> Path:
    """A new file that nobody else may read."""
    path = folder / f".{secrets.token_hex(8)}"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, text.encode())
        os.fsync(file)
    finally:
        os.close(file)
    return path


def _read_secrets(path: Path) -> tuple[bytes, ...]:
    what = "cannot use the secret of sessions"
    try:
        with path.open("rb") as file:
            mode, lines = os.fstat(file.fileno()).st_mode, file.read(4096).decode(errors="replace").split()
    except OSError as error:
        raise CallerError(what, f"{path}: {error.strerror}", "name another file: --session-secret") from error
    if mode & 0o077:
        raise CallerError(what, f"others may read or change {path} (mode {mode & 0o7777:04o})", f"chmod 600 {path}")
    if not 0 < len(lines) <= MAX_SECRETS or not all(map(SECRET.fullmatch, lines)):
        fact = f"{path} must have one line, or two, each of 32 to 512 printable ASCII characters"
        raise CallerError(what, fact, "delete it to have one made; then all sessions end")
    return tuple(line.encode() for line in lines)


def _read_ended(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text("ascii", "replace").splitlines()
    except FileNotFoundError:
        return {}
    found = (line.partition(" ") for line in lines)
    return {name: int(until) for name, _, until in found if until.isdecimal()}


SESSION_LIFETIME = 12 * 3600
"""Seconds after its log-in after which a session ends."""

CLOCK_TOLERANCE = 300
"""Seconds that the clock of another gateway may be ahead."""

MAX_SESSIONS = 10_000
"""Sessions that are known to be good. What goes on by others than these is looked at again."""


class Kind(Enum):
    """What somebody has shown."""

    NOTHING = "nothing"
    TOKEN = "token"
    SESSION = "session"
    CERTIFICATE = "certificate"


@dataclass(slots=True, eq=False)
class Grant:
    """Somebody may come in as a user."""

    user: str
    kind: Kind
    proof: str = field(default="", repr=False)
    """The hash of the token or certificate; a session has that of the token that it began with."""
    csrf: str = field(default="", repr=False)
    """What its forms carry."""
    began: float = 0.0
    tasks: set[asyncio.Task[Any]] = field(default_factory=set, repr=False)
    """The requests that go on."""
    ended: bool = False

    def end(self) -> None:
        """End what goes on by it. To be called in the loop."""
        self.ended = True
        for task in list(self.tasks):
            task.cancel()


class Sessions:
    """The sessions of browsers. The cookie of one says whose it is, when it began and by which token, and is signed: so
    it outlives the process, and is good at all gateways with the same secret. Here is what goes on by each."""

    def __init__(self, secret: SessionSecret, most: int = MAX_SESSIONS) -> None:
        self._secret = secret
        self._most = most
        self._grants: dict[str, tuple[Grant, bytes]] = {}
        """By the hashes of cookies, so that no comparison depends on a cookie itself; and what has signed it."""

    def __len__(self) -> int:
        return len(self._grants)

    def __iter__(self) -> Iterator[Grant]:
        return iter([grant for grant, _ in self._grants.values()])

    def begin(self, user: str, proof: str, now: float) -> str:
        """The cookie of a new session, of a user who has shown a token."""
        said = f"{user}:{int(now)}:{proof}:{secrets.token_urlsafe(16)}"
        return f"{said}:{self._secret.sign(f'session:{said}')}"

    def find(self, cookie: str, now: float) -> Grant | None:
        """The session of this cookie; None when there is none, or not any more."""
        name = _cookie_hash(cookie)
        found = self._grants.get(name) or self._read(cookie)
        if found is None or found[0].ended or name in self._secret.ended or _is_over(found[0], now):
            return None
        if name not in self._grants:
            if len(self._grants) >= self._most:
                self._make_room()
            self._grants[name] = found
        return found[0]

    def end(self, cookie: str, now: float) -> None:
        """Its user logs out."""
        if (grant := self.find(cookie, now)) is not None:
            self._secret.end(_cookie_hash(cookie), int(grant.began) + SESSION_LIFETIME, now)
            grant.end()

    def sweep(self, now: float) -> None:
        """End those whose time is over, that were logged out of elsewhere, or whose secret is no longer valid."""
        for name, (grant, key) in list(self._grants.items()):
            if _is_over(grant, now) or name in self._secret.ended or key not in self._secret.keys:
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
        """Forget one by which nothing goes on; those that have ended are remembered as long as possible."""
        idle = (name for name, (grant, _) in self._grants.items() if not grant.tasks)
        forgotten = min(idle, key=self._has_ended, default="")
        self._grants.pop(forgotten, None)

    def _has_ended(self, name: str) -> bool:
        return self._grants[name][0].ended


def _is_over(grant: Grant, now: float) -> bool:
    return not -CLOCK_TOLERANCE <= now - grant.began <= SESSION_LIFETIME


def _cookie_hash(cookie: str) -> str:
    return sha256(cookie.encode(errors="replace")).hexdigest()
