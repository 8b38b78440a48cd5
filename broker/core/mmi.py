"""The Majordomo Management Interface (RFC 8): services that the broker answers itself.

titanic/PROTOCOL.md, "Asking the broker (MMI)", says what each of them takes and answers. All but mmi.service are more
than the RFC asks for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from broker.access.authorization import Guard
from broker.access.users import Permission, User
from broker.config import BrokerConfig
from broker.core.mdp import AT_LIMIT, KILL, KNOWN_WORDS, Frames, Peer
from broker.core.missing import MissingRequests
from broker.core.requests import OF_A_QUEUE, WaitingRequests
from broker.core.worker_registry import BrokerService, WorkerGroup, WorkerPeer

_ACTIONS = (b"mmi.service", b"mmi.cancel")

RUNNING = b"running"
"""The last frame of an mmi.cancel that also notifies the worker."""

COUNTERS = (
    "requests",
    "replies",
    "refused",
    "forbidden",
    "requests_expired",
    "redelivered",
    "resumed",
    "not_resumed",
    "given_up",
    "cancelled",
    "malformed",
    "unroutable",
    "workers_registered",
    "workers_left",
    "workers_expired",
    "workers_refused",
)
"""The counters of `mmi.stats`."""

GAUGES = ("waiting", "waiting_bytes", "workers", "workers_busy", "services", "peers")
"""Its other values, which describe the present."""


@dataclass(frozen=True, slots=True)
class About:
    """Which broker this is. `instance` changes with each start. `store`: the id of its queue's store, which is the same
    at all brokers of that store; empty: it has none."""

    software: str = "titanic"
    version: str = ""
    instance: str = ""
    pid: int = 0
    endpoints: tuple[str, ...] = ()
    store: str = ""


class ManagedBroker(Protocol):
    """The broker that the answers describe."""

    config: BrokerConfig
    about: About
    started: float
    services: dict[bytes, BrokerService]
    workers: dict[Peer, WorkerPeer]
    peers: int
    waiting: WaitingRequests
    missing: MissingRequests
    stats: dict[str, int]
    documents: Documents
    guard: Guard | None

    def cancel(self, peer: Peer, name: bytes, mark: bytes, now: float, notify: bytes = b"") -> bytes:
        """Withdraw a request that no worker has; return the status of `mmi.cancel`. `notify`: send CANCEL to a worker
        that has it, for this reason; empty: do not."""

    def held(self) -> dict[bytes, int]:
        """How many requests of each service take none of its slots, because their workers leave or are away."""


Document = Callable[[ManagedBroker, float, User | None], Any]

SMALL = 1000
"""Services and workers up to which a document is made for each question."""

FRESH_FOR = 1e-5
"""Seconds that a larger one is kept, for each of them: a few times what it takes to make it, so that questions cannot
keep the broker from its work; a second for 100,000."""

MOST_KEPT = 32
"""Large documents that are kept."""


class Documents:
    """Makes the answers in JSON, and keeps large ones for a while."""

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, str | None], tuple[float, bytes]] = {}
        """By name and reader; None: a reader that may see everything."""

    def get(self, name: bytes, document: Document, core: ManagedBroker, now: float, user: User | None) -> bytes:
        entries = len(core.services) + len(core.workers)
        if entries <= SMALL:
            self._kept.clear()
            return json.dumps(document(core, now, user)).encode()
        reader = user.name if user is not None and core.guard is not None and not core.guard.sees_all(user) else None
        until, text = self._kept.get((name, reader), (now, b""))
        if now >= until:
            text = json.dumps(document(core, now, user)).encode()
            if (name, reader) not in self._kept and len(self._kept) >= MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            # The more readers there are, the less often each gets a new one: together they cost what one does.
            self._kept[name, reader] = (now + FRESH_FOR * entries * (len(self._kept) + 1), text)
        return text

    def forget(self) -> None:
        """Drop all: permissions have changed."""
        self._kept.clear()


def answer(core: ManagedBroker, peer: Peer, name: bytes, body: Frames, now: float, user: User | None = None) -> Frames:
    """Answer a peer's request for an `mmi.` service. `user`: with access control; the answer covers the services that
    it may use."""
    if name == b"mmi.service":
        return [_presence(core, body[0], user)]
    if name == b"mmi.cancel":
        said = body[2:]
        if len(body) < 2 or said not in ([], [RUNNING], [AT_LIMIT], [KILL]):
            return [b"400"]
        notify = b"".join(said)
        if notify == KILL and user is not None and not is_queue(user):
            notify = RUNNING  # the process may have requests of others, too
        return [core.cancel(peer, body[0], body[1], now, notify)]
    document = _DOCUMENTS.get(name)
    return [b"501"] if document is None else [core.documents.get(name, document, core, now, user)]


def is_queue(user: User) -> bool:
    """Return whether a user may be a queue."""
    return user.may(Permission.WORK, OF_A_QUEUE)


def _presence(core: ManagedBroker, name: bytes, user: User | None) -> bytes:
    if not name:
        return b"400"
    if name in _DOCUMENTS or name in _ACTIONS:
        return b"200"
    service = core.services.get(name)
    if service is None or not (service.workers > 0 or service.batch is not None):
        return b"404"
    return b"200" if user is None or core.guard is None or core.guard.sees(user, name) else b"404"


def _seen(core: ManagedBroker, user: User | None) -> Iterable[BrokerService]:
    """Return the services that a user may see."""
    if user is None or core.guard is None or core.guard.sees_all(user):
        return core.services.values()
    sees = core.guard.visible_to(user)
    return [service for service in core.services.values() if sees(service.name)]


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def _services(core: ManagedBroker, now: float, user: User | None) -> list[dict[str, Any]]:
    free: dict[WorkerGroup, int] = {}
    held, away = core.held(), _away(core, user)
    return [
        {
            "name": _text(service.name),
            "workers": service.workers,
            "idle": _idle(service, free),
            "waiting": len(service.waiting),
            "integrated": service.batch is not None,
            "joint": service.joint_groups > 0,
            "held": held.get(service.name, 0),
            **({"keeps": True} if any(group.keepers for group in service.groups) else {}),
            **({"away": away[service.name]} if service.name in away else {}),
        }
        for service in _seen(core, user)
    ]


def _away(core: ManagedBroker, user: User | None) -> dict[bytes, list[str]]:
    """Return what workers have, by their own word, of queues that have lost their connections and not decided about it
    yet: the contexts by service, for queues and users that may see everything."""
    if user is not None and not (core.guard is None or core.guard.sees_all(user) or is_queue(user)):
        return {}
    away: dict[bytes, list[str]] = {}
    for orphan in core.missing.orphans.copy().values():
        if orphan.expected.delivery in core.missing.named:
            away.setdefault(orphan.service, []).append(_text(orphan.context))
    return away


def _idle(service: BrokerService, free: dict[WorkerGroup, int]) -> int:
    """Count the requests that a service's workers can take now. `free`: free slots by group, filled here."""
    idle = 0
    for group in service.groups:
        if service.name in group.limits:
            idle += sum(worker.free_for(service.name) for worker in group.idle)
            continue
        if group not in free:
            free[group] = sum(worker.slots - len(worker.requests) for worker in group.idle)
        idle += free[group]
    return idle


def _workers(core: ManagedBroker, now: float, user: User | None) -> dict[str, int]:
    return {_text(service.name): service.workers for service in _seen(core, user) if service.workers}


def counters(core: ManagedBroker, now: float, user: User | None = None) -> dict[str, int]:
    """Return what was counted since the start (`COUNTERS`), and the present values (`GAUGES`). Any thread may call
    this. Of workers their slots count."""
    workers = core.workers.copy().values()
    return {
        **core.stats,
        "waiting": core.waiting.count,
        "waiting_bytes": core.waiting.bytes,
        "workers": sum(worker.slots for worker in workers),
        "workers_busy": sum(len(worker.requests) for worker in workers),
        "services": len(core.services),
        "peers": core.peers,
    }


def _broker(core: ManagedBroker, now: float, user: User | None) -> dict[str, Any]:
    uptime, limits = round(now - core.started, 3), asdict(core.config)
    document = {**asdict(core.about), "uptime": uptime, "limits": limits, "knows": [*map(bytes.decode, KNOWN_WORDS)]}
    return document if core.guard is None else {**document, "access": True}


_DOCUMENTS: dict[bytes, Document] = {
    b"mmi.services": _services,
    b"mmi.workers": _workers,
    b"mmi.stats": counters,
    b"mmi.broker": _broker,
}
