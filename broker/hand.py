"""Workers that are registered several times, with several brokers or for several services, and do a few requests at a
time in all.

MDP has a broker send a request to any worker that is registered and free, and each registration knows only what came by
itself. So more may be sent than there are hands for, and some have to wait. How long is too long? Short requests are
done one after another: a request that waits here for the next free moment is one that need not come over the wire then.
When the work in hand takes longer than PATIENCE, the worker leaves its other brokers and services (DISCONNECT): they
give what it has of theirs to other workers, at once, and send nothing more. It comes back with READY when work is done,
with as many registrations for each as there are free arms.

                  request comes     PATIENCE is over                reply given
    ------------  ----------------  ------------------------------  ------------------------------
    an arm free   begin             –                               come back
    all at work   wait              leave the others, give back     begin what waits; else come
                                    what waits                      back
"""

from __future__ import annotations

from broker.core.worker import Job
from broker.io.channel import Channel
from broker.io.channels import WorkerChannel
from broker.io.loop import Loop

PATIENCE = 0.2
"""Seconds for which a request may wait."""


class Registration(WorkerChannel):
    """A worker's registration with one broker, for one service."""

    def work(self, job: Job) -> None:
        """Have a request done; tell the hand when it is."""
        raise NotImplementedError


class Hand(Channel):
    """Does the requests of several registrations, as many at a time as it has arms. It lives in their loop, without a
    socket."""

    rests = True

    def __init__(self, loop: Loop, arms: int = 1) -> None:
        self._loop = loop
        self._arms = arms
        self._groups: dict[object, list[Registration]] = {}
        """Those that are alike: for the same service, at the same broker."""
        self._busy: set[Registration] = set()
        """Whose requests are being worked on."""
        self._waiting: dict[Registration, Job] = {}
        self._leave_at: float | None = None
        """When those that are not at work leave."""

    def add(self, registration: Registration, group: object) -> None:
        """Work for one more. The same `group` is for those that are alike."""
        self._groups.setdefault(group, []).append(registration)

    def take(self, registration: Registration, job: Job, now: float) -> None:
        """A request has come."""
        if len(self._busy) < self._arms:
            self._begin(registration, job, now)
        else:
            self._waiting[registration] = job

    def drop(self, registration: Registration, now: float) -> None:
        """The connection is gone: nobody wants the reply to what waits here."""
        if (job := self._waiting.pop(registration, None)) is not None:
            registration.session.final(job.number, [], now)
            self._loop.touch(registration)

    def done(self, registration: Registration, now: float) -> None:
        """What was begun is done."""
        self._busy.discard(registration)
        self._leave_at = None
        if self._waiting:
            other = next(iter(self._waiting))
            self._begin(other, self._waiting.pop(other), now)
            return
        free = self._arms - len(self._busy)
        for group in self._groups.values():
            here = sum(not other.session.held and other not in self._busy for other in group)
            for other in [other for other in group if other.session.held][: max(0, free - here)]:
                other.session.come_back()
                self._loop.touch(other)

    def tick(self, now: float) -> None:
        """It takes long: others are to do what waits, and what comes."""
        self._leave_at = None
        self._waiting.clear()
        for group in self._groups.values():
            for other in group:
                if other not in self._busy and not other.session.held:
                    other.session.step_aside(now)
                    self._loop.touch(other)

    def next_deadline(self) -> float | None:
        return self._leave_at

    def _begin(self, registration: Registration, job: Job, now: float) -> None:
        self._busy.add(registration)
        if len(self._busy) == self._arms:
            self._leave_at = now + PATIENCE
            self._loop.touch(self)
        registration.work(job)
