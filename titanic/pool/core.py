"""Decides which children there are to be, without processes, pipes or clock.

what happened                               what follows
------------------------------------------  ----------------------------------------------------------------------
there are fewer than there are to be        start; after a pause, which doubles, if the last one died young, before
                                            a broker had it as a worker (later, a request may be the cause)
it has done its most requests, and leaves   start another at once; it ends when its jobs are done
it has more memory than it may have         the same, on our order
its source has changed                      the same, for all
one of its tasks is stuck                   the same, but it has only so much time as for a stop
it says nothing any more                    abort, which logs where its threads are, then kill
the app cannot be imported, at the start    the end; with `wait_for_sources` nothing until they change
we are to stop                              order all to stop; kill those that are not done within `grace`
we are to stop at once                      order all again: they return their requests; then kill them
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from broker import setting
from titanic.util.text import duration


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """What a child needs to know. It goes to the child as JSON, by its standard input: no secret is in it, and none in
    the list of processes."""

    target: str
    """MODULE:app."""
    jobs: int = setting(1, "Requests processed at once, per process.", most=500)
    endpoint: tuple[str, ...] = ()
    """Where the broker is; empty: where the app says."""
    key_file: str | None = None
    server_key: str | None = None
    max_requests: int = setting(0, "Replace a process after this many requests.", least=0)
    grace: float = 60.0
    """As in `PoolConfig`; also when the pool has died."""
    overdue: float = 30.0
    """Seconds beyond its limit after which a task counts as stuck: the pool's `watchdog`."""
    log_level: str = "info"
    log_format: str = "text"
    only: tuple[str, ...] = ()
    """The services to serve; empty: all of the app."""
    excluded: tuple[str, ...] = ()
    """Services of the app not to serve."""

    deploy: str = setting("", "Version of the app, shown in `titanic workers`.", otherwise="that of Titanic")

    def document(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """How children are watched. Times are seconds."""

    processes: int = setting(1, "Worker processes.", most=500)
    memory: int | None = setting(None, "Replace a process that uses more memory than this.", unit="B")
    grace: float = setting(60.0, "On shutdown: maximum time for running tasks to finish.", unit="s", least=0)
    watchdog: float = setting(30.0, "Replace a process that has been stuck for this long.", unit="s", least=3)
    wait_for_sources: bool = False
    """Whether an app that cannot be imported is to be tried again when its source has changed."""
    retry_first: float = 0.5
    """Pause before a child is replaced that has not lived for `short`; doubles up to `retry_most`."""
    retry_most: float = 30.0
    short: float = 10.0


AT_ONCE = signal.SIGUSR1
"""Has a child give back its requests and end. Not a second SIGTERM: two that come close together are one."""

LAST_WORDS = 3.0
"""Seconds between a signal that ends a child at once and the one that does so for certain."""


class Start(NamedTuple):
    """Start this child: answer with `started`."""

    number: int


class SendSignal(NamedTuple):
    """Send this child a signal."""

    number: int
    signal: int


class Say(NamedTuple):
    """Log this."""

    level: str
    text: str


Action = Start | SendSignal | Say


@dataclass(slots=True, eq=False)
class Child:
    """One process. Times are those of the core's clock."""

    number: int
    started: float
    heard: float
    """When it said something the last time."""
    ready: bool = False
    registered: bool = False
    leaving: bool = False
    kill_at: float | None = None
    """When it is killed if it is still there."""


class PoolCore:
    """Decides; `now` is monotonic seconds."""

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self.children: dict[int, Child] = {}
        self.fault = ""
        """Why the pool cannot work."""
        self.killed = 0
        """Children that were killed though they had jobs, because the time for that was over."""
        self._actions: list[Action] = []
        self._count = 0
        self._start_at: float | None = 0.0
        """When another child may be started; None: not before something changes."""
        self._pause = 0.0
        self._served = False
        """Whether any child has ever been ready."""
        self._stopping = self._at_once = False

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to watch."""
        return (self._stopping or bool(self.fault)) and not self.children

    @property
    def ready(self) -> int:
        """Children that work."""
        return sum(child.ready and not child.leaving for child in self.children.values())

    # -- what happened ---------------------------------------------------------------------------------------

    def said(self, number: int, message: Mapping[str, Any], now: float) -> None:
        """A child has said something."""
        child = self.children.get(number)
        if child is None:
            return
        child.heard = now
        if message.get("ready"):
            child.ready = self._served = True
        if message.get("registered"):
            child.registered = True
        memory = message.get("memory", 0)
        if child.leaving:
            return
        if "leaving" in message:
            child.leaving = True
            self._say("info", f"process {number} {message['leaving']}; replacing it")
        elif "stuck" in message:
            self._replace(child, f"{message['stuck']}; replacing it", now + self.config.grace)
        elif "fault" in message:
            child.leaving = True
            self._unusable(str(message["fault"]), now)
        elif self.config.memory is not None and memory > self.config.memory:
            text = f"has {memory >> 20} MiB of memory, more than {self.config.memory >> 20} MiB; replacing it"
            self._replace(child, text, None)

    def gone(self, number: int, how: str, now: float) -> None:
        """A child has ended."""
        child = self.children.pop(number)
        if child.leaving:
            return
        bad_start = not child.registered and now - child.started < self.config.short
        self._pause = self._longer() if bad_start else 0.0
        self._start_at = now + self._pause
        when = f" in {duration(self._pause)}" if self._pause else ""
        self._say("error", f"process {number} {how}; replacing it{when}")

    def changed(self, what: str, now: float) -> None:
        """The source has changed."""
        if self._stopping:
            return
        self._say("info", f"{what} has changed; restarting")
        for child in self._staying():
            self._leave(child, now + self.config.grace)
        self._start_at, self._pause = now, 0.0

    def stop(self, now: float) -> None:
        """No more children; those that there are finish their jobs."""
        self._stopping, self._start_at = True, None
        for child in self.children.values():
            self._leave(child, now + (self.config.grace or LAST_WORDS))

    def stop_at_once(self, now: float) -> None:
        """They give back what they have."""
        self._stopping, self._start_at, self._at_once = True, None, True
        for child in self.children.values():
            self._leave(child, now + LAST_WORDS, AT_ONCE)

    def tick(self, now: float) -> None:
        """Do what is due."""
        for child in self.children.values():
            if child.kill_at is not None and now >= child.kill_at:
                child.kill_at = None
                self.killed += not self._at_once
                self._say("warning", f"killing process {child.number}: its jobs did not finish in time")
                self._actions.append(SendSignal(child.number, signal.SIGKILL))
            elif child.ready and not child.leaving and now >= child.heard + self.config.watchdog:
                self._say(
                    "error", f"process {child.number} has been silent for {duration(self.config.watchdog)}; killing it"
                )
                child.leaving, child.kill_at = True, now + LAST_WORDS
                self._actions.append(SendSignal(child.number, signal.SIGABRT))
        while self._start_at is not None and now >= self._start_at and len(self._staying()) < self.config.processes:
            self._count += 1
            self.children[self._count] = Child(self._count, now, now)
            self._actions.append(Start(self._count))

    # -- what is to be done ----------------------------------------------------------------------------------

    def take_actions(self) -> list[Action]:
        """What is to be done, in order."""
        actions, self._actions = self._actions, []
        return actions

    def next_deadline(self) -> float | None:
        """When something is due."""
        times = [child.kill_at for child in self.children.values()]
        times += [
            child.heard + self.config.watchdog for child in self.children.values() if child.ready and not child.leaving
        ]
        if len(self._staying()) < self.config.processes:
            times.append(self._start_at)
        return min((when for when in times if when is not None), default=None)

    # -- inside ----------------------------------------------------------------------------------------------

    def _staying(self) -> list[Child]:
        return [child for child in self.children.values() if not child.leaving]

    def _replace(self, child: Child, why: str, kill_at: float | None) -> None:
        self._say("warning", f"process {child.number} {why}")
        self._leave(child, kill_at)

    def _leave(self, child: Child, kill_at: float | None, sign: int = signal.SIGTERM) -> None:
        child.leaving = True
        if kill_at is not None:
            child.kill_at = kill_at if child.kill_at is None else min(child.kill_at, kill_at)
        self._actions.append(SendSignal(child.number, sign))

    def _unusable(self, fault: str, now: float) -> None:
        """The app cannot be imported, or cannot work."""
        if self.config.wait_for_sources:
            self._say("error", f"{fault}; waiting for a change of its source")
            self._start_at = None
        elif self._served:
            self._pause = self._longer()
            self._start_at = now + self._pause
            self._say("error", f"{fault}; trying again in {duration(self._pause)}")
        elif not self.fault:
            self.fault, self._start_at = fault, None
            for child in self._staying():
                self._leave(child, now + LAST_WORDS)

    def _longer(self) -> float:
        return min(self.config.retry_most, self._pause * 2 or self.config.retry_first)

    def _say(self, level: str, text: str) -> None:
        self._actions.append(Say(level, text))
