"""How many files and connections the process may have open."""

from __future__ import annotations

import contextlib
import resource

from titanic.errors import CallerError

MOST = 1 << 20
"""The most that is asked for when the system has no limit."""


def raise_limit() -> None:
    """Raise the limit as far as the system lets us: the usual one is too low for a server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else hard
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def require(count: int, what: str) -> None:
    """Raise CallerError when fewer than `count` are allowed, at the start and not in the middle of the work."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        raise CallerError(
            "too few file descriptors",
            f"{what} may need {count}, and the limit is {soft}",
            "raise it (ulimit -n, or LimitNOFILE= of a systemd unit), or use fewer --lanes",
        )
