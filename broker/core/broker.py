"""The Majordomo broker without sockets: messages in, messages out.

A client's REQUEST goes to a free worker of its service, or waits until there is one; PARTIAL and FINAL go the
way back. Whatever dialect either side speaks, each is answered in its own. A worker's life:

    state   READY      PARTIAL   FINAL     HEARTBEAT   SLOTS    LOST     DISCONNECT   silence
    ------  ---------  --------  --------  ----------  -------  -------  -----------  -------
    none    register   refuse    refuse    refuse      refuse   refuse   ignore       –
    idle    refuse     refuse    refuse    keep        resize   refuse   remove       expire
    busy    refuse     forward   finish    keep        resize   lose     remove       expire

`refuse` answers DISCONNECT and forgets the worker, which comes back with READY on a new socket. Whenever a busy
worker is forgotten, its requests go to the front of their queues, for another worker. But a request of a queue
(CLIENT_QUEUE) whose worker died goes back to the queue, which counts attempts:

    its process had nothing else in hand      500: the request may be the cause
    its process had other requests, too       502: any of them may be the cause; the queue has each run alone

A worker that said KEEPER returns with its requests when its connection is lost: they wait for it (`missing.py`), and
only then it has died. A worker that says DISCONNECT, or that this broker sends away, has not died. One that says
CHILDREN executes its requests in other processes, and says LOST when one of these died. When it dies itself, only
requests that ran alone may be the cause.

A worker has one slot and one service, or, by READY, several. Which of the waiting requests a free slot gets: the
service whose next request has the highest priority, equal ones in turns; within a service clients in turns, the oldest
first (`WorkerGroup`, `FairQueue`).

A broker that drains (`drain`) says DISCONNECT to each worker as soon as it has no request, and to all that come; it
refuses requests for workers with 503. Integrated services go on. One that is cut off (`cut_off`) says DISCONNECT to the
workers that are idle then, to those with several slots as soon as they are, and refuses requests for services without a
worker with 503.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count

from broker.access.authorization import Guard, Review
from broker.access.users import User
from broker.config import BrokerConfig
from broker.core import mmi
from broker.core.mdp import (
    AT_LIMIT,
    CHILDREN,
    CLIENT_01,
    CLIENT_02,
    CLIENT_DIALECTS_02,
    CLIENT_QUEUE,
    CLIENT_V01,
    ELSEWHERE,
    EXTENSION,
    HEADERS,
    KILL,
    KILLS,
    LOST,
    MAX_PROCESS,
    MAX_STACK,
    PROCESS,
    WORKER_DIALECTS,
    Capacity,
    ClientDialect,
    Command,
    Core,
    Frames,
    Peer,
    error_body,
    read_capacity,
    read_held,
    read_slots,
    read_version,
    service_fault,
)
from broker.core.missing import (
    Expected,
    MissingRequest,
    MissingRequests,
    NamedRequest,
    Secrets,
    attempt_of,
    delivery_of,
    keeper_of,
    read_given,
)
from broker.core.requests import (
    CUT_OFF,
    DEADLINE,
    DRAINING,
    LATE,
    Request,
    Unwanted,
    WaitingRequests,
    as_workers,
    later_context,
    read_request,
)
from broker.core.timers import earliest
from broker.core.worker_registry import (
    NO_GROUP,
    BrokerService,
    WorkerPeer,
    WorkerProcess,
    WorkerRegistry,
    WorkerState,
    process_name,
)
from broker.errors import UsageError

NO_PROCESS = ("", b"")


def _stand_in(worker: WorkerPeer, token: bytes, now: float) -> Request:
    """Return what stands for a request that a worker has named, and is not known here."""
    request = Request(worker.peer, [], CLIENT_V01, b"", [], now)
    request.answered, request.token = True, token
    return request


def _no_secret() -> bytes:
    return b""


Given = Callable[[Request, WorkerPeer], None]
"""Notes that a worker that keeps its requests gets this one, before it leaves."""


class BrokerCore(Core):
    """Routes between clients and workers. `now` is always monotonic seconds."""

    def __init__(
        self,
        config: BrokerConfig | None = None,
        *,
        now: float = 0.0,
        about: mmi.About | None = None,
        secret: Callable[[], bytes] = _no_secret,
    ) -> None:
        """`secret` returns 32 random hex digits: a worker that returns with a request knows those of its delivery.
        A queue with several brokers sets a key instead (`secrets`)."""
        super().__init__()
        self.config = config or BrokerConfig()
        self.missing = MissingRequests(self.config.worker_return)
        self.given: Given | None = None
        self.secrets = Secrets(secret)
        self.services: dict[bytes, BrokerService] = {}
        self.waiting = WaitingRequests(self.config)
        self.stats: dict[str, int] = dict.fromkeys(mmi.COUNTERS, 0)
        self.new_worker: WorkerPeer | None = None
        """The worker that registered last, until the shell takes it to add what it knows of the connection."""
        self._batched: list[BrokerService] = []
        """Integrated services that have requests."""
        self.about = about or mmi.About()
        self.started = now
        self.registry = WorkerRegistry(self.config)
        self.workers = self.registry.workers
        self.peers = 0
        """Connections, of clients and workers; the shell counts them."""
        self.documents = mmi.Documents()
        self.guard: Guard | None = None
        """The permissions; None: every user may do everything."""
        self.draining = False
        self.is_cut_off = False
        """Whether other brokers serve what this one cannot at the moment."""
        self._heard, self._heartbeats = self.registry.heard, self.registry.heartbeats
        self.is_ending = False
        """Whether this process ends soon: workers are to return with their requests after a restart."""
        self._tokens = count(1)

    def receive(self, peer: Peer, frames: Frames, now: float, user: User | None = None) -> None:
        """Take a message of a `user` (None: unchecked). One that is not MDP is counted and dropped."""
        worker = self.workers.get(peer)
        if worker is not None and (parsed := worker.dialect.parse(frames)) is not None:  # most need no further parsing
            self._worker_command(worker, parsed[0], parsed[1], now)
            return
        at, frame = 0, b""
        for at, frame in enumerate(frames):
            if frame in HEADERS or at == MAX_STACK:
                break
        if frame == CLIENT_02:
            client = CLIENT_DIALECTS_02.get(frames[at + 1]) if len(frames) > at + 2 else None
            if client is not None and (not client.delimited or (at and frames[at - 1] == b"")):
                self._request(peer, frames[:at], client, frames[at + 2], frames[at + 3 :], now, user)
                return
        elif frame == CLIENT_01:
            if at and frames[at - 1] == b"" and len(frames) > at + 1:
                self._request(peer, frames[:at], CLIENT_V01, frames[at + 1], frames[at + 2 :], now, user)
                return
        else:
            dialect = WORKER_DIALECTS.get(tuple(frames[: at + 1]))
            command = dialect.commands.get(frames[at + 1]) if dialect and len(frames) > at + 1 else None
            if dialect is not None and command is not None:
                worker = worker or WorkerPeer(peer, dialect, NO_GROUP, user=user)
                self._worker_command(worker, command, frames[at + 2 :], now)
                return
        self._malformed(peer, now)

    def tick(self, now: float) -> None:
        """Do what is due: send heartbeats, remove silent workers, expire requests."""
        if (due := self.next_deadline()) is not None and now > due + self.config.heartbeat_interval / 2:
            self.deaf(now)  # the workers were not silent, this process was: stopped, or busy
        for worker in self.registry.silent(now):
            self.stats["workers_expired"] += 1
            self._send_worker(worker, Command.DISCONNECT, (), now)
            self._forget(worker, now, died=True, returns=True)
        for delivery in list(self.missing.timers.due(now)):
            if delivery in self.missing.named:
                self.refuse_named(delivery, now)
            else:
                self._release([delivery], now, died=True)
        for worker in self.registry.due(now):
            self._output.append((worker.peer, worker.dialect.encode(Command.HEARTBEAT)))
        if self.waiting.sweep_at is not None and now >= self.waiting.sweep_at:
            self._expire_requests(now)

    def next_deadline(self) -> float | None:
        timers = self._heartbeats.wake_at, self.registry.silences.wake_at, self.missing.timers.wake_at
        return earliest(*timers, self.waiting.sweep_at)

    # -- more that a shell can report -----------------------------------------------------------------------

    def lost(self, peer: Peer, now: float, unsent: Sequence[bytes] = ()) -> None:
        """Note that the transport lost a peer: no need to wait for silence. `unsent`: the frames of messages that
        therefore did not go out. A request that the worker never got did not kill it."""
        worker = self.workers.get(peer)
        if worker is not None:
            self.stats["workers_expired"] += 1
            self._forget(worker, now, died=True, unsent=unsent, returns=True)
        elif peer in self.missing.queues:
            self._lose_queue(peer, now)

    def expect(self, peer: Peer, context: bytes, expected: Expected) -> None:
        """Note that a worker has the request of a local queue that comes next with this context: it waits for that
        worker."""
        self.missing.expected[peer, context] = expected

    def process_gone(self, name: str, now: float) -> None:
        """Note that a process of workers on this machine, named HOST:PID, has ended."""
        for (_, word), process in self.registry.processes.items():
            if process_name(word) == name:
                process.is_gone = True
        self._release(self.missing.of_process(name), now, died=True)

    def too_large(self, peer: Peer, head: Frames, text: str, now: float) -> None:
        """Answer the client of a discarded message that begins with `head`; `text` says what was wrong. A worker with
        one slot is forgotten, as after any malformed message; one with several keeps its other requests."""
        worker = self.workers.get(peer)
        if worker is None:
            if (request := read_request(peer, head)) is not None:
                self._refuse(request, 413, f"the request has {text}")
            self._malformed(peer, now)
            return
        said = worker.dialect.parse(head) if worker.names_services else None
        for request in list(worker.requests.values()):
            if said is None or request is worker.named(said[1]):
                self._heard(worker, now)
                self._fail(worker, request, f"the reply has {text}", now)
                if said is not None and said[0] is Command.FINAL:
                    self._finish(worker, said[1], now)
                return
        self._malformed(peer, now)

    def deaf(self, now: float) -> None:
        """Note that the broker could not read: what workers sent meanwhile is still unread, so none of them counts as
        silent."""
        for worker in self.workers.values():
            self._heard(worker, now)

    def held(self) -> dict[bytes, int]:
        """Return how many requests of each service take none of the slots that it counts: those of workers that leave,
        and those whose workers are away. Any thread may call this."""
        held = self.missing.of_services.copy()
        for worker in self.workers.copy().values():
            if len(worker.requests) > worker.slots:
                for request in [*worker.requests.copy().values()][worker.slots :]:
                    held[request.service] = held.get(request.service, 0) + 1
        return held

    def shut_down(self, now: float) -> None:
        """Send DISCONNECT to all workers, so that they try their next broker at once.

        Requests in hand are dropped: their clients retry, as after a crash of the broker.
        """
        for process in self.registry.exclusive:
            process.alone = None  # nothing begins any more
        self.registry.exclusive.clear()
        for worker in list(self.workers.values()):
            for request in list(worker.requests.values()):
                self.registry.take(worker, request)
            self._dismiss(worker, now)

    def end_soon(self, now: float) -> None:
        """Send workers that keep their requests away with them. What they have said before counts."""
        self.draining = self.is_ending = True
        for worker in self.registry.keepers.values():
            worker.group.idle.pop(worker, None)
            self._send_worker(worker, Command.DISCONNECT, (), now)

    def drain(self, now: float, *, ending: bool = False) -> None:
        """Refuse requests for workers and dismiss the workers as they become idle: in the end there are none left.
        `ending`: as before `end_soon`."""
        self.draining, self.is_ending = True, ending
        for request in self._take_unbegun(lambda request: True, now):
            self._refuse(request, 503, DRAINING)
        for service in list(self.services.values()):
            while service.waiting:
                self._refuse(self.waiting.pop(service.waiting), 503, DRAINING)
            self._settle(service)
        if not ending:
            self._release(list(self.missing), now)
        for worker in list(self.workers.values()):
            worker.group.idle.pop(worker, None)
            if not worker.requests:
                self._dismiss(worker, now)

    def cut_off(self, cut_off: bool, now: float) -> None:
        """Set whether other brokers serve what this one cannot: idle workers go there now. New workers are accepted all
        the same: perhaps no other broker is better off."""
        if cut_off and not self.is_cut_off:
            for worker in list(self.workers.values()):
                if not worker.requests:
                    self._dismiss(worker, now)
                elif worker.names_services:
                    worker.retires = True
                    self.registry.resize(worker, 0)
        self.is_cut_off = cut_off

    def send_on(self, most: int | None, now: float) -> None:
        """Dismiss idle workers that have other brokers: the first that have `most` slots together, and never the last
        worker of a service; None: all."""
        for worker in [worker for worker in self.workers.values() if not worker.requests and worker.several]:
            if most is None:
                self._dismiss(worker, now)
            elif most > 0 and all(
                service.workers > worker.capacity(name) for name, service in worker.group.services.items()
            ):
                most -= worker.slots
                self._dismiss(worker, now)

    def revoke(self, review: Review, now: float) -> None:
        """Dismiss workers and drop requests whose users lost their permission."""
        self.documents.forget()
        dismissed = review.dismissed(self.workers.values())
        self.registry.count_users()
        for worker in dismissed:
            self.registry.silences.cancel(worker)  # see `_proceed`
        for worker in dismissed:
            self.stats["workers_refused"] += 1
            self._dismiss(worker, now)
        drops = review.drops_request
        for delivery in self.missing:
            missing = self.missing.get(delivery)
            if missing is not None and drops(missing.request):
                self._answer_cancelled(self._found(self.missing.pop(delivery)))
        for service in list(self.services.values()):
            for request in [*service.take(drops), *self.waiting.take(service.waiting, drops)]:
                self._answer_cancelled(request)
            self._settle(service)

    def withhold(self, client: Peer, now: float) -> None:
        """Answer with 499 the requests of a client that may have nothing begun now: those that wait, and those in the
        output on their way to a worker."""
        for service in [service for service in self.services.values() if service.waiting]:
            for request in self.waiting.take_all_of(service.waiting, client):
                self._answer_cancelled(request)
            self._settle(service)
        for request in self._take_unbegun(lambda request: request.peer == client, now):
            self._answer_cancelled(request)
        for peer, frames in self.take_output():
            worker = self.workers.get(peer)
            given = worker.given(frames) if worker is not None and frames is not None else None
            if worker is None or given is None or given.peer != client:
                self._output.append((peer, frames))
            else:
                self.registry.take(worker, given)
                self._answer_cancelled(given)
                self._free(worker, now)

    # -- clients ---------------------------------------------------------------------------------------------

    def _request(
        self,
        peer: Peer,
        stack: Frames,
        dialect: ClientDialect,
        name: bytes,
        body: Frames,
        now: float,
        user: User | None,
    ) -> None:
        self.stats["requests"] += 1
        service = self.services.get(name)
        request = Request(peer, stack, dialect, name, body, now, user)
        if user is not None and self.guard is not None and (refusal := self.guard.refuses(request, user, now)):
            self._output.append((peer, refusal))
        elif not body:
            self._refuse(request, 400, "a request needs at least one body frame")
        elif service is None and name.startswith(b"mmi."):
            self._output.append((peer, request.final(mmi.answer(self, peer, name, body, now, user))))
        elif service is None and (fault := service_fault(name)):
            self._refuse(request, 400, fault)
        elif (size := sum(map(len, body))) > (most := self.config.max_body if service is None else service.most):
            self._refuse(request, 413, f"body has {size} bytes; this broker accepts at most {most}")
        elif service is not None and service.batch is not None:
            if not service.batch:
                self._batched.append(service)
            service.batch.append(request)
        elif self.missing.expected and (
            (expected := self.missing.expected.pop((peer, request.context), None)) is not None
        ):
            self._expect(request, expected, now)
        elif len(stack) > 3 and (given := request.given) is not None and self._is_given(request, given, now):
            pass
        elif service is not None and (worker := service.find_worker(request)) is not None:
            self._deliver(worker, request, now)
        elif self.draining or (self.is_cut_off and (service is None or not service.workers)):
            self._refuse(request, 503, DRAINING if self.draining else CUT_OFF)
        elif (full := self.waiting.full(service.waiting if service is not None else None, request)) is not None:
            self._refuse(request, 503, f"queue full: {full}; try again later")
        else:
            service = self._service(name)
            self.waiting.push(service.waiting, request, now)
            if service.joint_groups:
                self.registry.reorder(service)

    def _expect(self, request: Request, expected: Expected, now: float) -> None:
        """Take a request that a worker has, by the word of its queue: the worker is here, or is waited for."""
        request.token = expected.delivery + request.context
        request.received = request.sent_at = now - expected.seconds
        request.sent, request.is_kept = 1, True
        named = self.missing.decided(expected.delivery)
        if named is None or named.worker.keeper != expected.keeper or request.service not in named.services:
            self._miss(MissingRequest(request, expected.keeper, NO_PROCESS, True), now)
        else:
            self._resume(named, request, now)

    def _is_given(self, request: Request, said: bytes, now: float) -> bool:
        """Take a request of a queue elsewhere that was given out before: over another connection, or by this broker
        before a restart. Return whether it was."""
        self.missing.queues.add(request.peer)
        known = self.missing.orphans.pop(attempt_of(request), None)
        if (expected := read_given(said) or known) is None:
            return False
        worker = self.registry.keepers.get(expected.keeper)
        for before in [] if worker is None else [*worker.requests.values()]:
            if delivery_of(before.token) == expected.delivery and before.peer in self.missing.queues:
                self._lose_queue(before.peer, now)
                self.missing.queues.add(request.peer)
        self._expect(request, expected, now)
        return True

    def _lose_queue(self, peer: Peer, now: float) -> None:
        """Note that a queue elsewhere is gone. It comes again with the requests that workers keep, which return and say
        all of them again; it sends again what they have not."""
        self.missing.queues.discard(peer)
        mine = [request for request in self.registry.delivered.values() if request.peer == peer]
        keepers: dict[WorkerPeer, None] = {}
        self.missing.orphans.clear()
        for request in mine:
            delivery, seconds = delivery_of(request.token), now - request.sent_at
            worker, missing = self.workers.get(request.holder), self.missing.get(delivery)
            if missing is not None:
                self._found(self.missing.pop(delivery))
                self.missing.orphans[attempt_of(request)] = Expected(delivery, missing.keeper, seconds)
            elif worker is not None and worker.keeper:
                keepers[worker] = None
                self.missing.orphans[attempt_of(request)] = Expected(delivery, worker.keeper, seconds)
            request.answered = True
        for worker in keepers:
            self._send_worker(worker, Command.DISCONNECT, (), now)
            self._forget(worker, now, died=True, returns=True)
        for service in [service for service in self.services.values() if service.waiting]:
            self.waiting.take_all_of(service.waiting, peer)
            self._settle(service)

    def cancel(self, peer: Peer, name: bytes, mark: bytes, now: float, notify: bytes = b"") -> bytes:
        """Withdraw a request by its `mark`; it is answered with 499. If a worker has it, it stays there, and no other
        gets it. `notify`: send that worker CANCEL, if it knows it, for this reason. Return the status of `mmi.cancel`:
        202 if the worker ends the request's process."""
        service = self.services.get(name)
        request = self.waiting.remove(service.waiting, peer, mark) if service is not None else None
        if service is None or request is None:
            found = self.registry.unwant(peer, name, mark, notify)
            if found is None:
                return b"404"
            worker, held = found
            if worker.process.holds_back(held):
                for unbegun in self._take_unbegun(lambda request: request is held, now):
                    self._answer_cancelled(unbegun)
                return b"200"
            if notify and worker.extended:
                self._send_cancel(worker, held, now)
            return b"202" if notify == KILL and worker.kills else b"404"
        self._answer_cancelled(request)
        self._settle(service)
        return b"200"

    def _send_cancel(self, worker: WorkerPeer, request: Request, now: float) -> None:
        """Notify a worker that a request that it has is not wanted any more, with the reason if it knows that one."""
        known = (worker.has_children and request.reason == AT_LIMIT) or (worker.kills and request.reason == KILL)
        why = [request.reason] if known else []
        self._send_worker(worker, Command.CANCEL, [request.token, b"", *why], now)

    def _refuse(self, request: Request, status: int, text: str) -> None:
        self.stats["refused"] += 1
        self._answer_error(request, status, text)

    def _answer_error(self, request: Request, status: int, text: str) -> None:
        self._output.append((request.peer, request.refusal(error_body(status, text))))

    def _answer_cancelled(self, request: Request) -> None:
        self.stats["cancelled"] += 1
        self._answer_error(request, 499, "cancelled by its client")

    def _expire_requests(self, now: float) -> None:
        for service in list(self.services.values()):
            for request in self.waiting.take_expired(service.waiting, now):
                self.stats["requests_expired"] += 1
                self._answer_error(request, 504, f"no worker took the request within {self.config.request_expiry:g} s")
            self._settle(service)
        self.waiting.swept(now)

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

    # -- integrated services ---------------------------------------------------------------------------------

    def integrate(self, name: bytes, room: int = 0) -> None:
        """Answer a service in the broker's own process: `take_batches` returns its requests from now on.

        `room`: bytes that they may have above `max_body`.
        """
        if fault := service_fault(name):
            raise UsageError(fault)
        if name in self.services:
            raise UsageError(f"service {name.decode()} is in use; integrate it once, before there are requests for it")
        self.services[name] = BrokerService(name, self.config.max_body + room, batch=[])

    def take_batches(self) -> list[tuple[bytes, list[Request]]]:
        """Return the requests for integrated services since the last call."""
        if not self._batched:
            return []
        batched, self._batched = self._batched, []
        return [(service.name, service.take_batch()) for service in batched if service.batch]

    def reply(self, request: Request, body: Frames) -> None:
        """Answer a request of an integrated service; all but the first answer are dropped."""
        if not request.answered:
            request.answered = True
            self._output.append((request.peer, request.final(body)))

    # -- workers ---------------------------------------------------------------------------------------------

    def _worker_command(self, worker: WorkerPeer, command: Command, rest: Frames, now: float) -> None:
        state = WorkerState.NONE
        if worker.group is not NO_GROUP:
            state = WorkerState.BUSY if worker.requests else WorkerState.IDLE
            self._heard(worker, now)
        action = TRANSITIONS.get((state, command), BrokerCore._unexpected)
        if self.guard is not None and not self.guard.may_say(worker, command, now):
            action = BrokerCore._unexpected
        action(self, worker, rest, now)

    def _register(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        name, words = rest[0] if rest else b"", rest[1:]
        worker.extended = EXTENSION in words and worker.dialect.has(Command.CANCEL)
        worker.several = worker.extended and ELSEWHERE in words
        process = next((word for word in words if word.startswith(PROCESS) and len(word) <= MAX_PROCESS), b"")
        capacity = read_capacity(name, words) if worker.extended else Capacity(0, {name: 0})
        keeper, held, ended = read_held(words)
        if capacity is None or len(held) > capacity.slots or len(set(held)) < len(held):
            self._unexpected(worker, rest, now)
            return
        if self.draining or not self._may_register(worker, capacity.limits):
            self._unexpected(worker, rest, now)
            return
        if keeper and capacity.slots:
            worker.keeper = keeper_of(worker.user, keeper)
            if (before := self.registry.keepers.get(worker.keeper)) is not None:  # its connection is gone
                self.stats["workers_expired"] += 1
                self._send_worker(before, Command.DISCONNECT, (), now)
                self._forget(before, now, died=True, returns=True)
        worker.names_services, worker.slots = capacity.slots > 0, capacity.slots or 1
        worker.has_children = worker.names_services and CHILDREN in words
        worker.kills = worker.has_children and KILLS in words
        worker.version = read_version(words)
        services: dict[bytes, BrokerService] = {}
        for name in capacity.limits:
            services[name] = self._service(name)
        self.registry.name_process(worker, process)
        self.registry.add(worker, services, capacity.limits, now)
        self.new_worker = worker
        self.stats["workers_registered"] += 1
        # The first heartbeat goes out at once: the worker learns that the broker is there and speaks its version.
        self._send_worker(worker, Command.HEARTBEAT, (), now)
        self._heard(worker, now)
        self._keep(worker, rest, now)
        if worker.keeper:
            self._take_back(worker, held, ended, now)
        self._free(worker, now)

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

    def refuse_named(self, delivery: bytes, now: float) -> None:
        """Note that a worker has a request no longer that it has named: it is not its, or closed."""
        if (named := self.missing.decided(delivery)) is not None and not named.has_ended:
            self._refuse_held(named.worker, named.request.token, now)
            self._repeat(named, now)

    def _refuse_held(self, worker: WorkerPeer, token: bytes, now: float) -> None:
        self.stats["not_resumed"] += 1
        self._send_worker(worker, Command.CANCEL, [token, b""], now)

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

    def _repeat(self, named: NamedRequest, now: float) -> None:
        for command, rest in named.said:
            if named.worker.peer in self.workers:
                self._worker_command(named.worker, command, rest, now)

    def _return(self, worker: WorkerPeer, token: bytes, now: float) -> Request | None:
        """Return a request that waits for a worker which named it; None: there is none."""
        missing = self.missing.get(delivery_of(token))
        if missing is None or missing.keeper != worker.keeper or missing.request.service not in worker.group.services:
            return None
        request = self._found(self.missing.pop(delivery_of(token)))
        request.token = token
        if not request.wanted:
            self._send_cancel(worker, request, now)
        if (message := request.begin_anew()) is not None:
            self._output.append((request.peer, message))
        return request

    def _found(self, missing: MissingRequest) -> Request:
        """Note that a request waits for its worker no longer."""
        if (mark := missing.request.mark) is not None:
            self.registry.delivered.pop(mark, None)
        return missing.request

    def _miss(self, missing: MissingRequest, now: float) -> None:
        """Have a request wait for its worker."""
        self.missing.add(missing, now)
        if (mark := missing.request.mark) is not None:
            self.registry.delivered[mark] = missing.request

    def _release(self, deliveries: list[bytes], now: float, *, died: bool = False) -> None:
        """Give requests whose workers do not return to others. `died`: the workers have died."""
        if not deliveries:
            return
        released = [self.missing.pop(delivery) for delivery in deliveries]
        for missing in released:
            request = self._found(missing)
            if died and not missing.expected:
                self._give_up(request)
            elif not missing.expected:
                request.deliveries -= 1
        self._deliver_again([missing.request for missing in released], now)

    def _may_register(self, worker: WorkerPeer, names: Iterable[bytes]) -> bool:
        user, guard = worker.user, self.guard
        if user is not None and guard is not None:
            registered = self.registry.of_users.get(user.name, 0)
            if not all(guard.may_work(worker, name) for name in names):
                return False
            if not guard.has_place(worker, registered, self.config.max_workers):
                return False
        return all(self.registry.admits(name, self.services.get(name)) for name in names)

    def _forward(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        request = worker.named(rest)
        if request is None:
            self._malformed(worker.peer, now)
            return
        if request.answered:
            self._keep_said(request, Command.PARTIAL, rest, now)
            return
        message = request.partial(rest[2:])
        if message is not None:
            self._output.append((request.peer, message))
        elif request.collected_size > self.config.max_body:
            self._fail(worker, request, f"the PARTIALs of the reply exceed {self.config.max_body} bytes", now)

    def _fail(self, worker: WorkerPeer, request: Request, text: str, now: float) -> None:
        """Fail a request whose reply is too large, as if its worker had said so. A worker with one slot is forgotten,
        as after any malformed message; one with several has the request until its FINAL."""
        if not request.answered:
            request.answered = True
            self._output.append((request.peer, request.final(error_body(413, text))))
        if worker.names_services:
            self._send_worker(worker, Command.CANCEL, [request.token, b""], now)
        else:
            self.registry.take(worker, request)
            self._malformed(worker.peer, now)

    def _finish(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        request = worker.named(rest)
        if request is None:
            self._malformed(worker.peer, now)
            return
        if request.answered and self._keep_said(request, Command.FINAL, rest, now):
            return
        self.stats["replies"] += 1
        self.registry.take(worker, request)
        if not request.answered:
            self._output.append((request.peer, request.final(as_workers(rest[2:]))))
        if worker.dialect.silent_when_busy:
            self._heard(worker, now)
        self._free(worker, now)

    def _keep_said(self, request: Request, command: Command, rest: Frames, now: float) -> bool:
        """Keep what a worker says of a request that it has named; one of which too much is said is refused."""
        if (named := self._named(request)) is None:
            return False
        if self.missing.keep(named, command, rest, self.config.max_waiting_bytes):
            return True
        self.refuse_named(delivery_of(request.token), now)
        return False

    def _named(self, request: Request) -> NamedRequest | None:
        named = self.missing.named.get(delivery_of(request.token)) if request.answered else None
        return named if named is not None and named.request is request else None

    def _progress(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        """Forward progress, in one small frame. What comes too fast is dropped."""
        request = worker.named(rest)
        if not worker.extended or request is None:
            self._malformed(worker.peer, now)
        elif not request.answered:
            self._output += request.progress(rest[2:], now)

    def _keep(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        self.registry.beat(worker, now)

    def _ignore(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        """Ignore a good-bye of an unregistered worker."""

    def _remove(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        self.stats["workers_left"] += 1
        self._forget(worker, now)  # the request did not kill it; mostly the two messages have crossed

    def _unexpected(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        self.stats["workers_refused"] += 1
        self._send_worker(worker, Command.DISCONNECT, (), now)
        if worker.peer in self.workers:
            self._forget(worker, now, died=True)

    def _malformed(self, peer: Peer, now: float) -> None:
        """Count a message that is not MDP. A worker that sends one cannot be trusted with a request (RFC 18: invalid
        peer)."""
        self.stats["malformed"] += 1
        worker = self.workers.get(peer)
        if worker is not None:
            self._forget(worker, now, died=True)

    def _resize(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        """Set how many requests a worker takes at a time, and give those that it has not begun to others."""
        slots = read_slots(rest[0]) if rest else None
        back = [worker.requests.get(token) for token in rest[1:]]
        if slots is None or not worker.names_services or None in back or len(set(rest)) < len(rest):
            self._malformed(worker.peer, now)
            return
        if not worker.retires:
            self.registry.resize(worker, slots)
        returned = [request for request in back if request is not None]
        for request in returned:
            self.registry.take(worker, request)
            request.deliveries -= 1
            request.sent -= 1
        self._deliver_again(returned, now)
        self._free(worker, now)

    def _lose(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        """Note that a process of a worker died. Any of its requests may be the cause, but not those behind an empty
        frame."""
        suspects = rest.index(b"") if b"" in rest else len(rest)
        said = [worker.requests.get(token) for token in rest if token]
        requests = [request for request in said if request is not None]
        if not worker.has_children or not requests or None in said or len(set(rest)) < len(rest):
            self._malformed(worker.peer, now)
            return
        for request in requests:
            self.registry.take(worker, request)
        for request in requests[suspects:]:
            request.deliveries -= 1
        for request in requests[:suspects]:
            request.shared = suspects > 1
            self._give_up(request)
        self._deliver_again(requests, now)
        self._free(worker, now)

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

    def _send_request(self, worker: WorkerPeer, request: Request, now: float) -> None:
        request.sent += 1
        request.sent_at = now
        request.shared = False
        if worker.keeper and self.given is not None:
            self.given(request, worker)
        if now >= request.received + LATE:
            self._output += request.begins()
        if worker.keeper or request.is_kept:
            request.is_kept = worker.keeper != b""
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
        self.registry.remove(worker)
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
                self._miss(MissingRequest(request, worker.keeper, worker.process_key, False), now)
            waits = set(away)
            requests = [request for request in requests if request not in waits]
            suspects = [request for request in suspects if request not in waits]
        if not worker.passes_on:
            for request in suspects:
                self._give_up(request)
        self._deliver_again(requests, now)
        self._proceed(process, now)
        for service in worker.group.services.values():
            self._settle(service)

    def _give_up(self, request: Request) -> None:
        """Return a request whose worker died to its queue, if it is of a queue."""
        if request.answered or request.dialect is not CLIENT_QUEUE:
            return
        self.stats["given_up"] += 1
        request.answered = True
        if request.shared:
            self._answer_error(request, LOST, "the worker died; other requests may be the cause")
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
                if (message := request.begin_anew()) is not None:
                    self._output.append((request.peer, message))
                if self.draining:
                    self._refuse(request, 503, DRAINING)
                    continue
                service = self._service(request.service)
                self.waiting.push_front(service.waiting, request, now)
                again[service] = None
        for service in again:
            self._serve(service, now)

    def _serve(self, service: BrokerService, now: float) -> None:
        """Give waiting requests of a service to workers that can take them."""
        while (first := service.waiting.first) is not None and (worker := service.find_worker(first)) is not None:
            self._deliver(worker, self.waiting.pop(service.waiting), now)
        self.registry.reorder(service)


TRANSITIONS: dict[tuple[WorkerState, Command], Callable[[BrokerCore, WorkerPeer, Frames, float], None]] = {
    (WorkerState.NONE, Command.READY): BrokerCore._register,
    (WorkerState.NONE, Command.DISCONNECT): BrokerCore._ignore,
    (WorkerState.IDLE, Command.HEARTBEAT): BrokerCore._keep,
    (WorkerState.IDLE, Command.SLOTS): BrokerCore._resize,
    (WorkerState.IDLE, Command.DISCONNECT): BrokerCore._remove,
    (WorkerState.BUSY, Command.PARTIAL): BrokerCore._forward,
    (WorkerState.BUSY, Command.FINAL): BrokerCore._finish,
    (WorkerState.BUSY, Command.HEARTBEAT): BrokerCore._keep,
    (WorkerState.BUSY, Command.SLOTS): BrokerCore._resize,
    (WorkerState.BUSY, Command.LOST): BrokerCore._lose,
    (WorkerState.BUSY, Command.DISCONNECT): BrokerCore._remove,
    **{(state, word): BrokerCore._progress for state in WorkerState for word in (Command.PROGRESS, Command.CANCEL)},
}
"""The action for each state and command. A missing key is the protocol error: `refuse` in the table above."""
