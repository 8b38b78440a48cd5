"""What the dispatcher's core knows: of a service that has something to do, and of a request that is being done."""

from __future__ import annotations

from titanic.protocol.limits import MAX_PRIORITY
from titanic.services.submission import Policy
from titanic.store import priority_in

HIGHEST = MAX_PRIORITY

AHEAD = 0.01
"""Seconds of work that a service is given ahead. A worker that is free then has its next request from the broker at
once, and Titanic hears of results in batches: three times as many a second. A request of higher priority that comes
meanwhile waits so much longer. Services that are not that fast get nothing ahead."""

COUNTED = 0.05
"""Seconds over which it is counted, at least, how fast a service is."""


class Backlog:
    """A service with requests that wait or are in flight."""

    __slots__ = (
        "ahead",
        "ask_at",
        "asked",
        "counted_from",
        "cursor",
        "finished",
        "in_flight",
        "known",
        "late",
        "least_urgent",
        "lingering",
        "name",
        "pause",
        "room",
        "trouble",
        "urgent",
        "waiting",
    )

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.waiting = True
        """Whether the store may hold requests beyond `cursor`."""
        self.cursor: bytes | None = None
        """Where in the store's queue the last one that was fetched stood; None: fetch from the front."""
        self.in_flight = 0
        """Requests sent and not answered, or answered with what cannot be written to the disk just now."""
        self.known = 0
        """Those, and the ones whose outcome is on its way to the disk."""
        self.lingering = 0
        """Workers that are still at an attempt that was given up because it passed its limit."""
        self.room: int | None = None
        """How many may be in flight: as many as there are workers, 0 when there is none; None: not known yet."""
        self.ahead = 0
        """How many more may be sent, to wait at the broker for the worker that is free next."""
        self.late = 0
        """How many more than it has room for are looked at: of those at the last look the time was over."""
        self.least_urgent = HIGHEST
        """The lowest priority among those that were sent since nothing was in flight."""
        self.urgent = 0
        """The highest priority of those that came while others were ahead, since that was looked at."""
        self.finished = 0
        """Attempts that ended since `counted_from`."""
        self.counted_from = 0.0
        self.asked = False
        """Whether a question about its presence is on its way."""
        self.ask_at = 0.0
        """Its presence is not asked for before this time."""
        self.pause = 0.0
        """How long the present wait for that is, in seconds; it doubles with each one in a row."""
        self.trouble = 0.0
        """The same for the waits that follow something wrong, until the service gives an answer again."""

    @property
    def free(self) -> int:
        """How many more may be sent."""
        return max(0, self.room + self.ahead - self.taken) if self.room else 0

    @property
    def taken(self) -> int:
        """How many workers it has that can take nothing now."""
        return self.in_flight + self.lingering

    @property
    def surplus(self) -> int:
        """How many more are with the broker than workers can have."""
        return max(0, self.in_flight - (self.room or 0))

    @property
    def hungry(self) -> bool:
        """Whether more of its requests are to be fetched now. While most of what was sent ahead is still there, there
        is no hurry: a look into the store for many costs little more than for one."""
        return self.waiting and self.free > self.ahead // 4

    @property
    def curious(self) -> bool:
        """Whether it waits for (more) workers than are known, and is to be asked for."""
        return self.waiting and not self.asked and not self.free

    @property
    def idle(self) -> bool:
        """Whether there is nothing to remember."""
        return not self.waiting and not self.known and not self.lingering

    def ended(self, now: float, most_ahead: int) -> bool:
        """An attempt is over. As many may be sent ahead as are done in AHEAD seconds; whether that changed."""
        self.finished += 1
        elapsed = now - self.counted_from
        if elapsed < COUNTED:
            return False
        before = self.ahead
        self.ahead = min(most_ahead, int(self.finished / elapsed * AHEAD))
        self.finished, self.counted_from = 0, now
        return self.ahead != before

    def added(self, priority: int) -> None:
        """New requests were put into the queue: behind all others of their priority, the highest of which is given."""
        self.waiting = True
        if self.cursor is not None and priority > priority_in(self.cursor):
            self.cursor = None

    def rewind(self) -> None:
        """Something was put into the queue, perhaps before the cursor."""
        self.waiting = True
        self.cursor = None


class Flight:
    """A request that is being executed, or whose outcome is not on disk yet."""

    __slots__ = (
        "attempts",
        "backlog",
        "closed",
        "expires_at",
        "expiring",
        "held",
        "kept",
        "max_attempts",
        "overdue",
        "policy",
        "priority",
        "recalled",
        "refused",
        "settling",
        "size",
        "started",
    )

    def __init__(
        self,
        backlog: Backlog,
        attempts: int,
        max_attempts: int,
        policy: Policy,
        expires_at: int,
        started: float,
        priority: int = HIGHEST,
    ) -> None:
        self.backlog = backlog
        self.attempts = attempts
        self.max_attempts = max_attempts
        self.policy = policy
        self.expires_at = expires_at
        """The end of its time to live, µs since the epoch; 0: none."""
        self.started = started
        self.priority = priority
        self.recalled = False
        """Whether the broker was asked for it, because of others that are more urgent."""
        self.refused = 0
        """How often its outcome found no room in the store."""
        self.settling = False
        """Whether its attempt is over and the outcome on its way to the disk."""
        self.size = 0
        """Memory of that outcome, roughly."""
        self.expiring = False
        """Whether that outcome is that its time is over."""
        self.held = False
        """Whether the disk did not take the outcome. It keeps its place meanwhile, as if it were still with the
        worker: a disk that fails must not let results pile up in memory."""
        self.closed = False
        """Whether its client closed it. The worker is still at it, so it keeps its place until the reply comes."""
        self.kept = False
        """Whether the broker has said since that a worker has it, or cannot say. No other worker gets it."""
        self.overdue = False
        """Whether its attempt has passed its limit, and the broker is being asked whether a worker has it at all."""
