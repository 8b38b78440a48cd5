"""Runs the jobs of redrive_jobs.py in a thread of its own: a slice of each active job, then the next."""

from __future__ import annotations

import logging
import threading
import time

from broker import User
from titanic.errors import RecordCorrupt, StoreError, StoreFull
from titanic.facts.audit import Tally
from titanic.protocol.tsp import Frames
from titanic.services import redrive_jobs
from titanic.services.admin import AdminWrite, LimitReached
from titanic.services.ask import ServiceContext
from titanic.services.nodes import rows_of
from titanic.services.redrive_jobs import ROW, FoundMatches, RedriveJob
from titanic.store import ReadTransaction, Store, WriteTransaction

log = logging.getLogger(__name__)

SLICE = 0.01
"""Seconds for which a job searches at a time. It rests half as long: other threads want to go on."""

MOST = 500
"""Requests that one commit changes: other writes must not wait for long."""

PART = 0.1
"""Seconds between two commits of a job with a rate."""

LATE = 1.0
"""Seconds that a job makes up for if it is late; what it missed before is not made up for."""

POLL_INTERVAL = 2.0
"""Seconds between polls of a shared store for jobs that other nodes were asked for, or have left."""

LONGEST = 60.0
"""Seconds of a wait, however low a rate is."""

DAMAGED = "a record of the store is damaged; ask the administrator to run titanic check"
"""Why a job ends. It does not say which record: that may be another user's."""

PAUSE = 1.0
"""Seconds until it is tried again when it could not be done."""


class Turn:
    """What this server knows of an active job. `paid`: up to when its rate is used up, in monotonic seconds. `uuids`:
    found, and not stored yet; `after`: as in `FoundMatches`."""

    def __init__(self, job: RedriveJob) -> None:
        self.paid = time.monotonic()
        self.uuids: list[bytes] = []
        self.after: bytes | None = job.after


class Redriver:
    """Runs jobs. `start`, then `stop`; any thread may call `wake`."""

    def __init__(self, context: ServiceContext, store: Store) -> None:
        self._context, self._store = context, store
        self._turns: dict[bytes, Turn] = {}
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="redrive", daemon=True)
        self.start = self._thread.start
        self.wake = self._woken.set
        """A job was started or changed."""

    def stop(self) -> None:
        """Stop between two commits. The jobs go on at the next start, or at another node."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            wait: float | None = PAUSE
            try:
                wait = self._step()
            except StoreError as error:
                log.debug("jobs wait: %s", error)
            except Exception:  # jobs of later versions, or other users', must go on
                log.exception("a bug in this program: a job cannot go on")
            self._woken.wait(None if wait is None else min(wait, LONGEST))
            self._woken.clear()

    def _step(self) -> float | None:
        """Give each job a turn. Returns the seconds until the next one is due; None: when there are new jobs."""
        waits = [POLL_INTERVAL] if self._store.remote else []
        if self._context.refusing is not None:  # it stops, drains or is cut off
            return POLL_INTERVAL
        with self._store.read() as transaction:
            jobs = [job for job in redrive_jobs.read_jobs(transaction) if self._may_run(transaction, job)]
        self._turns = {job.id: self._turns.get(job.id) or Turn(job) for job in jobs}
        for job in jobs:
            turn = self._turns[job.id]
            try:
                waits.append(self._count(job, turn) if job.state == "counting" else self._act(job, turn))
            except RecordCorrupt as error:
                log.warning("job %s ends: %s", job.id.hex(), error)
                self._commit(RedriveWrite(self._context, self._store.facts_room, job, fault=DAMAGED))
            except StoreError as error:  # perhaps the search takes too long: the others go on
                log.debug("job %s waits: %s", job.id.hex(), error)
                waits.append(PAUSE)
        return min(waits, default=None)

    def _may_run(self, transaction: ReadTransaction, job: RedriveJob) -> bool:
        if job.state not in ("counting", "running") or not self._store.remote:
            return job.state in ("counting", "running")
        me = self._context.host.incarnation()
        if me is None or job.node in (None, me):
            return me is not None
        return not any(row.incarnation == job.node and row.lease and not row.draining for row in rows_of(transaction))

    def _count(self, job: RedriveJob, turn: Turn) -> float:
        if turn.after is not None and len(turn.uuids) < ROW:
            with self._store.read() as transaction:
                uuids, turn.after = redrive_jobs.search(self._context, transaction, job, turn.after, SLICE)
            turn.uuids += uuids
        row, is_last = turn.uuids[:ROW], turn.after is None and len(turn.uuids) <= ROW
        if is_last or len(row) == ROW:
            found = FoundMatches(row, None if is_last else row[-1])
            write = RedriveWrite(self._context, self._store.facts_room, job, found)
            self._commit(write)
            if write.job is None:  # it goes on from what is stored
                del self._turns[job.id]
                return PAUSE
            turn.uuids = turn.uuids[ROW:]
        return SLICE / 2

    def _act(self, job: RedriveJob, turn: Turn) -> float:
        most, rate, now = min(MOST, self._store.batch), job.options.rate, time.monotonic()
        if rate is not None:
            turn.paid = max(turn.paid, now - LATE)
            most = min(most, int((now - turn.paid) * rate + 1e-6))
            if not most:
                return max(0.001, turn.paid + 1 / rate - now)
            turn.paid += most / rate
        write = RedriveWrite(self._context, self._store.facts_room, job, most=most)
        self._commit(write)
        if write.job is None or write.job.reason:
            return PAUSE
        return 0.0 if rate is None else max(PART, 1 / rate)

    def _commit(self, write: RedriveWrite) -> None:
        self._context.host.record(write)
        while not write.done.wait(PAUSE) and not self._stopping:
            pass


class JobAsk:
    """Stands for the message of a job's user."""

    peer = None

    def __init__(self, user: User | None) -> None:
        self.user = user
        self.body: Frames = []


NONE = FoundMatches([], None)


class RedriveWrite(AdminWrite):
    """A step of a job, as one `Write`: store what was counted, or retry or close the next requests; and its place."""

    def __init__(
        self,
        context: ServiceContext,
        room: int,
        job: RedriveJob,
        found: FoundMatches = NONE,
        most: int = 0,
        *,
        fault: str = "",
    ) -> None:
        """`room`: of all facts. `found`: while it counts. `most`: the requests to act on at most. `fault`: why to end
        the job."""
        super().__init__(context, [], most, shared=context.host.shares)
        self._job, self._found, self._fault = job, found, fault
        self._room = min(redrive_jobs.MAX_COUNTED, room // redrive_jobs.ROOM_SHARE // 17)
        self.job: RedriveJob | None = None
        """The job after it; None: nothing was done, because it was changed meanwhile, or the store failed."""
        self.done = threading.Event()

    def __len__(self) -> int:
        return 1 + self._most

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        self._begin()
        self.job = None
        redrive_jobs.lock(transaction, self._context.host)
        jobs = redrive_jobs.read_jobs(transaction, self._job.id)
        if not jobs or (jobs[0].state, jobs[0].node) != (self._job.state, self._job.node):
            return
        (job,) = jobs
        user = redrive_jobs.user_of(job, self._context.host)
        job.node, job.reason = self._context.host.incarnation(), ""
        if fault := self._fault or redrive_jobs.lacks_for(user, job.options):
            self._acts += job.finish(transaction, now_us, "stopped", fault)
        elif job.state == "counting":
            others = [one for one in redrive_jobs.read_jobs(transaction) if not one.ended_at]
            kept = sum(one.counted - one.place for one in others) + len(self._found.uuids)
            job.add(transaction, self._found.uuids)
            job.after = self._found.after or b""
            if self._found.after is None:
                job.state = "counted"
                if not job.counted:
                    job.finish(transaction, now_us, "done")
            for one in others:
                if one.state == "counted" and kept > self._room:
                    kept -= one.counted
                    one.finish(transaction, now_us, "cancelled", "it was not confirmed, and others needed its room")
                    one.put(transaction)
            if kept > self._room:
                fault = f"at least {job.counted} match, but jobs may keep {self._room} together; narrow the conditions"
                job.finish(transaction, now_us, "stopped", fault)
        else:
            self._go_on(transaction, job, now_us, user)
            if job.place == job.counted:
                self._acts += job.finish(transaction, now_us, "done")
        job.put(transaction)
        self._context.audit.put(transaction, self._acts, now_us)
        self.job = job

    def _go_on(self, transaction: WriteTransaction, job: RedriveJob, now_us: int, user: User | None) -> None:
        uuids, ask, done, count = job.next(transaction, self._most), JobAsk(user), 0, 0
        transaction.prefetch(uuids)
        closes = job.options.start == "close"
        act = self._purge if closes else self._retry
        running = self._running(transaction, uuids) if closes and job.end else ()
        for uuid in uuids:
            try:
                row = transaction.describe(uuid)
                if row is not None and uuid not in running and redrive_jobs.matches(transaction, job, row, user):
                    done += act(transaction, uuid, now_us, ask, Tally())
            except RecordCorrupt as error:
                log.warning("a job leaves request %s as it is: %s", uuid.hex(), error)
            except (LimitReached, StoreFull) as error:
                job.reason = f"waits for room: {error}"
                break
            count += 1
        job.advance(transaction, count, done)

    def parts(self) -> list[AdminWrite]:
        """None: it changes no more than a full store takes."""
        return []

    def committed(self) -> None:
        super().committed()
        self.done.set()

    def failed(self, error: StoreError) -> None:
        self.job = None
        self.done.set()
