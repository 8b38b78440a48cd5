"""Which line of an access file decides what a user may do: for `titanic access test`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broker.access.access_file import AccessFile
from broker.access.users import BY_SERVICE, RESERVED, Permission, Reach, User, matches
from broker.core.mdp import service_fault
from broker.errors import UsageError
from broker.toml_file import KeyPath, nearest

_ADMINS_MAY = {Permission.METRICS: "sees all statistics", Permission.ARCHIVE: "manages the archive"}
"""What an admin may do by the flags that need not be given to it, in words; of others their names suffice."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a user may do something, and what says so."""

    allowed: bool
    path: Path
    line: int
    """From 1; 0: no line does, as the user is not in the file."""
    text: str
    """That line."""
    reason: str
    """Why, in a sentence; for what is not allowed, what would have to be added."""


def decide(file: AccessFile | str | Path, user: str, action: str, service: str = "") -> Decision:
    """What decides whether a user may do something.

    `action` is a permission of the access file; `service` is needed for those that are given for services. Raises
    AccessError for a file with a fault, UsageError for an action or a service that cannot be.
    """
    try:
        permission = Permission(action)
    except ValueError:
        actions = ", ".join(one.value for one in Permission)
        raise UsageError(f"unknown action {action!r}; choose one of {actions}") from None
    if permission in BY_SERVICE and (fault := service_fault(service.encode(errors="replace"))):
        raise UsageError(f"{action} needs a service: {fault}; name one")
    file = file if isinstance(file, AccessFile) else AccessFile(file)
    if user not in file.access.users:
        near = nearest(user, file.access.users)
        advice = f"did you mean {near}?" if near else f"add [users.{user}]"
        return Decision(False, file.path, 0, "", f"there is no user {user!r}; {advice}")
    return _Question(file, file.access.users[user], permission, service).answer()


class _Question:
    """An action of a user."""

    def __init__(self, file: AccessFile, user: User, permission: Permission, service: str) -> None:
        self._file = file
        self._user = user
        self._permission = permission
        self._service = service
        tables = [("users", user.name), *(("roles", role) for role in file.users[user.name].get("roles", []))]
        self._tables: list[tuple[KeyPath, dict[str, object]]] = [
            (path, dict(getattr(file, path[0])[path[1]])) for path in tables
        ]
        """The user's table, then those of its roles."""

    def answer(self) -> Decision:
        name, permission = self._user.name, self._permission
        if permission in BY_SERVICE:
            return self._of_service()
        if permission is Permission.READ:
            if self._user.admin:
                return self._yes(self._admin(), f"{name} is an admin and reads all requests")
            if self._user.read is Reach.NONE:
                return self._no('read = "own" or read = "all"')
            reads = "all requests" if self._user.reads_all else "its own requests"
            return self._yes(self._first("read", self._user.read.value), f"{name} reads {reads}")
        if permission is Permission.CLOSE:
            return self._of_close()
        if getattr(self._user, permission.value):
            return self._yes(self._first(permission.value, True), f"{name} has {permission.value}")
        if self._user.admin:
            may = _ADMINS_MAY.get(permission, f"implies {permission.value}")
            return self._yes(self._admin(), f"{name} is an admin, which {may}")
        return self._no(f"{permission.value} = true")

    def _of_service(self) -> Decision:
        action, wanted = self._permission.value, f'{self._permission.value} = ["{self._service}"]'
        if not self._user.may(self._permission, self._service.encode()):
            return self._no(wanted, self._reserved())
        for table, content in self._tables:
            patterns = content.get(action, [])
            for number, pattern in enumerate(patterns if isinstance(patterns, list) else ()):
                if matches((pattern,), self._service.encode()):
                    return self._yes((*table, action, number), f"{pattern!r} matches {self._service}")
        return self._yes(self._admin(), f"{self._user.name} is an admin, which may submit to every service")

    def _reserved(self) -> str:
        """Why `*` does not match."""
        begin = next((begin for begin in RESERVED if self._service.startswith(begin)), "")
        return f" ({self._service} is matched only by patterns that begin with {begin})" if begin else ""

    def _of_close(self) -> Decision:
        name = self._user.name
        if self._user.admin:
            return self._yes(self._admin(), f"{name} is an admin and closes all requests")
        if not self._user.close:
            return self._no("close = true")
        where = self._first("close", True)
        if self._user.read is Reach.NONE:
            reason = f'{name} may close only what it may read, which is nothing; it needs read = "own" or read = "all"'
            return self._decision(False, where, reason)
        closes = "all requests" if self._user.reads_all else "its own requests"
        return self._yes(where, f"{name} closes {closes}")

    def _admin(self) -> KeyPath:
        return self._first("admin", True)

    def _first(self, key: str, value: object) -> KeyPath:
        """The first place that says something: the user's table, else a role."""
        return next((*table, key) for table, content in self._tables if content.get(key) == value)

    def _yes(self, path: KeyPath, reason: str) -> Decision:
        return self._decision(True, path, reason)

    def _no(self, wanted: str, why: str = "") -> Decision:
        or_role = " or to one of its roles" if len(self._tables) > 1 else ""
        reason = f"no line allows it{why}; add {wanted} here{or_role}"
        return self._decision(False, ("users", self._user.name), reason)

    def _decision(self, allowed: bool, path: KeyPath, reason: str) -> Decision:
        line = self._file.line(path)
        return Decision(allowed, self._file.path, line, self._file.lines[line - 1].strip(), reason)
