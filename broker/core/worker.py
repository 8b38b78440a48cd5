"""A worker's side of MDP without sockets: it stays registered, takes one request at a time, gives the reply back.

    state     REQUEST   HEARTBEAT   DISCONNECT   silence     reply given   wait over
    --------  --------  ----------  -----------  ----------  ------------  ---------
    away      –         –           –            –           –             connect
    idle      work      keep        reconnect    reconnect   –             –
    busy      refuse    keep        reconnect    reconnect   send          –

`refuse` and `reconnect` close the connection and open a new one, with READY, after a back-off. The connections
are numbered: what still comes from an old one is ignored. A handler that is at work when the connection goes
is let finish, its reply is dropped (the broker gave the request to somebody else), and only then does the
worker say READY again: it does one thing at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from broker.config import WorkerConfig
from broker.core.backoff import Backoff
from broker.core.mdp import WORKER_DIALECTS, Command, Frames, Output, Peer, WorkerDialect, joined, read_error
from broker.core.rhythm import Rhythm

VERSIONS: dict[str, WorkerDialect] = {dialect.name: dialect for dialect in WORKER_DIALECTS.values()}


class SessionState(Enum):
    """Where a worker stands with its broker."""

    AWAY = "away"
    IDLE = "idle"
    BUSY = "busy"


class Job(NamedTuple):
    """A request to be handled. `number` is needed to give the reply back.

    `client` is the frame that says whose it is; a broker of this project gives each delivery one of its own.
    """

    number: int
    body: Frames
    client: bytes = b""

    def __str__(self) -> str:
        client = self.client.decode() if self.client.isalnum() else self.client.hex()
        return f"request {self.number} of this worker, delivery {client}, body of {sum(map(len, self.body))} B"


class WorkerSession:
    """One worker of one service."""

    def __init__(
        self,
        service: bytes,
        config: WorkerConfig | None = None,
        *,
        now: float,
        dialects: Sequence[WorkerDialect] | None = None,
    ) -> None:
        """`dialects`: to try one after another; without them those of the configuration's versions."""
        self.service = service
        self.config = config or WorkerConfig()
        self._dialects = dialects or [VERSIONS[version] for version in self.config.versions]
        self.state = SessionState.AWAY
        self.connection = 0
        """Number of the present connection, or of the last one while away."""
        self.dialect = self._dialects[0]
        self.dropped_replies = 0
        self.stopped = False
        """Whether `leave` is complete: good-bye was said and nothing is in hand."""
        self.refused = False
        """Whether the last thing that happened was that the broker sent us away when we had said READY."""
        self._rhythm = self._new_rhythm(now)
        self._version = 0
        self._heard_any = False
        self._backoff = Backoff(self.config.reconnect_first, self.config.reconnect_most)
        self._wake_at: float | None = now
        self._send_by = 0.0
        self._silent_at = 0.0
        self._envelope: Frames = []
        self._partials: Frames = []
        self._job = 0
        self._job_running = False
        self._leaving = False
        self._output: list[Output] = []
        self._jobs: list[Job] = []

    # -- the contract of a core ------------------------------------------------------------------------------

    def receive(self, peer: Peer, frames: Frames, now: float) -> None:
        """Take a message from the broker."""
        if peer != self.connection or self.state is SessionState.AWAY:
            return
        parsed = self.dialect.parse(frames)
        if parsed is None:
            self._change_version()
            self._reconnect([], now)
            return
        self._rhythm.words += 1
        self._silent_at = now + self._rhythm.patience
        command, rest = parsed
        self.refused = command is Command.DISCONNECT and not self._heard_any
        self._heard_any = True
        if command is not Command.DISCONNECT:
            self._backoff.reset()
        TRANSITIONS.get((self.state, command), WorkerSession._reconnect)(self, rest, now)

    def tick(self, now: float) -> None:
        """Connect when the wait is over, notice silence, send heartbeats."""
        if self.state is SessionState.AWAY:
            if self._wake_at is not None and now >= self._wake_at and not self._job_running:
                self._connect(now)
        elif self._unwatched:
            return
        elif now >= self._silent_at:
            self._change_version()
            self._reconnect([], now)
        elif now >= self._send_by:
            self._rhythm.sent()
            self._send(Command.HEARTBEAT, (), now)

    def next_deadline(self) -> float | None:
        """When `tick` is wanted."""
        if self.state is SessionState.AWAY:
            return None if self._job_running else self._wake_at  # it waits for the handler to finish
        if self._unwatched:
            return None
        return min(self._send_by, self._silent_at)

    def take_output(self) -> list[Output]:
        """Frames for the numbered connections; a new number asks for a new connection."""
        output, self._output = self._output, []
        return output

    @property
    def registered(self) -> bool:
        """Whether the broker has been heard on the present connection; without heartbeats: whether there is one."""
        return self.state is not SessionState.AWAY and (self._heard_any or not self.dialect.heartbeats)

    @property
    def stranded(self) -> bool:
        """Whether a request is still being handled whose connection is gone: its reply will be dropped."""
        return self._job_running and self.state is SessionState.AWAY

    # -- what a shell does with it ---------------------------------------------------------------------------

    def take_jobs(self) -> list[Job]:
        """Requests to be handled, one at most."""
        jobs, self._jobs = self._jobs, []
        return jobs

    def partial(self, job: int, body: Frames, now: float) -> None:
        """Send a part of the reply. In a version without PARTIAL it is kept and goes out with the final reply."""
        if job == self._job and self.state is SessionState.BUSY:
            if self.dialect.has(Command.PARTIAL):
                self._send(Command.PARTIAL, (*self._envelope, *body), now)
            else:
                self._partials += body

    def final(self, job: int, body: Frames, now: float) -> None:
        """Give the (rest of the) reply; the worker is free again."""
        if job != self._job or not self._job_running:
            return
        self._job_running = False
        if self.state is SessionState.BUSY:
            if self._unwatched:
                self._silent_at = now + self._rhythm.patience
            # An error is told by how a body begins: behind parts it would be taken for one more of them.
            body = joined(self._partials, body) if read_error(body) is None else body
            self._send(Command.FINAL, (*self._envelope, *body), now)
            self._partials = []
            self.state = SessionState.IDLE
        else:
            self.dropped_replies += 1
        if self._leaving:
            self._say_goodbye(now)

    def lost(self, now: float) -> None:
        """The transport knows that the connection is gone."""
        if self.state is not SessionState.AWAY:
            self._reconnect([], now)

    def leave(self, now: float) -> None:
        """Finish what is in hand, say good-bye, connect no more."""
        self._leaving = True
        if not self._job_running:
            self._say_goodbye(now)

    # -- inside ----------------------------------------------------------------------------------------------

    @property
    def _unwatched(self) -> bool:
        """Whether neither side expects a word of the other, however long it takes."""
        return not self.dialect.heartbeats or (self.state is SessionState.BUSY and self.dialect.silent_when_busy)

    def _connect(self, now: float) -> None:
        self.connection += 1
        self.dialect = self._dialects[self._version]
        self._heard_any = False
        self._wake_at = None
        self.state = SessionState.IDLE
        self._rhythm = self._new_rhythm(now)
        self._silent_at = now + self._rhythm.patience
        self._send(Command.READY, (self.service,), now)

    def _change_version(self) -> None:
        """Try another version next time, unless the broker has spoken this one."""
        if not self._heard_any:
            self._version = (self._version + 1) % len(self._dialects)

    def _reconnect(self, rest: Frames, now: float) -> None:
        """Close; come back on a new connection after a while."""
        self._output.append((self.connection, None))
        self.state = SessionState.AWAY
        if self._jobs:  # nobody has begun to work on it
            self._jobs.clear()
            self._job_running = False
        self._wake_at = now + self._backoff.take()
        if self._leaving and not self._job_running:
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
        self._jobs.append(Job(self._job, body, self._envelope[0] if self._envelope else b""))

    def _new_rhythm(self, now: float) -> Rhythm:
        return Rhythm(self.config.heartbeat_interval, self.config.liveness, now, usual=self.dialect.usual_interval)

    def _keep(self, rest: Frames, now: float) -> None:
        """A heartbeat: it tells how often the broker sends some."""
        before = self._rhythm.interval
        self._rhythm.beat(now)
        self._silent_at = now + self._rhythm.patience
        self._send_by -= max(0.0, before - self._rhythm.interval)

    def _say_goodbye(self, now: float) -> None:
        if self.state is not SessionState.AWAY and self.dialect.has(Command.DISCONNECT):
            self._send(Command.DISCONNECT, (), now)
        self.state = SessionState.AWAY
        self._wake_at = None
        self.stopped = True

    def _send(self, command: Command, rest: tuple[bytes, ...], now: float) -> None:
        self._output.append((self.connection, self.dialect.encode(command, rest)))
        self._send_by = now + self._rhythm.interval


TRANSITIONS: dict[tuple[SessionState, Command], Callable[[WorkerSession, Frames, float], None]] = {
    (SessionState.IDLE, Command.REQUEST): WorkerSession._work,
    (SessionState.IDLE, Command.HEARTBEAT): WorkerSession._keep,
    (SessionState.BUSY, Command.HEARTBEAT): WorkerSession._keep,
}
"""What a broker may say when. Anything else, DISCONNECT too, ends the connection."""
