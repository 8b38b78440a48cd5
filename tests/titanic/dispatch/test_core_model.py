"""Anything that can happen to the dispatcher, in any order: nothing is sent twice at a time, nothing is lost."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.dispatch_play import Play
from support.torture import LONG, SEED, tally

SERVICES = st.sampled_from(["a", "b"])
PICK = st.integers(0, 99)


class DispatchMachine(RuleBasedStateMachine):
    """`Play` asserts that nothing is sent while it is with a worker, and checks the core's books."""

    def __init__(self) -> None:
        super().__init__()
        self.play = Play(max_attempts=3, presence_first=0.1, presence_most=1, retry_first=1, retry_most=4)
        self.accepted: set[str] = set()
        self.closed: set[str] = set()
        self.most: dict[str, int] = {}

    @initialize(options=st.sampled_from([b"", b'{"limit": 3}', b'{"limit": 30}']), gathers=st.booleans())
    def options(self, options: bytes, gathers: bool) -> None:
        self.play.options = options
        self.play.wanted = () if gathers else None

    @rule(service=SERVICES, count=st.integers(1, 4))
    def submit(self, service: str, count: int) -> None:
        names = [f"{len(self.accepted) + number:04}" for number in range(count)]
        self.accepted.update(names)
        self.play.submit(service, *names)

    @rule(service=SERVICES, count=st.integers(0, 3))
    def workers(self, service: str, count: int) -> None:
        self.play.workers(service, count)
        self.most[service] = max(count, self.most.get(service, 0))

    @rule()
    def go(self) -> None:
        self.play.go()

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 40.0]))
    def later(self, seconds: float) -> None:
        self.play.later_by(seconds)

    @precondition(lambda self: self.play.running)
    @rule(pick=PICK, status=st.sampled_from([0, 0, 0, 400, 500, 503, 504, -1]), ours=st.booleans())
    def worker_answers(self, pick: int, status: int, ours: bool) -> None:
        running = sorted(self.play.running)
        name = running[pick % len(running)].decode()
        self.play.queued.discard(name.encode())
        if status == -1:
            self.play.times_out(name)
        elif status == 0:
            self.play.reply(name, b"done")
        else:
            (self.play.refuse if ours else self.play.fail)(name, status)

    @precondition(lambda self: self.play.running)
    @rule(pick=PICK)
    def worker_died_and_no_other_is_there(self, pick: int) -> None:
        running = sorted(self.play.running)
        self.play.queued.add(running[pick % len(running)])

    @precondition(lambda self: self.play.lingering)
    @rule(pick=PICK)
    def worker_is_done_with_what_was_given_up(self, pick: int) -> None:
        name, _ = self.play.lingering[pick % len(self.play.lingering)]
        self.play.lets_go(name.decode())

    @precondition(lambda self: self.accepted)
    @rule(pick=PICK)
    def close(self, pick: int) -> None:
        name = sorted(self.accepted)[pick % len(self.accepted)]
        self.closed.add(name)
        self.play.close(name)

    @rule(disk=st.sampled_from(["works", "slow", "broken"]))
    def disk_becomes(self, disk: str) -> None:
        self.play.disk = disk
        if disk == "works":
            self.play.write()

    @rule(fails=st.booleans())
    def disk_is_done(self, fails: bool) -> None:
        self.play.write(fails=fails)

    @rule()
    def promoted(self) -> None:
        self.play.core.returned([b"a"] if self.play.queue.get(b"a") else [])

    @invariant()
    def no_more_in_flight_than_there_were_workers(self) -> None:
        running = [*self.play.running.values(), *(service for _, service in self.play.lingering)]
        for service, most in self.most.items():
            assert running.count(service.encode()) <= most

    @invariant()
    def nothing_is_lost(self) -> None:
        tally["operations modelled"] += 1
        play = self.play
        somewhere = {name.decode() for queue in play.queue.values() for name in queue}
        somewhere |= {name.decode() for name in play.later} | play.ended.keys()
        assert self.accepted - self.closed <= somewhere

    def teardown(self) -> None:
        """In the end, with workers and a disk that work, everything gets done."""
        play = self.play
        play.disk = "works"
        play.write()
        play.queued.clear()
        for service in ("a", "b"):
            play.workers(service, 2)
        for name, _ in list(play.lingering):
            play.lets_go(name.decode())
        play.options = b""
        for _ in range(10 * len(self.accepted) + 10):
            for name in list(play.running):
                play.reply(name.decode(), b"done")
            play.later_by(40)
        assert self.accepted - self.closed <= play.ended.keys()
        assert play.core.flights == {}
        assert play.core.backlogs == {}


DispatchMachine.TestCase.settings = settings(
    max_examples=3000 if LONG else 60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
if LONG:
    hypothesis.seed(SEED)(DispatchMachine)
test_anything_in_any_order = pytest.mark.torture(short=True)(DispatchMachine.TestCase)
