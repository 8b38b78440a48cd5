"""Which permission each message needs, of a client and of a worker. `BrokerCore` asks before it routes anything.

    message                         permission                  without it
    ------------------------------  --------------------------  -------------------------------------------------
    REQUEST for a service           call = [the service]        error reply, 403
    REQUEST for one with a rule     what its rule says          what its rule answers
    REQUEST for mmi.stats           metrics, admin              error reply, 403
    other mmi. services             none                        they list the services that the user sees
    READY of a worker               work = [the service]        DISCONNECT
    any REQUEST                     fewer than limits.messages  error reply, 429; with a rule: 500 busy, as in RFC 9
    what a worker says              fewer than limits.messages  DISCONNECT
      but replies, heartbeats       none

Messages of a user's workers are counted apart from its requests, so that neither blocks the other: READY, and
messages out of turn. Not counted are replies and parts of them, good-byes, and heartbeats as often as a good worker
sends them.

A user sees the services that it may submit to, work for or call, and those with a rule; with metrics or admin, all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from types import MappingProxyType
from typing import NamedTuple, Protocol

from broker.access.users import NOBODY, RESERVED, Access, Permission, User
from broker.core.mdp import ERROR, Command, Frames, Peer, error_body, service_fault
from broker.core.requests import Request
from broker.core.worker_registry import NO_GROUP, WorkerPeer

Rule = Callable[[User, Frames], Frames | None]
"""Whether a user may send a service this body: the body of the refusal, or None if it may."""

BEAT_EVERY = 0.25
"""Seconds in which one heartbeat of a worker is not counted, and so many may come at once after a longer while: they
may have waited on the way, or here."""

BEATS_SAVED = 15.0
"""That while, at most. A good worker does not wait longer: it takes the broker for lost."""

_FREE = (Command.PARTIAL, Command.FINAL, Command.PROGRESS, Command.LOST)
"""What is not counted of a worker that has a request."""

_QUEUE = b"titanic."
"""Prefix of the services that get the user with each request."""


class AccessRefusal(NamedTuple):
    """A refused action. `user` is empty for an unknown one, `why` if it would only repeat the action."""

    user: str
    action: str
    service: str
    peer: Peer
    why: str


class RefusalLog(Protocol):
    """What remembers refusals by address."""

    def refused(self, user: str, action: str, address: str) -> None:
        """Note a refusal. `user`: empty for an unknown one. Called in the broker's thread."""


@dataclass(slots=True)
class Report:
    """What one user was refused of one action: the first time, the last time, and how often."""

    first: AccessRefusal
    last: AccessRefusal
    count: int = 1


class TokenBuckets:
    """How many messages a second each user may send. A bucket holds what a user may send in a second, and fills as
    fast; users without a limit have none."""

    def __init__(self) -> None:
        self._levels: dict[str, tuple[float, float]] = {}
        """The level of each, and when it was that."""

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, user: User, now: float) -> bool:
        """Whether a user may send another message. `now` never goes back."""
        most = user.limits.messages
        if not most:
            return True
        level, then = self._levels.get(user.name, (most, now))
        level = min(most, level + (now - then) * most)
        if level < 1:
            self._levels[user.name] = (level, now)
            return False
        self._levels[user.name] = (level - 1, now)
        return True

    def keep(self, names: Container[str]) -> None:
        """Forget all other users."""
        self._levels = {name: level for name, level in self._levels.items() if name in names}


class Guard:
    """Checks permissions, and counts refusals."""

    def __init__(
        self, access: Access, rules: Mapping[bytes, Rule] = MappingProxyType({}), stats: dict[str, int] | None = None
    ) -> None:
        """`rules`: for services that need more than `call`, by their names. `stats`: has a counter `forbidden`."""
        self.access = access
        self.rules = dict(rules)
        self.refusals: dict[tuple[str, str], int] = {}
        """How often each user was refused each action."""
        self.log: RefusalLog | None = None
        self._stats = {"forbidden": 0} if stats is None else stats
        self._buckets = TokenBuckets()
        self._worker_buckets = TokenBuckets()
        self._reports: dict[tuple[str, str], Report] = {}
        self._documents: dict[User, bytes] = {}

    def swap(self, access: Access) -> None:
        """From now on this holds."""
        self.access = access
        self._documents.clear()
        self._buckets.keep(access.users)
        self._worker_buckets.keep(access.users)
        self.refusals = {key: count for key, count in self.refusals.items() if not key[0] or key[0] in access.users}

    def current(self, user: User) -> User:
        """The user of the same name in the current access file; NOBODY if it was removed."""
        return self.access.users.get(user.name, NOBODY)

    def refuses(self, request: Request, user: User, now: float) -> Frames | None:
        """The answer to a request that its user may not send; None if it may."""
        body = self._refusal(request, user) if self._buckets.take(user, now) else self._too_many(request, user)
        if body is None:
            return None
        return request.refusal(body) if body[0] == ERROR else request.final(body)

    def may_work(self, worker: WorkerPeer, service: bytes) -> bool:
        """Whether a worker may serve a service; if not, the refusal is counted."""
        user = worker.user
        if user is None or user.may(Permission.WORK, service):
            return True
        name = service.decode(errors="replace")
        why = f"{user} may not work for '{name}'; it needs work = [\"{name}\"]"
        self.refused(user, "work", service, worker.peer, why)
        return False

    def share(self, places: int) -> int:
        """How many of these places one user may have: half of them, at least one; all, if there is only one user."""
        return max(1, places // 2) if len(self.access.users) > 1 else places

    def has_place(self, worker: WorkerPeer, registered: int, places: int, what: str = "workers") -> bool:
        """Whether a user that has `registered` workers may have one more, where all users together have `places`; if
        not, it is counted."""
        user = worker.user
        if user is None or user.admin or registered < (share := self.share(places)):
            return True
        why = f"user '{user.name}' has {registered} {what}; the maximum per user is {share} of {places}"
        self.refused(user, "workers", b"", worker.peer, why)
        return False

    def may_say(self, worker: WorkerPeer, command: Command, now: float) -> bool:
        """Whether a worker may say one thing more; if not, it is counted."""
        user = worker.user
        if user is None or command is Command.DISCONNECT or (worker.requests and command in _FREE):
            return True
        if command is Command.HEARTBEAT and worker.group is not NO_GROUP:
            due = max(worker.beat_due, now - BEATS_SAVED)
            if due <= now:
                worker.beat_due = due + BEAT_EVERY
                return True
        if self._worker_buckets.take(user, now):
            return True
        why = f"workers of user '{user.name}' send more than {user.limits.messages} messages a second"
        self.refused(user, "messages", worker.group.name, worker.peer, why)
        return False

    def sees(self, user: User, service: bytes) -> bool:
        """Whether a user sees a service."""
        return (service in self.rules and user is not NOBODY) or user.uses(service)

    def visible_to(self, user: User) -> Callable[[bytes], bool]:
        """The same for many services: each is checked once, however many patterns the user has."""
        patterns = {pattern for patterns in user.services.values() for pattern in patterns}
        begins = ["", *RESERVED]
        found = {begin: _compiled(pattern for pattern in patterns if pattern.startswith(begin)) for begin in begins}
        rules = self.rules if user is not NOBODY else {}

        def sees(service: bytes) -> bool:
            if service in rules:
                return True
            name = service.decode(errors="replace")
            begin = next((begin for begin in RESERVED if name.startswith(begin)), "")
            return found[begin].match(name) is not None

        return sees

    def sees_all(self, user: User) -> bool:
        """Whether a user sees every service."""
        return user.admin or user.metrics

    def _refusal(self, request: Request, user: User) -> Frames | None:
        """The body of the answer."""
        service, rule = request.service, self.rules.get(request.service)
        if rule is not None:
            try:
                refusal = rule(user, request.body)
            except Exception as error:  # a request that its rule cannot check is refused, and the broker continues
                refusal = error_body(500, f"the permission check of this service failed: {type(error).__name__}")
            if refusal is not None:
                why = refusal[0].partition(b" ")[2].decode(errors="replace")
                self.refused(user, service.decode(errors="replace"), service, request.peer, why)
            return refusal
        if service.startswith(b"mmi."):
            if service != b"mmi.stats" or user.metrics or user.admin:
                return None
            why = f"forbidden: {user} may not see mmi.stats; it needs metrics = true"
            self.refused(user, "metrics", service, request.peer, why)
            return error_body(403, why)
        if service_fault(service) is not None or user.may(Permission.CALL, service):  # `may` remembers names
            return None
        name = service.decode()
        why = f"forbidden: {user} may not call '{name}'; it needs call = [\"{name}\"]"
        self.refused(user, "call", service, request.peer, why)
        return error_body(403, why)

    def _too_many(self, request: Request, user: User) -> Frames:
        text = f"user '{user.name}' sends more than {user.limits.messages} messages a second; try again later"
        self.refused(user, "messages", request.service, request.peer, text)
        if request.service in self.rules:
            return [f"500 busy: {text}".encode()]
        return error_body(429, text)

    def who_asks(self, service: bytes, user: User) -> bytes:
        """What a worker's `client` frame has behind the number, so that a separate queue knows the user;
        nothing for other services."""
        if not service.startswith(_QUEUE):
            return b""
        document = self._documents.get(user)
        if document is None:
            document = self._documents[user] = b" " + user.to_json()
        return document

    def token(self, request: Request, user: User) -> bytes:
        """The `client` frame of a request for its worker, with its user for a separate queue."""
        return request.token + self.who_asks(request.service, user)

    def refused(self, user: User, action: str, service: bytes, peer: Peer, why: str = "") -> None:
        """Count a refusal, and remember it for the log. `why`: in words, with what would have to be allowed."""
        self._stats["forbidden"] += 1
        self.count(user, action)
        if self.log is not None:
            address = getattr(peer, "address", peer)
            if not isinstance(address, str) or "://" in address:
                address = ""  # it came by ipc, or from this process
            self.log.refused(user.name, action, address.rpartition(":")[0])
        refusal = AccessRefusal(user.name, action, service[:255].decode(errors="replace"), peer, why)
        report = self._reports.get((user.name, action))
        if report is None:
            self._reports[user.name, action] = Report(refusal, refusal)
        else:
            report.last = refusal
            report.count += 1

    def count(self, user: User, action: str) -> None:
        """Count what may not be a refusal, and would say nothing in the log."""
        key = (user.name, action)
        self.refusals[key] = self.refusals.get(key, 0) + 1

    def take_reports(self) -> Iterable[Report]:
        """The refusals since the last call: a report for each user and action, so that no user's hide another's."""
        if not self._reports:
            return ()
        reports, self._reports = self._reports, {}
        return reports.values()


class Review:
    """Checks again, after users have changed, what was admitted before."""

    def __init__(self, guard: Guard, user_of: Callable[[Peer], User | None]) -> None:
        """`user_of`: the user that a peer's connection belongs to now; None: it may do everything."""
        self._guard = guard
        self._user_of = user_of

    def dismissed(self, workers: Iterable[WorkerPeer]) -> list[WorkerPeer]:
        """The registered workers to disconnect: they may not work any more, or they have a request whose user has
        changed, and would answer by outdated permissions. The next worker gets the current ones."""
        found = [worker for worker in workers if not self._keeps(worker)]
        for worker in found:  # all of them, so that none gets another's request
            worker.group.idle.pop(worker, None)
        return found

    def _keeps(self, worker: WorkerPeer) -> bool:
        worker.user = self._user_of(worker.peer)
        # A worker with a lost connection, or was just ended, was refused nothing here.
        stays = worker.user is not NOBODY and all(self._guard.may_work(worker, name) for name in worker.group.services)
        for request in worker.requests.values():
            if request.user is None:
                continue
            name, user = request.user.name, self._user_of(request.peer)
            request.user = user
            if user is None:
                continue
            if user is NOBODY or user.name != name:
                request.wanted = False  # by another worker
            stays = stays and request.token.endswith(self._guard.who_asks(request.service, user))
        return stays

    def drops_request(self, request: Request) -> bool:
        """Whether a waiting request's connection has another user now, or the user may no longer call the service."""
        user = self._user_of(request.peer)
        if user is None:
            return False
        if request.user is None or request.user.name != user.name or user is NOBODY:
            return True
        request.user = user
        return request.service not in self._guard.rules and not user.may(Permission.CALL, request.service)


def _compiled(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or r"\Z\A.")
