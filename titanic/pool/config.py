"""What a pool of processes is told."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """What a child needs to know. It goes to the child as JSON, by its standard input: no secret is in it, and none in
    the list of processes."""

    target: str
    """MODULE:app."""
    jobs: int = 1
    endpoint: tuple[str, ...] = ()
    """Where the broker is; empty: where the app says."""
    key_file: str | None = None
    server_key: str | None = None
    max_requests: int = 0
    """Requests after which a child leaves; 0: any number."""
    grace: float = 60.0
    """Seconds that jobs have to end when the pool is to stop, or has died."""
    overdue: float = 30.0
    """Seconds beyond its limit after which a task counts as stuck."""
    log_level: str = "info"
    log_format: str = "text"

    def document(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """How children are watched. Times are seconds."""

    processes: int = 1
    memory: int = 0
    """Bytes above which a child is replaced; 0: any number."""
    grace: float = 60.0
    silence: float = 30.0
    """So long a child may say nothing before it is taken for stuck."""
    wait_for_sources: bool = False
    """Whether an app that cannot be imported is to be tried again when its source has changed."""
    retry_first: float = 0.5
    """Pause before a child is replaced that has not lived for `short`; doubles up to `retry_most`."""
    retry_most: float = 30.0
    short: float = 10.0
