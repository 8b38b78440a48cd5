"""Random lives of random requests, beside dicts that say what must be."""

import shutil
import tempfile
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule
from support.torture import LONG, SEED, tally

from titanic.errors import StoreFull
from titanic.store import NewRequest, Outcome, Pending, Retention, State, Status
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check

START = 1_795_258_520_106_479
SERVICES = [b"a", b"ab", b"b"]
CAPACITY = 16 << 20
POLICY = Retention(reply_retention=40, dead_retention=70, closed_retention=90)
DEAD = (State.FAILED, State.EXPIRED)
LARGE = 3 << 20  # four of them fill the store

TIMES = st.sampled_from([0, 0, 0, START + 5, START + 20, START + 50, START + 120])
REQUESTS = st.builds(
    NewRequest,
    service=st.sampled_from(SERVICES),
    body=st.lists(st.sampled_from([0, 1, 300, 1500, 5000, 70_000, LARGE]).map(bytes), max_size=2),
    priority=st.integers(0, 9),
    not_before=TIMES,
    expires_at=TIMES,
    max_attempts=st.just(0),
    options=st.just(b""),
    key=st.sampled_from([b"", b"", b"", b"k", b"l"]),
    key_until=st.sampled_from([START + 10, START + 60, START + 200]),
    together=st.just(0),
)
TOGETHER = 3


def share_a_key(requests):
    """The first has the key of all."""
    first, *others = requests
    return [first._replace(key=b"all", together=TOGETHER), *(one._replace(key=b"") for one in others)]


GROUPS = st.one_of(
    REQUESTS.map(lambda one: [one]), st.lists(REQUESTS, min_size=TOGETHER, max_size=TOGETHER).map(share_a_key)
)


class Model:
    """What is known of a request."""

    def __init__(self, new, now):
        self.new = new
        self.due = new.not_before if new.not_before > now else 0
        self.expires_at = new.expires_at
        self.submitted_at = now
        self.attempts = 0
        self.dispatched_at = 0
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
        self.store = LmdbStore.open(self.path, capacity=CAPACITY)
        self.model = {}
        self.keys = {}
        self.closed = []  # all that were ever closed: (uuid, status, unclaimed, closed_at, size of the request)
        self.first = 1
        self.archived = None
        self.now = START
        self.ahead = 0  # by how much the clock may be

    @property
    def sure(self):
        """The time that it is at least."""
        return self.now - self.ahead

    def teardown(self):
        self.store.close()
        shutil.rmtree(self.path)

    def expected_ids(self, requests):
        """What accept must say: the model of the first with the key, or None for a new one."""
        keys = {key: uuids for key, (until, uuids, _) in self.keys.items() if until > self.sure}
        found = [None] * len(requests)
        for n, new in enumerate(requests):
            if new.key:
                count = new.together or 1
                found[n : n + count] = keys.get(new.key, [None] * count)
                keys.setdefault(new.key, range(n, n + count))
        return found

    def remember(self, uuid, unclaimed=False):
        known = self.model.pop(uuid)
        status = known.outcome.status if known.outcome else Status.CANCELLED
        self.closed.append((uuid, status, unclaimed, self.now, sum(map(len, known.new.body))))

    def ended(self, states, before):
        """Requests in these states that ended then or before, in that order."""
        rows = [(known.outcome.finished_at, uuid) for uuid, known in self.model.items() if known.state in states]
        return [uuid for finished_at, uuid in sorted(rows) if finished_at <= before]

    @rule(target=uuids, groups=st.lists(GROUPS, min_size=1, max_size=4))
    def accept(self, groups):
        requests = [one for group in groups for one in group]
        expected = self.expected_ids(requests)
        try:
            with self.store.write() as txn:
                made = txn.accept(requests, self.now, self.ahead)
        except StoreFull as full:
            refused = full
        else:
            refused = None
        if refused:
            assert refused.__cause__ is None
            assert refused.used + refused.needed > CAPACITY
            return multiple()
        fresh = [one.uuid for one in made if one.new]
        assert fresh == sorted(fresh)
        assert not fresh or not self.model or fresh[0] > max(self.model)
        for n, (new, one, first) in enumerate(zip(requests, made, expected, strict=True)):
            assert one.new == (first is None)
            if first is not None:
                assert one.uuid == (made[first].uuid if isinstance(first, int) else first)
                continue
            # What shares a key has none of its own in its record.
            self.model[one.uuid] = Model(new._replace(key=b"") if new.together else new, self.now)
            if new.key:
                self.keys[new.key] = (new.key_until, [one.uuid for one in made[n : n + (new.together or 1)]], self.now)
        return multiple(*fresh)

    @rule(
        uuid=uuids,
        status=st.sampled_from(Status),
        frames=st.lists(st.sampled_from([0, 1, 3000, 70_000]).map(bytes), max_size=2),
    )
    def finish(self, uuid, status, frames):
        end = Outcome(status, frames, status.name, 3, 1, self.now)
        known = self.model.get(uuid)
        with self.store.write() as txn:
            try:
                ended = txn.finish(
                    uuid, status, frames, attempts=3, dispatched_at=1, finished_at=self.now, reason=status.name
                )
            except StoreFull:
                end = end._replace(frames=[])
                ended = txn.finish(
                    uuid, status, [], attempts=3, dispatched_at=1, finished_at=self.now, reason=status.name
                )
        assert ended == (known is not None and known.outcome is None)
        if ended:
            known.outcome = end

    @rule(uuid=uuids, delay=st.integers(0, 30))
    def postpone(self, uuid, delay):
        known = self.model.get(uuid)
        attempts = known.attempts + 1 if known else 1
        with self.store.write() as txn:
            done = txn.postpone(uuid, due=self.now + delay, attempts=attempts, dispatched_at=self.now, reason="no")
        assert done == (known is not None and known.state is State.WAITING)
        if done:
            known.due, known.attempts, known.dispatched_at = self.now + delay, attempts, self.now

    @rule(uuid=uuids)
    def retry(self, uuid):
        known = self.model.get(uuid)
        with self.store.write() as txn:
            done = txn.retry(uuid, self.now)
        assert done == (known is not None and known.state in DEAD)
        if done:
            # One that was never tried has waited for a part of its delay only.
            delay = known.new.not_before - known.submitted_at
            waits = not known.outcome.attempts and delay > 0 and known.new.not_before > self.now
            known.due = min(known.new.not_before, self.now + delay) if waits else 0
            known.outcome, known.attempts, known.dispatched_at = None, 0, 0
            known.expires_at = min(known.new.expires_at, self.now + max(known.new.expires_at - known.submitted_at, 0))
            if known.expires_at <= self.now:
                known.expires_at = 0

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

    @rule(limit=st.integers(1, 4), running=st.lists(uuids, max_size=2))
    def expire(self, limit, running):
        with self.store.write() as txn:
            expired = txn.expire(self.now, limit, set(running), self.ahead)
        due = sorted(
            (known.expires_at, uuid)
            for uuid, known in self.model.items()
            if not known.outcome and known.expires_at and known.expires_at <= self.sure and uuid not in running
        )
        assert expired == [(uuid, self.model[uuid].new.service) for _, uuid in due[:limit]]
        for uuid, _ in expired:
            known = self.model[uuid]
            reason = f"not done in time, after {known.attempts} attempts"
            known.outcome = Outcome(Status.EXPIRED, [], reason, known.attempts, known.dispatched_at, self.now)

    @rule(limit=st.integers(1, 6))
    def trim(self, limit):
        with self.store.write() as txn:
            trimmed = txn.trim(self.now, POLICY, limit, self.ahead)
        keys = sorted((until, key) for key, (until, *_) in self.keys.items() if until <= self.sure)[:limit]
        for _, key in keys:
            del self.keys[key]
        left = limit - len(keys)
        replies = self.ended((State.DONE, State.CANCELLED), self.sure - POLICY.reply_retention)[:left]
        left -= len(replies)
        dead = self.ended(DEAD, self.sure - POLICY.dead_retention)[:left]
        left -= len(dead)
        for uuid in replies + dead:
            self.remember(uuid, unclaimed=True)
        dropped = 0
        for number, (*_, closed_at, _) in enumerate(self.closed[self.first - 1 :], self.first):
            kept = self.archived is not None and number > self.archived
            if dropped == left or closed_at > self.sure - POLICY.closed_retention or kept:
                break
            dropped += 1
        self.first += dropped
        assert trimmed[:4] == (len(replies), len(dead), dropped, len(keys))
        assert trimmed.more >= (left == dropped)

    @rule(uuid=consumes(uuids))
    def close(self, uuid):
        known = self.model.get(uuid)
        with self.store.write() as txn:
            closed = txn.close(uuid, self.now)
            assert txn.close(uuid, self.now) is None
        assert closed == (known and (known.new.service, known.state))
        if known:
            self.remember(uuid)

    @rule(key=st.sampled_from([b"k", b"all", b"unknown"]))
    def forget(self, key):
        with self.store.write() as txn:
            txn.forget([key])
        self.keys.pop(key, None)

    @rule(share=st.floats(0, 1))
    def archive(self, share):
        with self.store.write() as txn:
            if self.archived is None:
                self.archived = max(self.first - 1, 0)
                assert txn.register_archive().archived_upto >= self.archived
            upto = self.archived + int(share * (len(self.closed) - self.archived))
            self.archived = txn.acknowledge_archive(upto).archived_upto

    @precondition(lambda self: self.archived is not None)
    @rule()
    def give_the_archive_up(self):
        with self.store.write() as txn:
            txn.acknowledge_archive(len(self.closed))
            txn.unregister_archive()
        self.archived = None

    @rule()
    def make_up_for_a_clock_that_was_ahead(self):
        with self.store.write() as txn:
            place, changed = b"", 0
            while place is not None:
                n, place = txn.recap(self.now, place, 2)
                changed += n
        expected = 0
        for known in self.model.values():
            if known.outcome:
                continue
            ttl, wait = known.new.expires_at - known.submitted_at, known.new.not_before - known.submitted_at
            if known.expires_at > self.now + max(ttl, 0):
                known.expires_at = self.now + max(ttl, 0)
                expected += 1
            if known.attempts:
                wait = known.due - known.dispatched_at
            if known.due > self.now + max(wait, 0):
                known.due = self.now + max(wait, 0)
                known.dispatched_at = min(known.dispatched_at, self.now)
                expected += 1
        for key, (until, uuids, given) in self.keys.items():
            if until > self.now + max(until - given, 0):
                self.keys[key] = (self.now + until - given, uuids, self.now)
                expected += 1
        assert changed == expected

    @rule(jump=st.integers(-20, 40), ahead=st.sampled_from([0, 0, 25]))
    def let_time_pass(self, jump, ahead):
        self.now += jump
        self.ahead = ahead

    @rule()
    def restart(self):
        self.store.close()
        self.store = LmdbStore.open(self.path)

    @precondition(lambda self: self.model)
    @rule(uuid=uuids, requests=st.lists(REQUESTS, max_size=2))
    def drop_a_transaction(self, uuid, requests):
        class Dropped(Exception):
            pass

        try:
            with self.store.write() as txn:
                txn.close(uuid, self.now)
                txn.promote(self.now)
                txn.expire(self.now)
                txn.trim(self.now, POLICY)
                txn.accept(requests, self.now)
                raise Dropped
        except (Dropped, StoreFull):
            pass

    @rule(uuid=uuids)
    def look(self, uuid):
        known = self.model.get(uuid)
        with self.store.read() as txn:
            found, reply, described = txn.request(uuid), txn.reply(uuid), txn.describe(uuid)
        if known is None:
            assert found is reply is described is None
            return
        assert (found.body, found.key) == (list(known.new.body), known.new.key)
        assert reply == (known.outcome or Pending(known.state))
        assert described.state is known.state
        assert described.body_bytes == sum(map(len, known.new.body))
        assert described.attempts == (known.outcome or known).attempts
        assert known.outcome or described.expires_at == known.expires_at

    @invariant()
    def the_queues_are_right(self):
        with self.store.read() as txn:
            rows = {service: txn.next_ready(service, None, 1000, 1 << 30) for service in SERVICES}
            waiting, counts, due = txn.waiting(), txn.counts(), txn.next_due(ahead_us=self.ahead)
            loads = {service: txn.load(service) for service in SERVICES}
            listed = [row.uuid for row in txn.list(limit=1000)]
        for service in SERVICES:
            expected = sorted(
                (9 - known.new.priority, uuid, known.attempts, known.expires_at)
                for uuid, known in self.model.items()
                if known.state is State.WAITING and known.new.service == service
            )
            assert [(row.uuid, row.attempts, row.expires_at) for row in rows[service]] == [row[1:] for row in expected]
            assert waiting.get(service, 0) == len(expected)
            pending = [k for k in self.model.values() if not k.outcome and k.new.service == service]
            assert loads[service].waiting == len(pending)
            assert loads[service].bytes >= sum(len(frame) for known in pending for frame in known.new.body)
        states = [known.state for known in self.model.values()]
        assert listed == sorted(self.model)
        assert counts.requests == len(states)
        assert (counts.waiting, counts.delayed) == (states.count(State.WAITING), states.count(State.DELAYED))
        times = [known.due for known in self.model.values() if known.state is State.DELAYED]
        times += [
            known.expires_at + self.ahead for known in self.model.values() if not known.outcome and known.expires_at
        ]
        assert due == min(times, default=None)

    @invariant()
    def the_ring_is_right(self):
        with self.store.read() as txn:
            first, last = txn.closed_range()
            found = txn.closed(0, 10_000, 1 << 30)
        assert last == len(self.closed)
        assert first >= self.first
        if self.archived is not None:
            assert first <= max(self.archived + 1, self.first), "what the archive hasn't got is there"
        self.first = first
        assert [(life.uuid, life.status, life.unclaimed, life.closed_at, life.request_bytes) for life in found] == [
            *self.closed[first - 1 :]
        ]
        assert [life.sequence for life in found] == list(range(first, last + 1))

    @invariant()
    def the_store_is_sound(self):
        tally["operations modelled"] += 1
        assert check(self.store) == []
        assert (self.path / "data.mdb").stat().st_size <= CAPACITY


if LONG:
    hypothesis.seed(SEED)(StoreMachine)
TestStore = pytest.mark.torture(short=True)(StoreMachine.TestCase)
TestStore.settings = settings(
    max_examples=1000 if LONG else 25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
