"""A worker's side of one connection for several services and several requests at a time, without sockets.

    state    REQUEST   HEARTBEAT   CANCEL   DISCONNECT   reply given
    -------  --------  ----------  -------  -----------  -----------------------------
    idle     work      keep        –        reconnect    –
    busy     work      keep        note     reconnect    send
    leaving  return    keep        note     reconnect    send; good-bye after the last

The rest is as in `WorkerSession`: it asks the broker on each connection. To a broker that does not know SLOTS it is a
worker of its first service, with one request at a time, and its runner registers others beside it.

When the connection goes, handlers that are at work go on. If the broker knew HELD, so that requests wait for their
workers, the next READY names them. When it is accepted, what was to be said of them meanwhile follows: parts of replies
from the first on, replies, LOST. The broker answers CANCEL for those that are no longer this worker's.

    the broker did not know HELD, or the next does not    abandoned: the reply is dropped, and the slot is offered
    the parts of its reply exceed MOST_PARTS              when the handler has finished
    there are several brokers, and the next one's queue
      has another store

With several brokers it returns to the one that it had, if that is there, else it goes to another.

A reply that was sent may be lost with the connection, or with the memory of a server that is killed. So the last ones
are kept for a while, and named in READY. The broker sends such a request again, with the same `client`, if it waits for
this worker; then the reply is sent again.
"""

from __future__ import annotations

from broker.config import WorkerConfig
from broker.core.mdp import (
    CHILDREN,
    ENDED,
    HELD,
    KEEPER,
    KILLS,
    MAX_SLOTS,
    NAMES_ENDED,
    NAMES_HELD,
    NAMES_SLOTS,
    SERVICE,
    SLOTS,
    Capacity,
    Command,
    Frames,
    WorkerDialect,
)
from broker.core.timers import earliest
from broker.core.worker import REGISTERED, Job, SessionState, WorkerSession

MOST_PARTS = 1 << 20
"""Bytes of the parts of a reply that are kept, to send them again."""


MOST_ENDED = 1000
"""Replies that are kept after they were sent."""

MOST_ENDED_BYTES = 1 << 20
"""Their bytes."""

KEEP_ENDED = 60.0
"""Seconds for which they are: the server has stored them long before."""

LEAVE_MOST = 30.0
"""Seconds for which a worker that leaves waits for a broker that takes its last replies. Without them these requests
run again, and a server on a busy machine takes a while to start."""


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
        keeper: bytes = b"",
    ) -> None:
        """`children`: processes of the worker's own execute its requests. `keeper`: a random name, under which it
        returns with its requests; empty: it does not."""
        super().__init__(next(iter(capacity.limits)), config, now=now, process=process)
        self._capacity = capacity
        self._children = children
        self._hand: dict[int, Frames] = {}
        """The envelopes of its jobs, by number."""
        self._numbers: dict[bytes, int] = {}
        """Their numbers, by `client`."""
        self._abandoned: set[int] = set()
        """Jobs at work for lost connections."""
        self._keeper = keeper
        self._parts: dict[int, list[Frames]] = {}
        """The parts of replies so far."""
        self._sizes: dict[int, int] = {}
        """Their bytes; of jobs with too many no part is kept."""
        self._ended: dict[bytes, tuple[float, int, list[Frames]]] = {}
        """Replies that were sent, by `client`: when, their bytes, and their parts."""
        self._ended_bytes = 0
        self._unsent: list[tuple[list[int], Command, Frames]] = []
        """What was to be said of jobs without a connection, and takes these out."""
        self._leave_by: float | None = None
        """When it leaves although no broker has taken its last replies."""
        self._elsewhere = 0
        """Jobs at work that came by other connections."""
        self._offered = 0
        """The slots that the broker knows of."""
        self._origin = ""
        """The id of the store that its jobs are from."""

    @property
    def slots(self) -> int:
        return self._offered if self.joint else 1

    @property
    def _keeps_requests(self) -> bool:
        """Whether its requests wait for it when the connection is lost."""
        return (
            bool(self._keeper)
            and NAMES_HELD in self._broker_knows
            and (not self.has_other_endpoints or self._store != "")
        )

    @property
    def returns(self) -> bool:
        return self._keeps_requests and bool(self._hand)

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
        if self._is_away:
            return self._children
        return self.joint and self._children and CHILDREN in self._broker_knows and self.state in REGISTERED

    @property
    def _is_away(self) -> bool:
        """Whether it has jobs, and no broker that has accepted its READY."""
        return bool(self._hand) and not self.registered

    def lose(self, suspects: list[int], others: list[int], now: float) -> None:
        """Report that the process died that had these jobs; `others` are not the cause. Call it if `says_lost`."""
        if self._is_away:
            suspects = [job for job in suspects if not self._drop_abandoned(job)]
            others = [job for job in others if not self._drop_abandoned(job)]
            clients = [self._hand[job][0] for job in suspects]
            if others:
                clients += [b"", *(self._hand[job][0] for job in others)]
            if clients:
                self._unsent.append(([*suspects, *others], Command.LOST, clients))
            self._hurry_leaving(now)
            return
        clients = self._take_out(suspects)
        innocent = self._take_out(others)
        if innocent:
            clients += [b"", *innocent]
        if clients:
            self._send(Command.LOST, tuple(clients), now)
        self._taken_out(now)

    def give_back(self, job: int, now: float) -> None:
        """Return a job that was not started."""
        if (clients := self._take_out([job])) and self.joint and self.state in REGISTERED:
            self._offered = self._free
            self._send(Command.SLOTS, (b"%d" % self._offered, *clients), now)
        self._taken_out(now)

    def _take_out(self, jobs: list[int]) -> Frames:
        """Take jobs out without a reply, and return the `client` frames of those with a connection."""
        clients: Frames = []
        for job in jobs:
            if (envelope := self._take_job(job)) is not None:
                clients.append(envelope[0])
            else:
                self._drop_abandoned(job)
        return clients

    def _take_job(self, job: int) -> Frames | None:
        """Take a job out, and return its envelope; None: it is none of the broker's, or its connection is gone."""
        envelope = self._hand.pop(job, None)
        if envelope is not None:
            del self._numbers[envelope[0]]
            self._unreported.pop(job, None)
            self._parts.pop(job, None)
            self._sizes.pop(job, None)
        return envelope

    def _drop_abandoned(self, job: int) -> bool:
        """Note the end of a job; return whether it was abandoned."""
        if job not in self._abandoned:
            return False
        self._abandoned.discard(job)
        self.dropped_replies += 1
        return True

    def _taken_out(self, now: float) -> None:
        if self.state is SessionState.BUSY and not self._hand:
            self.state = SessionState.IDLE
            self._silent_at = now + self.heartbeat.patience
        self._offer(now)
        self._hurry_leaving(now)
        if self._leaving and self._is_done:
            self._say_goodbye(now)

    def partial(self, job: int, body: Frames, now: float) -> None:
        if (envelope := self._hand.get(job)) is None:
            super().partial(job, body, now)
            return
        if self._keeper:
            size = self._sizes[job] = self._sizes.get(job, 0) + sum(map(len, body)) + len(body)
            if size <= MOST_PARTS or (self._is_away and self.state is SessionState.BUSY):  # READY has named it
                self._parts.setdefault(job, []).append(body)
            else:
                self._parts.pop(job, None)
                if self._is_away:
                    self._cancelled.append((job, b""))
                    self._abandon(job)
                    return
        if self.registered:
            self._send(Command.PARTIAL, (*envelope, *body), now)

    def final(self, job: int, body: Frames, now: float) -> None:
        if self._is_away and job in self._hand:
            self._unsent.append(([job], Command.FINAL, [*self._hand[job], *body]))
            self._hurry_leaving(now)
            return
        if self._keeps_requests and job in self._hand:
            self._keep_reply(job, body, now)
        envelope = self._take_job(job)
        if envelope is not None:
            self._silent_at = now + self.heartbeat.patience
            if not self._hand:
                self.state = SessionState.IDLE
            self._send(Command.FINAL, (*envelope, *body), now)
        elif not self._drop_abandoned(job):
            super().final(job, body, now)
            return
        self._offer(now)
        self._hurry_leaving(now)
        if self._leaving and self._is_done:
            self._say_goodbye(now)

    def _keep_reply(self, job: int, body: Frames, now: float) -> None:
        """Keep a reply that is about to be sent."""
        size = self._sizes.get(job, 0) + sum(map(len, body)) + len(body)
        if size > MOST_ENDED_BYTES or NAMES_ENDED not in self._broker_knows:
            return
        self._ended[self._hand[job][0]] = now, size, [*self._parts.get(job, ()), body]
        self._ended_bytes += size
        while len(self._ended) > MOST_ENDED or self._ended_bytes > MOST_ENDED_BYTES:
            self._drop_oldest_reply()

    def _drop_oldest_reply(self) -> None:
        self._ended_bytes -= self._ended.pop(next(iter(self._ended)))[1]

    def _reply_again(self, client: bytes, now: float) -> None:
        *parts, last = self._ended[client][2]
        for body in parts:
            self._send(Command.PARTIAL, (client, b"", *body), now)
        self._send(Command.FINAL, (client, b"", *last), now)

    def leave(self, now: float) -> None:
        if self.joint and not self._leaving and self.state in REGISTERED and not self._is_done:
            back = [job.client for job in self._jobs]  # no handler has started them
            self._drop_unbegun()
            self._offered = 0
            self._send(Command.SLOTS, (b"0", *back), now)
        super().leave(now)
        self._hurry_leaving(now)

    @property
    def _free(self) -> int:
        """The slots that it can offer."""
        if self._leaving:
            return 0
        return max(0, min(MAX_SLOTS, self._capacity.slots - self._elsewhere - len(self._abandoned)))

    @property
    def _may_connect(self) -> bool:
        return not self._job_running and not self.held and (self._free > 0 or bool(self._hand))

    @property
    def _hurries(self) -> bool:
        return bool(self._hand) or super()._hurries

    @property
    def _minds_silence(self) -> bool:
        # What is in hand is kept: to lose the connection costs nothing. A broker that knows HELD sends heartbeats.
        if self.state is SessionState.BUSY:
            return self.joint and NAMES_HELD in self._broker_knows
        return self.state is SessionState.ASKING or (self.state is SessionState.IDLE and self.dialect.heartbeats)

    def tick(self, now: float) -> None:
        if self._leave_by is not None and now >= self._leave_by:
            for job in list(self._hand):
                self._abandon(job)
            self._leave_by = None
            if self._is_done:
                self._say_goodbye(now)
        super().tick(now)

    def next_deadline(self) -> float | None:
        return earliest(super().next_deadline(), self._leave_by)

    def _hurry_leaving(self, now: float) -> None:
        """Note when to leave with replies that no broker has taken."""
        ended = sum(job in self._hand for jobs, _, _ in self._unsent for job in jobs)
        if self._leaving and self._is_away and ended == len(self._hand) and not self._abandoned:
            self._leave_by = now + LEAVE_MOST

    @property
    def _is_done(self) -> bool:
        return not (self._job_running or self._hand or self._abandoned)

    def _envelope_of(self, job: int) -> Frames | None:
        if not self.registered:
            return None
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
        self.joint = NAMES_SLOTS in self._broker_knows and dialect.has(Command.SLOTS)
        is_stranger = self.has_other_endpoints and self._store != self._origin
        if not (self.joint and NAMES_HELD in self._broker_knows) or is_stranger:
            for job in list(self._hand):
                self._abandon(job)
        while self._ended and (is_stranger or next(iter(self._ended.values()))[0] < now - KEEP_ENDED):
            self._drop_oldest_reply()
        self._origin = self._store
        self._offered = max(self._free, len(self._hand))
        super()._register(dialect, now)
        if self._hand:
            self.state = SessionState.BUSY

    def _resume(self, now: float) -> None:
        """Say what was to be said of the jobs that READY has named. A broker that refuses READY would drop it."""
        self._leave_by = None
        for job, parts in self._parts.items():
            for body in parts:
                self._send(Command.PARTIAL, (*self._hand[job], *body), now)
        unsent, self._unsent = self._unsent, []
        for jobs, command, frames in unsent:
            if left := [job for job in jobs if job in self._hand]:
                if command is Command.FINAL:
                    self._keep_reply(left[0], frames[2:], now)
                self._send(command, tuple(frames), now)
                self._take_out(left)
        self._taken_out(now)

    def _abandon(self, job: int) -> None:
        """Go on without a job: another worker gets it. When its handler has finished, its reply is dropped."""
        ended = any(job in jobs for jobs, _, _ in self._unsent)
        self._take_job(job)
        if ended:
            self.dropped_replies += 1
        else:
            self._abandoned.add(job)

    def _more_words(self) -> Frames:
        if not self.joint:
            return []
        services = [(name, limit) for name, limit in self._capacity.limits.items() if limit or name != self.service]
        words = [SLOTS + b"%d" % self._offered, *(SERVICE + b"%d:%b" % (limit, name) for name, limit in services)]
        if self._children and CHILDREN in self._broker_knows:
            words += [CHILDREN, KILLS] if KILLS in self._broker_knows else [CHILDREN]
        if self._keeps_requests:
            words += [KEEPER + self._keeper, *(HELD + envelope[0] for envelope in self._hand.values())]
            if NAMES_ENDED in self._broker_knows:
                words += [ENDED + client for client in self._ended]
        return words

    def _act(self, command: Command, rest: Frames, now: float) -> None:
        if self._hand and self.heartbeat.messages == 1 and command is not Command.DISCONNECT:  # READY was accepted
            self._resume(now)
        if not self.joint:
            super()._act(command, rest, now)
        elif command is Command.SERVICE_REQUEST:
            self._take(rest, now)
        elif command is Command.HEARTBEAT:
            self._keep(rest, now)
        elif command is Command.CANCEL:
            if rest and (number := self._numbers.get(rest[0])) is not None:
                self._cancelled.append((number, b"".join(rest[2:3])))
        else:
            self._reconnect(rest, now)

    def _take(self, rest: Frames, now: float) -> None:
        """Take a request, or return it when this worker leaves."""
        if len(rest) < 4 or rest[1] != b"" or rest[2] not in self._capacity.limits or rest[0] in self._numbers:
            self._reconnect([], now)
        elif rest[0] in self._ended:
            self._reply_again(rest[0], now)
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
            keeps = self._keeps_requests
            for job in list(self._hand):
                if self._sizes.get(job, 0) > MOST_PARTS:
                    self._cancelled.append((job, b""))
                    self._abandon(job)
                elif not keeps:
                    self._abandon(job)
        super()._reconnect(rest, now)
