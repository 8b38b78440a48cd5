"""The Majordomo broker without sockets: messages in, messages out.

A client's REQUEST goes to a free worker of its service, or waits until there is one; PARTIAL and FINAL go the
way back. Whatever dialect either side speaks, each is answered in its own. A worker's life:

    state   READY      PARTIAL   FINAL     HEARTBEAT   DISCONNECT   silence
    ------  ---------  --------  --------  ----------  -----------  -------
    none    register   refuse    refuse    refuse      ignore       –
    idle    refuse     refuse    refuse    keep        remove       expire
    busy    refuse     forward   finish    keep        remove       expire

`refuse` answers DISCONNECT and forgets the worker, who comes back with READY on a new socket. Whenever a busy
worker is forgotten, its request goes to the front of the queue, for another worker.

Services can be *integrated* (RFC 7 and 18 allow it): their requests are collected and handed over in batches
with `take_batches`, and answered with `reply`, at once or later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import count

from broker.config import BrokerConfig
from broker.core import mmi
from broker.core.heartbeat import Heartbeat
from broker.core.mdp import (
    CLIENT_01,
    CLIENT_02,
    CLIENT_DIALECTS,
    CLIENT_MAJORTOMO,
    CLIENT_QUEUE,
    CLIENT_V01,
    CLIENT_V02,
    HEADERS,
    MAX_STACK,
    WORKER_DIALECTS,
    ClientDialect,
    Command,
    Core,
    Frames,
    Peer,
    WorkerDialect,
    error_body,
    service_fault,
)
from broker.core.request import Request, as_workers, footprint
from broker.core.service import Service, WorkerPeer
from broker.core.timers import Timers
from broker.errors import UsageError


class WorkerState(Enum):
    """Where a peer stands as a worker."""

    NONE = "none"
    IDLE = "idle"
    BUSY = "busy"

    __hash__ = object.__hash__  # as for Command: looked up for every message


class BrokerCore(Core):
    """Routes between clients and workers. `now` is always monotonic seconds."""

    def __init__(self, config: BrokerConfig | None = None, *, now: float = 0.0, about: mmi.About | None = None) -> None:
        super().__init__()
        self.config = config or BrokerConfig()
        self.about = about or mmi.About()
        self.started = now
        self.services: dict[bytes, Service] = {}
        self.workers: dict[Peer, WorkerPeer] = {}
        self.peers = 0
        """Connections, of clients and workers; the shell counts them."""
        self.waiting = 0
        self.waiting_bytes = 0
        self.stats: dict[str, int] = dict.fromkeys(mmi.COUNTERS, 0)
        self.documents = mmi.Documents()
        self._delivered: dict[tuple[Peer, bytes], Request] = {}
        """Requests that workers have, by their marks."""
        self._integrated: list[Service] = []
        self._beats: Timers[WorkerPeer] = Timers()
        self._silences: Timers[WorkerPeer] = Timers()
        self._tokens = count(1)
        # Expiry is looked at ten times per expiry time: it is coarse, but costs nothing per request.
        self._sweep_every = self.config.request_expiry / 10
        self._next_sweep: float | None = None

    # -- the contract of a core ------------------------------------------------------------------------------

    def receive(self, peer: Peer, frames: Frames, now: float) -> None:
        """Take a message. One that is not MDP is counted and dropped."""
        for at, frame in enumerate(frames):
            if frame in HEADERS:
                break
            if at == MAX_STACK:
                self._malformed(peer, now)
                return
        else:
            self._malformed(peer, now)
            return
        if frame == CLIENT_02:
            code = frames[at + 1] if len(frames) > at + 2 else b""
            if code == b"\1":
                self._request(peer, frames[:at], CLIENT_V02, frames[at + 2], frames[at + 3 :], now)
            elif code == b"\5":
                self._request(peer, frames[:at], CLIENT_QUEUE, frames[at + 2], frames[at + 3 :], now)
            elif code == b"\2" and at and frames[at - 1] == b"":
                self._request(peer, frames[:at], CLIENT_MAJORTOMO, frames[at + 2], frames[at + 3 :], now)
            else:
                self._malformed(peer, now)
        elif frame == CLIENT_01:
            if at and frames[at - 1] == b"" and len(frames) > at + 1:
                self._request(peer, frames[:at], CLIENT_V01, frames[at + 1], frames[at + 2 :], now)
            else:
                self._malformed(peer, now)
        else:
            dialect = WORKER_DIALECTS.get(tuple(frames[: at + 1]))
            command = dialect.commands.get(frames[at + 1]) if dialect and len(frames) > at + 1 else None
            if dialect is None or command is None:
                self._malformed(peer, now)
            else:
                self._worker_command(peer, dialect, command, frames[at + 2 :], now)

    def tick(self, now: float) -> None:
        """Do what is due: heartbeats, silent workers, requests that waited too long."""
        interval = self.config.heartbeat_interval
        due = self.next_deadline()
        if due is not None and now > due + interval / 2:
            self.deaf(now)  # not the workers were silent, we were away: stopped, or busy with something huge
        silent = [worker for worker in self._silences.due(now) if not self._sends(worker, now)]
        for worker in silent:  # first, so that none of them gets what another leaves behind
            worker.service.idle.pop(worker, None)
        for worker in silent:
            self.stats["workers_expired"] += 1
            self._send_worker(worker, Command.DISCONNECT, (), now)
            self._forget(worker, now)
        for worker in self._beats.due(now):
            self._output.append((worker.peer, worker.dialect.encode(Command.HEARTBEAT)))
            worker.heartbeat.sent()
            self._beats.set(worker, now + worker.heartbeat.interval)
        if self._next_sweep is not None and now >= self._next_sweep:
            self._expire_requests(now)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        times = (self._beats.next(), self._silences.next(), self._next_sweep)
        return min((time for time in times if time is not None), default=None)

    # -- more that a shell can tell it -----------------------------------------------------------------------

    def lost(self, peer: Peer, now: float, unsent: Sequence[bytes] = ()) -> None:
        """The transport knows that the peer is gone: no need to wait for silence. `unsent`: a message that therefore
        did not go out. Who never got a request has not died of it."""
        worker = self.workers.get(peer)
        if worker is not None:
            self.stats["workers_expired"] += 1
            if worker.request is not None and worker.request.token in unsent:
                worker.request.deliveries -= 1
            self._forget(worker, now)

    def too_large(self, peer: Peer, head: Frames, text: str) -> None:
        """A message was thrown away of which this is the beginning: who waits for an answer gets one, which says what
        the message had. Then `receive` it without any frames, as what makes no sense."""
        worker = self.workers.get(peer)
        if worker is not None:
            if (request := self._take_from(worker)) is not None:  # it failed, as if the worker had said so
                self._output.append((request.peer, request.final(error_body(413, f"the reply has {text}"))))
        elif (request := _read_request(peer, head)) is not None:
            self._refuse(request, 413, f"the request has {text}")

    def deaf(self, now: float) -> None:
        """We could not listen. What the workers said meanwhile is still to be read: nobody is blamed for silence."""
        for worker in self.workers.values():
            self._heard(worker, now)

    def shut_down(self, now: float) -> None:
        """Say good-bye to all workers, so that they look for a broker again at once.

        What they had in hand is nobody's now: its clients ask again, like those of a broker that was killed.
        """
        for worker in list(self.workers.values()):
            self._take_from(worker)
            self._send_worker(worker, Command.DISCONNECT, (), now)
            self._forget(worker, now)

    # -- integrated services ---------------------------------------------------------------------------------

    def integrate(self, name: bytes, room: int = 0) -> None:
        """Take a service over: from now on its requests, of `room` bytes above `max_body` at most, come out of
        `take_batches`."""
        if fault := service_fault(name):
            raise UsageError(fault)
        if name in self.services:
            raise UsageError(f"service {name.decode()} is in use; integrate it once, before there are requests for it")
        service = self.services[name] = Service(name, batch=[], most=self.config.max_body + room)
        self._integrated.append(service)

    def take_batches(self) -> list[tuple[bytes, list[Request]]]:
        """The requests for integrated services since the last call."""
        batches = []
        for service in self._integrated:
            if service.batch:
                batches.append((service.name, service.batch))
                service.batch = []
        return batches

    def reply(self, request: Request, body: Frames) -> None:
        """Answer a request of an integrated service; all but the first answer are dropped."""
        if not request.answered:
            request.answered = True
            self._output.append((request.peer, request.final(body)))

    # -- clients ---------------------------------------------------------------------------------------------

    def _request(
        self, peer: Peer, stack: Frames, dialect: ClientDialect, name: bytes, body: Frames, now: float
    ) -> None:
        self.stats["requests"] += 1
        service = self.services.get(name)
        request = Request(peer, stack, dialect, name, body, now)
        if not body:
            self._refuse(request, 400, "a request needs at least one body frame")
        elif service is not None and service.batch is not None:
            if sum(map(len, body)) > service.most:
                self._refuse_too_large(request, service.most)
            else:
                service.batch.append(request)
        elif name.startswith(b"mmi."):
            self._output.append((peer, request.final(mmi.answer(self, peer, name, body, now))))
        elif service is not None and service.idle:
            if sum(map(len, body)) > self.config.max_body:
                self._refuse_too_large(request, self.config.max_body)
            else:
                self._deliver(service.least_recently_used(), request, now)
        else:
            self._wait(request, service, now)

    def _wait(self, request: Request, service: Service | None, now: float) -> None:
        config = self.config
        if service is None and (fault := service_fault(request.service)):
            self._refuse(request, 400, fault)
            return
        if sum(map(len, request.body)) > config.max_body:
            self._refuse_too_large(request, config.max_body)
            return
        here = len(service.waiting) if service is not None else 0
        if here >= config.max_waiting_per_service:
            self._refuse(request, 503, f"queue full: {here} requests wait for this service; try again later")
        elif self.waiting >= config.max_waiting:
            self._refuse(request, 503, f"queue full: {self.waiting} requests wait in all; try again later")
        elif self.waiting_bytes + footprint(request.body) + footprint(request.stack) > config.max_waiting_bytes:
            self._refuse(request, 503, f"queue full: {self.waiting_bytes} bytes wait in all; try again later")
        else:
            if service is None:
                service = self.services[request.service] = Service(request.service)
            service.waiting.push(request)
            self._count_waiting(request, now)

    def _count_waiting(self, request: Request, now: float) -> None:
        request.size = footprint(request.body) + footprint(request.stack)
        self.waiting += 1
        self.waiting_bytes += request.size
        if self._next_sweep is None and self._sweep_every > 0:
            self._next_sweep = now + self._sweep_every

    def _refuse(self, request: Request, status: int, text: str) -> None:
        self.stats["refused"] += 1
        self._answer_error(request, status, text)

    def _refuse_too_large(self, request: Request, most: int) -> None:
        size = sum(map(len, request.body))
        self._refuse(request, 413, f"body has {size} bytes; this broker takes at most {most}")

    def _answer_error(self, request: Request, status: int, text: str) -> None:
        self._output.append((request.peer, request.refusal(error_body(status, text))))

    def cancel(self, peer: Peer, name: bytes, mark: bytes) -> bool:
        """Take a request back that no worker has yet. `mark` is the last address frame that its peer put in front of
        it. It is answered with 499, so that every request has its answer. One that a worker has stays there, but
        should that worker die, no other gets it."""
        service = self.services.get(name)
        request = service.waiting.remove(peer, mark) if service is not None else None
        if service is None or request is None:
            if (delivered := self._delivered.get((peer, mark))) is not None and delivered.service == name:
                delivered.wanted = False
            return False
        self.waiting -= 1
        self.waiting_bytes -= request.size
        self._answer_cancelled(request)
        self._drop_unused(service)
        return True

    def _answer_cancelled(self, request: Request) -> None:
        self.stats["cancelled"] += 1
        self._answer_error(request, 499, "cancelled by its client")

    def _expire_requests(self, now: float) -> None:
        expiry = self.config.request_expiry
        for service in list(self.services.values()):
            for request in service.waiting.take_older(now - expiry):
                self.waiting -= 1
                self.waiting_bytes -= request.size
                self.stats["requests_expired"] += 1
                self._answer_error(request, 504, f"no worker took the request within {expiry:g} s")
            self._drop_unused(service)
        self._next_sweep = now + self._sweep_every if self.waiting else None

    # -- workers ---------------------------------------------------------------------------------------------

    def _worker_command(self, peer: Peer, dialect: WorkerDialect, command: Command, rest: Frames, now: float) -> None:
        worker = self.workers.get(peer)
        if worker is None:
            state = WorkerState.NONE
            worker = WorkerPeer(peer, dialect, Service(b""))
        else:
            state = WorkerState.BUSY if worker.request else WorkerState.IDLE
            self._heard(worker, now)
        action = TRANSITIONS.get((state, command), BrokerCore._unexpected)
        action(self, worker, rest, now)

    def _register(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        name = rest[0] if len(rest) == 1 else b""
        service = self.services.get(name)
        if (
            service_fault(name)
            or name.startswith(b"mmi.")
            or (service is not None and service.batch is not None)
            or len(self.workers) >= self.config.max_workers
        ):
            self._unexpected(worker, rest, now)
            return
        if service is None:
            service = self.services[name] = Service(name)
        worker.service = service
        service.workers += 1
        self.workers[worker.peer] = worker
        worker.heartbeat = Heartbeat(self.config.heartbeat_interval, self.config.liveness, now)
        self.stats["workers_registered"] += 1
        # The first heartbeat goes out at once: the worker learns that the broker is there and speaks its version.
        self._send_worker(worker, Command.HEARTBEAT, (), now)
        self._heard(worker, now)
        self._keep(worker, rest, now)
        self._free(worker, now)

    def _forward(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        request = worker.request
        if request is None or rest[:2] != [request.token, b""]:
            self._invalid(worker, now)
            return
        message = request.partial(rest[2:])
        if message is not None:
            self._output.append((request.peer, message))
        elif request.collected_size > self.config.max_body:
            self._take_from(worker)
            self._answer_error(request, 413, f"the PARTIALs of the reply passed {self.config.max_body} bytes")
            self._invalid(worker, now)

    def _finish(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        request = worker.request
        if request is None or rest[:2] != [request.token, b""]:
            self._invalid(worker, now)
            return
        self.stats["replies"] += 1
        self._take_from(worker)
        self._output.append((request.peer, request.final(as_workers(rest[2:]))))
        if worker.dialect.silent_when_busy:
            self._heard(worker, now)
        self._free(worker, now)

    def _keep(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        """A heartbeat, or READY: it tells how often the worker sends some."""
        before = worker.heartbeat.interval
        worker.heartbeat.beat(now)
        if worker.heartbeat.interval < before and (due := self._beats.get(worker)) is not None:
            self._beats.set(worker, due - before + worker.heartbeat.interval)
        self._await(worker, now)

    def _ignore(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        """A good-bye from someone who is not here."""

    def _remove(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        self.stats["workers_left"] += 1
        if worker.request is not None:  # it has not died of it; mostly the two messages have crossed
            worker.request.deliveries -= 1
        self._forget(worker, now)

    def _unexpected(self, worker: WorkerPeer, rest: Frames, now: float) -> None:
        self.stats["workers_refused"] += 1
        self._send_worker(worker, Command.DISCONNECT, (), now)
        if worker.peer in self.workers:
            self._forget(worker, now)

    def _invalid(self, worker: WorkerPeer, now: float) -> None:
        self.stats["malformed"] += 1
        self._forget(worker, now)

    def _malformed(self, peer: Peer, now: float) -> None:
        """Not MDP at all. A worker that sends this cannot be trusted with a request (RFC 18: invalid peer)."""
        self.stats["malformed"] += 1
        worker = self.workers.get(peer)
        if worker is not None:
            self._forget(worker, now)

    def _free(self, worker: WorkerPeer, now: float) -> None:
        """A worker can take a request: give it the next one, or remember it."""
        service = worker.service
        if service.waiting:
            request = service.waiting.pop()
            self.waiting -= 1
            self.waiting_bytes -= request.size
            self._deliver(worker, request, now)
        else:
            service.idle[worker] = None

    def _deliver(self, worker: WorkerPeer, request: Request, now: float) -> None:
        worker.request = request
        if (mark := request.mark) is not None:
            self._delivered[mark] = request
        request.token = b"%016x" % next(self._tokens)
        request.deliveries += 1
        self._send_worker(worker, Command.REQUEST, (request.token, b"", *request.body), now)
        if worker.dialect.silent_when_busy:
            self._heard(worker, now)

    def _take_from(self, worker: WorkerPeer) -> Request | None:
        """The request that a worker has is not its any more."""
        request, worker.request = worker.request, None
        if request is not None and (mark := request.mark) is not None and self._delivered.get(mark) is request:
            del self._delivered[mark]
        return request

    def _send_worker(self, worker: WorkerPeer, command: Command, rest: tuple[bytes, ...], now: float) -> None:
        self._output.append((worker.peer, worker.dialect.encode(command, rest)))
        if worker.peer in self.workers:
            self._beats.set(worker, now + worker.heartbeat.interval)

    def _heard(self, worker: WorkerPeer, now: float) -> None:
        worker.heartbeat.messages += 1
        self._await(worker, now)

    def _await(self, worker: WorkerPeer, now: float) -> None:
        """Wait for the next word."""
        silence = worker.heartbeat.patience
        if worker.request is not None and worker.dialect.silent_when_busy:
            silence = self.config.silent_worker_timeout
        self._silences.set(worker, now + silence)

    def _sends(self, worker: WorkerPeer, now: float) -> bool:
        """Whether a silent worker is in the middle of a message: then it gets more time."""
        patience = worker.heartbeat.patience
        going_on = worker.inflow is not None and worker.inflow.goes_on(now, patience)
        if going_on:
            self._silences.set(worker, now + patience)
        return going_on

    def _forget(self, worker: WorkerPeer, now: float) -> None:
        service, request = worker.service, self._take_from(worker)
        del self.workers[worker.peer]
        self._beats.cancel(worker)
        self._silences.cancel(worker)
        service.idle.pop(worker, None)
        service.workers -= 1
        if request is not None:
            self._deliver_again(request, service, now)
        self._drop_unused(service)

    def _deliver_again(self, request: Request, service: Service, now: float) -> None:
        if not request.wanted:
            self._answer_cancelled(request)
            return
        if request.deliveries >= self.config.max_deliveries:
            self.stats["given_up"] += 1
            text = f"{request.deliveries} workers died while they had the request"
            self._answer_error(request, 500, text)
            return
        self.stats["redelivered"] += 1
        if (message := request.begin_anew()) is not None:
            self._output.append((request.peer, message))
        if service.idle:
            self._deliver(service.least_recently_used(), request, now)
        else:
            request.arrived = now  # its waiting begins anew, and so does its expiry
            service.waiting.push_front(request)
            self._count_waiting(request, now)

    def _drop_unused(self, service: Service) -> None:
        if service.unused:
            self.services.pop(service.name, None)


def _read_request(peer: Peer, head: Frames) -> Request | None:
    """The request that begins so, without its body; None when it is none."""
    at = next((at for at, frame in enumerate(head[: MAX_STACK + 1]) if frame in HEADERS), len(head))
    for dialect in CLIENT_DIALECTS:
        begin = at + len(dialect.request)
        if tuple(head[at:begin]) == dialect.request and begin < len(head) and (at or not dialect.delimited):
            return Request(peer, head[:at], dialect, head[begin], [], 0.0)
    return None


Action = Callable[[BrokerCore, WorkerPeer, Frames, float], None]

TRANSITIONS: dict[tuple[WorkerState, Command], Action] = {
    (WorkerState.NONE, Command.READY): BrokerCore._register,
    (WorkerState.NONE, Command.DISCONNECT): BrokerCore._ignore,
    (WorkerState.IDLE, Command.HEARTBEAT): BrokerCore._keep,
    (WorkerState.IDLE, Command.DISCONNECT): BrokerCore._remove,
    (WorkerState.BUSY, Command.PARTIAL): BrokerCore._forward,
    (WorkerState.BUSY, Command.FINAL): BrokerCore._finish,
    (WorkerState.BUSY, Command.HEARTBEAT): BrokerCore._keep,
    (WorkerState.BUSY, Command.DISCONNECT): BrokerCore._remove,
}
"""What a worker may say when. A missing key is the protocol error: `refuse` in the table above."""
