"""A request that is being executed, or whose outcome is not on disk yet."""

from __future__ import annotations

from titanic.dispatch.backlogs import HIGHEST, Backlog
from titanic.protocol.submit_options import Policy


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
        """Whether the broker was asked to give it back, because others are more urgent."""
        self.refused = 0
        """How often its outcome found no room in the store."""
        self.settling = False
        """Whether its attempt is over and the outcome is on its way to the disk."""
        self.size = 0
        """Bytes of memory of that outcome, roughly."""
        self.expiring = False
        """Whether that outcome is that the request has expired."""
        self.held = False
        """Whether the disk did not take the outcome. The request keeps its place meanwhile, as if the worker still had
        it: results must not pile up in memory when a disk fails."""
        self.closed = False
        """Whether its client closed it. The worker still has it, so it keeps its place until the reply comes."""
        self.kept = False
        """Whether the broker has said after the close that a worker has it, or that it cannot tell."""
        self.overdue = False
        """Whether its attempt has passed its limit, and the broker is asked whether a worker has it at all."""
