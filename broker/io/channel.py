"""A channel of a loop: a core and the sockets it speaks through."""

from __future__ import annotations

from collections.abc import Iterable

import zmq

Pollable = zmq.Socket[bytes]


class Channel:
    """A core and the sockets it speaks through. By default it has none, and never anything to do.

    Each is flushed in every round, and ticked and flushed again when it is due. Of the many that are alike, a worker's
    connections for example, most have nothing to do most of the time: those have `rests = True` and are left alone
    until there is input, their deadline comes, or `Loop.touch` says that something was done to them.
    """

    rests = False

    def sockets(self) -> Iterable[Pollable]:
        """What to poll for input. The loop asks again after `changed` was true."""
        return ()

    def changed(self) -> bool:
        """Whether `sockets` would return something else than when it was last called."""
        return False

    def drain(self, now: float) -> bool:
        """Take in what has arrived; whether there may be more."""
        return False

    def tick(self, now: float) -> None:
        """Let the core do what is due."""

    def flush(self, now: float) -> None:
        """Send what the core has to say, and hand on what it found out."""

    def next_deadline(self) -> float | None:
        """When `tick` is wanted; None: not before something else happens."""
        return None

    def close(self) -> None:
        """Close the sockets."""
