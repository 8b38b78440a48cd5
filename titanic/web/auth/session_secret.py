"""What sessions and forms are signed with: a secret in a file that gateways share. Beside it, in FILE.ended, are the
sessions that ended by log-out: their cookies would be good until their time is over."""

from __future__ import annotations

import fcntl
import hmac
import logging
import os
import re
import secrets
from base64 import urlsafe_b64encode
from contextlib import suppress
from pathlib import Path

from titanic import logs
from titanic.errors import CallerError
from titanic.util.files import state_of

log = logging.getLogger("titanic.web")

SECRET = re.compile(r"[!-~]{32,512}")

MOST = 2
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
            _make(path)
        self.keys = _read(path)
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
            self.keys = _read(self._path)
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
                _written(folder, lines).replace(self._ended_path)
                os.fsync(lock)
            finally:
                os.close(lock)
        except OSError as error:
            text = "a log-out could not be kept in %s: %s; the session goes on at other gateways, and after a restart"
            log.error(text, self._ended_path, error.strerror, extra=logs.event("log-out-not-kept"))


def _make(path: Path) -> None:
    """Make a new secret, unless another gateway does at the same moment. It is never there half."""
    try:
        temporary = _written(path.parent, secrets.token_urlsafe(32) + "\n")
        with suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
    except OSError as error:
        what, fact = "cannot make the secret of sessions", f"{path}: {error.strerror}"
        raise CallerError(what, fact, "name a file in a folder that this may write to: --session-secret") from error


def _written(folder: Path, text: str) -> Path:
    """A new file that nobody else may read."""
    path = folder / f".{secrets.token_hex(8)}"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, text.encode())
        os.fsync(file)
    finally:
        os.close(file)
    return path


def _read(path: Path) -> tuple[bytes, ...]:
    what = "cannot use the secret of sessions"
    try:
        with path.open("rb") as file:
            mode, lines = os.fstat(file.fileno()).st_mode, file.read(4096).decode(errors="replace").split()
    except OSError as error:
        raise CallerError(what, f"{path}: {error.strerror}", "name another file: --session-secret") from error
    if mode & 0o077:
        raise CallerError(what, f"others may read or change {path} (mode {mode & 0o7777:04o})", f"chmod 600 {path}")
    if not 0 < len(lines) <= MOST or not all(map(SECRET.fullmatch, lines)):
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
