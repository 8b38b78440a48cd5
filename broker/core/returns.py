"""Workers that come back to the broker with their requests, and queues that come back to them.

A worker says in READY which requests it has. It goes on with one that waits for it (`missing.py`). One that a queue on
several brokers may know stands here by the worker's word, until the queue decides; anything else gets CANCEL. What a
queue sends again after its own restart, or over another connection, waits for the worker that has it.
"""

from __future__ import annotations

from broker.core.mdp import CLIENT_V01, Command, Frames, Peer
from broker.core.missing import Expected, MissingRequest, NamedRequest, Orphan, attempt_of, delivery_of, read_given
from broker.core.requests import Request
from broker.core.routing import DeliveryCore
from broker.core.worker_registry import WorkerPeer

NO_PROCESS = ("", b"")


def _stand_in(worker: WorkerPeer, token: bytes, now: float) -> Request:
    """Return what stands for a request that a worker has named, and is not known here."""
    request = Request(worker.peer, [], CLIENT_V01, b"", [], now)
    request.answered, request.token = True, token
    return request


class ReturnCore(DeliveryCore):
    """Lets workers have again what they have. `now` is always monotonic seconds."""

    def take_command(self, worker: WorkerPeer, command: Command, rest: Frames, now: float) -> None:
        """Do what a worker says."""
        raise NotImplementedError

    def expect(self, peer: Peer, context: bytes, expected: Expected) -> None:
        """Note that a worker has the request of a local queue that comes next with this context: it waits for that
        worker."""
        self.missing.expected[peer, context] = expected

    def refuse_named(self, delivery: bytes, now: float) -> None:
        """Note that a worker has a request no longer that it has named: it is not its, or closed."""
        if (named := self.missing.decided(delivery)) is not None and not named.has_ended:
            self._refuse_held(named.worker, named.request.token, now)
            self._repeat(named, now)

    def _expect(self, request: Request, expected: Expected, now: float) -> None:
        """Take a request that a worker has, by the word of its queue: the worker is here, or is waited for."""
        request.token = expected.delivery + request.context
        request.received = request.sent_at = now - expected.seconds
        request.sent, request.is_kept = 1, True
        named = self.missing.decided(expected.delivery)
        if named is None or named.worker.keeper != expected.keeper or request.service not in named.services:
            self._miss(MissingRequest(request, expected.keeper, NO_PROCESS, True), now)
            worker = self.registry.keepers.get(expected.keeper)
            if worker is not None and request.service in worker.group.services:  # it is here, and does not have it
                if worker.has_replied and self.missing.patience and not self.draining:  # to this, perhaps: it says so
                    self._send_worker(worker, Command.DISCONNECT, (), now)
                    self._forget(worker, now, died=True, returns=True)
                else:
                    self._release([expected.delivery], now)
        else:
            self._resume(named, request, now)

    def _is_given(self, request: Request, said: bytes, now: float) -> bool:
        """Take a request of a queue elsewhere that was given out before: over another connection, or by this broker
        before a restart. Return whether it was."""
        self.missing.queues.add(request.peer)
        orphan = self.missing.orphans.pop(attempt_of(request), None)
        known = None if orphan is None or orphan.service != request.service else orphan.expected
        if (expected := read_given(said) or known) is None:
            return False
        worker = self.registry.keepers.get(expected.keeper)
        for before in [] if worker is None else [*worker.requests.values()]:
            if delivery_of(before.token) == expected.delivery and before.peer in self.missing.queues:
                self._lose_queue(before.peer, now)
                self.missing.queues.add(request.peer)
        if expected is known:
            request.token = expected.delivery
            self._output += request.given_to(expected.keeper)
        self._expect(request, expected, now)
        return True

    def _lose_queue(self, peer: Peer, now: float) -> None:
        """Note that a queue elsewhere is gone. It comes again with the requests that workers keep, which return and say
        all of them again; it sends again what they have not."""
        self.missing.queues.discard(peer)
        mine = [request for request in self.registry.delivered.values() if request.peer == peer]
        keepers: dict[WorkerPeer, None] = {}
        named = self.missing.named
        orphans = {of: one for of, one in self.missing.orphans.items() if one.expected.delivery in named}
        for request in mine:
            delivery, seconds = delivery_of(request.token), now - request.sent_at
            worker, missing = self.workers.get(request.holder), self.missing.get(delivery)
            keeper = b""
            if missing is not None:
                self._found(self.missing.pop(delivery))
                keeper = missing.keeper
            elif worker is not None and worker.keeper:
                keepers[worker], keeper = None, worker.keeper
            if keeper:
                expected = Expected(delivery, keeper, seconds)
                orphans[attempt_of(request)] = Orphan(request.service, request.context, expected)
            request.answered = True
        self.missing.orphans = orphans
        for worker in keepers:
            self._send_worker(worker, Command.DISCONNECT, (), now)
            self._forget(worker, now, died=True, returns=True)
        for service in [service for service in self.services.values() if service.waiting]:
            self.waiting.take_all_of(service.waiting, peer)
            self._settle(service)

    def _take_back(self, worker: WorkerPeer, held: Frames, ended: Frames, now: float) -> None:
        """Let a worker that returned have its requests again; what it has not is another's now. `ended`: to these it
        has replied, and does so again if the reply was lost."""
        for token in held:
            request = self._return(worker, token, now)
            if request is None:
                request = _stand_in(worker, token, now)
                if not self.missing.name(worker, request, now):
                    self._refuse_held(worker, token, now)
            else:
                self.stats["resumed"] += 1
            self.registry.give(worker, request)
        for token in ended:
            if (request := self._return(worker, token, now)) is not None:
                self._have_reply_again(worker, request, now)
            else:
                self.missing.name(worker, _stand_in(worker, token, now), now, has_ended=True)
        self._release(self.missing.of_keeper(worker.keeper), now)
        shared = [request for request in worker.requests.values() if request.shared]
        if shared and not self.missing.of_process(worker.process_name):  # what its process has is known again
            for request in shared:
                request.shared = False

    def _return(self, worker: WorkerPeer, token: bytes, now: float) -> Request | None:
        """Return a request that waits for a worker which named it; None: there is none."""
        missing = self.missing.get(delivery_of(token))
        if missing is None or missing.keeper != worker.keeper or missing.request.service not in worker.group.services:
            return None
        request = self._found(self.missing.pop(delivery_of(token)))
        request.token = token
        if request.reason:  # it was asked to notify its worker
            self._send_cancel(worker, request, now)
        if (message := request.restart()) is not None:
            self._output.append((request.peer, message))
        return request

    def _resume(self, named: NamedRequest, request: Request, now: float) -> None:
        """Let a worker have a request that it has named."""
        request.token = named.request.token
        if named.has_ended:
            self._have_reply_again(named.worker, request, now)
            return
        self.registry.take(named.worker, named.request)
        self.registry.give(named.worker, request)
        self.stats["resumed"] += 1
        self._repeat(named, now)

    def _have_reply_again(self, worker: WorkerPeer, request: Request, now: float) -> None:
        self.stats["resumed"] += 1
        self.registry.give(worker, request)
        rest = [request.token, b"", request.service, *request.body]
        self._send_worker(worker, Command.SERVICE_REQUEST, rest, now)

    def _refuse_held(self, worker: WorkerPeer, token: bytes, now: float) -> None:
        self.stats["not_resumed"] += 1
        self._send_worker(worker, Command.CANCEL, [token, b""], now)

    def _repeat(self, named: NamedRequest, now: float) -> None:
        for command, rest in named.said:
            if named.worker.peer in self.workers:
                self.take_command(named.worker, command, rest, now)

    def _keep_said(self, request: Request, command: Command, rest: Frames, now: float) -> bool:
        """Keep what a worker says of a request that it has named; one of which too much is said is refused."""
        if (named := self._named(request)) is None:
            return False
        if self.missing.keep(named, command, rest, self.config.max_waiting_bytes):
            return True
        self.refuse_named(delivery_of(request.token), now)
        return False

    def _take(self, worker: WorkerPeer, request: Request) -> None:
        """Take a request from a worker that has it no longer. If it has named it, nothing waits for the decision."""
        if self._named(request) is not None:
            self.missing.decided(delivery_of(request.token))
        self.registry.take(worker, request)

    def _named(self, request: Request) -> NamedRequest | None:
        named = self.missing.named.get(delivery_of(request.token)) if request.answered else None
        return named if named is not None and named.request is request else None
