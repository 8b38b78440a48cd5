"""A service as the broker sees it: requests that wait, workers that are free."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from broker.core.heartbeat import Heartbeat
from broker.core.mdp import Peer, WorkerDialect
from broker.core.request import Request
from broker.core.waiting import FairQueue


class Inflow(Protocol):
    """Whether something is coming in that is not a whole message yet."""

    def goes_on(self, now: float, patience: float) -> bool:
        """Whether it did since this was last asked, `patience` seconds ago."""


class WorkerState(Enum):
    """Where a peer stands as a worker."""

    NONE = "none"
    IDLE = "idle"
    BUSY = "busy"

    __hash__ = object.__hash__  # as for Command: looked up for every message


class WorkerPeer:
    """A registered worker."""

    __slots__ = ("dialect", "heartbeat", "inflow", "peer", "request", "service")

    heartbeat: Heartbeat
    """Of its heartbeats, from READY on."""

    def __init__(self, peer: Peer, dialect: WorkerDialect, service: Service) -> None:
        self.peer = peer
        self.dialect = dialect
        self.service = service
        self.inflow: Inflow | None = None
        """What the transport knows of its connection."""
        self.request: Request | None = None
        """What it works on; None while it is free."""


class Service:
    """One service name. Either requests wait or workers are free, never both."""

    __slots__ = ("batch", "idle", "most", "name", "waiting", "workers")

    def __init__(self, name: bytes, most: int, batch: list[Request] | None = None) -> None:
        self.name = name
        self.waiting = FairQueue()
        self.idle: dict[WorkerPeer, None] = {}
        """Free workers, the least recently used first: a dict keeps insertion order."""
        self.workers = 0
        """Registered workers, free and busy."""
        self.batch = batch
        """An integrated service's requests until its handler takes them; None for a service of workers."""
        self.most = most
        """Bytes of a request's body; larger ones are refused."""

    @property
    def unused(self) -> bool:
        """Whether nothing is left that the broker would have to remember it for."""
        return not self.workers and not self.waiting and self.batch is None

    def least_recently_used(self) -> WorkerPeer:
        """Take the free worker that has been free for longest; StopIteration when there is none."""
        worker = next(iter(self.idle))
        del self.idle[worker]
        return worker
