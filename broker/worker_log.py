"""A worker's log lines about its broker: registered, lost, key refused, and now and then that no answer comes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from broker.core.throttle import Throttle
from broker.core.timers import earliest
from broker.io.curve import PROBE_AFTER, KeyProbe
from broker.io.loop import Channel
from broker.io.sockets import Socket

SILENCES = 2
"""Heartbeat intervals of silence after which the broker seems absent. A present one answers READY sooner."""

PAUSE_MOST = 300.0
"""Longest pause between two such warnings, in seconds; it doubles up to here."""

_SENT_AWAY = (
    "the %s at %s refuses workers of %s: the name is reserved, there are too many workers or services, or the access"
    ' file there does not permit them (work = ["%s"]); still trying'
)
"""MDP's DISCONNECT gives no reason."""

STARVED_EVERY = 60.0
"""Seconds between two lines about missing sockets."""


class BrokerConnections(Protocol):
    """The connections of a worker to its broker."""

    def registered(self) -> bool:
        """Whether the broker has answered any of them."""

    def registered_at(self) -> str:
        """At which endpoint they are registered."""

    def key_probe(self, when: float) -> KeyProbe:
        """How to find out, from then on, whether the key is refused."""


class WorkerLog(Channel):
    """A channel that logs about other channels. Add it to the loop behind these, and `touch` it when one of them was
    registered, lost or refused. It has sockets only while it finds out whether the key is refused."""

    rests = True

    def __init__(
        self,
        log: logging.Logger,
        name: str,
        endpoint: str,
        interval: float,
        connections: BrokerConnections,
        *,
        kind: str = "broker",
        services: str = "",
    ) -> None:
        """`name`: of the worker. `kind`: what the broker is called, if it is none. `services`: what an access file
        there calls the name, if it is another."""
        self._log = log
        self._name = name
        self._endpoint = self._at = endpoint
        self._connections = connections
        self._probe = KeyProbe()
        """Finds out whether the key is refused, while no answer comes."""
        self._kind = kind
        self._services = services or name
        self._first = self._pause = SILENCES * interval
        self._there = False
        self._silent_since: float | None = None
        self._warn_at = 0.0
        self._starved: Throttle[str, None] = Throttle(lines=1, window=STARVED_EVERY)
        self._refused = False
        self._over = False
        self.lost = 0
        """How often the broker was lost."""

    def leave(self) -> None:
        """Log nothing more: the worker ends."""
        self._over = True

    def starved(self, why: str, now: float) -> None:
        """Log that a connection got no socket. One line stands for all."""
        for _ in self._starved.ended(now):
            pass  # the others are not counted: one line speaks for all
        _, held = self._starved.take("", None, now)
        if not held:
            self._log.warning("%s; still trying", why)

    def refused(self, now: float) -> None:
        """Note that the broker dismissed a connection."""
        if not self._refused and not self._there:
            self._refused = True
            self._warn_at = now

    def sockets(self) -> Iterable[Socket]:
        return self._probe.sockets()

    def changed(self) -> bool:
        return self._probe.changed()

    def drain(self, now: float) -> bool:
        self.tick(now)
        return False

    def tick(self, now: float) -> None:
        """Warn: no answer for a while, or a refusal."""
        self._probe.tick(now)
        key_refused = self._probe.refused
        if self._over or self._silent_since is None or (now < self._warn_at and not key_refused):
            return
        where, silence = self._endpoint, now - self._silent_since
        if key_refused:
            self._log.error("%s; still trying", key_refused)
        elif self._refused:
            self._log.warning(_SENT_AWAY, self._kind, where, self._name, self._services)
        else:
            text = "no answer from %s for %.0f s; is a %s there? still trying"
            self._log.warning(text, where, silence, self._kind)
        self._pause = min(PAUSE_MOST, 2 * self._pause)
        self._warn_at = now + self._pause
        if key_refused:
            self._begin_probe(self._warn_at - PROBE_AFTER)  # it may be another reason by then

    def next_deadline(self) -> float | None:
        """Return when the next warning is due; at once before the first turn, which nothing else might cause."""
        if self._over or self._there:
            return None
        if self._silent_since is None:
            return 0.0
        return earliest(self._warn_at, self._probe.due)

    def flush(self, now: float) -> None:
        there = self._connections.registered()
        if self._over or (there == self._there and (there or self._silent_since is not None)):
            return
        if there:
            self._at = self._connections.registered_at()
            self._log.info("%s is registered at %s", self._name, self._at)
            self._silent_since, self._refused = None, False
            self._probe.close()
        else:
            if self._there:
                self.lost += 1
                self._log.warning("lost the %s at %s; reconnecting", self._kind, self._at)
            self._silent_since, self._pause = now, self._first
            self._warn_at = now + self._pause
            self._begin_probe(now + PROBE_AFTER)
        self._there = there

    def close(self) -> None:
        self._probe.close()

    def _begin_probe(self, when: float) -> None:
        """Find out from then on whether the key is refused."""
        self._probe.close()
        self._probe = self._connections.key_probe(when)
