"""A worker's side of MDP without sockets: it stays registered, takes one request at a time, gives the reply back.

    state     REQUEST   HEARTBEAT   DISCONNECT   answer     silence     reply given   wait over
    --------  --------  ----------  -----------  ---------  ----------  ------------  ---------
    away      –         –           –            –          –           –             connect
    asking    –         –           –            register   register    –             –
    idle      work      keep        reconnect    –          reconnect   –             –
    busy      refuse    keep        reconnect    –          –           send          –

A worker that may speak several versions asks the broker first (`ProtocolDetection`), and registers, with READY, in the
version of the answer; without one it tries those that were not asked for, one with each connection. `refuse` and
`reconnect` close the connection and open a new one after a back-off. The connections are numbered: what still comes
from an old one is ignored. A handler that is at work when the connection goes is let finish, its reply is dropped (the
broker gave the request to another worker), and only then does the worker connect again: it does one thing at a time.

A busy worker ignores silence. Some brokers send no heartbeats to busy workers, and leaving would only lose the reply.
Afterwards there is time to see whether the broker is still there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from broker.config import WorkerConfig
from broker.core.json_reader import read_json
from broker.core.mdp import (
    ELSEWHERE,
    EXTENSION,
    NAMES_PROCESS,
    NAMES_VERSION,
    PROCESS,
    VERSION,
    WORKER_DIALECTS,
    Command,
    Core,
    Frames,
    Peer,
    WorkerDialect,
    joined,
    read_error,
)
from broker.core.protocol_detection import ANSWER_TIMEOUT, ProtocolDetection
from broker.core.requests import ALONE
from broker.core.timers import Backoff, Heartbeat
from broker.core.worker_registry import Inflow

VERSIONS: dict[str, WorkerDialect] = {dialect.name: dialect for dialect in WORKER_DIALECTS.values()}


SOON = 2.5
"""Most seconds until the next try of a worker that is to be back soon: a broker with access control has refused its
READY, and the access file can be another one at any time, or requests wait for it (`JointSession`), which others get
when it does not come. It is no more for a broker than heartbeats are."""


PROGRESS_INTERVAL = 0.2
"""Seconds between two progress messages."""


STAY_MOST = 3
"""Times of a heartbeat's patience that a worker stays with a broker that goes on sending it requests."""


NUMBER = 16
"""Bytes of the number of a delivery."""


class Job(NamedTuple):
    """A request to be handled. `number` is needed to give the reply back.

    `client` is the frame that identifies the client; a broker of this project sends a new one with each delivery.
    """

    number: int
    body: Frames
    client: bytes = b""
    service: bytes = b""

    @property
    def context(self) -> bytes:
        """What a queue says about the request, behind the number of the delivery: a JSON object; empty: nothing."""
        at = self.client.find(b"{")
        return self.client[at:] if at >= 0 else b""

    @property
    def alone(self) -> bool:
        """Whether its queue wants it to run in a process that does nothing else meanwhile."""
        return ALONE in self.context

    def __str__(self) -> str:
        context = self.context
        number = self.client[: len(self.client) - len(context)]
        number = number[:NUMBER]  # a secret may follow
        client = number.decode() if number.isalnum() else number.hex()
        where = f"request {self.number} of this worker, delivery {client}, body of {sum(map(len, self.body))} B"
        return f"{uuid}; {where}" if (uuid := _uuid_in(context)) else where


def _uuid_in(context: bytes) -> str:
    """Return the UUID that a queue has given a request, for the log."""
    try:
        uuid = str(read_json(context or b"{}").get("uuid", ""))
    except (ValueError, AttributeError):
        return ""
    return uuid if uuid.isalnum() and len(uuid) == 32 else ""


class SessionState(Enum):
    """The state of a worker's registration."""

    AWAY = "away"
    ASKING = "asking"
    IDLE = "idle"
    BUSY = "busy"


REGISTERED = (SessionState.IDLE, SessionState.BUSY)
"""READY was sent."""


class WorkerSession(Core):
    """One worker of one service. Its output is for numbered connections; a new number asks for a new one."""

    def __init__(
        self,
        service: bytes,
        config: WorkerConfig | None = None,
        *,
        now: float,
        dialect: WorkerDialect | None = None,
        process: str | None = None,
    ) -> None:
        """`dialect`: a protocol other than MDP; the configuration's versions do not count then. `process`: a name that
        it shares with the sessions that die with it; empty: it only passes requests on."""
        super().__init__()
        self.service = service
        self._process = None if process is None else process.encode()
        self.config = config or WorkerConfig()
        self._asks = dialect is None and len(self.config.versions) > 1
        versions = self.config.versions
        # A broker that speaks the first of them answers when asked.
        unasked = [version for version in versions if version != min(versions)] or versions
        self._dialects = [dialect] if dialect is not None else [VERSIONS[version] for version in unasked]
        """To try one after another."""
        self.state = SessionState.AWAY
        self.connection = 0
        """Number of the present connection, or of the last one while away."""
        self.dialect = self._dialects[0]
        self.dropped_replies = 0
        self.stopped = False
        """Whether `leave` is complete: good-bye was said and nothing is in hand."""
        self.refused = False
        """Whether the last event was a dismissal by the broker after READY."""
        self.heartbeat = self._new_heartbeat(now)
        self.inflow: Inflow | None = None
        """What the transport knows about the connection."""
        self.has_other_endpoints = False
        """Whether there are other brokers."""
        self.held = False
        """Whether its runner makes it wait: while it is away, it does not connect."""
        self.aside = False
        """Whether it left its broker only for a while (`step_aside`), and has not lost it since."""
        self._detection = ProtocolDetection(versions)
        self._guessing = False
        """Whether READY was sent in a version that the broker has not confirmed."""
        self._broker_knows: frozenset[bytes] = frozenset()
        """The words of READY that the broker knows, by its answer on this connection."""
        self._guarded = False
        """Whether the broker has access control, by its answer on this connection."""
        self._store = ""
        """The id of its queue's store, by its answer on this connection."""
        self._linked = True
        self._version = 0
        self._heard_any = False
        self._backoff = Backoff(self.config.reconnect_first, self.config.reconnect_most)
        self._delay = 0.0
        """What was taken of it last."""
        self._wake_at: float | None = now
        self._send_by = 0.0
        self._silent_at = 0.0
        self._envelope: Frames = []
        self._partials: Frames = []
        self._job = 0
        self._job_running = False
        self._leaving = False
        self._forgotten_at: float | None = None
        """When a broker of 0.1 has forgotten a worker that leaves and sends no heartbeats any more."""
        self._gone_at: float | None = None
        """When it leaves in any case."""
        self._jobs: list[Job] = []
        self._cancelled: list[tuple[int, bytes]] = []
        """Jobs that the broker has cancelled, and why, if it said so."""
        self._unreported: dict[int, bytes] = {}
        """How far jobs are, and the broker does not know yet."""
        self._report_at = 0.0
        """When the next progress messages may be sent."""
        self.joint = False
        """Whether its connection is for several services and requests (`JointSession`)."""

    def receive(self, peer: Peer, frames: Frames, now: float) -> None:
        if peer != self.connection or self.state is SessionState.AWAY:
            return
        if self.state is SessionState.ASKING:
            if (kind := self._detection.learn(frames)) is not None:
                self._guarded, self._broker_knows, self._store = kind.access, kind.knows, kind.store
                self._register(VERSIONS[kind.version], now)
            return
        parsed = self.dialect.parse(frames)
        if parsed is None:
            kind = self._detection.learn(frames) if self._asks else None
            if kind is None or kind.version != self.dialect.name:
                self._change_version()
                self._reconnect([], now)
            return
        self.heartbeat.messages += 1
        self._silent_at = now + self.heartbeat.patience
        command, rest = parsed
        self.refused = command is Command.DISCONNECT and not self._heard_any
        self._heard_any = True
        if command is not Command.DISCONNECT:
            self._backoff.reset()
        self._act(command, rest, now)

    def _act(self, command: Command, rest: Frames, now: float) -> None:
        TRANSITIONS.get((self.state, command), WorkerSession._reconnect)(self, rest, now)

    def tick(self, now: float) -> None:
        """Connect when the wait is over, notice silence, send heartbeats, and how far the request is."""
        if self._unreported and now >= self._report_at:
            self._report(now)
        if self.state is SessionState.AWAY:
            if self._wake_at is not None and now >= self._wake_at and self._may_connect:
                self._connect(now)
        elif self._forgotten_at is not None and self.state is SessionState.IDLE:
            if now >= self._forgotten_at:
                self._gone_at = now
                self._say_goodbye(now)
        elif now >= self._silent_at and self._minds_silence:
            patience = self.heartbeat.patience
            if self.state is not SessionState.ASKING and self.inflow is not None and self.inflow.goes_on(now, patience):
                self._silent_at = now + patience  # a large request is on its way
            else:
                self._meet_silence(now)
        elif now >= self._send_by and self._sends_heartbeats:
            self.heartbeat.sent()
            self._send(Command.HEARTBEAT, (), now)

    def next_deadline(self) -> float | None:
        if self.state is SessionState.AWAY:
            return self._wake_at if self._may_connect else None
        if self.state is SessionState.ASKING:
            return self._silent_at
        if self._forgotten_at is not None and self.state is SessionState.IDLE:
            return self._forgotten_at
        deadline = self._send_by if self._sends_heartbeats else math.inf
        if self._silent_at < deadline and self._minds_silence:
            deadline = self._silent_at
        if self._unreported:
            deadline = min(deadline, self._report_at)
        return None if deadline == math.inf else deadline

    @property
    def registered(self) -> bool:
        """Whether the broker has been heard on the present connection; without heartbeats: whether there is one."""
        return self.state in REGISTERED and (self._heard_any or not self.dialect.heartbeats)

    @property
    def present(self) -> bool:
        """Whether it is registered, or was and has only stepped aside."""
        return self.aside or self.registered

    @property
    def parts_politely(self) -> bool:
        """Whether to say DISCONNECT when it leaves now. With a request in hand, a broker of 0.1 that is not of this
        project would not give it to another worker, and the Guide's in Python ends."""
        if self.state is SessionState.BUSY and self._asks and self.dialect.name == "0.1":
            return False
        return self.dialect.has(Command.DISCONNECT)

    @property
    def slots(self) -> int:
        """How many requests at a time the broker may send."""
        return 1

    @property
    def is_working(self) -> bool:
        """Whether a handler is at work."""
        return self._job_running

    @property
    def returns(self) -> bool:
        """Whether it has requests with which it returns to its broker when the connection is lost."""
        return False

    @property
    def stranded(self) -> bool:
        """Whether a request is still being handled although its connection is gone: its reply will be dropped."""
        return self._job_running and self.state is SessionState.AWAY

    # -- what a shell does with it ---------------------------------------------------------------------------

    def take_jobs(self) -> list[Job]:
        """Requests to be handled."""
        jobs, self._jobs = self._jobs, []
        return jobs

    def partial(self, job: int, body: Frames, now: float) -> None:
        """Send a part of the reply. In a version without PARTIAL it is kept and goes out with the final reply."""
        envelope = self._envelope_of(job)
        if envelope is None:
            return
        if self.dialect.has(Command.PARTIAL):
            self._send(Command.PARTIAL, (*envelope, *body), now)
        else:
            self._partials += body

    def take_cancelled(self) -> list[tuple[int, bytes]]:
        """Return the numbers of the jobs that were cancelled since the last call, and why: AT_LIMIT, KILL, or empty."""
        cancelled, self._cancelled = self._cancelled, []
        return cancelled

    def progress(self, job: int, said: bytes, now: float) -> None:
        """Report the progress of a job, if the broker knows PROGRESS. Of messages in quick succession only the last is
        sent."""
        if EXTENSION in self._broker_knows and self._envelope_of(job) is not None:
            self._unreported[job] = said
            if now >= self._report_at:
                self._report(now)

    def _report(self, now: float) -> None:
        unreported, self._unreported = self._unreported, {}
        for job, said in unreported.items():
            if (envelope := self._envelope_of(job)) is not None:
                self._send(Command.PROGRESS, (*envelope, said), now)
                self._report_at = now + PROGRESS_INTERVAL

    def final(self, job: int, body: Frames, now: float) -> None:
        """Give the (rest of the) reply; the worker is free again."""
        if job != self._job or not self._job_running:
            return
        self._job_running = False
        self._unreported.clear()
        if self.state is SessionState.BUSY:
            self._silent_at = now + self.heartbeat.patience
            # An error is recognised by the beginning of the body: after parts it would be taken for another part.
            body = joined(self._partials, body) if read_error(body) is None else body
            self._send(Command.FINAL, (*self._envelope, *body), now)
            self._partials = []
            self.state = SessionState.IDLE
        else:
            self.dropped_replies += 1
        if self._leaving and self._is_done:
            self._say_goodbye(now)

    def link(self, there: bool, now: float) -> None:
        """Note whether there is a connection. Until there is one, messages wait and silence does not count. A transport
        that never reports it is always connected."""
        if there is not self._linked:
            self._linked = there
            asking = there and self.state is SessionState.ASKING
            self._silent_at = now + (ANSWER_TIMEOUT if asking else self.heartbeat.patience)

    def lost(self, now: float) -> None:
        """The transport knows that the connection is gone."""
        if self.state is not SessionState.AWAY:
            self._reconnect([], now)

    def hurry(self, now: float) -> None:
        """The connection is gone, and there is another endpoint to try: no need to wait."""
        if self.state is SessionState.AWAY and self._wake_at is not None:
            self._backoff.give_back(self._delay)
            self._wake_at = now

    def step_aside(self, now: float) -> None:
        """Say good-bye for a while. A request in hand, which must not be started, is given back: the broker has
        another worker do it. It stays away until `come_back`."""
        if self.state is not SessionState.AWAY:
            if self.state in REGISTERED and self.dialect.has(Command.DISCONNECT):
                if self.parts_politely:
                    self._send(Command.DISCONNECT, (), now)
                self.aside = True
            self.state = SessionState.AWAY
            self._wake_at = now
        self._jobs.clear()
        self._job_running = False
        self.held = True
        if self._leaving:
            self._say_goodbye(now)

    def come_back(self) -> None:
        """Connect again, when it is time."""
        self.held = False

    def leave(self, now: float) -> None:
        """Finish the request in hand, say good-bye, and do not connect again."""
        self._leaving = True
        if self._is_done:
            self._say_goodbye(now)

    @property
    def _may_connect(self) -> bool:
        """Whether it connects when it is time: a handler is to finish first."""
        return not self._job_running and not self.held

    @property
    def _is_done(self) -> bool:
        """Whether nothing is in hand."""
        return not self._job_running

    def _envelope_of(self, job: int) -> Frames | None:
        """Return what goes in front of each reply of a job; None: it has ended, or its connection is gone."""
        return self._envelope if job == self._job and self.state is SessionState.BUSY else None

    @property
    def _hurries(self) -> bool:
        """Whether it is to be back soon."""
        return self.refused and self._guarded

    @property
    def _minds_silence(self) -> bool:
        """Whether silence of the broker counts."""
        return self.state is SessionState.ASKING or (self.state is SessionState.IDLE and self.dialect.heartbeats)

    @property
    def _sends_heartbeats(self) -> bool:
        """Whether heartbeats are sent in this state."""
        if self.state is SessionState.BUSY and self.dialect.silent_when_busy:
            return False
        return self.state in REGISTERED and self.dialect.heartbeats

    def _connect(self, now: float) -> None:
        self.connection += 1
        self._wake_at = None
        self._heard_any = self._guessing = self._guarded = self.refused = False
        self._broker_knows, self._store = frozenset(), ""
        if not self._asks:
            self._register(self._dialects[0], now)
            return
        self.state = SessionState.ASKING
        self._detection.begin()
        self._output += [(self.connection, frames) for frames in self._detection.ask()]
        self._silent_at = now + (ANSWER_TIMEOUT if self._linked else self.heartbeat.patience)

    def _register(self, dialect: WorkerDialect, now: float) -> None:
        self.dialect = dialect
        self.state = SessionState.IDLE
        self.heartbeat = self._new_heartbeat(now)
        self._silent_at = now + self.heartbeat.patience
        if not dialect.has(Command.CANCEL):
            self._broker_knows = frozenset()
        words = [EXTENSION] if EXTENSION in self._broker_knows else []
        if ELSEWHERE in self._broker_knows and self.has_other_endpoints:
            words.append(ELSEWHERE)
        if NAMES_PROCESS in self._broker_knows and self._process is not None:
            words.append(PROCESS + self._process)
        if NAMES_VERSION in self._broker_knows and self.config.deploy:
            words.append(VERSION + self.config.deploy.encode())
        self._send(Command.READY, (self.service, *words, *self._more_words()), now)

    def _more_words(self) -> Frames:
        return []

    def _meet_silence(self, now: float) -> None:
        if not self._linked:  # there is no connection; of several endpoints the next one may be better
            self.aside = False
            self._output.append((self.connection, None))
            self._connect(now)
        elif self.state is SessionState.ASKING and self._detection.fell_silent():
            self._guessing = True
            self._register(self._dialects[self._version], now)
        elif self.state is SessionState.ASKING:
            self._output.append((self.connection, None))
            self._connect(now)
        else:
            self._change_version()
            self._reconnect([], now)

    def _change_version(self) -> None:
        """Guess another version next time, unless the broker has spoken this one."""
        if self._guessing and not self._heard_any:
            self._version = (self._version + 1) % len(self._dialects)

    def _reconnect(self, rest: Frames, now: float) -> None:
        """Close; come back on a new connection after a while."""
        self._output.append((self.connection, None))
        self.state = SessionState.AWAY
        if self._jobs:  # no handler has started it
            self._jobs.clear()
            self._job_running = False
        self.aside = False
        self._delay = self._backoff.take(SOON if self._hurries else math.inf)
        self._wake_at = now + self._delay
        if self._leaving and self._is_done:
            self._say_goodbye(now)

    def _work(self, rest: Frames, now: float) -> None:
        opened = self.dialect.open_request(rest)
        if opened is None:
            self._reconnect([], now)
            return
        self.state = SessionState.BUSY
        self._envelope, body = opened
        self._partials = []
        self._job += 1
        self._job_running = True
        self._jobs.append(Job(self._job, body, self._envelope[0] if self._envelope else b"", self.service))

    def _cancel(self, rest: Frames, now: float) -> None:
        """Note a cancellation, if it is for the job in hand."""
        if EXTENSION not in self._broker_knows:
            self._reconnect(rest, now)
        elif self.state is SessionState.BUSY and rest == self._envelope:
            self._cancelled.append((self._job, b""))

    def _new_heartbeat(self, now: float) -> Heartbeat:
        return Heartbeat(self.config.heartbeat_interval, self.config.liveness, now, usual=self.dialect.usual_interval)

    def _keep(self, rest: Frames, now: float) -> None:
        """Note a heartbeat: it shows how often the broker sends some."""
        before = self.heartbeat.interval
        self.heartbeat.beat(now)
        self._silent_at = now + self.heartbeat.patience
        self._send_by -= max(0.0, before - self.heartbeat.interval)

    def _say_goodbye(self, now: float) -> None:
        """Leave. Other projects' brokers of 0.1 get no DISCONNECT: the Guide's in Python ends some time after one. They
        forget a worker that sends no heartbeats, which until then works on what comes all the same."""
        if self.state is SessionState.IDLE and self._asks and self.dialect.name == "0.1":
            if self._gone_at is None:
                self._gone_at = now + STAY_MOST * self.heartbeat.patience
            self._forgotten_at = min(now + self.heartbeat.patience, self._gone_at)
            if now < self._forgotten_at:
                return
            self._output.append((self.connection, None))
        elif self.state in REGISTERED and self.dialect.has(Command.DISCONNECT):
            self._send(Command.DISCONNECT, (), now)
        self.state = SessionState.AWAY
        self._wake_at = None
        self.stopped = True

    def _send(self, command: Command, rest: tuple[bytes, ...], now: float) -> None:
        self._output.append((self.connection, self.dialect.encode(command, rest)))
        self._send_by = now + self.heartbeat.interval


TRANSITIONS: dict[tuple[SessionState, Command], Callable[[WorkerSession, Frames, float], None]] = {
    (SessionState.IDLE, Command.REQUEST): WorkerSession._work,
    (SessionState.IDLE, Command.HEARTBEAT): WorkerSession._keep,
    (SessionState.BUSY, Command.HEARTBEAT): WorkerSession._keep,
    (SessionState.IDLE, Command.CANCEL): WorkerSession._cancel,
    (SessionState.BUSY, Command.CANCEL): WorkerSession._cancel,
}
"""What a broker may say when. Anything else, DISCONNECT too, ends the connection."""
