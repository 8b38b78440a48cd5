"""Decides which children there are to be, without processes, sockets or clock.

what happened                               what follows
------------------------------------------  ----------------------------------------------------------------------
there are fewer than there are to be        start; after a pause, which doubles, if the last one died young, before
                                            it had a request (later, a request may be the cause)
a request waits that is to run alone        start one more, for such requests
it has had its most requests                start another at once; it gets nothing more, and ends when its jobs are
                                            done
it has more memory than it may have, or     the same
got SIGTERM
its source has changed                      the same, for all
one of its jobs is far beyond its limit,    kill it, and start another
or is closed with --kill
the app cannot be imported, at the start    the end; with `wait_for_sources` nothing until they change
we are to stop                              all leave; kill those that are not done within `grace`, in which the
                                            last replies must be given to the server, too
we are to stop at once                      kill all: their requests go to other workers
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

from broker import JobObserver, setting
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
    log_level: str = "info"
    log_format: str = "text"
    only: tuple[str, ...] = ()
    """The services to serve; empty: all of the app."""
    excluded: tuple[str, ...] = ()
    """Services of the app not to serve."""

    otel: bool = setting(
        False, "Record OpenTelemetry spans and metrics. `opentelemetry-instrument`, or the app, exports them."
    )

    deploy: str = setting("", "Version of the app, shown in `titanic workers`.", otherwise="that of Titanic")

    def document(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


class Declaration(NamedTuple):
    """What the parent needs to know of an app, which it does not import."""

    services: tuple[tuple[str, int, str], ...]
    """With how many requests at a time of each (0: no limit but the jobs), and `on_limit`."""
    endpoint: tuple[str, ...]
    curve: tuple[str, ...] | None
    """The keys of `broker.Curve`."""


def read_declaration(said: Any) -> Declaration:
    """Read one from JSON."""
    services, endpoint, curve = said
    return Declaration(
        tuple((name, jobs, on_limit) for name, jobs, on_limit in services),
        tuple(endpoint),
        None if curve is None else tuple(curve),
    )


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """How children are watched. Times are seconds."""

    processes: int = setting(1, "Worker processes.", most=500)
    max_requests: int = setting(0, "Replace a process after this many requests.", least=0)
    memory: int | None = setting(None, "Replace a process that uses more memory than this.", unit="B")
    grace: float = setting(60.0, "On shutdown: maximum time for running tasks to finish.", unit="s", least=0)
    watchdog: float = setting(
        3.0, "Kill a process when one of its tasks has exceeded its limit by this.", unit="s", least=0.1
    )
    wait_for_sources: bool = False
    """Whether an app that cannot be imported is to be tried again when its source has changed."""
    retry_first: float = 0.5
    """Pause before a child is replaced that has not lived for `short`; doubles up to `retry_most`."""
    retry_most: float = 30.0
    short: float = 10.0


class PoolObserver(JobObserver, Protocol):
    """Learns which requests the workers of a pool have, and of its children."""

    def processes(self, ready: int, died: int, memory: int) -> None:
        """So many children work, so many have died so far, and so many bytes of memory they have."""

    def close(self) -> None:
        """The worker stops."""


LAST_WORDS = 3.0
"""Seconds that a child without jobs has to end."""

MAX_EXTRA = 4
"""Children beyond `processes`, for requests that run alone."""


class Start(NamedTuple):
    """Start this child."""

    number: int
    extra: bool
    """Whether it is only for requests that run alone."""


class LeaveChild(NamedTuple):
    """Give this child nothing more, and let it end when its jobs are done."""

    number: int


class Kill(NamedTuple):
    """Kill this child."""

    number: int
    spared: bool
    """Whether its jobs are not to blame: they go to other workers, and that is no attempt."""


class Say(NamedTuple):
    """Log this."""

    level: str
    text: str


Action = Start | LeaveChild | Kill | Say


@dataclass(slots=True, eq=False)
class Child:
    """One process. Times are those of the core's clock."""

    number: int
    started: float
    extra: bool = False
    ready: bool = False
    begun: bool = False
    """Whether it has had a request."""
    memory: int = 0
    """Bytes; 0: unknown."""
    leaving: bool = False
    stuck: bool = False
    """Whether it is killed because of one of its requests."""
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
        self.died = 0
        """Children that died, or were killed because of a request."""
        self.end_by = 0.0
        """When to end, though a server that is away has not taken the last replies."""
        self._actions: list[Action] = []
        self._count = 0
        self._start_at: float | None = 0.0
        """When another child may be started; None: not before something changes."""
        self._pause = 0.0
        self._extra = 0
        """How many extra children there are to be."""
        self._served = False
        """Whether any child has ever been ready."""
        self._stopping = self._at_once = False

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to watch."""
        return self.stopping and not self.children

    @property
    def stopping(self) -> bool:
        """Whether it ends."""
        return self._stopping or bool(self.fault)

    @property
    def ready(self) -> int:
        """Children that work."""
        return sum(child.ready and not child.leaving for child in self.children.values())

    @property
    def memory(self) -> int:
        """Bytes of memory of all children, as they said last."""
        return sum(child.memory for child in self.children.values())

    # -- what happened ---------------------------------------------------------------------------------------

    def said(self, number: int, message: Mapping[str, Any], now: float) -> None:
        """A child has said something, or its link says something of it."""
        child = self.children.get(number)
        if child is None:
            return
        if message.get("ready"):
            child.ready = self._served = True
        if message.get("begun"):
            child.begun = True
        child.memory = memory = message.get("memory", child.memory)
        if "stuck" in message and not child.stuck:
            child.stuck = child.leaving = True
            self._say("error", f"process {number} {message['stuck']}; killing it")
            self._actions.append(Kill(number, False))
        if child.leaving:
            return
        if "leaving" in message:
            self._replace(child, "info", str(message["leaving"]))
        elif message.get("done"):  # an extra one
            self._leave(child, None)
        elif "fault" in message:
            child.leaving = True
            self._unusable(str(message["fault"]), now)
        elif self.config.memory is not None and memory > self.config.memory:
            text = f"has {memory >> 20} MiB of memory, more than {self.config.memory >> 20} MiB"
            self._replace(child, "warning", text)

    def gone(self, number: int, how: str, now: float) -> None:
        """A child has ended."""
        child = self.children.pop(number)
        self.died += child.stuck or not child.leaving
        if child.leaving:
            return
        bad_start = not child.begun and now - child.started < self.config.short
        self._pause = self._longer() if bad_start else 0.0
        self._start_at = now + self._pause
        when = f" in {duration(self._pause)}" if self._pause else ""
        self._say("error", f"process {number} {how}; replacing it{when}")

    def want_extra(self, number: int) -> None:
        """So many extra children are to be there, for requests that are to run alone."""
        self._extra = min(number, MAX_EXTRA)

    def changed(self, what: str, now: float) -> None:
        """The source has changed."""
        if self._stopping:
            return
        self._say("info", f"{what} has changed; restarting")
        for child in self.children.values():
            if not child.leaving:
                self._leave(child, now + self.config.grace)
        self._start_at, self._pause = now, 0.0

    def fail(self, fault: str, now: float) -> None:
        """The pool cannot work: the end."""
        if not self.fault and not self._stopping:
            self.fault, self._start_at, self.end_by = fault, None, now + LAST_WORDS
            for child in self.children.values():
                if not child.leaving:
                    self._leave(child, self.end_by)

    def stop(self, now: float) -> None:
        """No more children; those that there are finish their jobs."""
        self._stopping, self._start_at, self.end_by = True, None, now + (self.config.grace or LAST_WORDS)
        for child in self.children.values():
            self._leave(child, self.end_by)

    def stop_at_once(self, now: float) -> None:
        """End all, whatever they do."""
        self._stopping, self._start_at, self._at_once, self.end_by = True, None, True, now
        for child in self.children.values():
            child.leaving, child.kill_at = True, now

    def tick(self, now: float) -> None:
        """Do what is due."""
        for child in self.children.values():
            if child.kill_at is not None and now >= child.kill_at:
                child.kill_at = None
                if not self._at_once:
                    self.killed += 1
                    self._say("warning", f"killing process {child.number}: its jobs did not finish in time")
                self._actions.append(Kill(child.number, True))
        while self._start_at is not None and now >= self._start_at and self._missing:
            self._count += 1
            extra = len(self._staying()) >= self.config.processes
            self.children[self._count] = Child(self._count, now, extra)
            self._actions.append(Start(self._count, extra))

    # -- what is to be done ----------------------------------------------------------------------------------

    def take_actions(self) -> list[Action]:
        """What is to be done, in order."""
        actions, self._actions = self._actions, []
        return actions

    def next_deadline(self) -> float | None:
        """When something is due."""
        times = [child.kill_at for child in self.children.values()]
        if self.ended:
            times.append(self.end_by)
        if self._missing:
            times.append(self._start_at)
        return min((when for when in times if when is not None), default=None)

    # -- inside ----------------------------------------------------------------------------------------------

    def _staying(self, *, extra: bool = False) -> list[Child]:
        return [child for child in self.children.values() if not child.leaving and child.extra is extra]

    @property
    def _missing(self) -> bool:
        """Whether there are fewer than there are to be."""
        return len(self._staying()) < self.config.processes or len(self._staying(extra=True)) < self._extra

    def _replace(self, child: Child, level: str, why: str) -> None:
        self._say(level, f"process {child.number} {why}; replacing it")
        self._leave(child, None)

    def _leave(self, child: Child, kill_at: float | None) -> None:
        child.leaving = True
        if kill_at is not None:
            child.kill_at = kill_at if child.kill_at is None else min(child.kill_at, kill_at)
        self._actions.append(LeaveChild(child.number))

    def _unusable(self, fault: str, now: float) -> None:
        """The app cannot be imported, or cannot work."""
        if self.config.wait_for_sources:
            self._say("error", f"{fault}; waiting for a change of its source")
            self._start_at = None
        elif self._served:
            self._pause = self._longer()
            self._start_at = now + self._pause
            self._say("error", f"{fault}; trying again in {duration(self._pause)}")
        else:
            self.fail(fault, now)

    def _longer(self) -> float:
        return min(self.config.retry_most, self._pause * 2 or self.config.retry_first)

    def _say(self, level: str, text: str) -> None:
        self._actions.append(Say(level, text))
