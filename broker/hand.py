"""One worker that is registered with several brokers, and does one request at a time.

MDP has a broker send a request to any worker that is registered and free, and each broker knows only what it has sent
itself. So two of them may send one at the same time, and one of the two has to wait. How long is too long? Short
requests are done one after another: a request that waits here for the next free moment is one that need not come over
the wire then. When the work in hand takes longer than PATIENCE, the worker leaves the other brokers (DISCONNECT): they
give what it has of theirs to other workers, at once, and send nothing more. It comes back with READY when the work is
done.

                  request comes     PATIENCE is over                reply given
    ------------  ----------------  ------------------------------  ------------------------------
    free          begin             –                               –
    at work       wait              leave the others, give back     begin what waits; else the
                                    what waits                      others: come back
"""

from __future__ import annotations

from broker.core.worker import Job
from broker.io.channel import Channel
from broker.io.channels import WorkerChannel
from broker.io.loop import Loop

PATIENCE = 0.2
"""Seconds for which a request may wait."""


class Registration(WorkerChannel):
    """A worker's registration with one broker."""

    def work(self, job: Job) -> None:
        """Have a request done; tell the hand when it is."""
        raise NotImplementedError


class Hand(Channel):
    """Does the requests of several registrations, one at a time. It lives in their loop, without a socket."""

    rests = True

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._registrations: list[Registration] = []
        self._busy: Registration | None = None
        """Whose request is being worked on."""
        self._waiting: dict[Registration, Job] = {}
        self._leave_at: float | None = None
        """When the others are left."""

    def add(self, registration: Registration) -> None:
        """Work for one more."""
        self._registrations.append(registration)

    def take(self, registration: Registration, job: Job, now: float) -> None:
        """A request has come."""
        if self._busy is None:
            self._begin(registration, job, now)
        else:
            self._waiting[registration] = job

    def drop(self, registration: Registration, now: float) -> None:
        """The connection is gone: nobody wants the reply to what waits here."""
        if (job := self._waiting.pop(registration, None)) is not None:
            registration.session.final(job.number, [], now)
            self._loop.touch(registration)

    def done(self, now: float) -> None:
        """What was begun is done."""
        self._busy = self._leave_at = None
        if self._waiting:
            registration = next(iter(self._waiting))
            self._begin(registration, self._waiting.pop(registration), now)
            return
        for other in self._registrations:
            if other.session.held:
                other.session.come_back()
                self._loop.touch(other)

    def tick(self, now: float) -> None:
        """It takes long: others are to do what waits, and what comes."""
        self._leave_at = None
        self._waiting.clear()
        for other in self._registrations:
            if other is not self._busy:
                other.session.step_aside(now)
                self._loop.touch(other)

    def next_deadline(self) -> float | None:
        return self._leave_at

    def _begin(self, registration: Registration, job: Job, now: float) -> None:
        self._busy, self._leave_at = registration, now + PATIENCE
        self._loop.touch(self)
        registration.work(job)
