"""A connection to a broker with access control. Who has none does without the rest: user_connections.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker.access.users import User

Ends = tuple[Any, Any]
"""The addresses of both ends of a connection."""


@dataclass(slots=True, eq=False)
class Connection:
    """A connection that has said something: a peer of the core. Who takes its name over is another one."""

    sender: bytes
    user_id: str
    """What the ZAP handler said."""
    user: User
    descriptor: int
    ends: Ends
    there: bool
    """Whether something can be sent to it."""
    admitted: bool = True
    """Whether what it says is read."""

    @property
    def address(self) -> str:
        """Where it comes from; for ipc, where it has come to."""
        peer = self.ends[1] or self.ends[0]
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
