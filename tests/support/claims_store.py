"""The store of a simulated cluster: what `titanic/store/claiming.py` says its statements do, each at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from titanic.dispatch.claim_steps import Claim, Release, Writing
from titanic.dispatch.lease import Join, LeaseConfig, Leave, Renew
from titanic.store import Joined, Place, ReadyRow, Renewed, Silent

OVER = -1
"""The `lease_until` of an incarnation that is over."""
MAX_ATTEMPTS = 3
LEASE = LeaseConfig(lease=4.0, renew=0.8, margin=0.4)
"""Shorter than usual, so that more happens in a step."""


class Wrong(AssertionError):
    """A promise was broken."""


class Outcome(NamedTuple):
    """`reply` is None: the attempt failed."""

    uuid: bytes
    reply: bytes | None
    attempts: int


@dataclass(slots=True)
class Request:
    """A request that has not ended."""

    uuid: bytes
    service: bytes
    attempts: int = 0
    incarnation: int | None = None
    due: float = 0.0
    """When it is to be tried again; 0: it waits."""


class ModelStore:
    """`world` is told who has claimed what."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.nodes: dict[int, int] = {}
        self.waiting: dict[bytes, Request] = {}
        """Unended requests, in the order of their ids."""
        self.ended: dict[bytes, bytes | None] = {}
        """Replies; None for what has failed."""
        self.executions: Counter[bytes] = Counter()
        self._services: dict[bytes, bytes] = {}
        self._leapt = 0
        self._accepted = 0

    # -- clients and chores ----------------------------------------------------------------------------------

    def accept(self, service: bytes) -> bytes:
        self._accepted += 1
        uuid = self._accepted.to_bytes(16, "big")
        self._services[uuid] = service
        self.waiting[uuid] = Request(uuid, service)
        return uuid

    def close(self, uuid: bytes) -> None:
        self.waiting.pop(uuid, None)
        self.ended.pop(uuid, None)
        self._services.pop(uuid, None)

    def retry(self, uuid: bytes) -> None:
        del self.ended[uuid]
        self.waiting[uuid] = Request(uuid, self._services[uuid])
        self.world.counts["retried"] += 1

    def promote(self) -> None:
        for request in self.waiting.values():
            if 0 < request.due <= self.world.now:
                request.due = 0.0

    def check_reply(self, uuid: bytes) -> None:
        reply = self.ended[uuid]
        if reply is None:
            return
        whose, number = reply[:16], reply[17:]
        if whose != uuid or not 1 <= int(number) <= self.executions[uuid]:
            raise Wrong(f"{uuid.hex()} has the reply {reply!r}")

    def leap(self, seconds: int) -> None:
        """The clock of the store's machine is another one."""
        self._leapt += seconds * 1_000_000

    # -- what is looked at -----------------------------------------------------------------------------------

    def lives(self, incarnation: int | None) -> bool:
        return incarnation is not None and self.nodes.get(incarnation, OVER) != OVER

    def living(self) -> list[Silent]:
        return [Silent(incarnation, until) for incarnation, until in self.nodes.items() if until != OVER]

    def label(self, uuid: bytes) -> int | None:
        """Who has claimed a request that waits; None when it does not wait, so that whatever comes of it is dropped."""
        request = self.waiting.get(uuid)
        if request is None:
            return None
        return request.incarnation if not request.due and request.incarnation is not None else OVER

    def claimed(self) -> Iterator[tuple[bytes, int]]:
        for request in self.waiting.values():
            if request.incarnation is not None and not request.due and self.lives(request.incarnation):
                yield request.uuid, request.incarnation

    def unended(self) -> list[str]:
        return [uuid.hex() for uuid in self.waiting]

    # -- statements ------------------------------------------------------------------------------------------

    def execute(self, op: Any, extra: Any) -> Any:
        if isinstance(op, Renew):
            return self.renew(op.incarnation, op.silent)
        if isinstance(op, Claim):
            return self.claim(op.incarnation, op.wants)
        if isinstance(op, Writing):
            return self.write(op.incarnation, extra)
        if isinstance(op, Release):
            return self.release(op.incarnation, op.places)
        if isinstance(op, Join):
            return self.join(op.incarnation, op.before, op.held)
        assert isinstance(op, Leave)
        return self.leave(op.incarnations)

    def clock(self) -> int:
        return int(self.world.now * 1e6) + 10**15 + self._leapt

    def lease_until(self, incarnation: int) -> int:
        return max(self.nodes.get(incarnation, OVER) + 1, self.clock() + int(LEASE.lease * 1e6))

    def others(self, incarnation: int) -> list[Silent]:
        return [other for other in self.living() if other.incarnation != incarnation]

    def join(self, incarnation: int, before: int | None, held: Sequence[Place]) -> Joined:
        known = incarnation in self.nodes
        if known and not self.lives(incarnation):
            return Joined(False, [], [])
        self.nodes[incarnation] = self.lease_until(incarnation)
        if not known and before is not None:
            self.nodes[before] = OVER
            self.take_over(incarnation, before, held)
        mine = [uuid for _, _, uuid in held if self.is_claimed_by(uuid, incarnation)]
        return Joined(True, mine, self.others(incarnation))

    def take_over(self, incarnation: int, before: int, held: Sequence[Place]) -> None:
        taken = [uuid for _, _, uuid in held if self.is_claimed_by(uuid, before)]
        for uuid in taken:
            self.waiting[uuid].incarnation = incarnation
        self.world.counts["taken over"] += len(taken)
        self.world.claimed_again(taken, incarnation)

    def is_claimed_by(self, uuid: bytes, incarnation: int) -> bool:
        request = self.waiting.get(uuid)
        return request is not None and not request.due and request.incarnation == incarnation

    def renew(self, incarnation: int, silent: Sequence[Silent]) -> Renewed:
        if not self.lives(incarnation):
            return Renewed(False, False, [])
        self.nodes[incarnation] = self.lease_until(incarnation)
        for other in silent:
            if self.is_silent(other):
                self.nodes[other.incarnation] = OVER
                self.world.ended_by_others(other.incarnation)
        return Renewed(True, False, self.others(incarnation))

    def is_silent(self, other: Silent) -> bool:
        return self.nodes[other.incarnation] == other.lease_until

    def leave(self, incarnations: Sequence[int]) -> None:
        for incarnation in incarnations:
            self.nodes[incarnation] = OVER

    def is_free(self, request: Request) -> bool:
        return request.incarnation is None or not self.lives(request.incarnation)

    def claim(self, incarnation: int, wants: dict[bytes, int]) -> Any:
        if not self.lives(incarnation):
            return None
        rows: dict[bytes, list[ReadyRow]] = {}
        for service, count in wants.items():
            free = [
                one for one in self.waiting.values() if one.service == service and not one.due and self.is_free(one)
            ]
            for request in sorted(free, key=lambda one: one.uuid)[:count]:
                if request.incarnation is not None:
                    self.world.counts["claims of the dead taken"] += 1
                request.incarnation = incarnation
                row = ReadyRow(service + b"\4" + request.uuid, request.uuid, request.attempts, [], 0, 0, b"")
                rows.setdefault(service, []).append(row)
                self.world.claimed_again([request.uuid], incarnation)
        return rows, ()

    def release(self, incarnation: int, places: Sequence[Place]) -> None:
        for _, _, uuid in places:
            if self.is_claimed_by(uuid, incarnation):
                self.waiting[uuid].incarnation = None
                self.world.freed(uuid)

    def counts_failure(self, uuid: bytes, incarnation: int) -> bool:
        return self.is_claimed_by(uuid, incarnation) and self.lives(incarnation)

    def write(self, incarnation: int, outcomes: Sequence[Outcome]) -> list[bytes]:
        """Returns what was unchanged."""
        unchanged = []
        for uuid, reply, attempts in outcomes:
            request = self.waiting.get(uuid)
            if request is None or not (reply is not None or self.counts_failure(uuid, incarnation)):
                unchanged.append(uuid)
                self.world.counts["outcomes that did not count"] += 1
                continue
            if reply is None:
                self.world.freed(uuid)
            elif not self.is_claimed_by(uuid, incarnation):
                self.world.counts["late replies that counted"] += 1
            if reply is not None or attempts >= MAX_ATTEMPTS:
                self.end(uuid, reply)
            else:
                if attempts > self.executions[uuid]:
                    raise Wrong(f"{uuid.hex()} has {attempts} attempts of {self.executions[uuid]} executions")
                request.attempts, request.incarnation = attempts, None
                request.due = self.world.now + 1.0
        return unchanged

    def end(self, uuid: bytes, reply: bytes | None) -> None:
        if uuid in self.ended:
            raise Wrong(f"{uuid.hex()} had ended with {self.ended[uuid]!r}")
        del self.waiting[uuid]
        self.ended[uuid] = reply
