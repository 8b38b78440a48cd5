"""What is known of each request outside of all that is tested, and what the promises of README say about that.

Clients note what they asked, when, and what they were told (Life); workers what they did (journal.py); who kills, whom
and when (Death). `violations` compares them. All times are of the monotonic clock, in seconds.

What took place between a question and its answer is in doubt until the answer came, and for ever when none came:
only what no order of events can explain is a violation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any, NamedTuple

from support.journal import Execution, Journal, read_reply
from support.random_worker import JOBS

from titanic.settings import JITTER

ON_ITS_WAY = 2.0
"""Seconds that a request, or what was said of it, may be between two processes of a busy machine."""

MAX_ATTEMPTS = 1000
"""As the servers and brokers of these tests are told (server_process.py)."""

PRESENT = ("a", "b", "p")
PURGED = "p"
"""The service whose requests anybody may purge and retry as a whole."""

LONG = 100.0
"""Seconds. Delays and pauses longer than this are not over when all is compared."""


class Death(NamedTuple):
    """Somebody ended between two moments: a server, a broker, or a worker of that name."""

    who: str
    began: float
    ended: float


class Seen(NamedTuple):
    """What a client was told of a request: `done`, `failed`, `expired`, `pending` or `unknown`."""

    asked: float
    told: float
    state: str
    text: str = ""
    frames: tuple[bytes, ...] = ()


@dataclass
class Life:
    """A request, which its body names."""

    body: str
    service: str
    options: dict[str, Any]
    asked: float
    key: str | None = None
    uuids: list[str] = field(default_factory=list)
    """What was given as its UUID, each time that it was accepted."""
    accepted: float = 0.0
    refusals: list[str] = field(default_factory=list)
    doubtful: bool = False
    """Whether a submission had no answer."""
    closes: list[tuple[float, float]] = field(default_factory=list)
    """When it was asked and when it was said; the latter is infinite when nobody said so."""
    retries: list[tuple[float, float]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    @property
    def uuid(self) -> str:
        return self.uuids[0] if self.uuids else ""

    @property
    def closed(self) -> float:
        """Since when it is closed for certain."""
        return min((told for _, told in self.closes), default=float("inf"))

    @property
    def endless(self) -> bool:
        """Whether it is not to end while anybody looks."""
        return (
            self.service not in PRESENT
            or self.options.get("delay", 0) > LONG
            or self.options.get("retry_first", 0) > LONG
        )


class World:
    """All that was noted."""

    def __init__(self, *, copies: bool) -> None:
        self.copies = copies
        """Whether the broker is elsewhere: a server that is killed leaves there what waited, for nobody."""
        self.lives: dict[str, Life] = {}
        self.deaths: list[Death] = []
        self.births: dict[str, float] = {}
        """Before which each worker was not there."""
        self.purges: list[tuple[str, float, float]] = []
        """States of which all requests of PURGED were closed, with the times."""
        self.revivals: list[tuple[float, float]] = []
        """Times of retries of all requests of PURGED."""
        self.looks: list[list[float]] = []
        """When somebody began to read the whole store beside its server, and ended."""
        self.faults: list[str] = []
        """What was wrong at once."""


class Violation(NamedTuple):
    """What cannot be: which promise is broken, the details, and what happened to the request."""

    what: str
    details: str = ""
    story: str = ""


def looked(world: World, since: float) -> bool:
    """Whether the whole store was being read since then. What is freed meanwhile cannot be used: a store that is full
    may then have no room even for ends."""
    return any(ended >= since for _, ended in world.looks)


def summary(found: Sequence[Violation]) -> str:
    """For people: how many of each kind, and a story of each."""
    kinds: dict[str, list[Violation]] = {}
    for violation in found:
        kinds.setdefault(violation.what, []).append(violation)
    lines = [f"{len(found)} violations"]
    for what, several in kinds.items():
        shortest = min(several, key=lambda one: len(one.story))
        lines.append(f"{len(several)} × {what}: {shortest.details[:300]}; {shortest.story[:1500]}")
    return "\n".join(lines)


def violations(world: World, journal: Journal) -> list[Violation]:
    """All that cannot be."""
    died = {death.who: death for death in world.deaths}
    for worker, when in journal.deaths.items():
        if worker not in died or when < died[worker].began:
            died[worker] = Death(worker, when, when)
    found = [Violation(fault) for fault in world.faults]
    found += [Violation("P2: executed with another body", body) for body in journal.damaged]
    strange = journal.executions.keys() - world.lives.keys()
    found += [Violation("P2: executed, and was never submitted", body) for body in strange]
    for life in world.lives.values():
        executions = journal.executions.get(life.body, [])
        for fault in Case(world, life, executions, died).faults():
            what, _, details = fault.partition("; ")
            found.append(Violation(what, details, story(world, life, executions, died)))
    return found


class Case:
    """One request, and what is wrong about it."""

    def __init__(self, world: World, life: Life, executions: Sequence[Execution], died: dict[str, Death]) -> None:
        self.world = world
        self.life = life
        self.executions = executions
        self.died = died
        self.outages = [death for death in world.deaths if death.who in ("server", "broker")]
        self.left = [death for death in world.deaths if world.copies and death.who == "server"]
        """Deaths of servers that may have left a copy of it at a broker elsewhere."""
        self.retries = life.retries + (world.revivals if life.service == PURGED else [])
        self.purges = world.purges if life.service == PURGED else []

    def faults(self) -> Iterator[str]:
        yield from self._accepted()
        yield from self._told()
        yield from self._ends()
        yield from self._executed()
        if not self.life.options.get("limit"):
            yield from self._side_by_side()
            yield from self._again()

    # -- P1, P4, P5: what was said when it was submitted -------------------------------------------------------

    def _accepted(self) -> Iterator[str]:
        life = self.life
        if len({*life.uuids}) > 1:
            yield f"P2: one key has several UUIDs; {life.uuids}"
        if not life.uuids and not life.doubtful and self.executions:
            yield f"P5: refused and executed; {life.refusals}"

    # -- P1, P3, P4: what was said afterwards --------------------------------------------------------------------

    def _told(self) -> Iterator[str]:
        life = self.life
        seen = sorted(life.seen, key=lambda one: one.told)
        for one in seen:
            if one.state == "unknown":
                if not any(began <= one.told for began, _ in self._closes()):
                    yield "P1: acknowledged, not closed, and unknown"
            elif one.asked > life.closed:
                yield f"P4: there after it was closed; {one.state}"
        known = [one for one in seen if one.state not in ("unknown", "pending")]
        for state, began, told in self.purges:
            meant = any(one.state == state and one.told < began for one in known)
            if meant and not self.retries and any(one.asked > told and one.state != "unknown" for one in seen):
                yield f"P4: there after all were purged; {state}"
        if len({one.frames for one in known if one.state == "done"}) > 1:
            yield "P3: two replies"
        for before in known:
            for after in seen:
                if after.asked < before.told or after.state == "unknown" or before[2:] == after[2:]:
                    continue
                lived = any(began <= after.told and told >= before.asked for began, told in self.retries)
                if before.state == "done" or not lived:
                    yield f"P3: told one thing, then another; {before[2:4]}, {after[2:4]}"
                    return

    def _closes(self) -> Iterator[tuple[float, float]]:
        yield from self.life.closes
        for _, began, told in self.purges:
            yield began, told

    # -- P2, P3: how it ended ------------------------------------------------------------------------------------

    def _ends(self) -> Iterator[str]:
        ends = {one[2:]: one.told for one in reversed(self.life.seen)}
        for (state, text, frames), told in ends.items():
            if state == "done":
                name = read_reply([*frames])
                execution = next((one for one in self.executions if one.name == name), None)
                if execution is None or execution.outcome != "end":
                    yield f"P3: a reply that no execution gave; {[frame[:40] for frame in frames]}"
            elif state == "failed":
                yield from self._failed(text, told)
            elif state == "expired" and "ttl" not in self.life.options:
                yield "P2: expired, and never could"
        for one in self.life.seen:
            if one.state == "expired" and one.told < self.life.asked + self.life.options.get("ttl", 0) - 0.001:
                yield "P2: expired too early"

    def _failed(self, text: str, told: float) -> Iterator[str]:
        bad = [one for one in self.executions if one.outcome != "end"]
        named = re.search(r"\S+-\d+(?= could not)", text)
        if named:
            if not any(one.name == named[0] and one.outcome == "failed" for one in bad):
                yield f"P2: failed for what no execution said; {text}"
        elif "limit" in text:
            if "limit" not in self.life.options:
                yield f"P2: failed without a reason; {text}"
        elif not re.search("worker died|had no room", text):
            yield f"P2: failed without a reason; {text}"
        if "had no room" in text:
            return
        # A worker that died of it is an attempt; a process has several, and those that it leaves behind are given more.
        deaths = [who for who, death in self.died.items() if who.startswith("worker") and death.began <= told]
        attempts = sum(one.outcome == "failed" and one.began <= told for one in bad)
        attempts += JOBS * sum(self.died[who].ended >= self.life.asked - ON_ITS_WAY for who in deaths)
        if not self.life.options.get("limit") and attempts < self.life.options.get("max_attempts", MAX_ATTEMPTS):
            yield f"P2: failed for good before its last attempt; {text}, {attempts} attempts"

    # -- P2, P4: executed when it may be -------------------------------------------------------------------------

    def _executed(self) -> Iterator[str]:
        life = self.life
        closed, copies = life.closed, len([death for death in self.left if death.ended >= life.asked])
        late = [one for one in self.executions if one.began > closed]
        if late and not copies:
            if len(late) > 1:
                yield f"P4: begun several times after it was closed; {len(late)}"
            elif self._new(late[0], closed):
                yield f"P4: given to a worker that came after it was closed; {late[0].name}"
            elif late[0].began > closed + ON_ITS_WAY:
                yield f"P4: begun long after it was closed; {late[0].began - closed:.3f} s"
            first = life.options.get("retry_first", 0) * (1 - JITTER)
            failed = [one.ended for one in self.executions if one.outcome == "failed" and one.ended]
            if first and failed and not self.retries and max(failed) < closed < min(failed) + first:
                yield "P4: closed during the pause after a failure, and executed"
        due = life.asked + life.options.get("delay", 0)
        if any(one.began < due - 0.001 for one in self.executions):
            yield "P2: executed before its delay was over"
        for one in life.seen:
            if one.state != "pending" and not any(told >= one.asked for _, told in self.retries):
                late = [
                    each
                    for each in self.executions
                    if each.began > one.told + ON_ITS_WAY or (each.began > one.told and self._new(each, one.told))
                ]
                if late and not copies and not (life.options.get("limit") and one.state == "failed"):
                    yield f"P2: executed after its end; {late[0].began - one.told:.3f} s after {one.state}"
                    return

    def _new(self, execution: Execution, when: float) -> bool:
        """Whether the worker was not there yet: what it has was given to it later."""
        return self.world.births.get(execution.worker, 0.0) > when

    def _side_by_side(self) -> Iterator[str]:
        """No second worker gets it while the first is alive and at work; only a killed server or broker forgets."""
        for one, other in combinations(self.executions, 2):
            death = self.died.get(one.worker)
            over = min(one.ended or float("inf"), death.began if death else float("inf"))
            if other.began < over and not self._forgotten(one.began, other.began):
                yield f"P2: two workers side by side; {one.name}, {other.name}"
                return

    def _again(self) -> Iterator[str]:
        """Each execution but the first one has a reason."""
        left = [death for death in self.left if death.ended >= self.life.asked]
        for before, this in pairwise(self.executions):
            death = self.died.get(before.worker)
            if before.outcome == "failed" or self._forgotten(before.began, this.began):
                continue
            if death and before.began - ON_ITS_WAY <= death.ended and death.began <= this.began:
                continue
            copy = next((death for death in left if death.began < this.began), None)
            if copy is None:
                yield f"P2: executed again without a reason; {this.name} after {before.name}"
                return
            left.remove(copy)

    def _forgotten(self, since: float, until: float) -> bool:
        """Whether who knows what is with whom was killed."""
        if any(death.ended >= since - ON_ITS_WAY and death.began <= until for death in self.outages):
            return True
        return any(self.life.asked <= death.ended and death.began <= until for death in self.left)


def story(world: World, life: Life, executions: Sequence[Execution], died: dict[str, Death]) -> str:
    """What happened to a request, for people; seconds since it was submitted."""
    events = [(life.asked, f"submitted {life.options}")]
    if life.accepted:
        events.append((life.accepted, f"accepted as {life.uuid}"))
    events += [(one.began, f"{one.name} begins") for one in executions]
    events += [(one.ended, f"{one.name} {one.outcome}") for one in executions if one.ended]
    events += [(one.told, f"asked at {one.asked - life.asked:.3f}: {one.state} {one.text}") for one in life.seen]
    events += [(told, f"closed (asked at {began - life.asked:.3f})") for began, told in life.closes]
    events += [(told, f"retried (asked at {began - life.asked:.3f})") for began, told in life.retries]
    if life.service == PURGED:
        events += [(told, f"all {state} closed") for state, _, told in world.purges]
        events += [(told, "all retried") for _, told in world.revivals]
    last = max(when for when, _ in events if when < float("inf"))
    deaths = [*died.values(), *(death for death in world.deaths if death.who in ("server", "broker"))]
    events += [(death.began, f"{death.who} ends") for death in {*deaths} if life.asked <= death.began <= last]
    said: list[str] = []
    for when, what in sorted(events):
        if not said or not said[-1].endswith(what):
            said.append(f"{when - life.asked:.3f} {what}")
    return f"{life.body} ({life.service}): " + ", ".join(said[:40])
