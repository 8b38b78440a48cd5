"""Random lives of random requests, beside a dict that says what must be."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from titanic.errors import StoreFull
from titanic.store import NewRequest, Outcome, Pending, State, Status, Store, check

START = 1_795_258_520_106_479
SERVICES = [b"a", b"ab", b"b"]
CAPACITY = 30_000

REQUESTS = st.builds(
    NewRequest,
    service=st.sampled_from(SERVICES),
    body=st.lists(st.sampled_from([b"", b"x", bytes(300), bytes(5000)]), max_size=2),
    priority=st.integers(0, 9),
    not_before=st.sampled_from([0, 0, START + 5, START + 50]),
    expires_at=st.just(0),
    max_attempts=st.just(0),
    options=st.just(b""),
)


class Model:
    """What is known of a request."""

    def __init__(self, new, now):
        self.new = new
        self.due = new.not_before if new.not_before > now else 0
        self.attempts = 0
        self.outcome = None

    @property
    def state(self):
        if self.outcome:
            return State(self.outcome.status)
        return State.DELAYED if self.due else State.WAITING


class StoreMachine(RuleBasedStateMachine):
    uuids = Bundle("uuids")

    def __init__(self):
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="titanic-model-"))
        self.store = Store.open(self.path, capacity=CAPACITY)
        self.model = {}
        self.now = START

    def teardown(self):
        self.store.close()
        shutil.rmtree(self.path)

    @rule(target=uuids, requests=st.lists(REQUESTS, min_size=1, max_size=4), twice=st.booleans())
    def accept(self, requests, twice):
        made, refused = [], None
        try:
            with self.store.write() as txn:
                for _ in range(1 + twice):
                    made += txn.accept_many(requests, self.now)
        except StoreFull as full:
            refused = full
        if refused:
            assert refused.used + refused.needed > CAPACITY
            return multiple()
        assert made == sorted(made)
        assert not self.model or made[0] > max(self.model)
        for uuid, new in zip(made, requests * (1 + twice), strict=True):
            self.model[uuid] = Model(new, self.now)
        return multiple(*made)

    @rule(
        uuid=uuids,
        status=st.sampled_from(Status),
        frames=st.lists(st.sampled_from([b"", b"r", bytes(3000)]), max_size=2),
    )
    def finish(self, uuid, status, frames):
        with self.store.write() as txn:
            ended = txn.finish(uuid, status, frames, attempts=3, dispatched_at=1, finished_at=2, reason=status.name)
        known = self.model.get(uuid)
        assert ended == (known is not None and known.outcome is None)
        if ended:
            known.outcome = Outcome(status, frames, status.name, 3, 1, 2)

    @rule(uuid=uuids, delay=st.integers(0, 30))
    def postpone(self, uuid, delay):
        known = self.model.get(uuid)
        attempts = known.attempts + 1 if known else 1
        with self.store.write() as txn:
            done = txn.postpone(uuid, due=self.now + delay, attempts=attempts, dispatched_at=1, reason="no")
        assert done == (known is not None and known.state is State.WAITING)
        if done:
            known.due, known.attempts = self.now + delay, attempts

    @rule(limit=st.integers(1, 4))
    def promote(self, limit):
        with self.store.write() as txn:
            promoted = dict(txn.promote(self.now, limit))
        due = sorted(
            (known.due, uuid)
            for uuid, known in self.model.items()
            if known.state is State.DELAYED and known.due <= self.now
        )
        expected = {}
        for _, uuid in due[:limit]:
            self.model[uuid].due = 0
            service = self.model[uuid].new.service
            expected[service] = expected.get(service, 0) + 1
        assert promoted == expected

    @rule(uuid=consumes(uuids), again=st.booleans())
    def close(self, uuid, again):
        known = self.model.pop(uuid, None)
        with self.store.write() as txn:
            closed = txn.close(uuid)
            assert txn.close(uuid) is None
        assert closed == (known and (known.new.service, known.state))

    @rule(jump=st.integers(-20, 40))
    def let_time_pass(self, jump):
        self.now += jump

    @rule()
    def restart(self):
        self.store.close()
        self.store = Store.open(self.path, capacity=CAPACITY)

    @precondition(lambda self: self.model)
    @rule(uuid=uuids)
    def drop_a_transaction(self, uuid):
        class Dropped(Exception):
            pass

        try:
            with self.store.write() as txn:
                txn.close(uuid)
                txn.promote(self.now)
                raise Dropped
        except Dropped:
            pass

    @rule(uuid=uuids)
    def look(self, uuid):
        known = self.model.get(uuid)
        with self.store.read() as txn:
            found, reply, described = txn.request(uuid), txn.reply(uuid), txn.describe(uuid)
        if known is None:
            assert found is reply is described is None
            return
        assert found.body == list(known.new.body)
        assert reply == (known.outcome or Pending(known.state))
        assert described.state is known.state
        assert described.body_bytes == sum(map(len, known.new.body))
        assert described.attempts == (known.outcome or known).attempts

    @invariant()
    def the_queues_are_right(self):
        with self.store.read() as txn:
            rows = {service: txn.next_ready(service, None, 1000, 1 << 30) for service in SERVICES}
            waiting, counts, due = txn.waiting(), txn.counts(), txn.next_due()
            listed = [row.uuid for row in txn.list(limit=1000)]
        for service in SERVICES:
            expected = sorted(
                (9 - known.new.priority, uuid, known.attempts)
                for uuid, known in self.model.items()
                if known.state is State.WAITING and known.new.service == service
            )
            assert [(row.uuid, row.attempts) for row in rows[service]] == [row[1:] for row in expected]
            assert waiting.get(service, 0) == len(expected)
        states = [known.state for known in self.model.values()]
        assert listed == sorted(self.model)
        assert counts.requests == len(states)
        assert (counts.waiting, counts.delayed) == (states.count(State.WAITING), states.count(State.DELAYED))
        delayed = [known.due for known in self.model.values() if known.state is State.DELAYED]
        assert due == min(delayed, default=None)

    @invariant()
    def the_store_is_sound(self):
        assert check(self.store) == []


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
