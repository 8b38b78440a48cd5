"""Random lives of random requests, in LMDB or PostgreSQL, and in memory, where all must be the same."""

import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule
from msgspec.structs import replace
from support.postgres import needs_postgres
from support.store_engines import forget_databases, is_sound, open_postgres
from support.store_facts import closed_in, closed_range, holder_of, load_of, waiting_in
from support.torture import LONG, MOST_SECONDS, SEED, tally

from titanic.errors import StoreFull
from titanic.store import NewRequest, Retention, State, Status
from titanic.store.interface import Load
from titanic.store.lmdb import closed_record, closed_ring
from titanic.store.lmdb.schema import closed_key, sequence_of
from titanic.store.lmdb.store import LmdbReadTransaction, LmdbStore
from titanic.store.lmdb.tools import check
from titanic.store.memory import MemoryReadTransaction, MemoryStore
from titanic.store.memory_tables import Tables, closed_size
from titanic.store.postgres.transaction import SnapshotReader
from titanic.store.uniqueness import made_unique
from titanic.util.ids import IdMaker

START = 1_795_258_520_106_479
SERVICES = [b"a", b"ab", b"b"]
OWNERS = [b"", b"eve", b"evelyn"]
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
    options=st.sampled_from(
        [
            b"",
            b'{"keep_body": "never"}',
            b'{"keep_body": 0.00002}',
            b'{"keep": 0.00003, "keep_failed": 0.00005, "keep_body": 0.00004}',
        ]
    ),
    key=st.sampled_from([b"", b"", b"", b"k", b"l"]),
    key_until=st.sampled_from([START + 10, START + 60, START + 200]),
    together=st.just(0),
    owner=st.sampled_from(OWNERS),
    unique=st.just(b""),
    unique_until=st.just(0),
)
TOGETHER = 3


def share_a_key(requests):
    """The first has the key of all."""
    first, *others = requests
    others = [one._replace(key=b"", owner=first.owner) for one in others]
    return [first._replace(key=b"all", together=TOGETHER), *others]


def make_unique(request, rule):
    """One of those of which one is accepted while it counts, for its service and owner."""
    said = {"unique": "u", "unique_until": rule} if rule else {"unique": "u", "unique_for": 0.00004}
    options = json.dumps(said).encode()
    return [made_unique(request._replace(options=options), "u", rule, 0 if rule else request.key_until)]


GROUPS = st.one_of(
    st.builds(make_unique, REQUESTS, st.sampled_from(["started", "done", ""])),
    REQUESTS.map(lambda one: [one]),
    st.lists(REQUESTS, min_size=TOGETHER, max_size=TOGETHER).map(share_a_key),
)


class Given:
    """Ids that another store has made."""

    def __init__(self, uuids):
        self._uuids = uuids

    def make(self, n, now_us):
        assert n == len(self._uuids)
        return self._uuids


WAITS_FOR_ARCHIVE = """
    SELECT coalesce(sum(cost), 0)::bigint FROM titanic.closed, titanic.meta
    WHERE registered AND seq > archived_upto AND seq >= closed_first AND owner = %s"""


def not_closed(txn, owner):
    """What is kept for an owner, without the closed requests that wait for the archive: those a check counts."""
    load = txn.load(owner)
    if owner and isinstance(txn, SnapshotReader):
        return Load(load.waiting, load.bytes - txn.fetch_row(WAITS_FOR_ARCHIVE, owner)[0])
    if owner and isinstance(txn, MemoryReadTransaction):
        awaits = txn.tables.ring.agreement.awaits
        waits = [one for number, one in txn.tables.closed.items() if one.owner == owner and awaits(number)]
        return Load(load.waiting, load.bytes - sum(map(closed_size, waits)))
    since = closed_ring.charged_since(txn) if owner and isinstance(txn, LmdbReadTransaction) else None
    if since is None:
        return load
    size = load.bytes
    cursor = txn.raw.cursor(txn.db.closed)
    rows = cursor.iternext() if cursor.set_range(closed_key(since + 1)) else ()
    for key, record in rows:
        closed = closed_record.decode_header(sequence_of(key), record)
        if closed.owner == owner:
            size -= closed_ring.kept(closed, len(record))
    return Load(load.waiting, size)


class StoreMachine(RuleBasedStateMachine):
    """Everything is done to both stores, and must come to the same. LMDB's has one size, the model has room for all."""

    uuids = Bundle("uuids")

    def __init__(self):
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="titanic-model-"))
        self.store = self.open(capacity=CAPACITY)
        self.model = MemoryStore(capacity=1 << 60)
        self.now = START
        self.ahead = 0  # by how much the clock may be

    def teardown(self):
        self.store.close()
        shutil.rmtree(self.path)

    def open(self, **settings):
        return LmdbStore.open(self.path, **settings)

    def is_sound(self):
        return check(self.store) == [] and (self.path / "data.mdb").stat().st_size <= CAPACITY

    def both(self, change):
        """Make a change, which must have the same result in both."""
        with self.store.write() as txn:
            found = change(txn)
        with self.model.write() as txn:
            expected = change(txn)
        assert found == expected
        return found

    def known(self, uuid):
        return self.model.tables.requests.get(uuid)

    @rule(target=uuids, groups=st.lists(GROUPS, min_size=1, max_size=4), running=st.lists(uuids, max_size=3))
    def accept(self, groups, running=()):
        requests = [one for group in groups for one in group]
        running = [] if self.store.remote else running  # nodes that share a store have claimed them
        try:
            with self.store.write() as txn:
                expected = txn.fresh(requests, self.now, self.ahead, running)
                made = txn.accept(requests, self.now, self.ahead, running)
        except StoreFull as full:
            refused = full
        else:
            refused = None
        if refused:
            assert refused.__cause__ is None
            assert refused.used + refused.kept + refused.needed > CAPACITY
            return multiple()
        fresh = [one.uuid for one in made if one.new]
        assert fresh == sorted(fresh)
        assert not fresh or fresh[0] > max(self.model.tables.requests, default=b"")
        self.model.ids = Given([one.uuid for one in made])
        with self.model.write() as txn:
            assert txn.fresh(requests, self.now, self.ahead, running) == expected
            assert txn.accept(requests, self.now, self.ahead, running) == made
        return multiple(*fresh)

    @rule(
        uuid=uuids,
        status=st.sampled_from(Status),
        frames=st.lists(st.sampled_from([0, 1, 3000, 70_000]).map(bytes), max_size=2),
    )
    def finish(self, uuid, status, frames):
        end = {"attempts": 3, "dispatched_at": 1, "finished_at": self.now, "reason": status.name}
        known = self.known(uuid)
        with self.store.write() as txn:
            try:
                ended = txn.finish(uuid, status, frames, **end)
            except StoreFull:
                frames = []
                ended = txn.finish(uuid, status, frames, **end)
        with self.model.write() as txn:
            assert ended == txn.finish(uuid, status, frames, **end)
        assert ended == (known is not None and known.outcome is None)

    @rule(uuid=uuids, delay=st.integers(0, 30), counts=st.booleans())
    def postpone(self, uuid, delay, counts):
        known = self.known(uuid)
        attempts, deliveries = (known.attempts + counts, known.deliveries) if known else (1, 0)
        fields = {"due": self.now + delay, "attempts": attempts, "dispatched_at": self.now, "reason": "no"}
        fields["deliveries"] = max(attempts, deliveries) + 1
        done = self.both(lambda txn: txn.postpone(uuid, **fields))
        assert done == (known is not None and known.state is State.WAITING)

    @rule(uuid=uuids)
    def retry(self, uuid):
        known = self.known(uuid)
        assert self.both(lambda txn: txn.retry(uuid, self.now)) == (known is not None and known.state in DEAD)

    @rule(
        uuid=uuids,
        priority=st.one_of(st.none(), st.integers(0, 9)),
        delay=st.one_of(st.none(), st.integers(-5, 30)),
        body=st.one_of(st.none(), st.lists(st.sampled_from([0, 300, 5000, 70_000]).map(bytes), max_size=2)),
    )
    def change(self, uuid, priority, delay, body):
        known = self.known(uuid)
        due = None if delay is None else self.now + delay
        changed = self.both(lambda txn: txn.change(uuid, self.now, priority=priority, due=due, body=body))
        assert (changed is not None) == (known is not None and known.outcome is None)

    @rule(limit=st.integers(1, 4))
    def promote(self, limit):
        self.both(lambda txn: dict(txn.promote(self.now, limit)))

    @rule(limit=st.integers(1, 4), running=st.lists(uuids, max_size=2))
    def expire(self, limit, running):
        self.both(lambda txn: txn.expire(self.now, limit, set(running), self.ahead))

    @rule(limit=st.integers(1, 6))
    def trim(self, limit):
        with self.store.write() as txn:
            trimmed = txn.trim(self.now, POLICY, limit, self.ahead)
        with self.model.write() as txn:
            expected = txn.trim(self.now, POLICY, limit, self.ahead)
        assert (trimmed[:4], trimmed.bodies) == (expected[:4], expected.bodies)
        assert trimmed.more >= expected.more

    @rule(uuid=consumes(uuids))
    def close(self, uuid):
        known = self.known(uuid)
        closed = self.both(lambda txn: txn.close(uuid, self.now))
        assert (closed and closed[:2]) == (known and (known.new.service, known.state))
        assert self.both(lambda txn: txn.close(uuid, self.now)) is None

    @rule(key=st.sampled_from([b"k", b"all", b"unknown"]), owner=st.sampled_from(OWNERS))
    def forget(self, key, owner):
        self.both(lambda txn: txn.forget([key], owner))

    @rule(share=st.floats(0, 1))
    def archive(self, share):
        with self.store.write() as txn:
            registered = txn.update_archive(register=True)
            upto = registered.archived_upto + int(share * (registered.last - registered.archived_upto))
            acknowledged = txn.update_archive(upto=upto)
        with self.model.write() as txn:
            expected = txn.update_archive(register=True)
            assert (registered.registered, registered.last) == (expected.registered, expected.last)
            assert registered.archived_upto >= expected.archived_upto, "what was dropped for its room is not missed"
            assert acknowledged.archived_upto == txn.update_archive(upto=upto).archived_upto

    @precondition(lambda self: self.model.tables.ring.agreement.registered)
    @rule()
    def give_the_archive_up(self):
        def give_up(txn):
            txn.update_archive(upto=closed_range(txn)[1])
            return txn.update_archive(register=False).archived_upto

        self.both(give_up)

    @rule()
    def make_up_for_a_clock_that_was_ahead(self):
        def clamp_timers(txn):
            place, changed = b"", 0
            while place is not None:
                n, place = txn.clamp_timers(self.now, place, 2)
                changed += n
            return changed

        self.both(clamp_timers)

    @rule(jump=st.integers(-20, 40), ahead=st.sampled_from([0, 0, 25]))
    def let_time_pass(self, jump, ahead):
        self.now += jump
        self.ahead = ahead

    @rule()
    def restart(self):
        self.store.close()
        self.store = self.open()

    @precondition(lambda self: self.model.tables.requests)
    @rule(uuid=uuids, requests=st.lists(REQUESTS, max_size=2))
    def drop_a_transaction(self, uuid, requests):
        class Dropped(Exception):
            pass

        self.model.ids = IdMaker(None)
        for store in (self.store, self.model):
            with suppress(Dropped, StoreFull), store.write() as txn:
                txn.close(uuid, self.now)
                txn.promote(self.now)
                txn.expire(self.now)
                txn.trim(self.now, POLICY)
                txn.accept(requests, self.now)
                raise Dropped

    @rule(uuid=uuids)
    def look(self, uuid):
        with self.store.read() as txn, self.model.read() as expected:
            assert txn.request(uuid) == expected.request(uuid)
            assert txn.reply(uuid) == expected.reply(uuid)
            assert txn.describe(uuid) == expected.describe(uuid)
            assert txn.owner(uuid) == expected.owner(uuid)

    @invariant()
    def the_queues_are_right(self):
        def seen(txn):
            rows = {service: txn.next_ready(service, None, 1000, 1 << 30) for service in SERVICES}
            loads = {service: load_of(txn, service) for service in SERVICES}
            pages = [txn.select(states, limit=1000) for states in (None, DEAD, [State.DELAYED], [State.WAITING])]
            pages += [txn.select(service=service, limit=1000) for service in SERVICES]
            pages += [txn.select(service=service, newest=True, limit=1000) for service in SERVICES]
            pages += [txn.select(states, newest=True, text="1", limit=1000) for states in (None, (State.FAILED,))]
            pages += [txn.select(DEAD, owner=owner, limit=1000) for owner in OWNERS]
            pages += [txn.select(owner=owner, limit=1000) for owner in [*OWNERS, b"ev"]]
            ahead = [
                [txn.ahead_of(service, 9 - row.key[-17], row.uuid) for row in found] for service, found in rows.items()
            ]
            holders = [holder_of(txn, key, owner) for key in (b"k", b"l", b"all") for owner in OWNERS]
            owned = [not_closed(txn, owner) for owner in OWNERS]
            return (
                rows,
                ahead,
                loads,
                owned,
                pages,
                holders,
                waiting_in(txn),
                txn.queues(skip=()),
                [*txn.queues(after=b"a", limit=1)],
                txn.counts()[:4],
                txn.next_due(ahead_us=self.ahead),
            )

        with self.store.read() as txn, self.model.read() as expected:
            assert seen(txn) == seen(expected)

    @invariant()
    def the_ring_is_right(self):
        before, sequence, _, agreement = self.model.tables.ring
        with self.store.read() as txn:
            first, last = closed_range(txn)
            found = closed_in(txn, 0, 10_000, 1 << 30)
        assert last == sequence
        assert first >= before
        if agreement.registered:
            assert first <= max(agreement.upto + 1, before), "what the archive hasn't got is there"
        with self.model.write() as txn:  # what made way for new requests goes here, too
            for number in range(before, first):
                txn._put(Tables.put_closed, number, None)
            txn._put_ring(first=first)
            expected = closed_in(txn, 0, 10_000, 1 << 30)
        for n, one in enumerate(found):  # there may have been no room for its frames
            if one.request_left_out:
                expected[n] = replace(expected[n], request=[], request_left_out=True)
            if one.reply_left_out:
                expected[n] = replace(expected[n], reply=[], reply_left_out=True)
        assert found == expected

    @invariant()
    def the_store_is_sound(self):
        tally["operations modelled"] += 1
        assert self.is_sound()


class PostgresMachine(StoreMachine):
    """The same in PostgreSQL."""

    def open(self, **settings):
        return open_postgres(self.path, **settings)

    def is_sound(self):
        with self.store.read() as txn:
            return is_sound(self.store) and txn.counts().used <= CAPACITY

    def teardown(self):
        super().teardown()
        forget_databases()


@pytest.mark.parametrize("kind", [StoreMachine, pytest.param(PostgresMachine, marks=needs_postgres)])
def test_keys_that_end_together_go_in_one_order(kind):
    """A trim that may not forget all of them leaves the same ones in each store."""
    machine = kind()
    try:
        plain = NewRequest(b"a", [b""], key_until=START + 10)
        with_keys = [plain._replace(key=b"k", owner=owner) for owner in OWNERS]
        machine.accept([[*with_keys], *(make_unique(plain._replace(owner=owner), "") for owner in OWNERS)])
        machine.let_time_pass(20, 0)
        for _ in range(2 * len(OWNERS)):
            machine.trim(1)
            machine.the_queues_are_right()
    finally:
        machine.teardown()


if LONG:
    hypothesis.seed(SEED)(StoreMachine)
    hypothesis.seed(SEED)(PostgresMachine)
TestStore = pytest.mark.torture(short=True)(pytest.mark.timeout(MOST_SECONDS)(StoreMachine.TestCase))
TestStore.settings = settings(
    max_examples=1000 if LONG else 12,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestPostgres = pytest.mark.timeout(MOST_SECONDS)(needs_postgres(PostgresMachine.TestCase))  # a busy machine is slow
TestPostgres = pytest.mark.torture(short=True)(TestPostgres)
TestPostgres.settings = settings(TestStore.settings, max_examples=200 if LONG else 3)
