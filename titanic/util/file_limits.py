"""How many files and connections the process may have open."""

from __future__ import annotations

import contextlib
import resource

from titanic.errors import CallerError

MOST = 1 << 20
"""What any system lets a process have."""


def raise_limit() -> None:
    """Allow as many as the system lets us have: the usual limit is for programs that serve nobody."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else hard
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def require(count: int, what: str) -> None:
    """Raise CallerError when fewer than `count` are allowed, before somebody finds that out in the middle."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        raise CallerError(
            "too few file descriptors",
            f"{what} may need {count}, and the limit is {soft}",
            "raise it (ulimit -n, or LimitNOFILE= of a systemd unit), or use fewer --lanes",
        )
