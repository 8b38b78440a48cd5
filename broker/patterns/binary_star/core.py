"""Binary Star without sockets (Guide, chapter 4, "High-Availability Pair"): which of two servers answers clients.

The two send each other their state once a heartbeat, as one frame: the state's number as text. A peer that is silent
for two heartbeats has expired. `TRANSITIONS` says what the peer's states and clients' requests do.

`vote` makes the server active if its peer has expired, and refuses the request if not: it takes a silent peer *and* a
client that comes here for it. After `fatal` an operator must intervene: both were active, or both passive, or both
started as the same. The server stops answering, says so to its peer, which is to end too, for another four heartbeats,
four times in each, and ends: the two ways between them need not heal at the same moment. A peer that hears nothing goes
on. A server that hears its own role from its peer has a twin, whatever the state: it ends, but an active one goes on,
and warns its twin. So that this is heard, a server stays in the state that it was started in for another heartbeat and
a quarter after it first heard its peer, before it becomes passive.

Pauses. A process that stood still (stopped, swapped out, its machine suspended) finds old messages of its peer and
old requests of clients, in no order. Three rules keep it from answering beside a peer that took over meanwhile:

- Time in which it could not listen is no silence of its peer: the two heartbeats start again.
- It settles first: for a quarter of a heartbeat it refuses clients, and of its peer's messages only the last counts.
- An active server that sent its peer nothing for two heartbeats may have been replaced. It goes back to the state that
  it began with, as if it had been restarted. There a backup that has been active may vote like a primary (nothing else
  may be left); it is silent once its peer has expired, lest a primary that starts just then takes it for a fresh one.

This holds while the servers can hear each other within an eighth of a heartbeat. If only the connection between the
two is cut, and clients reach both, both become active: the Guide asks for a network where that does not happen.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import Enum
from typing import Any

from broker.config import check
from broker.core.mdp import Core, Frames, Peer


class StarState(Enum):
    """The state of a server; the value is sent to its peer."""

    PRIMARY = b"1"
    BACKUP = b"2"
    ACTIVE = b"3"
    PASSIVE = b"4"


class StarEvent(Enum):
    """What may happen."""

    PEER_PRIMARY = StarState.PRIMARY
    PEER_BACKUP = StarState.BACKUP
    PEER_ACTIVE = StarState.ACTIVE
    PEER_PASSIVE = StarState.PASSIVE
    CLIENT_REQUEST = None


class StarStep(Enum):
    """What is done about it."""

    ACTIVE = "active"
    PASSIVE = "passive"
    VOTE = "vote"
    REFUSE = "refuse"
    ANSWER = "answer"
    FATAL = "fatal"


TRANSITIONS: dict[tuple[StarState, StarEvent], StarStep] = {
    (StarState.PRIMARY, StarEvent.PEER_PRIMARY): StarStep.FATAL,
    (StarState.PRIMARY, StarEvent.PEER_BACKUP): StarStep.ACTIVE,
    (StarState.PRIMARY, StarEvent.PEER_ACTIVE): StarStep.PASSIVE,
    (StarState.PRIMARY, StarEvent.CLIENT_REQUEST): StarStep.VOTE,
    (StarState.BACKUP, StarEvent.PEER_BACKUP): StarStep.FATAL,
    (StarState.BACKUP, StarEvent.PEER_ACTIVE): StarStep.PASSIVE,
    (StarState.BACKUP, StarEvent.CLIENT_REQUEST): StarStep.REFUSE,
    (StarState.ACTIVE, StarEvent.PEER_ACTIVE): StarStep.FATAL,
    (StarState.ACTIVE, StarEvent.CLIENT_REQUEST): StarStep.ANSWER,
    (StarState.PASSIVE, StarEvent.PEER_PRIMARY): StarStep.ACTIVE,
    (StarState.PASSIVE, StarEvent.PEER_BACKUP): StarStep.ACTIVE,
    (StarState.PASSIVE, StarEvent.PEER_PASSIVE): StarStep.FATAL,
    (StarState.PASSIVE, StarEvent.CLIENT_REQUEST): StarStep.VOTE,
}
"""What has no entry changes nothing."""

FAULTS = {
    StarState.ACTIVE: "both servers are active: they lost contact, and both answered clients; make sure that the "
    "other one has stopped too, compare what they did, then start both again",
    StarState.PASSIVE: "both servers are passive: neither answers clients; make sure that the other one has stopped "
    "too, then start both again",
}

TWINS = "both servers were started as {}: start one as the primary and the other as the backup"

EXPIRY = 2
"""Heartbeats after which a silent peer has expired."""

LAST_WORDS = 4
"""Heartbeats during which the server announces a fault to its peer before it ends."""


@dataclass(frozen=True, slots=True)
class StarConfig:
    """How the two keep in touch; both must have the same."""

    heartbeat: float = 1.0
    """Seconds between two words to the peer."""

    def __post_init__(self) -> None:
        check(self.heartbeat > 0, f"heartbeat is {self.heartbeat}; it must be more than 0")

    def __reduce__(self) -> tuple[Any, ...]:  # a compiled frozen class cannot be filled after it was created
        return type(self), astuple(self)

    @property
    def expiry(self) -> float:
        """Seconds of silence after which the peer has expired."""
        return EXPIRY * self.heartbeat


class BinaryStarCore(Core):
    """One of the two servers. Its only peer is None."""

    def __init__(self, role: StarState, config: StarConfig | None = None, *, now: float) -> None:
        """`role`: PRIMARY or BACKUP."""
        super().__init__()
        check(role in (StarState.PRIMARY, StarState.BACKUP), f"role is {role.name}; it must be PRIMARY or BACKUP")
        self.config = config or StarConfig()
        self.role = role
        self.state = role
        self.fault: str | None = None
        """The fault after which no client is answered."""
        self.over = False
        """Whether the fault was announced to the peer, and the server must end."""
        self._end_at = float("inf")
        self._last_word: StarState | None = None
        self.malformed = 0
        self._served = False
        self.seen_at = now
        """The last time known: a long pause means that the process stood still."""
        self._peer_expires_at = now + self.config.expiry
        self._sent_at = float("-inf")
        self._report_at = now
        self.settles_at = now
        """Until then, received states may be old: the server has just started, or stood still."""
        self._latest: StarEvent | None = None
        self._introduced_at = float("inf")
        """When the peer will have heard as what this server was started."""
        self._changes: list[bool] = []
        self._told_active: bool | None = None
        """The last of these."""

    def receive(self, peer: Peer, frames: Frames, now: float) -> None:
        self._look(now)
        try:
            (frame,) = frames
            event = StarEvent(StarState(frame))
        except ValueError:
            self.malformed += 1
            return
        was_expired = now >= self._peer_expires_at
        self._peer_expires_at = now + self.config.expiry
        self._latest = event
        if self._introduced_at == float("inf"):
            self._introduced_at = now + 1.25 * self.config.heartbeat
        self._act_on_latest(now)
        if was_expired:
            self._report(now)

    def tick(self, now: float) -> None:
        """Settle, and send the state to the peer."""
        self._look(now)
        self._act_on_latest(now)
        self.over = now >= self._end_at
        if now >= self._report_at:
            self._report(now)

    def next_deadline(self) -> float | None:
        """A quarter of a heartbeat at most: a longer pause is noticed by its length."""
        return None if self.over else min(self.seen_at + self.config.heartbeat / 4, self._report_at, self._end_at)

    # -- what a shell does with it ---------------------------------------------------------------------------

    def vote(self, now: float) -> bool:
        """A client has asked: whether to answer it. This may make the server active."""
        self._look(now)
        self._act_on_latest(now)
        if self.fault is not None or now < self.settles_at:
            return False
        step = TRANSITIONS[self.state, StarEvent.CLIENT_REQUEST]
        if step is StarStep.REFUSE and self._served:
            step = StarStep.VOTE
        if step is StarStep.VOTE and now >= self._peer_expires_at and now >= self._sent_at + self._quiet:
            self._become(StarState.ACTIVE, now)
        return self.state is StarState.ACTIVE

    def take_changes(self) -> list[bool]:
        """True for each time that the server became active, False for each time that it ceased to be, or to wait; the
        two in turn."""
        changes, self._changes = self._changes, []
        return changes

    @property
    def _quiet(self) -> float:
        """Seconds since its last word that a backup which has been active has to wait before it votes."""
        return self.config.heartbeat / 4 if self.state is StarState.BACKUP else 0.0

    def _look(self, now: float) -> None:
        """Find out whether we stood still."""
        pause, self.seen_at = now - self.seen_at, now
        if pause <= self.config.heartbeat / 2 or self.fault is not None:
            return
        self._peer_expires_at = now + self.config.expiry
        self.settles_at = now + self.config.heartbeat / 4
        self._latest = None
        if self.state is StarState.ACTIVE and now >= self._sent_at + self.config.expiry:
            self._served = True
            self._become(self.role, now)
        else:
            self._report(now)

    def _act_on_latest(self, now: float) -> None:
        if self._latest is None or now < self.settles_at or self.fault is not None:
            return
        if self._latest is StarEvent.PEER_ACTIVE and self.state is self.role and now < self._introduced_at:
            return
        event, self._latest = self._latest, None
        step = TRANSITIONS.get((self.state, event))
        if event.value is self.role:
            if self.state is StarState.ACTIVE:
                self._output.append((None, [self.role.value]))
            else:
                self._fail(TWINS.format(self.role.name.lower()), self.role, now)
        elif step is StarStep.FATAL:
            self._fail(FAULTS[self.state], self.state, now)
        elif step is not None:
            self._become(StarState[step.name], now)

    def _fail(self, fault: str, word: StarState, now: float) -> None:
        self.fault, self._last_word = fault, word
        self._end_at = now + LAST_WORDS * self.config.heartbeat
        self._report(now)

    def _become(self, state: StarState, now: float) -> None:
        active = state is StarState.ACTIVE
        if active is not self._told_active and (active or self._told_active or state is StarState.PASSIVE):
            self._told_active = active
            self._changes.append(active)
        self.state = state
        self._report(now)

    def _report(self, now: float) -> None:
        self._report_at = now + self.config.heartbeat / (1 if self.fault is None else 4)
        if now >= self._end_at:
            return
        if self.state is StarState.BACKUP and self._served and now >= self._peer_expires_at:
            return
        self._output.append((None, [(self._last_word or self.state).value]))
        self._sent_at = now
