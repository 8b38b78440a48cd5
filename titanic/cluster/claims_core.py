"""Which requests of a shared store this node may dispatch, and what it owes the store: without SQL, sockets or clock.

A node claims requests under its incarnation (`Lease`), and holds them until their outcomes are written. It dispatches
only what it holds, and only while its lease lasts:

    CLAIMED ──sent──► FLYING ──ended──► SETTLING ──written──► (gone)
       │                 └──given back──► RETURNING ──released──► (gone)
       └── given back: RETURNING; its TTL was over: SETTLING

It keeps all that it holds in its next incarnation, unless another node has claimed it meanwhile. An attempt that has
lost its claim goes on: its reply counts whichever node holds the request by then, if the request has not ended; its
failure counts only under a living claim of its own. While the store is away, outcomes are kept, and nothing is
dispatched after the lease's end.

What may run twice (P2): when a node was killed, stood still, or could not reach the store for longer than its lease,
other nodes give what it had dispatched to other workers, though its own workers may still execute it; the first reply
that reaches the store is the reply. What it had claimed for workers that keep their requests (`Claim.keeps`) waits
longer for these, `LeaseConfig.patience`, and the node to which they come takes it over (returning.py). Workers start
nothing that waits at the node's own broker then: the broker checks the lease before it sends anything
(`Broker.connect_local`), also right after a pause.

*Fair* between nodes: a node claims for its idle workers, and ahead of them only while the queue had more than it asked
for. So the last requests go to nodes with idle workers. It asks again for a service that had too little when new
requests are reported (`arrived`), or after POLL_INTERVAL: requests of dead nodes become free without a notification.

node.py connects this to the store. `now` is `titanic.util.clock.elapsed()`, read right before each call: it runs on
while the machine sleeps, and a process that stood still must not use an older time.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from broker import earliest
from titanic.cluster.lease import Draw, Join, Lease, LeaseCall, LeaseState, Leave, Renew
from titanic.store import Bound, Joined, LeaseConfig, Place, ReadyRow, Renewed, priority_in


class ClaimState(Enum):
    """The state of a request that the node holds."""

    CLAIMED = "claimed"
    FLYING = "flying"
    SETTLING = "settling"
    RETURNING = "returning"


class ClaimEvent(Enum):
    """What the dispatcher reports about a request."""

    SENT = "sent"
    GIVEN_BACK = "given back"
    ENDED = "ended"


CLAIM_TRANSITIONS: dict[tuple[ClaimState, ClaimEvent], ClaimState] = {
    (ClaimState.CLAIMED, ClaimEvent.SENT): ClaimState.FLYING,
    (ClaimState.CLAIMED, ClaimEvent.GIVEN_BACK): ClaimState.RETURNING,
    (ClaimState.CLAIMED, ClaimEvent.ENDED): ClaimState.SETTLING,  # its time to live was over
    (ClaimState.FLYING, ClaimEvent.GIVEN_BACK): ClaimState.RETURNING,
    (ClaimState.FLYING, ClaimEvent.ENDED): ClaimState.SETTLING,
}
"""What has no entry changes nothing."""


class Claim(NamedTuple):
    """Claim at most this many requests of each service: answer with `claimed` or `failed`."""

    number: int
    incarnation: int
    wants: dict[bytes, int]
    bounds: Mapping[bytes, Bound] = {}
    """Limits of some of them over all nodes."""
    keeps: Mapping[bytes, int] = {}
    """How many of each service workers get that may come to another node with them."""


class TakeOver(NamedTuple):
    """Take over requests with which workers have come from other nodes: answer with `taken_over` or `failed`."""

    number: int
    incarnation: int


class Release(NamedTuple):
    """Free these requests: answer with `released` or `failed`."""

    number: int
    incarnation: int
    places: list[Place]


class OutcomeWriting(NamedTuple):
    """Write the outcomes of these requests: answer with `written` or `failed`."""

    number: int
    incarnation: int
    uuids: list[bytes]


class Room(NamedTuple):
    """How many requests of a service could begin now, and how many more could be sent ahead. `keeps`: whether workers
    may come to another node with them."""

    idle: int
    ahead: int = 0
    keeps: bool = False


@dataclass(slots=True)
class Hold:
    """A request that the node holds."""

    place: Place
    state: ClaimState
    since: int
    """The number of the answer by which it was claimed, or claimed again: what was asked before is about an earlier
    claim."""
    bounded: bool = False
    """Whether it counts for its service's bound, until the store knows that no worker executes it."""
    kept: bool = False
    """Whether the store keeps it for its worker when this node ends."""


POLL_INTERVAL = 1.0
"""Seconds until a service that had too little to claim is asked for again, if no new requests are reported."""

CLAIM_MOST = 1000
"""Requests of a service in one claim, at most."""


NEVER: Mapping[bytes, float] = {}


class ClaimsCore:
    """Decides; `now` is in seconds of a monotonic clock, and `draw` returns a number that was never used."""

    lease_kind: type[Lease] = Lease

    def __init__(self, draw: Draw, config: LeaseConfig | None = None) -> None:
        self.lease = self.lease_kind(draw, config)
        self.draining = self._leaves = False
        self.bounds: dict[bytes, Bound] = {}
        """Limits of some services over all nodes."""
        self.holds: dict[bytes, Hold] = {}
        self._claim: Claim | None = None
        self._release: Release | None = None
        self._returning: set[bytes] = set()
        self._claims_first = True
        """Claims and releases take turns."""
        self._plenty: set[bytes] = set()
        """Services that had more than was asked for."""
        self._poll_at: dict[bytes, float] = {}
        """When services that had too little are asked for again."""
        self._reported: set[bytes] = set()
        """Services reported to have new requests since the claim was sent."""
        self._gone: set[bytes] = set()
        """Requests that are not held any more since then."""
        self._watched = False
        """Whether recalls are due when the lease has run out."""

    # -- what it may do --------------------------------------------------------------------------------------

    def may_dispatch(self, now: float) -> bool:
        """Whether requests that are CLAIMED may be sent to workers now."""
        return not self.draining and self.lease.lasts(now)

    @property
    def writes(self) -> bool:
        """Whether outcomes can be written now; they are kept otherwise."""
        return self.lease.state is LeaseState.INSIDE

    @property
    def busy(self) -> bool:
        """Whether a write is under way, or can and must follow, so that none is left undone."""
        return self._claim is not None or (self.writes and (self._release is not None or len(self._returning) > 0))

    @property
    def claiming(self) -> bool:
        """Whether a claim is on its way."""
        return self._claim is not None

    def lacks(self, service: bytes) -> bool:
        """Whether the service had too little when it was asked for last, and nothing has come since."""
        return service in self._poll_at

    def next_deadline(self) -> float | None:
        """The next time at which something is due."""
        stop = self.lease.until if self._watched else None
        return earliest(self.lease.next_deadline(), stop, min(self._poll_at.values(), default=None))

    # -- what happened to requests ---------------------------------------------------------------------------

    def arrived(self, services: Iterable[bytes]) -> None:
        """These services have something more to be claimed."""
        for name in services:
            self._poll_at.pop(name, None)
            if self._claim is not None:
                self._reported.add(name)

    def sent(self, uuid: bytes) -> None:
        """The request is on its way to a worker."""
        self._change(uuid, ClaimEvent.SENT)

    def given_back(self, uuids: Iterable[bytes]) -> None:
        """No worker has these, and they are not to be sent from here now."""
        for uuid in uuids:
            self._change(uuid, ClaimEvent.GIVEN_BACK)

    def ended(self, uuid: bytes) -> None:
        """The attempt has ended; its outcome is to be written."""
        self._change(uuid, ClaimEvent.ENDED)

    def forgotten(self, uuid: bytes) -> None:
        """The request has left the store, and no worker here has it: there will be no outcome. One that counts for a
        bound is released: it does not count any more."""
        hold = self.holds.get(uuid)
        if hold is not None and hold.bounded:
            self._change(uuid, ClaimEvent.GIVEN_BACK)
        else:
            self._drop(uuid)

    def _drop(self, uuid: bytes) -> None:
        self.holds.pop(uuid, None)
        self._returning.discard(uuid)
        if self._claim is not None:
            self._gone.add(uuid)

    def take_recalls(self, now: float) -> list[bytes]:
        """Return what is FLYING when the lease has run out, once: workers must not start it any more."""
        if not self._watched or self.lease.lasts(now):
            return []
        self._watched = False
        return [uuid for uuid, hold in self.holds.items() if hold.state is ClaimState.FLYING]

    # -- the lease -------------------------------------------------------------------------------------------

    def take_lease(self, now: float) -> LeaseCall | None:
        """What is to be asked of the store about the incarnation, if anything. Once nothing is held any more, a node
        that is drained leaves at once."""
        if self.draining and not self.holds and self._claim is None and not self._leaves:
            self._leaves = True
            self.lease.hasten(now)
        if not self.lease.is_due(now):
            return None
        if self.lease.state is LeaseState.OUTSIDE:  # others may have claimed as many as the bound allows since its end
            self.given_back([u for u, hold in self.holds.items() if hold.bounded and hold.state is ClaimState.CLAIMED])
        held = [hold.place for hold in self.holds.values() if hold.state is not ClaimState.RETURNING]
        if self.draining and not held:
            return self.lease.leave(now)
        return self.lease.renew(now) if self.writes else self.lease.join(now, held)

    def joined(self, op: Join, answer: Joined, now: float) -> None:
        """The store has answered a `Join`."""
        if not self.lease.joined(op, answer, now):
            return
        self._claim = self._release = None  # under the one before: what they did is undone
        self._watched = True
        number = self.lease.take_number()
        self.given_back(
            [u for u, hold in self.holds.items() if hold.state is ClaimState.CLAIMED and u not in answer.held]
        )
        for place in op.held:
            if place.uuid in answer.held:
                # One that is not held any more has been claimed by the one before after all: it is not wanted here.
                hold = self.holds.setdefault(place.uuid, Hold(place, ClaimState.RETURNING, number))
                hold.since = number
                if hold.state is ClaimState.RETURNING:
                    self._returning.add(place.uuid)

    def renewed(self, op: Renew, answer: Renewed, now: float) -> None:
        """The store has answered a `Renew`."""
        self.lease.renewed(op, answer, now)
        self._watched = self._watched or self.writes
        if answer.draining:
            self.drain()

    def left(self, op: Leave) -> None:
        """The store has answered a `Leave`: the node has ended."""
        self.lease.left(op)

    def refused(self) -> None:
        """The store is in the format of a later version: nothing is dispatched, claimed or written any more."""
        self.lease.refused()

    def drain(self) -> None:
        """Claim and send nothing more, and leave when nothing is held any more."""
        self.draining = True
        self.given_back([uuid for uuid, hold in self.holds.items() if hold.state is ClaimState.CLAIMED])

    # -- claims ----------------------------------------------------------------------------------------------

    def take_claim(self, now: float, rooms: Mapping[bytes, Room]) -> Claim | None:
        """What is to be claimed for these services, if anything; `rooms` are what is left beside what is held. Nothing
        is claimed while something is being released: it is known then which of the two came first."""
        for name in [name for name, when in self._poll_at.items() if when <= now]:
            del self._poll_at[name]
        incarnation = self.lease.incarnation
        if self._claim is not None or self._release is not None or incarnation is None:
            return None
        if self._returning and not self._claims_first:
            return None
        if not self.writes or not self.may_dispatch(now):
            return None
        wants = {}
        for name, room in rooms.items():
            count = room.idle + (room.ahead if name in self._plenty else 0)
            if count > 0 and name not in self._poll_at:
                wants[name] = min(count, CLAIM_MOST)
        if not wants:
            return None
        self._claims_first = False
        self._reported.clear()
        self._gone.clear()
        bounds = {name: bound for name, bound in self.bounds.items() if name in wants}
        keeps = {name: rooms[name].idle for name in wants if rooms[name].keeps}
        self._claim = Claim(self.lease.take_number(), incarnation, wants, bounds, keeps)
        return self._claim

    def claimed(
        self,
        op: Claim,
        rows: Mapping[bytes, Sequence[ReadyRow]] | None,
        more: Collection[bytes],
        now: float,
        again: Mapping[bytes, float] = NEVER,
    ) -> dict[bytes, list[ReadyRow]]:
        """The store has answered a `Claim`; None: the incarnation is over. `more`: services that had more, which was
        too large; `again`: those that can be asked for more in so many seconds. Returns what is CLAIMED now: send it,
        or give it back."""
        if op != self._claim:
            return {}
        self._claim = None
        if rows is None:
            self.lease.over(now)
        if rows is None or not self.writes:
            return {}  # they are free when the next incarnation begins
        number = self.lease.take_number()
        new = {}
        for name, count in op.wants.items():
            found = rows.get(name, ())
            if len(found) == count or name in more:
                self._plenty.add(name)
            else:
                self._plenty.discard(name)
                if name not in self._reported:
                    self._poll_at[name] = now + again.get(name, POLL_INTERVAL)
            if fresh := [row for row in found if self._grant(name, row, number)]:
                new[name] = fresh
            if name in op.bounds and op.bounds[name].running:
                for row in found:
                    self.holds[row.uuid].bounded = True
            for row in found[: op.keeps.get(name, 0)]:
                self.holds[row.uuid].kept = True
        if self.draining:
            self.drain()
            return {}
        return new

    def take_release(self) -> Release | None:
        """What is to be freed, if anything."""
        incarnation = self.lease.incarnation
        if self._release is not None or self._claim is not None or not self._returning or not self.writes:
            return None
        assert incarnation is not None
        self._claims_first = True
        places = [self.holds[uuid].place for uuid in self._returning]
        self._release = Release(self.lease.take_number(), incarnation, places)
        return self._release

    def released(self, op: Release) -> None:
        """The store has answered a `Release`."""
        if op != self._release:
            return
        self._release = None
        for place in op.places:
            self._drop(place.uuid)

    def take_over(self) -> TakeOver | None:
        """What is to be taken over from others is taken over so; None: nothing can be now."""
        incarnation = self.lease.incarnation
        if incarnation is None or not self.writes:
            return None
        return TakeOver(self.lease.take_number(), incarnation)

    def taken_over(self, op: TakeOver, places: Iterable[Place]) -> list[Place]:
        """The store has answered a `TakeOver`: return what workers have now here. The others are kept for them."""
        if op.incarnation != self.lease.incarnation or not self.writes or self.draining:
            return []
        number, mine = self.lease.take_number(), []
        for place in places:
            if place.uuid not in self.holds:
                bound = self.bounds.get(place.service)
                bounded = bound is not None and bound.running > 0
                self.holds[place.uuid] = Hold(place, ClaimState.FLYING, number, bounded, kept=True)
                mine.append(place)
        return mine

    def keep(self, places: Iterable[Place]) -> None:
        """The store keeps these for their workers."""
        for place in places:
            if (hold := self.holds.get(place.uuid)) is not None:
                hold.kept = True

    def unkept(self, uuids: Container[bytes]) -> list[Place]:
        """Return those of these requests that the store does not keep for their workers yet."""
        flying = [hold for hold in self.holds.values() if hold.state is ClaimState.FLYING and not hold.kept]
        return [hold.place for hold in flying if hold.place.uuid in uuids]

    # -- outcomes --------------------------------------------------------------------------------------------

    def bounded(self, uuids: Iterable[bytes]) -> list[Place]:
        """Return those of these that count for bounds."""
        return [hold.place for uuid in uuids if (hold := self.holds.get(uuid)) is not None and hold.bounded]

    def writing(self, uuids: Iterable[bytes]) -> OutcomeWriting:
        """Outcomes of these requests, all `ended`, are about to be written. Call it while `writes` only."""
        assert self.lease.incarnation is not None
        return OutcomeWriting(self.lease.take_number(), self.lease.incarnation, list(uuids))

    def written(self, op: OutcomeWriting, unchanged: Collection[bytes]) -> list[bytes]:
        """They are committed; those `unchanged` had ended, or are claimed by others. Returns those to be written again:
        what the store said of them is about a claim before the present one."""
        again = []
        stale = op.incarnation != self.lease.incarnation or not self.writes  # the next one has it, or is about to
        for uuid in op.uuids:
            hold = self.holds.get(uuid)
            if hold is not None and uuid in unchanged and (stale or hold.since > op.number):
                again.append(uuid)
            elif hold is not None and (hold.since > op.number or (hold.bounded and stale)):
                # If it waits again already, it may be claimed here; or it may count for the next one by now.
                hold.state = ClaimState.RETURNING
                self._returning.add(uuid)
            else:
                self._drop(uuid)
        return again

    def failed(
        self, op: LeaseCall | Claim | Release | TakeOver | OutcomeWriting, now: float, *, unchanged: bool
    ) -> None:
        """The store cannot be reached. `unchanged`: it is known that nothing was changed. Outcomes are to be written
        again in either case."""
        if isinstance(op, Join | Renew | Leave):
            self.lease.failed(op, now)
            return
        if op == self._claim:
            self._claim = None
            for name in op.wants:
                self._poll_at[name] = now + POLL_INTERVAL
        elif op == self._release:
            self._release = None
        if not unchanged and op.incarnation == self.lease.incarnation:
            self.lease.doubt(now)

    # -- inside ----------------------------------------------------------------------------------------------

    def _change(self, uuid: bytes, event: ClaimEvent) -> None:
        hold = self.holds.get(uuid)
        if hold is not None and (state := CLAIM_TRANSITIONS.get((hold.state, event))) is not None:
            hold.state = state
            if state is ClaimState.RETURNING:
                self._returning.add(uuid)

    def _grant(self, service: bytes, row: ReadyRow, number: int) -> bool:
        """Hold what was claimed. False for a request that is here since an incarnation that is over: its attempt goes
        on, and what becomes of that decides."""
        hold = self.holds.get(row.uuid)
        if hold is not None:
            hold.since = number
            return False
        place = Place(service, 9 - priority_in(row.key), row.uuid)
        self.holds[row.uuid] = Hold(place, ClaimState.CLAIMED, number)
        if row.uuid in self._gone:  # it was claimed before its outcome was written, which was answered first
            self.given_back([row.uuid])
            return False
        return True
