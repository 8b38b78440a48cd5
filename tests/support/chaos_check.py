"""What the promises of README say about a run under chaos: from what clients and workers wrote down, and what was done.

Everything is compared that was asked and told (chaos_client.py has the words), each execution (journal.py), and each
trouble (chaos_database.py). All times are of the monotonic clock, in seconds.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from support.chaos_database import Trouble
from support.journal import Execution, Journal

ON_ITS_WAY = 3.0
"""Seconds that a request, or what was said of it, may be between two processes of a busy machine."""

RENEW = 0.2
"""How often a lease is renewed, in leases: who stood still for the rest of it may have been silent for all of it."""

STOPS = 0.5
"""Seconds until a process that is to stand still does, on a busy machine."""

COMES_BACK = 1.5
"""Seconds that somebody may need to reach the database again."""


class Violation(NamedTuple):
    """What cannot be, and what happened."""

    what: str
    story: str = ""


@dataclass
class Life:
    """What was said of a request."""

    name: str
    asked: float
    accepted: float = math.inf
    uuids: set[str] = field(default_factory=set)
    close_asked: float = math.inf
    closed: float = math.inf
    replies: dict[str | None, float] = field(default_factory=dict)
    """Executions that clients were told of, and when first."""
    seen: list[tuple[float, float, str]] = field(default_factory=list)
    """When it was asked and told, and what: `reply`, `gone` or `failed …`."""


class Lives:
    """What all clients wrote down."""

    def __init__(self, ledgers: Iterable[Path]) -> None:
        self.of: dict[str, Life] = {}
        self.wrong: list[str] = []
        self.operations: Counter[str] = Counter()
        self._uuids: dict[str, Life] = {}
        self.twice: list[tuple[str, str, str]] = []
        for path in ledgers:
            with path.open() as lines:
                for line in lines:
                    if line.endswith("\n"):
                        word, *facts = json.loads(line)
                        getattr(self, f"_{word}")(*facts)

    def _submit(self, asked: float, told: float | None, names: list[str], uuids: list[str] | None) -> None:
        for at, name in enumerate(names):
            life = self.of.setdefault(name, Life(name, asked))
            if told is None or uuids is None:
                continue
            life.accepted = min(life.accepted, told)
            life.uuids.add(uuids[at])
            other = self._uuids.setdefault(uuids[at], life)
            if other is not life:
                self.twice.append((uuids[at], other.name, name))
        self._count("accepted" if told else "submissions without an answer", len(names))

    def _reply(self, asked: float, told: float, found: list[tuple[str, str | None]]) -> None:
        for uuid, execution in found:
            life = self._uuids[uuid]
            life.replies.setdefault(execution, told)
            life.seen.append((asked, told, "reply"))
        self._count("replies", len(found))

    def _gone(self, asked: float, told: float, uuids: list[str]) -> None:
        for uuid in uuids:
            self._uuids[uuid].seen.append((asked, told, "gone"))
        self._count("found to be gone", len(uuids))

    def _failed(self, asked: float, told: float, uuid: str, text: str) -> None:
        self._uuids[uuid].seen.append((asked, told, f"failed {text}"))
        self._count("failed", 1)

    def _close(self, asked: float, told: float | None, uuids: list[str]) -> None:
        for uuid in uuids:
            life = self._uuids[uuid]
            life.close_asked = min(life.close_asked, asked)
            life.closed = min(life.closed, math.inf if told is None else told)
        if told is not None:
            self._count("closed", len(uuids))

    def _wrong(self, told: float, text: str) -> None:
        self.wrong.append(text)

    def _count(self, what: str, number: int) -> None:
        self.operations[what] += number


class Troubles:
    """What was done to whom. `silences`: when nodes heard nothing of the database, by name."""

    def __init__(
        self, all_: Sequence[Trouble], silences: dict[str, Sequence[tuple[float, float]]], lease: float
    ) -> None:
        self.all = all_
        self._lease = lease
        self._of: dict[str, list[Trouble]] = defaultdict(list)
        for trouble in all_:
            self._of[trouble.who].append(trouble)
        self.went_on: dict[tuple[str, Trouble], list[Execution]] = defaultdict(list)
        """What workers began when their node went on, by worker."""
        self._away = {node: self._cut_off(node, silent) for node, silent in silences.items()}

    def _cut_off(self, node: str, silent: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """When the node could not reach the store for longer than its lease."""
        spans = [(began, ended + COMES_BACK) for _, _, began, ended in self._of["database"]]
        spans += [(began, ended + COMES_BACK) for _, _, began, ended in self._of[f"{node} store"]]
        spans += silent
        joined: list[tuple[float, float]] = []
        for began, ended in sorted(spans):
            if joined and began <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(joined[-1][1], ended)
            else:
                joined.append((began, ended))
        return [span for span in joined if span[1] - span[0] >= self._least]

    @property
    def _least(self) -> float:
        return self._lease * (1 - RENEW)

    def excuse(self, execution: Execution, until: float) -> str:
        """Why, as P2 says it, another worker may be given what this execution is about, before `until`; or nothing.

        The node at which it was executed was killed, stood still or could not reach the store for longer than its
        lease; or the worker died, or seemed dead to its node: it stood still, or the way between the two broke.
        """
        worker, _, node = execution.worker.partition("@")
        since = execution.began - ON_ITS_WAY
        for trouble in self._of[node]:
            if trouble.ended >= since and trouble.began <= until:
                if trouble.what in ("killed", "terminated", "ended"):
                    return f"{node} {trouble.what}"
                if trouble.what == "stands still" and trouble.ended - trouble.began >= self._least:
                    return f"{node} stood still"
        for who in (worker, f"{node} workers"):
            for trouble in self._of[who]:
                if trouble.ended >= since and trouble.began <= until:
                    return f"{who} {trouble.what}"
        if any(ended >= since and began <= until for began, ended in self._away[node]):
            return f"{node} was cut off from the store"
        return ""

    def held_up(self, execution: Execution, since: float) -> str:
        """What kept an execution, which its node had dispatched by `since`, from beginning before; or nothing. A node
        that stands still may have requests on their way to free workers, and those begin them when it goes on. These
        are in `went_on`: `beyond` says which are too many."""
        worker, _, node = execution.worker.partition("@")
        for who in (worker, f"{node} workers", node):
            for trouble in self._of[who]:
                if trouble.began <= since and trouble.ended >= execution.began - ON_ITS_WAY:
                    if who != node:
                        return f"{who} {trouble.what}"
                    if trouble.what == "stands still" and trouble.ended - trouble.began >= self._least:
                        self.went_on[execution.worker, trouble].append(execution)
                        return f"{node} went on"
        return ""

    def beyond(self, journal: Journal, slots: int) -> Iterator[tuple[Trouble, Execution]]:
        """What was begun when a node went on, and cannot have been on its way to a worker: those of one process take
        `slots` requests of a node, and who was at one when the node stopped was not sent another."""
        for (worker, trouble), late in self.went_on.items():
            busy = 0
            for one in journal.all.values():
                ended = math.inf if one.ended is None else one.ended
                busy += one.worker == worker and one.began < trouble.began and ended > trouble.began + STOPS
            yield from ((trouble, one) for one in late[max(0, slots - busy) :])

    def late(self, execution: Execution, since: float) -> bool:
        """Whether something held it up on its way to the worker that began it so long after `since`."""
        worker, _, node = execution.worker.partition("@")
        since -= ON_ITS_WAY + self._lease
        whos = worker, node, f"{node} workers"
        return any(each.ended >= since and each.began <= execution.began for who in whos for each in self._of[who])

    def during(self, since: float, until: float) -> list[Trouble]:
        return [one for one in self.all if one.ended >= since and one.began <= until]


def violations(
    lives: Lives, journal: Journal, troubles: Troubles, excused: Counter[str], slots: int = 1
) -> Iterator[Violation]:
    """All that cannot be. Counts in `excused` why requests were executed more than once. `slots`: how many requests of
    a node the workers of one process take at a time."""
    yield from (Violation(text.partition(":")[0], text) for text in lives.wrong)
    yield from (Violation("a body is damaged", text) for text in journal.damaged)
    yield from (Violation("P2: two requests have one UUID", " ".join(each)) for each in lives.twice)
    for name in journal.executions.keys() - lives.of.keys():
        yield Violation("P2: executed, and was never submitted", name)
    for life in lives.of.values():
        executions = journal.executions.get(life.name, [])
        for what in _faults(life, executions, journal, troubles, excused):
            yield Violation(what, _story(life, executions, troubles))
    for trouble, one in troubles.beyond(journal, slots):
        span = f"[{trouble.who}: {trouble.what} for {trouble.ended - trouble.began:.2f}]"
        yield Violation(
            "P2: begun when its node went on, not being on its way", f"{one.name} at {one.began:.2f} {span}"
        )


def _faults(
    life: Life, executions: Sequence[Execution], journal: Journal, troubles: Troubles, excused: Counter[str]
) -> Iterator[str]:
    if len(life.uuids) > 1:
        yield "P2: one key has several UUIDs"
    for asked, told, what in life.seen:
        if what == "gone" and told < life.close_asked:
            yield "P1: acknowledged, not closed, and lost"
        elif what != "gone" and asked > life.closed:
            yield "P4: there after it was closed"
        elif what.startswith("failed"):
            yield "P2: failed for good"
    if life.accepted < math.inf and life.close_asked == math.inf:
        yield "P1: acknowledged, and nobody knows what became of it"
    if len(life.replies) > 1:
        yield "P3: two replies"
    for name in life.replies:
        given = journal.all.get(name or "")
        if given is None or given.outcome != "end" or given not in executions:
            yield "P3: a reply that no execution gave"
    yield from _late(life, executions, troubles)
    yield from _again(executions, troubles, excused)


def _late(life: Life, executions: Sequence[Execution], troubles: Troubles) -> Iterator[str]:
    for one in executions:
        if one.began > life.closed + ON_ITS_WAY and not troubles.late(one, life.closed):
            yield "P4: begun after it was closed"
            return


def _again(executions: Sequence[Execution], troubles: Troubles, excused: Counter[str]) -> Iterator[str]:
    """Each execution but the first has a reason in the one before; or was dispatched before that one, and began later,
    because its node or its worker stood still meanwhile (or what the worker was sent stood still on its way)."""
    for before, this in pairwise(executions):
        if before.outcome == "failed" and before.ended is not None and before.ended <= this.began:
            continue
        reason = troubles.excuse(before, this.began) or troubles.held_up(this, before.began)
        if not reason:
            yield "P2: executed again without a reason"
            return
        excused[reason.partition(" ")[2] if " " in reason else reason] += 1


def _story(life: Life, executions: Sequence[Execution], troubles: Troubles) -> str:
    events: list[tuple[float, str]] = [(life.asked, "submitted")]
    events += [(life.accepted, f"accepted as {' '.join(life.uuids)}")]
    events += [(one.began, f"{one.name} begins") for one in executions]
    events += [(one.ended, f"{one.name} {one.outcome}") for one in executions if one.ended]
    events += [(told, f"asked at {asked - life.asked:.2f}: {what}") for asked, told, what in life.seen]
    events += [(life.close_asked, "to be closed"), (life.closed, "closed")]
    events += [(told, f"reply by {execution}") for execution, told in life.replies.items()]
    known = [when for when, _ in events if when < math.inf]
    for one in troubles.during(min(known) - 10, max(known)):
        events.append((one.began, f"[{one.who}: {one.what} for {one.ended - one.began:.2f}]"))
    told = [f"{when - life.asked:.2f} {what}" for when, what in sorted(events) if when < math.inf]
    return f"{life.name} at {life.asked:.2f}: " + ", ".join(told)


def summary(found: Sequence[Violation], each: int = 3) -> str:
    """For people: how many of each kind, and the shortest stories."""
    kinds: dict[str, list[Violation]] = defaultdict(list)
    for violation in found:
        kinds[violation.what].append(violation)
    lines = [f"{len(found)} violations"]
    for what, several in kinds.items():
        lines.append(f"{len(several)} × {what}")
        lines += [f"    {one.story[:2500]}" for one in sorted(several, key=lambda one: len(one.story))[:each]]
    return "\n".join(lines)
