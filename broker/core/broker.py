"""The Majordomo broker without sockets: messages in, messages out.

A client's REQUEST goes to a free worker of its service, or waits until there is one; PARTIAL and FINAL go the
way back. Whatever dialect either side speaks, each is answered in its own. A worker's life:

    state   READY      PARTIAL   FINAL     HEARTBEAT   SLOTS    LOST     DISCONNECT   silence
    ------  ---------  --------  --------  ----------  -------  -------  -----------  -------
    none    register   refuse    refuse    refuse      refuse   refuse   ignore       –
    idle    refuse     refuse    refuse    keep        resize   refuse   remove       expire
    busy    refuse     forward   finish    keep        resize   lose     remove       expire

`refuse` answers DISCONNECT and forgets the worker, which comes back with READY on a new socket (`routing.py`: what
becomes of its requests).

A broker that drains (`drain`) says DISCONNECT to each worker as soon as it has no request, and to all that come; it
refuses requests for workers with 503. Integrated services go on. One that is cut off (`cut_off`) says DISCONNECT to the
workers that are idle then, to those with several slots as soon as they are, and refuses requests for services without a
worker with 503.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.access.authorization import Review
from broker.access.users import User
from broker.config import BrokerConfig
from broker.core import mmi
from broker.core.mdp import (
    CHILDREN,
    CLIENT_01,
    CLIENT_02,
    CLIENT_DIALECTS_02,
    CLIENT_V01,
    ELSEWHERE,
    ERROR,
    EXTENSION,
    HEADERS,
    KILL,
    KILLS,
    MAX_PROCESS,
    MAX_STACK,
    PROCESS,
    WORKER_DIALECTS,
    Capacity,
    ClientDialect,
    Command,
    Frames,
    Peer,
    error_body,
    read_capacity,
    read_held,
    read_slots,
    read_version,
    service_fault,
)
from broker.core.missing import Draw, delivery_of, keeper_of
from broker.core.requests import CUT_OFF, DRAINING, Request, as_workers, read_request
from broker.core.returns import ReturnCore
from broker.core.timers import earliest
from broker.core.worker_registry import MAX_OFFERS, NO_GROUP, BrokerService, WorkerPeer, WorkerState, process_name
from broker.errors import UsageError


class BrokerCore(ReturnCore):
    """Routes between clients and workers. `now` is always monotonic seconds."""

    def __init__(
        self,
        config: BrokerConfig | None = None,
        *,
        now: float = 0.0,
        about: mmi.About | None = None,
        secret: Draw = bytes,
    ) -> None:
        """`secret` draws the secret of a delivery, which a worker that returns with its request must know. A queue with
        several brokers sets a key instead (`secrets`)."""
        super().__init__(config or BrokerConfig(), secret)
        self.new_worker: WorkerPeer | None = None
        """The worker that registered last, until the shell takes it to add what it knows of the connection."""
        self._batched: list[BrokerService] = []
        """Integrated services that have requests."""
        self.about = about or mmi.About()
        self.started = now
        self.peers = 0
        """Connections, of clients and workers; the shell counts them."""
        self.documents = mmi.Documents()
        self.is_cut_off = False
        """Whether other brokers serve what this one cannot at the moment."""

    def receive(self, peer: Peer, frames: Frames, now: float, user: User | None = None) -> None:
        """Take a message of a `user` (None: unchecked). One that is not MDP is counted and dropped."""
        worker = self.workers.get(peer)
        if worker is not None and (parsed := worker.dialect.parse(frames)) is not None:  # most need no further parsing
            self.take_command(worker, parsed[0], parsed[1], now)
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
                self.take_command(worker, command, frames[at + 2 :], now)
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
        for delivery in list(self.missing.decisions.due(now)):
            self.refuse_named(delivery, now)
        self._release(list(self.missing.timers.due(now)), now, died=True)
        for worker in self.registry.due(now):
            self._output.append((worker.peer, worker.dialect.encode(Command.HEARTBEAT)))
        if self.waiting.sweep_at is not None and now >= self.waiting.sweep_at:
            self._expire_requests(now)

    def next_deadline(self) -> float | None:
        missing = self.missing
        timers = self._heartbeats.wake_at, self.registry.silences.wake_at, missing.timers.wake_at
        return earliest(*timers, missing.decisions.wake_at, self.waiting.sweep_at)

    # -- more that a shell can report -----------------------------------------------------------------------

    def lost(self, peer: Peer, now: float, unsent: Sequence[bytes] = ()) -> None:
        """Note that the transport lost a peer: no need to wait for silence. `unsent`: the frames of messages that
        therefore did not go out. A request that the worker never got did not kill it."""
        worker = self.workers.get(peer)
        if worker is not None:
            self.stats["workers_expired"] += 1
            self._forget(worker, now, died=True, unsent=unsent, returns=True)
        if peer in self.missing.queues:
            self._lose_queue(peer, now)

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
                if self._named(request) is None:
                    self._fail(worker, request, f"the reply has {text}", now)
                else:  # the next worker's reply fails it
                    self.refuse_named(delivery_of(request.token), now)
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
        and those of workers that are away. Any thread may call this."""
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
        for worker in [worker for worker in self.workers.values() if not worker.requests and worker.may_go_elsewhere]:
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
        """Answer with 499 the requests of a client that may start nothing now: those that wait, and those in the
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

    def _expire_requests(self, now: float) -> None:
        for service in list(self.services.values()):
            for request in self.waiting.take_expired(service.waiting, now):
                self.stats["requests_expired"] += 1
                self._answer_error(request, 504, f"no worker took the request within {self.config.request_expiry:g} s")
            self._settle(service)
        self.waiting.swept(now)

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
        batches: list[tuple[bytes, list[Request]]] = []
        for service in self._batched:
            if service.batch:  # not all were withdrawn
                batches.append((service.name, service.batch))
                service.batch = []
        self._batched = []
        return batches

    def reply(self, request: Request, body: Frames) -> None:
        """Answer a request of an integrated service; all but the first answer are dropped."""
        if not request.answered:
            request.answered = True
            self._output.append((request.peer, request.final(body)))

    # -- workers ---------------------------------------------------------------------------------------------

    def take_command(self, worker: WorkerPeer, command: Command, rest: Frames, now: float) -> None:
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
        worker.may_go_elsewhere = worker.extended and ELSEWHERE in words
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

    def _may_register(self, worker: WorkerPeer, limits: dict[bytes, int]) -> bool:
        user, guard, registry = worker.user, self.guard, self.registry
        more = 0 if frozenset(limits.items()) in registry.groups else len(limits)  # none, if others have the same
        offers = registry.offers + more if more else 0
        if user is not None and guard is not None:
            registered = registry.of_users.get(user.name, 0)
            if not all(guard.may_work(worker, name) for name in limits):
                return False
            if not guard.has_place(worker, registered, self.config.max_workers):
                return False
            if offers > guard.share(MAX_OFFERS):  # only then it is worth counting
                before = registry.offers_of(user.name) + more - 1
                if not guard.has_place(worker, before, MAX_OFFERS, "services of workers"):
                    return False
        return offers <= MAX_OFFERS and all(registry.admits(name, self.services.get(name)) for name in limits)

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
            self._note_failure(request, worker)
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
        worker.has_replied = worker.has_replied or request.is_kept
        if not request.answered:
            if not request.wanted or (len(rest) > 2 and rest[2] == ERROR):
                self._note_failure(request, worker)
            self._output.append((request.peer, request.final(as_workers(rest[2:]))))
        if worker.dialect.silent_when_busy:
            self._heard(worker, now)
        self._free(worker, now)

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
        """Set how many requests a worker takes at a time, and give those that it has not started to others."""
        slots = read_slots(rest[0]) if rest else None
        back = [worker.requests.get(token) for token in rest[1:]]
        if slots is None or not worker.names_services or None in back or len(set(rest)) < len(rest):
            self._malformed(worker.peer, now)
            return
        if not worker.retires:
            self.registry.resize(worker, slots)
        returned = [request for request in back if request is not None]
        for request in returned:
            self._take(worker, request)
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
            self._take(worker, request)
        for request in requests[suspects:]:
            request.deliveries -= 1
        for request in requests[:suspects]:
            request.shared = suspects > 1
            self._give_up(request, worker)
        self._deliver_again(requests, now)
        self._free(worker, now)


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
