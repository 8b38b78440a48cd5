"""Access control of a server: its key, and its access file, which is reloaded when it changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path

import broker
from broker import AccessError
from titanic import logs
from titanic.protocol.permissions import RULES
from titanic.util.files import state_of
from titanic.util.text import counted
from titanic.version import __version__

log = logging.getLogger("titanic")

POLL_INTERVAL = 0.1
"""Seconds after which an unchanged file is considered complete."""

MAX_POLLS = 50
"""How often it is polled before a reload fails."""


class ServerAccess:
    """The access control of a server."""

    def __init__(self, path: Path, key: Path) -> None:
        """Raises broker.AccessError for an invalid file."""
        self._path = path
        self.keys = broker.load_secret(key)
        """The server's own keys."""
        self.access = broker.load_access(path)
        self.digest = _digest(self.access)
        """A digest of the access file in force, to detect nodes with different ones."""

    def __str__(self) -> str:
        return f"access control on, {counted(len(self.access.users), 'user')}"

    def admits(self, token: str) -> bool:
        """Whether a bearer token belongs to a user that may see metrics. Any thread may call it."""
        from hmac import compare_digest  # brings OpenSSL

        found, admitted = broker.hash_token(token).removeprefix("sha256:"), False
        for known, user in self.access.tokens.items():  # in constant time, whichever token it is
            admitted |= compare_digest(known, found) & (user.metrics or user.admin) & (not user.is_expired(time.time()))
        return admitted

    def check_gathering(self, endpoints: Iterable[str]) -> None:
        """Raise AccessError for a GATHER endpoint without a user: its messages do not identify their sender."""
        for endpoint in endpoints:
            if endpoint not in self.access.endpoints:
                raise AccessError(
                    f"{self._path}: the gather endpoint {endpoint} has no user, and gathered messages do not identify"
                    f' their sender; give it a user: [endpoints."{endpoint}"] user = "NAME"'
                )
            if endpoint in self.access.uids:
                raise AccessError(
                    f'{self._path}: [endpoints."{endpoint}"] has uids, which gather cannot check; leave them out, and'
                    " restrict access by the permissions of the directory"
                )

    def warn_of_unbound(self, endpoints: Iterable[str]) -> None:
        """Log endpoints that are in the file but not bound: they may be misspelt."""
        bound = {endpoint if "://" in endpoint else f"tcp://{endpoint}" for endpoint in endpoints}
        for endpoint in self.access.endpoints.keys() - bound:
            text = '%s has [endpoints."%s"], but nothing listens there; is it spelt as in bind or gather?'
            log.warning(text, self._path, endpoint, extra=logs.event("endpoint-unknown"))

    def read_again(self) -> broker.Access:
        """Load the file, without applying it. Raises broker.AccessError, also for a file that removes the last
        administrator. Waits while the file is being written: half a file would lock out the users in the other
        half."""
        state = state_of(self._path)
        for _ in range(MAX_POLLS):
            time.sleep(POLL_INTERVAL)
            before, state = state, state_of(self._path)
            if state == before:
                break
        else:
            waited = MAX_POLLS * POLL_INTERVAL
            raise AccessError(f"{self._path}: it was still changing after {waited:g} s; reload when it is complete")
        file = broker.AccessFile(self._path)
        if _has_admin(self.access) and not _has_admin(file.access) and not file.allows_lockout:
            fact = "no user would have admin = true, so no user could administer the server"
            raise AccessError(f"{self._path}:1: {fact}; grant it to one, or set allow_lockout = true if intended")
        return file.access

    def swap(self, access: broker.Access) -> str:
        """Put an access file in force here, and log and return the changes; empty: there are none. The broker is
        reloaded separately."""
        before, self.access, self.digest = self.access, access, _digest(access)
        removed = before.users.keys() - access.users.keys()
        changes = ", ".join(_changes(before, access))
        log.log(
            logging.WARNING if removed else logging.INFO,
            "%s reloaded: %s",
            self._path,
            changes or "nothing has changed",
            extra=logs.event("access-reloaded"),
        )
        return changes


def new_broker(config: broker.BrokerConfig, control: ServerAccess | None, *, open: bool) -> broker.Broker:
    """Make a broker with or without access control."""
    if control is None:
        return broker.Broker(config, version=__version__, open=open)
    return broker.Broker(config, version=__version__, access=control.access, keys=control.keys, rules=RULES)


def _has_admin(access: broker.Access) -> bool:
    return any(user.admin for user in access.users.values())


def _changes(before: broker.Access, after: broker.Access) -> Iterable[str]:
    """The users added, removed and changed."""
    was, now = _all_about(before), _all_about(after)
    for what, names in (
        ("added", now.keys() - was.keys()),
        ("removed", was.keys() - now.keys()),
        ("changed", {name for name in was.keys() & now.keys() if was[name] != now[name]}),
    ):
        if names:
            shown = sorted(names)
            more = f" and {len(shown) - MOST_NAMES} more" if len(shown) > MOST_NAMES else ""
            yield f"{what} {' '.join(shown[:MOST_NAMES])}{more}"


def _digest(access: broker.Access) -> str:
    from hashlib import sha256  # brings OpenSSL

    return sha256(access.text.encode()).hexdigest()[:16]


MOST_NAMES = 100
"""Maximum number of users named in a log line."""


def _all_about(access: broker.Access) -> dict[str, object]:
    """Everything in a file about each user: permissions and credentials."""
    found: dict[str, list[object]] = {name: [user.to_json(), user.expires] for name, user in access.users.items()}
    for known in (access.keys, access.tokens, access.certificates, access.logins, access.endpoints):
        for by, user in sorted(known.items()):
            found[user.name].append((by, access.uids.get(by)))
    return dict(found)
