"""What a worker's log says of its broker: that it is there, that it is lost, and now and then that nobody answers."""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.io.channel import Channel

SILENCES = 2
"""Heartbeat intervals after which nobody seems to be there. A broker that is there answers READY sooner."""

PAUSE_MOST = 300.0
"""Seconds between two such warnings; the pause doubles up to here."""

STARVED_EVERY = 60.0
"""Seconds between two lines that say that there are no sockets."""


class WorkerLog(Channel):
    """A channel without a socket; add it to the loop behind the channels that it reports on."""

    def __init__(
        self,
        log: logging.Logger,
        name: str,
        endpoint: str,
        interval: float,
        registered: Callable[[], bool],
        *,
        kind: str = "broker",
    ) -> None:
        """`name`: of the worker. `registered`: whether the broker has answered any of its connections. `kind`: what
        it is called, if it is none."""
        self._log = log
        self._name = name
        self._endpoint = endpoint
        self._kind = kind
        self._registered = registered
        self._first = self._pause = SILENCES * interval
        self._there = False
        self._silent_since: float | None = None
        self._warn_at = 0.0
        self._starved_again = 0.0
        self._refused = False
        self._over = False

    def leave(self) -> None:
        """Log nothing more: the worker ends."""
        self._over = True

    def starved(self, why: str, now: float) -> None:
        """A connection got no socket. One line speaks for all of them."""
        if now >= self._starved_again:
            self._starved_again = now + STARVED_EVERY
            self._log.warning("%s; still trying", why)

    def refused(self, now: float) -> None:
        """The broker is there, and sent a connection away."""
        if not self._refused and not self._there:
            self._refused = True
            self._warn_at = now

    def tick(self, now: float) -> None:
        """Warn: no answer for a while, or a refusal."""
        if self._silent_since is None or now < self._warn_at:
            return
        where, silence = self._endpoint, now - self._silent_since
        if self._refused:
            text = "the %s at %s takes no worker of %s: the name is reserved, or it has all it may have; still trying"
            self._log.warning(text, self._kind, where, self._name)
        else:
            text = "nobody answers at %s for %.0f s; is a %s there? still trying"
            self._log.warning(text, where, silence, self._kind)
        self._pause = min(PAUSE_MOST, 2 * self._pause)
        self._warn_at = now + self._pause

    def next_deadline(self) -> float | None:
        """The next warning; at once before the first look, for which nothing else might wake the loop."""
        if self._over or self._there:
            return None
        return 0.0 if self._silent_since is None else self._warn_at

    def flush(self, now: float) -> None:
        there = self._registered()
        if self._over or (there == self._there and (there or self._silent_since is not None)):
            return
        if there:
            self._log.info("%s is registered at %s", self._name, self._endpoint)
            self._silent_since, self._refused = None, False
        else:
            if self._there:
                self._log.warning("lost the %s at %s; connecting again", self._kind, self._endpoint)
            self._silent_since, self._pause = now, self._first
            self._warn_at = now + self._pause
        self._there = there
