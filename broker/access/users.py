"""Users, what each may do, and how the user of a connection is found.

Permissions, as the access file names them

    submit    patterns of services   store requests for them
    work      patterns of services   be a worker of them
    call      patterns of services   send them plain requests, which are not stored
    read      "own" or "all"         see requests and replies: what the user submitted, or all
    close     true                   close and purge requests that the user may read
    metrics   true                   see statistics: titanic.stats, mmi.stats, the metrics listener
    archive   true                   manage the archive (titanic-data archive)
    gateway   true                   state the IP address that requests come from (titanic web)
    audit     true                   see who acted on what, and refusals (titanic audit)
    admin     true                   everything for all users, except work and call

What is not named is not allowed. A pattern is that of a shell (`mail.*`). Services that begin with `titanic.`, `mmi.`
or `web.` are matched only by patterns that begin so, too: a user that may work for `*` cannot take over the queue's own
services.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from broker.core.json_reader import read_json
from broker.core.mdp import MAX_SERVICE

MAX_NAME = 32
"""Characters of a user's name."""

RESERVED = ("titanic.", "mmi.", "web.")
"""Prefixes of services that no pattern matches by chance: those of this software. Users that may submit to `web.`
can send signed events to webhooks."""


class Permission(Enum):
    """What a user may be allowed to do; the values are the names in the access file."""

    SUBMIT = "submit"
    WORK = "work"
    CALL = "call"
    READ = "read"
    CLOSE = "close"
    METRICS = "metrics"
    ARCHIVE = "archive"
    GATEWAY = "gateway"
    AUDIT = "audit"
    ADMIN = "admin"

    __hash__ = object.__hash__


BY_SERVICE = (Permission.SUBMIT, Permission.WORK, Permission.CALL)
"""Those that are given for services."""


FLAGS = tuple(one.value for one in Permission if one not in (*BY_SERVICE, Permission.READ))
"""The names of those that are true or false: each is a field of User."""

LATER_FLAGS = frozenset(FLAGS) - {"close", "metrics", "admin"}
"""Flags that brokers of earlier versions do not send: their absence means false."""


class Reach(Enum):
    """Which requests a user may read."""

    NONE = "none"
    OWN = "own"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class UserLimits:
    """What one user may use up; 0: without a limit."""

    waiting: int = 0
    """Requests that have not ended."""
    bytes: int = 0
    """Bytes of all that is kept: requests and replies until they are closed, idempotency keys until they end."""
    messages: int = 0
    """Requests a second, of any kind, in a bucket of one second's; and in another one as many words of workers, but
    replies and heartbeats."""
    connections: int = 0
    """Of those that have said something."""


LIMITS = tuple(one.name for one in fields(UserLimits))
"""Their names, as in the access file."""


@dataclass(frozen=True, slots=True, eq=False)
class User:
    """A user and its permissions."""

    name: str
    services: Mapping[Permission, Sequence[str]] = field(default_factory=dict)
    """Patterns of services, for those in BY_SERVICE."""
    read: Reach = Reach.NONE
    close: bool = False
    metrics: bool = False
    admin: bool = False
    limits: UserLimits = UserLimits()
    archive: bool = False
    gateway: bool = False
    audit: bool = False
    expires: float = math.inf
    """Unix time from which its keys, tokens, certificates and logins are refused."""
    owner: bytes = field(init=False)
    """The name, as stored with the requests of the user."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "owner", self.name.encode())

    def __str__(self) -> str:
        return f"user '{self.name}'" if self.name else "a connection without a user"

    @property
    def flags(self) -> list[str]:
        """The names of the FLAGS that the user has."""
        return [flag for flag in sorted(FLAGS) if getattr(self, flag)]

    def is_expired(self, now: float) -> bool:
        """Whether its keys, tokens, certificates and logins are refused at a Unix time."""
        return self.expires <= now

    def may(self, permission: Permission, service: bytes) -> bool:
        """Whether the user may submit to a service, work for it or call it."""
        if self.admin and permission is Permission.SUBMIT:
            return True
        patterns = self.services.get(permission, ())
        # What is longer is no name, and must not fill the memory of `matches`.
        return bool(patterns) and len(service) <= MAX_SERVICE and matches(tuple(patterns), service)

    def uses(self, service: bytes) -> bool:
        """Whether the user sees a service."""
        return self.admin or self.metrics or any(self.may(permission, service) for permission in BY_SERVICE)

    def reads(self, owner: bytes) -> bool:
        """Whether the user may read a request of `owner`, which is empty for requests stored before there were
        users."""
        return self.reads_all or (self.read is Reach.OWN and owner == self.owner and owner != b"")

    def closes(self, owner: bytes) -> bool:
        """Whether the user may close a request of `owner`."""
        return self.admin or (self.close and self.reads(owner))

    @property
    def reads_all(self) -> bool:
        """Whether the user may read all requests."""
        return self.admin or self.read is Reach.ALL

    def to_json(self) -> bytes:
        """All of this, for a queue that is apart from the broker: it rides in the `client` frame."""
        document: dict[str, Any] = {"user": self.name}
        for permission, patterns in self.services.items():
            document[permission.value] = list(patterns)
        document |= {"read": self.read.value, **{flag: getattr(self, flag) for flag in FLAGS}}
        document["limits"] = {name: getattr(self.limits, name) for name in LIMITS}
        return json.dumps(document, separators=(",", ":")).encode()


NOBODY = User("")
"""An unknown user, without any permission."""


@lru_cache(maxsize=1024)
def user_from_json(document: bytes) -> User:
    """The user that `to_json` encoded. Raises ValueError for anything else."""
    try:
        said = read_json(document)
        services = {permission: tuple(said[permission.value]) for permission in BY_SERVICE if permission.value in said}
        limits = UserLimits(**said["limits"])
        name, reach = said["user"], Reach(said["read"])
        rights = {flag: said[flag] for flag in FLAGS if flag in said or flag not in LATER_FLAGS}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"invalid user: {error}") from None
    texts = [name, *(pattern for patterns in services.values() for pattern in patterns)]
    counts = [getattr(limits, one) for one in LIMITS]
    if not all(isinstance(text, str) and text.isprintable() for text in texts) or len(name) > MAX_NAME:
        raise ValueError("invalid user: a name or a pattern is not a string")
    if not all(type(right) is bool for right in rights.values()) or not all(type(count) is int for count in counts):
        raise ValueError("invalid user: a permission or a limit has the wrong type")
    return User(name, services, reach, limits=limits, **rights)


@lru_cache(maxsize=16384)
def matches(patterns: tuple[str, ...], service: bytes) -> bool:
    """Whether one of the patterns is that of a service."""
    name = service.decode(errors="replace")
    begin = next((begin for begin in RESERVED if name.startswith(begin)), "")
    return any(pattern.startswith(begin) and fnmatchcase(name, pattern) for pattern in patterns)


class Access:
    """The users, by what identifies their connections. Immutable; a reload makes another one."""

    def __init__(
        self,
        users: Iterable[User] = (),
        keys: Mapping[str, User] = MappingProxyType({}),
        tokens: Mapping[str, User] = MappingProxyType({}),
        endpoints: Mapping[str, User] = MappingProxyType({}),
        uids: Mapping[str, Sequence[int]] = MappingProxyType({}),
        certificates: Mapping[str, User] = MappingProxyType({}),
        text: str = "",
        logins: Mapping[str, User] = MappingProxyType({}),
    ) -> None:
        """`keys`: users by their public keys, in Z85. `tokens`: by the SHA-256 of a bearer token, in hexadecimal
        digits. `endpoints`: connections there belong to this user, without a key; `uids`: which users may connect to
        such an `ipc://` endpoint, if not all. `certificates`: users by the SHA-256 of a client's TLS certificate (for
        `titanic web`), in hexadecimal digits. `text`: the access file that says all this. `logins`: users by what a
        proxy before `titanic web`, or an application around it, calls them."""
        self.text = text
        self.users = {user.name: user for user in users}
        self.keys = dict(keys)
        self.tokens = dict(tokens)
        self.endpoints = dict(endpoints)
        self.certificates = dict(certificates)
        self.logins = dict(logins)
        self.uids = {endpoint: tuple(allowed) for endpoint, allowed in uids.items()}
