"""A service as the broker sees it: requests that wait, workers that are free."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import count
from typing import Protocol

from broker.core.heartbeat import Heartbeat
from broker.core.mdp import Peer, WorkerDialect
from broker.core.request import Request

Key = tuple[Peer, bytes] | int
Queue = OrderedDict[Key, Request]


class Inflow(Protocol):
    """Whether something is coming in that is not a whole message yet."""

    def goes_on(self, now: float, patience: float) -> bool:
        """Whether it did since this was last asked, `patience` seconds ago."""


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


class FairQueue:
    """Requests in order for each client, clients in turn: who sends a thousand delays nobody who sends one.

    What `push_front` puts back comes before all else. Whatever is asked of it costs the same however many wait:
    ordered dicts by the mark of the request, and by the client in the order of their turns.
    """

    __slots__ = ("_front", "_length", "_queues", "_unmarked")

    def __init__(self) -> None:
        self._front: Queue = OrderedDict()
        self._queues: OrderedDict[Peer, Queue] = OrderedDict()
        self._length = 0
        self._unmarked = count()

    def __len__(self) -> int:
        return self._length

    def push(self, request: Request) -> None:
        queue = self._queues.get(request.peer)
        if queue is None:
            queue = self._queues[request.peer] = OrderedDict()
        queue[self._key(request, queue)] = request
        self._length += 1

    def push_front(self, request: Request) -> None:
        key = self._key(request, self._front)
        self._front[key] = request
        self._front.move_to_end(key, last=False)
        self._length += 1

    def pop(self) -> Request:
        """The next request; KeyError when there is none."""
        if self._front:
            _, request = self._front.popitem(last=False)
        else:
            peer, queue = self._queues.popitem(last=False)
            _, request = queue.popitem(last=False)
            if queue:
                self._queues[peer] = queue  # behind the others
        self._length -= 1
        return request

    def remove(self, peer: Peer, mark: bytes) -> Request | None:
        """Take out a peer's request by the last address frame that the peer put in front of it."""
        key = (peer, mark)
        request = self._front.pop(key, None)
        if request is None and (queue := self._queues.get(peer)) is not None:
            request = queue.pop(key, None)
            if not queue:
                del self._queues[peer]
        if request is not None:
            self._length -= 1
        return request

    def take_older(self, limit: float) -> Iterator[Request]:
        """Take out the requests that arrived at `limit` or before."""
        # Each queue is in the order of arrival, but for the front, where any may be the oldest.
        for key in [key for key, request in self._front.items() if request.arrived <= limit]:
            self._length -= 1
            yield self._front.pop(key)
        emptied = []
        for peer, queue in self._queues.items():
            while queue and next(iter(queue.values())).arrived <= limit:
                self._length -= 1
                yield queue.popitem(last=False)[1]
            if not queue:
                emptied.append(peer)
        for peer in emptied:
            del self._queues[peer]

    def _key(self, request: Request, queue: Queue) -> Key:
        """The key of a request: its mark, or, should it have none or one that is taken, a number."""
        key = request.mark
        return next(self._unmarked) if key is None or key in queue else key


class Service:
    """One service name. Either requests wait or workers are free, never both."""

    __slots__ = ("batch", "idle", "most", "name", "waiting", "workers")

    def __init__(self, name: bytes, batch: list[Request] | None = None, most: int = 0) -> None:
        self.name = name
        self.waiting = FairQueue()
        self.idle: dict[WorkerPeer, None] = {}
        """Free workers, the least recently used first: a dict keeps insertion order."""
        self.workers = 0
        """Registered workers, free and busy."""
        self.batch = batch
        """An integrated service's requests until its handler takes them; None for a service of workers."""
        self.most = most
        """Bytes of a request for an integrated service; larger ones are refused."""

    @property
    def unused(self) -> bool:
        """Whether nothing is left that the broker would have to remember it for."""
        return not self.workers and not self.waiting and self.batch is None

    def least_recently_used(self) -> WorkerPeer:
        """Take the free worker that has been free for longest; StopIteration when there is none."""
        worker = next(iter(self.idle))
        del self.idle[worker]
        return worker
