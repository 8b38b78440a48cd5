"""The access file: users and what each may do, in TOML.

    [roles.sender]
    submit = ["mail.*", "resize"]
    read = "own"
    close = true

    [users.shop]
    keys = ["sp0])R=zQCU9/bvY2{BuT.Zb*@u2xy2o:oBIsK+H", "shop2.key"]
    roles = ["sender"]
    limits = { waiting = 100_000, messages = 1000 }
    expires = 2027-06-30

    [users.prometheus]
    tokens = ["sha256:…"]
    certificates = ["sha256:…"]
    login = ["prometheus@example.org"]
    metrics = true

    [endpoints."ipc:///run/titanic/titanic.sock"]
    user = "shop"
    uids = [0, "www-data"]

`allow_lockout = true`, above all tables, allows a file that has no user, and one that has no administrator where the
one before had some: else a file that was emptied or cut off by mistake would lock all users out.

A key is a public one in Z85, or a file with one; relative paths begin where the access file is. A user has the
permissions of its table and of its roles: lists are added up, "all" beats "own", true beats false. A limit in its table
beats those of its roles; of those the lowest holds. After its day, in UTC, or time (2027-06-30T12:00:00+02:00),
`expires` ends the user's keys, tokens, certificates and logins, but not its endpoints. A file is taken whole or not at
all: whatever is not understood is a fault, because a permission that is misspelt might be one that was to be taken
away.
"""

from __future__ import annotations

import math
import os
import pwd
import re
import stat
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

from broker.access.keys import NAME, SECRET_SUFFIX, public_key
from broker.access.users import BY_SERVICE, FLAGS, LIMITS, Access, Permission, Reach, User, UserLimits
from broker.core.mdp import service_fault
from broker.errors import AccessError
from broker.toml_file import KeyPath, NotToml, TomlFile

MAX_BYTES = 16 * 1024 * 1024
MAX_MISTAKES = 100
"""As many are reported at once."""
MAX_LIMIT = 1 << 62
MAX_UID = (1 << 32) - 2

PATTERNS = tuple(permission.value for permission in BY_SERVICE)
OF_ROLES = (*PATTERNS, Permission.READ.value, *FLAGS, "limits")
OF_USERS = ("keys", "tokens", "roles", *OF_ROLES, "certificates", "login", "expires")
OF_ENDPOINTS = ("user", "uids")
TABLES = ("roles", "users", "endpoints")
LOCKOUT = "allow_lockout"

_LOOPBACK = re.compile(r"tcp://(localhost|127(\.\d{1,3}){3}|\[::1\]):(\d+|\*)")
"""Endpoints that are loopback's by how they are written. Whether they really are is asked when they are bound."""

Table = Mapping[str, Any]


class ProofKind(NamedTuple):
    """What a user may be known by, as the file has it: a hash, or a name."""

    field: str
    noun: str
    advice: str
    written: str = "its hash: sha256: and 64 hexadecimal digits"
    example: str = '["sha256:…"]'
    pattern: str = "sha256:([0-9a-fA-F]{64})"


TOKENS = ProofKind("tokens", "token", "`titanic keys token` creates and prints one")
CERTIFICATES = ProofKind(
    "certificates", "certificate", "`openssl x509 -in FILE -outform DER | sha256sum` prints the digits"
)
NAMES = "the name that the proxy or the application sends"
LOGINS = ProofKind(
    "login", "login", "without spaces around it", NAMES, '["ann@example.org"]', r"(\S(?:[^\x00-\x1f\x7f]*\S)?)"
)


def load_access(path: str | Path) -> Access:
    """Read an access file. Raises AccessError, with a line for each mistake: FILE:LINE: what is wrong."""
    return AccessFile(path).access


class AccessFile:
    """An access file that was read and has no fault, and the lines of what it says."""

    def __init__(self, path: str | Path, *, folder: Path | None = None, needs_users: bool = True) -> None:
        """Raises AccessError, as `load_access` does. Relative paths begin in `folder`, or where the file is;
        `needs_users`: a file without users is a fault."""
        self.path = Path(path)
        self._folder = folder or self.path.parent
        try:
            self._file = TomlFile(self.path, _read(self.path))
        except NotToml as error:
            raise AccessError(f"{error}; correct the line") from error
        self.text = text = self._file.text
        self.lines = text.split("\n")
        document = self._file.values
        self._unknown((), document, (*TABLES, LOCKOUT))
        self.allows_lockout = document.get(LOCKOUT, False)
        """Whether the file allows itself to have no users, or no administrator."""
        if not isinstance(self.allows_lockout, bool):
            self._fault((LOCKOUT,), f"[{LOCKOUT}] is {_kind(self.allows_lockout)}; it must be true or false")
        self.roles = self._tables(document, "roles")
        self.users = self._tables(document, "users")
        endpoints = self._tables(document, "endpoints")
        for name, role in self.roles.items():
            self._check_name(("roles", name), "role")
            self._check(("roles", name), role, OF_ROLES)
        for name, user in self.users.items():
            self._check_name(("users", name), "user")
            self._check(("users", name), user, OF_USERS)
            self._check_roles(("users", name, "roles"), user.get("roles", []))
            if "expires" in user and _expiry(user["expires"]) is None:
                fact = f"{_shown(('users', name, 'expires'))} is {_quoted(user['expires'])}"
                advice = "it must be a day, like 2027-06-30, or a time with its zone, like 2027-06-30T12:00:00Z"
                self._fault(("users", name, "expires"), f"{fact}; {advice}")
        keys, tokens, certificates, logins = self._keys(), *map(self._proofs, (TOKENS, CERTIFICATES, LOGINS))
        uids = {name: self._endpoint(name, endpoint) for name, endpoint in endpoints.items()}
        if needs_users and not self._file.mistakes and not document.get("users") and self.allows_lockout is False:
            fact = "there are no users, so no client or worker could connect"
            self._fault((), f"{fact}; add [users.NAME], or {LOCKOUT} = true if that is intended")
        if mistakes := self._file.mistakes:
            lines = [str(mistake) for mistake in mistakes[:MAX_MISTAKES]]
            more = len(mistakes) - MAX_MISTAKES
            raise AccessError("\n".join([*lines, f"{self.path}: and {more} more"] if more > 0 else lines))
        users = {name: self._user(name) for name in self.users}
        self.access = Access(
            users.values(),
            {key: users[name] for key, name in keys.items()},
            {token: users[name] for token, name in tokens.items()},
            {name: users[endpoint["user"]] for name, endpoint in endpoints.items()},
            {name: allowed for name, allowed in uids.items() if allowed is not None},
            {certificate: users[name] for certificate, name in certificates.items()},
            text,
            {login: users[name] for login, name in logins.items()},
        )

    def line(self, path: KeyPath) -> int:
        """The line, from 1, of a table, a key or a string in a list; if it has none, of the nearest above it."""
        return self._file.line(path)

    def _fault(self, path: KeyPath, text: str) -> None:
        self._file.add_mistake(path, text)

    def _unknown(self, path: KeyPath, table: Table, known: Iterable[str]) -> None:
        for key in table:
            if key not in known:
                advice = self._file.suggestion(key, known, f"here may be {', '.join(known)}")
                self._fault((*path, key), f"unknown {_shown((*path, key))}; {advice}")

    def _tables(self, document: Table, kind: str) -> dict[str, Table]:
        """The tables below one: what is no table is a fault and left out."""
        found = document.get(kind, {})
        if not isinstance(found, dict):
            self._fault((kind,), f"{kind} is {_kind(found)}; it must be tables, like [{kind}.NAME]")
            return {}
        for name, table in found.items():
            if not isinstance(table, dict):
                advice = f"it must be a table, like [{kind}.NAME]"
                self._fault((kind, name), f"{_shown((kind, name))} is {_kind(table)}; {advice}")
        return {name: table for name, table in found.items() if isinstance(table, dict)}

    def _check_name(self, path: tuple[str, str], what: str) -> None:
        if not NAME.fullmatch(path[1]):
            advice = "use 1 to 32 letters, digits, '_', '.' and '-'"
            self._fault(path, f"{path[1][:80]!r} cannot be the name of a {what}; {advice}")

    def _check(self, path: KeyPath, table: Table, known: tuple[str, ...]) -> None:
        """Permissions and limits, of a user or of a role."""
        self._unknown(path, table, known)
        for key in PATTERNS:
            for number, pattern in self._texts((*path, key), table.get(key, []), '["mail.*"]'):
                if fact := _pattern_fault(pattern):
                    self._fault((*path, key, number), f"{_shown((*path, key))}: {fact}")
        for key in FLAGS:
            if not isinstance(table.get(key, False), bool):
                self._fault((*path, key), f"{_shown((*path, key))} is {_kind(table[key])}; it must be true or false")
        if "read" in table and table["read"] not in ("own", "all"):
            advice = 'it must be "own" or "all"; leave it out if nothing may be read'
            self._fault((*path, "read"), f"{_shown((*path, 'read'))} is {_quoted(table['read'])}; {advice}")
        limits = table.get("limits", {})
        if not isinstance(limits, dict):
            self._fault(
                (*path, "limits"), f"{_shown((*path, 'limits'))} is {_kind(limits)}; write it like {{ waiting = 1000 }}"
            )
            return
        self._unknown((*path, "limits"), limits, LIMITS)
        for key in LIMITS:
            limit = limits.get(key, 0)
            if type(limit) is not int or not 0 <= limit < MAX_LIMIT:
                where = (*path, "limits", key)
                self._fault(where, f"{_shown(where)} is {_quoted(limit)}; it must be a whole number, 0 for no limit")

    def _texts(self, path: KeyPath, found: Any, example: str) -> list[tuple[int, str]]:
        """The strings of a list with their indices; anything else is a mistake."""
        if not isinstance(found, list):
            self._fault(path, f"{_shown(path)} is {_kind(found)}; it must be a list of strings, like {example}")
            return []
        for number, one in enumerate(found):
            if not isinstance(one, str):
                self._fault(
                    (*path, number),
                    f"{_shown(path)} contains {_kind(one)}; it must be a list of strings, like {example}",
                )
        return [(number, one) for number, one in enumerate(found) if isinstance(one, str)]

    def _check_roles(self, path: KeyPath, found: Any) -> None:
        for number, role in self._texts(path, found, '["sender"]'):
            if role not in self.roles:
                advice = self._file.suggestion(role, self.roles, "define it, or remove it here")
                self._fault((*path, number), f"{_shown(path)}: there is no role {_quoted(role)}; {advice}")

    def _keys(self) -> dict[str, str]:
        """Names of users by their public keys."""
        found: dict[str, tuple[str, KeyPath]] = {}
        for name, user in self.users.items():
            path = ("users", name, "keys")
            for number, text in self._texts(path, user.get("keys", []), '["shop.key"]'):
                if text.endswith(SECRET_SUFFIX):
                    fact = f"{text!r} is a secret key file, which belongs to the user alone"
                    self._fault((*path, number), f"{_shown(path)}: {fact}; give the one that ends with .key")
                    continue
                try:
                    key = public_key(text, self._folder)
                except AccessError as error:
                    self._fault((*path, number), f"{_shown(path)}: {error}")
                else:
                    self._take(found, key, name, (*path, number), "key")
        return {key: name for key, (name, _) in found.items()}

    def _proofs(self, kind: ProofKind) -> dict[str, str]:
        """Names of users by their logins, or the hashes of their tokens or certificates. No fault shows a hash: it may
        be the token itself."""
        found: dict[str, tuple[str, KeyPath]] = {}
        for name, user in self.users.items():
            path = ("users", name, kind.field)
            for number, text in self._texts(path, user.get(kind.field, []), kind.example):
                if known := re.fullmatch(kind.pattern, text):
                    proof = known[1] if kind is LOGINS else known[1].lower()
                    self._take(found, proof, name, (*path, number), kind.noun)
                else:
                    fact = f"a {kind.noun} is written as {kind.written}"
                    self._fault((*path, number), f"{_shown(path)}: {fact}; {kind.advice}")
        return {proof: name for proof, (name, _) in found.items()}

    def _take(self, found: dict[str, tuple[str, KeyPath]], secret: str, name: str, path: KeyPath, what: str) -> None:
        """A key or a token is one user's."""
        owner, where = found.setdefault(secret, (name, path))
        if owner != name:
            advice = f"create another {what} for one of them"
            fact = f"user {owner} has the same {what}, in line {self.line(where)}"
            self._fault(path, f"{_shown(path[:-1])}: {fact}; {advice}")

    def _endpoint(self, name: str, endpoint: Table) -> tuple[int, ...] | None:
        """The ids of the users of the machine that may connect to an endpoint; None: all."""
        path = ("endpoints", name)
        local = name.startswith("ipc://") and len(name) > len("ipc://")
        if not local and not _LOOPBACK.fullmatch(name):
            fact = "clients need no key there, so other machines must not be able to reach it"
            self._fault(path, f"{_shown(path)}: {fact}; write it like ipc:///run/titanic.sock or tcp://127.0.0.1:5555")
        self._unknown(path, endpoint, OF_ENDPOINTS)
        user = endpoint.get("user")
        if not isinstance(user, str):
            fact = f"is {_kind(user)}" if "user" in endpoint else "is missing"
            self._fault((*path, "user"), f'{_shown((*path, "user"))} {fact}; write it like user = "shop"')
        elif user not in self.users:
            advice = self._file.suggestion(user, self.users, "add it, or name another")
            self._fault((*path, "user"), f"{_shown((*path, 'user'))}: there is no user {_quoted(user)}; {advice}")
        if "uids" not in endpoint:
            if name.startswith("ipc://@"):
                fact = "any local process can connect to an abstract socket, which no directory protects"
                self._fault(path, f'{_shown(path)}: {fact}; list the users that may: uids = [0, "www-data"]')
            return None
        where, uids = (*path, "uids"), endpoint["uids"]
        if not local:
            self._fault(where, f"{_shown(where)}: only ipc:// endpoints can check uids; leave them out")
        if not isinstance(uids, list) or not uids:
            fact = "names no user" if uids == [] else f"is {_kind(uids)}"
            self._fault(where, f'{_shown(where)} {fact}; write it like uids = [0, "www-data"], or leave it out')
            return ()
        return tuple(self._uid((*where, number), uid) for number, uid in enumerate(uids))

    def _uid(self, path: KeyPath, uid: Any) -> int:
        if type(uid) is int and 0 <= uid <= MAX_UID:
            return uid
        if isinstance(uid, str):
            try:
                return pwd.getpwnam(uid).pw_uid
            except (KeyError, ValueError):
                fact = f"this machine has no user {_quoted(uid)}"
        else:
            fact = f"{_quoted(uid)} is not a system user"
        self._fault(path, f"{_shown(path[:-1])}: {fact}; give a name that `getent passwd` prints, or a number")
        return MAX_UID

    def _user(self, name: str) -> User:
        """A user with the permissions of its roles."""
        own = self.users[name]
        given = [own, *(self.roles[role] for role in own.get("roles", []))]
        services = {
            permission: tuple(dict.fromkeys(pattern for table in given for pattern in table.get(permission.value, [])))
            for permission in BY_SERVICE
        }
        reads = {table.get("read") for table in given}
        flags = {flag: any(table.get(flag, False) for table in given) for flag in FLAGS}
        return User(
            name,
            {permission: patterns for permission, patterns in services.items() if patterns},
            Reach.ALL if "all" in reads else Reach.OWN if "own" in reads else Reach.NONE,
            limits=UserLimits(**{key: _limit(given, key) for key in LIMITS}),
            expires=_expiry(own["expires"]) or 0.0 if "expires" in own else math.inf,
            **flags,
        )


def _limit(given: list[Table], key: str) -> int:
    """The limit of a user: its own, else the lowest of its roles."""
    own, *roles = (table.get("limits", {}) for table in given)
    if key in own:
        return int(own[key])
    return min((int(limits[key]) for limits in roles if limits.get(key)), default=0)


def _expiry(value: object) -> float | None:
    """The Unix time at which a user expires: of a day its end in UTC. None: it is neither day nor time."""
    if type(value) is date:  # 9999-12-31 has no next day
        return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp() + 86400
    return value.timestamp() if isinstance(value, datetime) and value.tzinfo is not None else None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        fact = error.strerror if isinstance(error, OSError) else "a path cannot contain NUL"
        raise AccessError(f"{path}: the access file cannot be read: {fact}; check its path and permissions") from error
    if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
        fact = "any local user can change this file, and so grant itself any permission"
        raise AccessError(f"{path}: {fact}; run: chmod o-w {path}")
    for folder in {path.absolute().parent, path.resolve().parent}:
        rights = folder.stat().st_mode
        if rights & stat.S_IWOTH and not rights & stat.S_ISVTX:
            fact = "any local user can replace this file, and so grant itself any permission"
            raise AccessError(f"{path}: {fact}; run: chmod o-w {folder}")
    if len(content) > MAX_BYTES:
        raise AccessError(f"{path}: it is larger than {MAX_BYTES >> 20} MiB; is it the access file?")
    return content


def _pattern_fault(pattern: str) -> str:
    """What is wrong with a pattern of services; empty: nothing."""
    if fact := service_fault(pattern.encode(errors="replace")):
        return f"{_quoted(pattern)} matches no service: {fact}; write it like mail or mail.*"
    if "[" in pattern and "]" not in pattern:
        return f"{_quoted(pattern)} has a [ without a ]; write a set like mail.[ab], and [[] for the character"
    return ""


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def _shown(path: KeyPath) -> str:
    """A way as the file would have it: [users.shop] keys."""
    parts = [part if _BARE.fullmatch(part) else f'"{part}"' for part in (str(one)[:80] for one in path)]
    if len(parts) < 2:
        return f"[{parts[0]}]"
    below = ".".join(parts[2:])
    return f"[{'.'.join(parts[:2])}]" + (f" {below}" if below else "")


def _kind(value: Any) -> str:
    """What a value is; not the value: it may be a secret in the wrong place."""
    kinds = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "a table",
    }
    return kinds.get(type(value), "a time")


def _quoted(value: Any) -> str:
    """A value that is no secret, or what it is."""
    if isinstance(value, str):
        return repr(value[:80])
    return str(value) if type(value) is int and abs(value) < 1 << 64 else _kind(value)
