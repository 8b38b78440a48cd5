"""A worker's side of one connection for several services and several requests at a time, without sockets.

    state    REQUEST   HEARTBEAT   CANCEL   DISCONNECT   reply given
    -------  --------  ----------  -------  -----------  -----------------------------
    idle     work      keep        –        reconnect    –
    busy     work      keep        note     reconnect    send
    leaving  return    keep        note     reconnect    send; good-bye after the last

The rest is as in `WorkerSession`: it asks the broker on each connection. To a broker that does not know SLOTS it is a
worker of its first service, with one request at a time, and its runner registers others beside it.

Handlers that are at work when the connection goes are let finish, and their replies are dropped. It connects again at
once with the other slots, and offers each of these when its handler has finished.
"""

from __future__ import annotations

from broker.config import WorkerConfig
from broker.core.mdp import (
    AT_LIMIT,
    CHILDREN,
    MAX_SLOTS,
    NAMES_SLOTS,
    SERVICE,
    SLOTS,
    Capacity,
    Command,
    Frames,
    WorkerDialect,
)
from broker.core.worker import REGISTERED, Job, SessionState, WorkerSession


class JointSession(WorkerSession):
    """A worker of several services. `joint`: whether the present broker knows SLOTS."""

    def __init__(
        self,
        capacity: Capacity,
        config: WorkerConfig | None = None,
        *,
        now: float,
        process: str | None = None,
        children: bool = False,
    ) -> None:
        """`children`: processes of the worker's own execute its requests."""
        super().__init__(next(iter(capacity.limits)), config, now=now, process=process)
        self._capacity = capacity
        self._children = children
        self._hand: dict[int, Frames] = {}
        """The envelopes of its jobs, by number."""
        self._numbers: dict[bytes, int] = {}
        """Their numbers, by `client`."""
        self._abandoned: set[int] = set()
        """Jobs at work whose connection is gone."""
        self._elsewhere = 0
        """Jobs at work that came by other connections."""
        self._offered = 0
        """The slots that the broker knows of."""

    @property
    def slots(self) -> int:
        return self._offered if self.joint else 1

    @property
    def stranded(self) -> bool:
        return bool(self._abandoned) or (self._job_running and self.state is SessionState.AWAY)

    def note_elsewhere(self, jobs: int, now: float) -> None:
        """Note how many jobs are at work that came by other connections: so many slots are not offered."""
        self._elsewhere = jobs
        self._offer(now)

    @property
    def says_lost(self) -> bool:
        """Whether the present broker knows LOST."""
        return self.joint and self._children and CHILDREN in self._knows and self.state in REGISTERED

    def lose(self, suspects: list[int], others: list[int], now: float) -> None:
        """Report that the process died that had these jobs; `others` are not the cause. Call it if `says_lost`."""
        clients = self._take_out(suspects)
        innocent = self._take_out(others)
        if innocent:
            clients += [b"", *innocent]
        if clients:
            self._send(Command.LOST, tuple(clients), now)
        self._taken_out(now)

    def give_back(self, job: int, now: float) -> None:
        """Return a job that was not begun."""
        if (clients := self._take_out([job])) and self.joint:
            self._offered = self._free
            self._send(Command.SLOTS, (b"%d" % self._offered, *clients), now)
        self._taken_out(now)

    def _take_out(self, jobs: list[int]) -> Frames:
        """Take jobs out without a reply, and return the `client` frames of those whose connection is still there."""
        clients: Frames = []
        for job in jobs:
            if (envelope := self._hand.pop(job, None)) is not None:
                del self._numbers[envelope[0]]
                self._untold.pop(job, None)
                clients.append(envelope[0])
            elif job in self._abandoned:
                self._abandoned.discard(job)
                self.dropped_replies += 1
        return clients

    def _taken_out(self, now: float) -> None:
        if self.state is SessionState.BUSY and not self._hand:
            self.state = SessionState.IDLE
            self._silent_at = now + self.heartbeat.patience
        self._offer(now)
        if self._leaving and self._is_done:
            self._say_goodbye(now)

    def final(self, job: int, body: Frames, now: float) -> None:
        envelope = self._hand.pop(job, None)
        if envelope is not None:
            del self._numbers[envelope[0]]
            self._untold.pop(job, None)
            self._silent_at = now + self.heartbeat.patience
            if not self._hand:
                self.state = SessionState.IDLE
            self._send(Command.FINAL, (*envelope, *body), now)
        elif job in self._abandoned:
            self._abandoned.discard(job)
            self.dropped_replies += 1
        else:
            super().final(job, body, now)
            return
        self._offer(now)
        if self._leaving and self._is_done:
            self._say_goodbye(now)

    def leave(self, now: float) -> None:
        if self.joint and not self._leaving and self.state in REGISTERED and not self._is_done:
            back = [job.client for job in self._jobs]  # no handler has begun them
            self._drop_unbegun()
            self._offered = 0
            self._send(Command.SLOTS, (b"0", *back), now)
        super().leave(now)

    @property
    def _free(self) -> int:
        """The slots that it can offer."""
        if self._leaving:
            return 0
        return max(0, min(MAX_SLOTS, self._capacity.slots - self._elsewhere - len(self._abandoned)))

    @property
    def _may_connect(self) -> bool:
        return not self._job_running and not self.held and self._free > 0

    @property
    def _is_done(self) -> bool:
        return not (self._job_running or self._hand or self._abandoned)

    def _envelope_of(self, job: int) -> Frames | None:
        return self._hand.get(job) if self.joint else super()._envelope_of(job)

    def _offer(self, now: float) -> None:
        """Report another number of slots."""
        if self.joint and self.state in REGISTERED and self._free != self._offered:
            self._offered = self._free
            self._send(Command.SLOTS, (b"%d" % self._offered,), now)

    def _connect(self, now: float) -> None:
        self.joint = False
        super()._connect(now)

    def _register(self, dialect: WorkerDialect, now: float) -> None:
        self.joint = NAMES_SLOTS in self._knows and dialect.has(Command.SLOTS)
        self._offered = self._free
        super()._register(dialect, now)

    def _more_words(self) -> Frames:
        if not self.joint:
            return []
        services = [(name, limit) for name, limit in self._capacity.limits.items() if limit or name != self.service]
        words = [SLOTS + b"%d" % self._offered, *(SERVICE + b"%d:%b" % (limit, name) for name, limit in services)]
        return [*words, CHILDREN] if self._children and CHILDREN in self._knows else words

    def _act(self, command: Command, rest: Frames, now: float) -> None:
        if not self.joint:
            super()._act(command, rest, now)
        elif command is Command.SERVICE_REQUEST:
            self._take(rest, now)
        elif command is Command.HEARTBEAT:
            self._keep(rest, now)
        elif command is Command.CANCEL:
            if rest and (number := self._numbers.get(rest[0])) is not None:
                self._cancelled.append((number, AT_LIMIT in rest[2:]))
        else:
            self._reconnect(rest, now)

    def _take(self, rest: Frames, now: float) -> None:
        """Take a request, or return it when this worker leaves."""
        if len(rest) < 4 or rest[1] != b"" or rest[2] not in self._capacity.limits or rest[0] in self._numbers:
            self._reconnect([], now)
        elif self._leaving:
            self._send(Command.SLOTS, (b"0", rest[0]), now)
        else:
            self.state = SessionState.BUSY
            self._job += 1
            self._hand[self._job] = rest[:2]
            self._numbers[rest[0]] = self._job
            self._jobs.append(Job(self._job, rest[3:], rest[0], rest[2]))

    def _drop_unbegun(self) -> None:
        for job in self._jobs:
            del self._hand[job.number], self._numbers[job.client]
        self._jobs.clear()

    def _reconnect(self, rest: Frames, now: float) -> None:
        if self.joint:
            self._drop_unbegun()
            self._abandoned.update(self._hand)
            self._hand.clear()
            self._numbers.clear()
        super()._reconnect(rest, now)
