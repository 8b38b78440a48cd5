"""A service as the broker sees it: requests that wait, workers that are free."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from broker.core.mdp import Peer, WorkerDialect
from broker.core.request import Request


class WorkerPeer:
    """A registered worker."""

    __slots__ = ("dialect", "peer", "request", "service")

    def __init__(self, peer: Peer, dialect: WorkerDialect, service: Service) -> None:
        self.peer = peer
        self.dialect = dialect
        self.service = service
        self.request: Request | None = None
        """What it works on; None while it is free."""


class FairQueue:
    """Requests in order for each client, clients in turn: who sends a thousand delays nobody who sends one.

    What `push_front` puts back comes before all else.
    """

    __slots__ = ("_front", "_length", "_queues", "_turns")

    def __init__(self) -> None:
        self._front: deque[Request] = deque()
        self._queues: dict[Peer, deque[Request]] = {}
        self._turns: deque[Peer] = deque()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, request: Request) -> None:
        queue = self._queues.get(request.peer)
        if queue is None:
            queue = self._queues[request.peer] = deque()
            self._turns.append(request.peer)
        queue.append(request)
        self._length += 1

    def push_front(self, request: Request) -> None:
        self._front.appendleft(request)
        self._length += 1

    def pop(self) -> Request:
        """The next request; IndexError when there is none."""
        if self._front:
            request = self._front.popleft()
        else:
            peer = self._turns.popleft()
            queue = self._queues[peer]
            request = queue.popleft()
            if queue:
                self._turns.append(peer)
            else:
                del self._queues[peer]
        self._length -= 1
        return request

    def remove(self, peer: Peer, mark: bytes) -> Request | None:
        """Take out a peer's request by the last address frame that the peer put in front of it."""
        for queue in (self._front, self._queues.get(peer, ())):
            for request in queue:
                if request.marked(peer, mark):
                    break
            else:
                continue
            assert isinstance(queue, deque)
            queue.remove(request)
            if peer in self._queues and not self._queues[peer]:
                del self._queues[peer]
                self._turns.remove(peer)
            self._length -= 1
            return request
        return None

    def take_older(self, limit: float) -> Iterator[Request]:
        """Take out the requests that arrived at `limit` or before."""
        if self._front:
            fresh = deque(request for request in self._front if request.arrived > limit)
            for request in self._front:
                if request.arrived <= limit:
                    self._length -= 1
                    yield request
            self._front = fresh
        emptied = False
        for queue in self._queues.values():
            while queue and queue[0].arrived <= limit:
                self._length -= 1
                yield queue.popleft()
            emptied = emptied or not queue
        if emptied:
            self._turns = deque(peer for peer in self._turns if self._queues[peer])
            self._queues = {peer: queue for peer, queue in self._queues.items() if queue}


class Service:
    """One service name. Either requests wait or workers are free, never both."""

    __slots__ = ("batch", "idle", "name", "waiting", "workers")

    def __init__(self, name: bytes, batch: list[Request] | None = None) -> None:
        self.name = name
        self.waiting = FairQueue()
        self.idle: dict[WorkerPeer, None] = {}
        """Free workers, the least recently used first: a dict keeps insertion order."""
        self.workers = 0
        """Registered workers, free and busy."""
        self.batch = batch
        """An integrated service's requests until its handler takes them; None for a service of workers."""

    @property
    def unused(self) -> bool:
        """Whether nothing is left that the broker would have to remember it for."""
        return not self.workers and not self.waiting and self.batch is None

    def least_recently_used(self) -> WorkerPeer:
        """Take the free worker that has been free for longest; StopIteration when there is none."""
        worker = next(iter(self.idle))
        del self.idle[worker]
        return worker
