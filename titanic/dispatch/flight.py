"""A request that is being executed, or whose outcome is not on disk yet."""

from __future__ import annotations

from dataclasses import dataclass

from titanic.dispatch.backlogs import HIGHEST, Backlog
from titanic.protocol.submit_options import Policy


@dataclass(slots=True, eq=False)
class Flight:
    """See above. `started` is in the core's clock."""

    backlog: Backlog
    attempts: int
    max_attempts: int
    policy: Policy
    expires_at: int
    """The end of its time to live, µs since the epoch; 0: none."""
    started: float
    priority: int = HIGHEST
    recalled: bool = False
    """Whether the broker was asked to give it back, because others are more urgent."""
    refused: int = 0
    """How often its outcome found no room in the store."""
    settling: bool = False
    """Whether its attempt is over and the outcome is on its way to the disk."""
    size: int = 0
    """Bytes of memory of that outcome, roughly."""
    expiring: bool = False
    """Whether that outcome is that the request has expired."""
    held: bool = False
    """Whether the disk did not take the outcome. The request keeps its place meanwhile, as if the worker still had
    it: results must not pile up in memory when a disk fails."""
    closed: bool = False
    """Whether its client closed it. The worker still has it, so it keeps its place until the reply comes."""
    kept: bool = False
    """Whether the broker has said after the close that a worker has it, or that it cannot tell."""
    overdue: bool = False
    """Whether its attempt has passed its limit, and the broker is asked whether a worker has it at all."""
