"""The broker's half that has workers: gives them requests, and takes these back when a worker leaves or dies.

Whenever a busy worker is forgotten, its requests go to the front of their queues, for another worker. But a request of
a queue (CLIENT_QUEUE) whose worker died goes back to the queue, which counts attempts:

    its process had nothing else in hand      500: the request may be the cause
    its process had other requests, too       502: any of them may be the cause; the queue has each run alone

A worker that said KEEPER returns with its requests when its connection is lost: they wait for it (`missing.py`), and
only then it has died. A worker that says DISCONNECT, or that this broker sends away, has not died. One that says
CHILDREN executes its requests in other processes, and says LOST when one of these died. When it dies itself, only
requests that ran alone may be the cause.

A worker has one slot and one service, or, by READY, several. Which of the waiting requests a free slot gets: the
service whose next request has the highest priority, equal ones in turns; within a service clients in turns, the oldest
first (`WorkerGroup`, `FairQueue`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from broker.access.authorization import Guard
from broker.config import BrokerConfig
from broker.core import mmi
from broker.core.mdp import AT_LIMIT, CLIENT_QUEUE, KILL, LOST_STATUS, Command, Core, error_body
from broker.core.missing import Draw, MissingRequest, MissingRequests, Secrets, delivery_of
from broker.core.requests import DEADLINE, DRAINING, LATE, Request, Unwanted, WaitingRequests, later_context
from broker.core.worker_registry import BrokerService, WorkerIdentity, WorkerPeer, WorkerProcess, WorkerRegistry

Given = Callable[[Request, WorkerPeer], None]
"""Notes, before a request leaves, which worker keeps it; or that the next one does not, after one that did."""


MOST_NOTED = 10_000
"""Failed attempts of which the workers are remembered for the local queue."""


class DeliveryCore(Core):
    """Has the queues, the workers, and what is between them. `now` is always monotonic seconds."""

    def __init__(self, config: BrokerConfig, secret: Draw) -> None:
        super().__init__()
        self.config = config
        self.missing = MissingRequests(config.worker_return)
        self.given: Given | None = None
        self.secrets = Secrets(secret)
        self.services: dict[bytes, BrokerService] = {}
        self.waiting = WaitingRequests(config)
        self.stats: dict[str, int] = dict.fromkeys(mmi.COUNTERS, 0)
        self.registry = WorkerRegistry(config)
        self.workers = self.registry.workers
        self.guard: Guard | None = None
        """The permissions; None: every user may do everything."""
        self.draining = False
        self.failed_at: dict[bytes, WorkerIdentity] | None = None
        """At which workers attempts of the local queue failed, by the context of the request, until the queue takes it;
        None: there is no such queue."""
        self.is_ending = False
        """Whether this process ends soon: workers are to return with their requests after a restart."""
        self._heard, self._heartbeats = self.registry.heard, self.registry.heartbeats
        self._tokens = count(1)

    # -- queues ----------------------------------------------------------------------------------------------

    def _service(self, name: bytes) -> BrokerService:
        service = self.services.get(name)
        if service is None:
            service = self.services[name] = BrokerService(name, self.config.max_body)
        return service

    def _settle(self, service: BrokerService) -> None:
        """Note that requests of a service were taken out, or that workers left it."""
        self.registry.reorder(service)
        if service.unused:
            self.services.pop(service.name, None)

    def _serve(self, service: BrokerService, now: float) -> None:
        """Give waiting requests of a service to workers that can take them."""
        while (first := service.waiting.first) is not None and (worker := service.find_worker(first)) is not None:
            self._deliver(worker, self.waiting.pop(service.waiting), now)
        self.registry.reorder(service)

    def _refuse(self, request: Request, status: int, text: str) -> None:
        self.stats["refused"] += 1
        self._answer_error(request, status, text)

    def _answer_error(self, request: Request, status: int, text: str) -> None:
        self._output.append((request.peer, request.refusal(error_body(status, text))))

    def _answer_cancelled(self, request: Request) -> None:
        self.stats["cancelled"] += 1
        self._answer_error(request, 499, "cancelled by its client")

    # -- giving ---------------------------------------------------------------------------------------------

    def _free(self, worker: WorkerPeer, now: float) -> None:
        """Give a worker the next requests, as far as it has free slots, and remember those that are left."""
        if worker.process.alone is not None:
            self._proceed(worker.process, now)
        elif self.draining or worker.retires:
            if not worker.requests:
                self._dismiss(worker, now)
        else:
            while len(worker.requests) < worker.slots:
                service = worker.group.next_for(worker)
                if service is None:
                    worker.group.idle[worker] = None
                    return
                request = self.waiting.pop(service.waiting)
                if service.joint_groups:
                    self.registry.reorder(service)
                self._deliver(worker, request, now)
                if worker.process in self.registry.exclusive:  # mypy takes it that `alone` is still None
                    return

    def _deliver(self, worker: WorkerPeer, request: Request, now: float) -> None:
        request.deliveries += 1
        self._assign(worker, request, now)
        process = worker.process
        if (
            request.alone
            and not worker.has_children
            and (len(process.workers) > 1 or (worker.slots > 1 and not worker.passes_on))
        ):
            process.alone, process.token, process.is_started = worker, request.token, False
            self.registry.exclusive[process] = None
            for other in process.workers:
                other.group.idle.pop(other, None)
            self._proceed(process, now)
        else:
            self._send_request(worker, request, now)

    def _assign(self, worker: WorkerPeer, request: Request, now: float) -> None:
        context = request.context
        waited = now - request.received
        if context and (request.sent or (waited >= LATE and DEADLINE in context)):
            context = later_context(context, request.sent, waited)
        number = b"%016x" % next(self._tokens)
        secret = self.secrets.of(worker.keeper, number, context) if worker.keeper else b""
        request.token = number + secret + context
        if request.user is not None and self.guard is not None:
            request.token = self.guard.token(request, request.user)
        self.registry.give(worker, request)

    def _send_request(self, worker: WorkerPeer, request: Request, now: float) -> None:
        request.sent += 1
        request.sent_at = now
        request.shared = False
        if now >= request.received + LATE:
            self._output += request.begins()
        if worker.keeper or request.is_kept:
            request.is_kept = worker.keeper != b""
            if self.given is not None:
                self.given(request, worker)
            self._output += request.given_to(worker.keeper)
        if worker.names_services:
            rest = [request.token, b"", request.service, *request.body]
            self._send_worker(worker, Command.SERVICE_REQUEST, rest, now)
        else:
            self._send_worker(worker, Command.REQUEST, [request.token, b"", *request.body], now)
        if worker.dialect.silent_when_busy:
            self._heard(worker, now)

    def _proceed(self, process: WorkerProcess, now: float) -> None:
        """Send the request that must run alone, once its process has no other; or, when that is over, free the others.
        Workers about to be forgotten have no entry in `silences` any more."""
        alone = process.alone
        if alone is None:
            return
        request = alone.requests.get(process.token)
        if request is None:
            process.alone = None
            self.registry.exclusive.pop(process, None)
            for worker in list(process.workers):
                if worker in self.registry.silences:
                    self._free(worker, now)
        elif process.in_hand == 1 and not process.is_started:
            process.is_started = True
            self.registry.take(alone, request)
            self._assign(alone, request, now)  # with its present deadline
            process.token = request.token
            alone.group.idle.pop(alone, None)
            self._send_request(alone, request, now)

    def _take_unbegun(self, unwanted: Unwanted, now: float) -> list[Request]:
        """Take back requests that wait for others of their process to finish."""
        taken = []
        processes = list(self.registry.exclusive)
        for process in processes:
            worker = process.alone
            request = None if worker is None or process.is_started else worker.requests.get(process.token)
            if worker is not None and request is not None and unwanted(request):
                self.registry.take(worker, request)
                taken.append(request)
        for process in processes:
            self._proceed(process, now)
        return taken

    def _send_worker(self, worker: WorkerPeer, command: Command, rest: Sequence[bytes], now: float) -> None:
        self._output.append((worker.peer, worker.dialect.encode(command, rest)))
        if worker.peer in self.workers:
            self._heartbeats.set(worker, now + worker.heartbeat.interval)

    def _send_cancel(self, worker: WorkerPeer, request: Request, now: float) -> None:
        """Notify a worker that a request that it has is not wanted any more, with the reason if it knows that one."""
        known = (worker.has_children and request.reason == AT_LIMIT) or (worker.kills and request.reason == KILL)
        why = [request.reason] if known else []
        self._send_worker(worker, Command.CANCEL, [request.token, b"", *why], now)

    # -- taking back ----------------------------------------------------------------------------------------

    def _dismiss(self, worker: WorkerPeer, now: float) -> None:
        """Dismiss a worker. What it has in hand goes to others."""
        self._send_worker(worker, Command.DISCONNECT, (), now)
        self._forget(worker, now)

    def _forget(
        self,
        worker: WorkerPeer,
        now: float,
        *,
        died: bool = False,
        unsent: Sequence[bytes] = (),
        returns: bool = False,
    ) -> None:
        """`died`: any of its requests but the `unsent` may be the cause, unless it `returns`."""
        process, requests = worker.process, list(worker.requests.values())
        suspects: list[Request] = []
        for request in requests:
            if died and request.token not in unsent and not process.holds_back(request):
                suspects.append(request)
            else:
                request.deliveries -= 1
        for request in requests:
            self.registry.take(worker, request)
        self.missing.forget(worker)
        self.registry.remove(worker, now)
        if worker.has_children:
            for request in suspects:
                request.shared = not request.alone
        elif suspects and (len(suspects) > 1 or process.in_hand):
            others = [request for other in process.workers for request in other.requests.values()]
            for request in [*suspects, *others]:
                request.shared = True
        stays = self.is_ending or not (self.draining or process.is_gone)
        if returns and worker.keeper and stays and self.missing.patience:
            away = [request for request in suspects if not request.answered]
            for request in away:
                self._miss(MissingRequest(request, worker.keeper, worker.process_key, False, worker), now)
            waits = set(away)
            requests = [request for request in requests if request not in waits]
            suspects = [request for request in suspects if request not in waits]
        if not worker.passes_on:
            for request in suspects:
                self._give_up(request, worker)
        self._deliver_again(requests, now)
        self._proceed(process, now)
        for service in worker.group.services.values():
            self._settle(service)

    def _miss(self, missing: MissingRequest, now: float) -> None:
        """Have a request wait for its worker."""
        if self.missing.get(delivery := delivery_of(missing.request.token)) is not None:
            self._found(self.missing.pop(delivery))  # its queue has sent it again, over another connection
        self.missing.add(missing, now)
        if (mark := missing.request.mark) is not None:
            self.registry.delivered[mark] = missing.request

    def _found(self, missing: MissingRequest) -> Request:
        """Note that a request waits for its worker no longer."""
        if (mark := missing.request.mark) is not None:
            self.registry.delivered.pop(mark, None)
        return missing.request

    def _release(self, deliveries: list[bytes], now: float, *, died: bool = False) -> None:
        """Give requests of workers that do not return to others. `died`: the workers have died."""
        if not deliveries:
            return
        released = [self.missing.pop(delivery) for delivery in deliveries]
        for missing in released:
            request = self._found(missing)
            if died and not missing.expected:
                self._give_up(request, missing.worker)
            elif not missing.expected:
                request.deliveries -= 1
        self._deliver_again([missing.request for missing in released], now)

    def _note_failure(self, request: Request, worker: WorkerPeer | None) -> None:
        """Note for the local queue at which worker an attempt has failed."""
        if self.failed_at is not None and worker is not None and (context := request.context):
            self.failed_at[context] = worker.identity
            if len(self.failed_at) > MOST_NOTED:  # of other queues, which do not take them
                del self.failed_at[next(iter(self.failed_at))]

    def _give_up(self, request: Request, worker: WorkerPeer | None) -> None:
        """Return a dead worker's request to its queue, if it is of a queue."""
        if request.answered or request.dialect is not CLIENT_QUEUE:
            return
        self._note_failure(request, worker)
        self.stats["given_up"] += 1
        request.answered = True
        if request.shared:
            self._answer_error(request, LOST_STATUS, "the worker died; other requests may be the cause")
        else:
            self._answer_error(request, 500, "the worker died while processing the request")

    def _deliver_again(self, requests: list[Request], now: float) -> None:
        """Give requests that a worker had to others, in the same order."""
        again: dict[BrokerService, None] = {}
        for request in reversed(requests):
            if request.answered:
                continue
            if not request.wanted:
                self._answer_cancelled(request)
            elif request.deliveries >= self.config.max_deliveries:
                self.stats["given_up"] += 1
                self._answer_error(request, 500, f"{request.deliveries} workers died while processing the request")
            else:
                self.stats["redelivered"] += 1
                if (message := request.restart()) is not None:
                    self._output.append((request.peer, message))
                if self.draining:
                    self._refuse(request, 503, DRAINING)
                    continue
                service = self._service(request.service)
                self.waiting.push_front(service.waiting, request, now)
                again[service] = None
        for service in again:
            self._serve(service, now)
