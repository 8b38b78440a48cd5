"""Claims of several nodes: a simulated cluster in which everything goes wrong, and the core alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from support.claims_world import World
from support.torture import LONG, SEED, figures, tally

from titanic.cluster.claims_core import ClaimsCore, Room
from titanic.cluster.lease import Join, LeaseState, Leave, Renew
from titanic.store import Bound, Joined, LeaseConfig, ReadyRow, Renewed, Silent

STEPS = 8_000
WORLDS = 600 if LONG else 10
HAPPENS = {
    "run twice": 3,
    "late replies that counted": 10,
    "claims of the dead taken": 100,
    "claims committed after the end": 3,
    "taken over": 200,
    "recalled": 5,
    "taken back": 1,
    "settled": 10,
    "retried": 1,
    "forgotten": 50,
    "bounded": 100,
    "contended": 20,
    "ended by others": 30,
    "unknown": 300,
    "killed": 20,
    "drained": 10,
    "store away": 10,
    "stood still": 50,
    "cut off": 20,
}
"""How often it happens in these worlds, at least. What does not happen shows nothing."""


@pytest.mark.torture(short=True)
def test_what_was_accepted_is_executed_and_runs_twice_only_where_it_may() -> None:
    began = time.process_time()
    counts: Counter[str] = Counter()
    steps = 0
    for seed in range(SEED, SEED + WORLDS):
        world = World(seed)
        world.run(STEPS)
        world.finish()
        counts += world.counts
        steps += world.steps
    assert {what: counts[what] for what, least in HAPPENS.items() if counts[what] < least} == {}
    tally["steps of claims"] += steps
    seconds = time.process_time() - began
    figures.append(f"claims: {WORLDS} worlds from seed {SEED}, {steps:,} steps in {seconds:.0f} s: {dict(counts)}")


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_any_number_of_nodes(nodes: int) -> None:
    for seed in range(SEED, SEED + WORLDS // 4):
        world = World(seed, nodes=nodes)
        world.run(STEPS // 2)
        world.finish()


def test_equal_nodes_do_equal_work() -> None:
    world = World(SEED, nodes=2)
    world.healthy = True
    for node in world.nodes:
        node.idle = {b"a": 2}
    for _ in range(300):
        world.accepted.add(world.store.accept(b"a"))
        world.at_node(world.nodes[0], world.nodes[0].core.arrived, [b"a"])
        world.run(20)
    world.finish()
    assert min(node.dispatched for node in world.nodes) > 90


# -- the core alone -------------------------------------------------------------------------------------------


def row(number: int) -> ReadyRow:
    uuid = number.to_bytes(16, "big")
    return ReadyRow(b"echo\x04" + uuid, uuid, 0, [b""], 0, 0, b"")


class Alone:
    """A core and a clock; the test is the store."""

    def __init__(self) -> None:
        self.now = 100.0
        self.core = ClaimsCore(iter(range(1, 99)).__next__)
        self.others: list[Silent] = []

    def take_lease(self) -> Any:
        return self.core.take_lease(self.now)

    def join(self, held: Collection[bytes] = ()) -> Join:
        op = self.take_lease()
        assert isinstance(op, Join)
        self.core.joined(op, Joined(True, held, self.others), self.now)
        return op

    def renew(self) -> Renew:
        op = self.take_lease()
        assert isinstance(op, Renew)
        self.core.renewed(op, Renewed(True, False, self.others), self.now)
        return op

    def live(self, seconds: float) -> list[Renew]:
        """Renew the lease as often as it is due."""
        end, renewals = self.now + seconds, []
        while self.now < end:
            self.now += 1.0
            if self.core.lease.is_due(self.now):
                renewals.append(self.renew())
        return renewals

    def claim(self, *numbers: int, idle: int = 9, ahead: int = 0) -> list[bytes]:
        """Have requests claimed and sent."""
        op = self.core.take_claim(self.now, {b"echo": Room(idle, ahead)})
        assert op is not None
        rows = self.core.claimed(op, {b"echo": [row(number) for number in numbers]}, (), self.now)
        for one in rows.get(b"echo", ()):
            self.core.sent(one.uuid)
        return [one.uuid for one in rows.get(b"echo", ())]


def test_the_lease_counts_from_before_it_was_sent() -> None:
    alone = Alone()
    op = alone.take_lease()
    alone.now += 5
    alone.core.joined(op, Joined(True, [], []), alone.now)
    assert alone.core.may_dispatch(alone.now)
    assert alone.core.may_dispatch(108.9)
    assert not alone.core.may_dispatch(109.0)


def test_a_lease_that_has_run_out_begins_anew_with_the_next_renewal() -> None:
    alone = Alone()
    alone.join()
    (uuid,) = alone.claim(1)
    assert alone.core.take_recalls(alone.now) == []
    alone.now += 60
    assert not alone.core.may_dispatch(alone.now)
    assert alone.core.take_recalls(alone.now) == [uuid]
    assert alone.core.take_recalls(alone.now) == []
    assert alone.core.take_claim(alone.now, {b"echo": Room(1)}) is None
    alone.renew()
    assert alone.core.may_dispatch(alone.now)


def test_others_are_ended_when_they_were_silent_for_a_whole_lease() -> None:
    alone = Alone()
    alone.others = [Silent(77, 5000)]
    alone.join()
    renewals = alone.live(14)
    assert [op.silent for op in renewals if op.sent < 110] == [[]] * 4
    assert [op.silent for op in renewals if op.sent >= 110] == [[Silent(77, 5000)]] * 3


def test_who_was_away_gives_the_others_a_whole_lease() -> None:
    alone = Alone()
    alone.others = [Silent(77, 5000)]
    alone.join()
    alone.live(8)
    alone.now += 60
    assert alone.renew().silent == [Silent(77, 5000)], "if it is still that, it is over"
    alone.now += 2
    assert alone.renew().silent == []


def test_workers_of_an_ended_node_are_waited_for_no_longer_than_that_however_long_leases_are() -> None:
    alone = Alone()
    alone.core.lease.config = replace(LeaseConfig.of(1000.0), patience=30.0)
    op = alone.take_lease()
    alone.core.joined(op, Joined(True, [], [], [7]), alone.now)
    assert alone.core.next_deadline() == alone.now + 30
    alone.now += 30
    renewal = alone.take_lease()
    assert renewal.abandoned == [7]
    alone.core.renewed(renewal, Renewed(True, False, [], [7]), alone.now)
    assert alone.core.next_deadline() == alone.now + 200


def test_after_a_claim_without_an_answer_the_next_incarnation_takes_over_what_is_known() -> None:
    alone = Alone()
    assert alone.join().incarnation == 1
    known = alone.claim(1, 2)
    op = alone.core.take_claim(alone.now, {b"echo": Room(3)})
    assert op is None, "the queue had too little"
    alone.core.arrived([b"echo"])
    op = alone.core.take_claim(alone.now, {b"echo": Room(3)})
    assert op is not None
    alone.core.failed(op, alone.now, unchanged=False)
    assert not alone.core.writes
    assert alone.core.may_dispatch(alone.now)
    assert alone.core.claimed(op, {b"echo": [row(3)]}, (), alone.now) == {}, "an answer after all"
    join = alone.join(known)
    assert (join.incarnation, join.before) == (2, 1)
    assert [place.uuid for place in join.held] == known
    assert alone.core.writes


def test_outcomes_are_kept_while_the_store_is_away() -> None:
    alone = Alone()
    alone.join()
    (uuid,) = alone.claim(1)
    alone.core.ended(uuid)
    writing = alone.core.writing([uuid])
    alone.core.failed(writing, alone.now, unchanged=False)
    alone.now += 3600
    assert not alone.core.writes
    op = alone.take_lease()
    alone.core.failed(op, alone.now, unchanged=True)
    assert alone.take_lease() is None, "not at once"
    alone.now += 1
    alone.join([uuid])
    assert alone.core.writes
    assert alone.core.written(writing, [uuid]) == [uuid], "that was about the claim before"
    again = alone.core.writing([uuid])
    assert alone.core.written(again, []) == []
    assert not alone.core.holds


def test_requests_ahead_are_claimed_only_while_there_are_plenty() -> None:
    alone = Alone()
    alone.join()
    claims = []
    for found in (3, 5, 4):
        op = alone.core.take_claim(alone.now, {b"echo": Room(3, 2)})
        assert op is not None
        claims.append(op.wants[b"echo"])
        alone.core.claimed(op, {b"echo": [row(len(claims) * 10 + n) for n in range(found)]}, (), alone.now)
    assert claims == [3, 5, 5]
    assert alone.core.take_claim(alone.now, {b"echo": Room(3, 2)}) is None
    alone.now += 1
    op = alone.core.take_claim(alone.now, {b"echo": Room(3, 2)})
    assert op is not None
    assert op.wants == {b"echo": 3}


def test_who_is_told_while_it_claims_looks_again_at_once() -> None:
    alone = Alone()
    alone.join()
    op = alone.core.take_claim(alone.now, {b"echo": Room(3)})
    assert op is not None
    alone.core.arrived([b"echo"])
    alone.core.claimed(op, {}, (), alone.now)
    assert alone.core.take_claim(alone.now, {b"echo": Room(3)}) is not None


def test_it_is_busy_while_a_write_is_under_way_or_must_follow() -> None:
    alone = Alone()
    alone.join()
    assert not alone.core.busy
    op = alone.core.take_claim(alone.now, {b"echo": Room(3)})
    assert op is not None
    assert alone.core.busy, "a claim is under way"
    alone.core.drain()
    alone.core.claimed(op, {b"echo": [row(1)]}, (), alone.now)
    assert alone.core.busy, "a request must be released"
    release = alone.core.take_release()
    assert release is not None
    assert alone.core.busy, "a release is under way"
    alone.core.released(release)
    assert not alone.core.busy


def test_without_a_lease_it_is_not_busy_with_a_release() -> None:
    alone = Alone()
    alone.join()
    op = alone.core.take_claim(alone.now, {b"echo": Room(3)})
    assert op is not None
    alone.core.drain()
    alone.core.claimed(op, {b"echo": [row(1)]}, (), alone.now)
    alone.core.lease.over(alone.now)
    assert not alone.core.writes
    assert not alone.core.busy


def test_a_drained_node_gives_back_what_no_worker_has_and_leaves_when_the_rest_is_written() -> None:
    alone = Alone()
    alone.join()
    (flying,) = alone.claim(1)
    alone.core.arrived([b"echo"])
    op = alone.core.take_claim(alone.now, {b"echo": Room(3)})
    assert op is not None
    alone.core.drain()
    assert alone.core.claimed(op, {b"echo": [row(2)]}, (), alone.now) == {}
    release = alone.core.take_release()
    assert release is not None
    assert [place.uuid for place in release.places] == [row(2).uuid]
    alone.core.released(release)
    alone.now += 5
    assert isinstance(alone.take_lease(), Renew)
    alone.core.ended(flying)
    alone.core.written(alone.core.writing([flying]), [])
    alone.core.failed(alone.core.lease.asked, alone.now, unchanged=False)
    alone.now += 5
    leave = alone.take_lease()
    assert isinstance(leave, Leave)
    assert leave.incarnations == [1]
    alone.core.left(leave)
    alone.now += 60
    assert alone.take_lease() is None
    assert alone.core.next_deadline() is None or alone.core.lease.next_deadline() is None


def test_an_earlier_version_does_nothing_more() -> None:
    alone = Alone()
    alone.join()
    alone.claim(1)
    alone.now += 5
    alone.take_lease()
    alone.core.refused()
    assert alone.core.lease.state is LeaseState.REFUSED
    assert not alone.core.may_dispatch(alone.now)
    assert not alone.core.writes
    assert alone.core.take_recalls(alone.now) == [row(1).uuid]
    alone.now += 60
    assert alone.take_lease() is None
    assert alone.core.take_claim(alone.now, {b"echo": Room(3)}) is None


def test_an_outcome_that_was_written_before_the_claim_was_answered_is_not_executed_again() -> None:
    """It was free because an earlier claim of it was lost; then this node claimed it, and wrote that it had failed."""
    alone = Alone()
    alone.join()
    (uuid,) = alone.claim(1)
    alone.core.arrived([b"echo"])
    op = alone.core.take_claim(alone.now, {b"echo": Room(3)})
    assert op is not None
    alone.core.ended(uuid)
    alone.core.written(alone.core.writing([uuid]), [])
    assert alone.core.claimed(op, {b"echo": [row(1)]}, (), alone.now) == {}
    assert alone.core.take_release() is not None


def test_a_failure_that_did_not_count_because_the_next_incarnation_had_begun_is_written_again() -> None:
    alone = Alone()
    alone.join()
    (uuid,) = alone.claim(1)
    alone.core.arrived([b"echo"])
    op = alone.core.take_claim(alone.now, {b"echo": Room(3)})
    assert op is not None
    alone.core.ended(uuid)
    writing = alone.core.writing([uuid])
    alone.core.failed(op, alone.now, unchanged=False)
    join = alone.take_lease()
    assert alone.core.written(writing, [uuid]) == [uuid], "the join may have been executed before"
    alone.core.joined(join, Joined(True, [uuid], []), alone.now)
    assert alone.core.written(alone.core.writing([uuid]), []) == []


def test_what_a_join_has_taken_over_although_it_is_not_held_any_more_is_released() -> None:
    alone = Alone()
    alone.join()
    (uuid,) = alone.claim(1)
    alone.core.arrived([b"echo"])
    op = alone.core.take_claim(alone.now, {b"echo": Room(3)})
    assert op is not None
    alone.core.ended(uuid)
    writing = alone.core.writing([uuid])
    alone.core.failed(op, alone.now, unchanged=False)
    join = alone.take_lease()
    alone.core.written(writing, [])  # it was put off, waited again, and the lost claim was executed after all
    alone.core.joined(join, Joined(True, [uuid], []), alone.now)
    release = alone.core.take_release()
    assert release is not None
    assert [place.uuid for place in release.places] == [uuid]


def test_what_was_not_sent_under_a_bound_is_not_taken_over_when_others_had_ended_the_node() -> None:
    """They may have claimed as many as the bound allows since then. What a worker has goes on."""
    alone = Alone()
    alone.core.bounds = {b"echo": Bound(running=2)}
    alone.join()
    op = alone.core.take_claim(alone.now, {b"echo": Room(2)})
    assert op is not None
    alone.core.claimed(op, {b"echo": [row(1), row(2)]}, (), alone.now)
    alone.core.sent(row(1).uuid)
    alone.now += 5
    renewal = alone.take_lease()
    assert isinstance(renewal, Renew)
    alone.core.renewed(renewal, Renewed(False, False, []), alone.now)
    assert [place.uuid for place in alone.join([row(1).uuid]).held] == [row(1).uuid]
    alone.core.ended(row(2).uuid)
    assert alone.core.take_release() is not None, "it is given back, and never sent"


def test_an_outage_ends_nobody() -> None:
    world = World(SEED)
    world.healthy = True
    while world.now < 10:
        world.step()
    world.down_until = world.now + 100
    while world.now < 150:
        world.step()
    assert not world.counts["ended by others"]
    assert all(node.core.may_dispatch(node.now()) for node in world.nodes)
