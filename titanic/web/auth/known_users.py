"""Who may come in, as the access file says; it is read again when it changes.

Tokens and certificates are looked up by their SHA-256. Whoever measures how long that takes learns something of a hash
that he cannot choose, and nothing of a token.
"""

from __future__ import annotations

import logging
from pathlib import Path

from broker import Access, AccessError, hash_token, load_access, load_secret
from titanic import logs
from titanic.util.files import state_of
from titanic.util.text import counted
from titanic.web.auth.grants import Grant, Kind

log = logging.getLogger("titanic.web")

LONGEST_TOKEN = 512
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
        if not 0 < len(token) <= LONGEST_TOKEN:
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
