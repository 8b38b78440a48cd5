"""What the engine in PostgreSQL reads is what its tables say: those of random lives in memory, copied row by row."""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest
from support.postgres import needs_postgres, shared_server
from support.postgres_mirror import mirror
from support.store_facts import accept_all, closed_in, closed_range, holder_of, state_of, waiting_in
from support.store_lives import NOW, OWNERS, SERVICES, live
from support.torture import seeds

from titanic.errors import RecordCorrupt
from titanic.store import CLOSED_LAYOUT, NewRequest, Retention, State, Status
from titanic.store.lmdb import closed_record
from titanic.store.memory import MemoryStore
from titanic.store.postgres import closed, queries
from titanic.store.postgres.store import PostgresStore

pytestmark = needs_postgres


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    server = shared_server()
    name = server.new_database()
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture
def postgres(database: str) -> Iterator[PostgresStore]:
    with PostgresStore.open(database) as store:
        yield store


def copy(model: MemoryStore, database: str) -> None:
    with psycopg.connect(database) as connection:
        mirror(model, connection)


def pages(transaction, **chosen):
    """The whole of a listing."""
    found, after = [], None
    while True:
        page = transaction.select(after=after, **chosen)
        found += page
        if page.next is None:
            return found
        assert after is None or (page.next < after if chosen.get("newest") else page.next > after)
        after = page.next


def parts(transaction, limit, max_bytes):
    found, begin = [], b""
    while begin is not None:
        some, begin = transaction.unended(begin, None, limit, max_bytes)
        found += some
    return found


def all_that_is_read(transaction, uuids: list[bytes], chance: random.Random) -> dict[object, object]:
    looks = ("owner", "describe", "reply", "request")
    seen: dict[object, object] = {look: [getattr(transaction, look)(uuid) for uuid in uuids] for look in looks}
    for service in SERVICES:
        rows = seen["rows", service] = transaction.next_ready(service, None, 1000, 1 << 30)
        skip = {row.uuid for row in rows[:: chance.randrange(1, 4)]}
        for limit, max_bytes in ((1, 1), (3, 800), (50, 10_000)):
            after = chance.choice(rows).key if rows else None
            seen["part", service, limit] = transaction.next_ready(service, after, limit, max_bytes, skip)
        seen["service", service] = transaction.queues([service, b"none"], set())
    seen["totals"] = (
        waiting_in(transaction),
        transaction.queues(skip=()),
        transaction.counts(),
        [transaction.load(owner) for owner in OWNERS],
    )
    for policy in (None, Retention(), Retention(5, 0, 7)):
        for skip in (set(), set(uuids[::2])):
            seen["due", policy, len(skip)] = transaction.next_due(policy, skip, 3)
    dead = (State.FAILED, State.EXPIRED)
    for states in (None, dead, [State.DELAYED], [State.WAITING], [State.DONE], [State.WAITING, State.DONE], []):
        for chosen in ({}, {"service": b"a"}, {"owner": b"eve"}, {"owner": b""}, {"older_than": NOW + 300}):
            seen["select", str(states), str(chosen)] = pages(transaction, states=states, limit=9, **chosen)
        seen["together", str(states)] = pages(transaction, states=states, service=b"ab", owner=b"eve")
        for chosen in (
            {},
            {"service": b"a"},
            {"owner": b"eve"},
            {"text": "k1"},
            {"text": "né", "older_than": NOW + 300},
        ):
            seen["newest", str(states), str(chosen)] = pages(transaction, states=states, limit=9, newest=True, **chosen)
        seen["text", str(states)] = pages(transaction, states=states, limit=9, text="ate")
    seen["first"] = list(transaction.select(limit=5))
    keys = [b"", b"x" * 999, *(b"k%d" % n for n in range(50))]
    seen["holders"] = [holder_of(transaction, key, owner) for key in keys for owner in OWNERS]
    seen["closed"] = closed_in(transaction, 0, 10_000, 1 << 30), closed_in(transaction, 5, 3, 1 << 30)
    seen["ring"] = closed_range(transaction), transaction.archive()
    seen["ids"] = transaction.request_ids(7), transaction.request_ids(1)
    seen["unended"] = parts(transaction, 5, 1 << 30), parts(transaction, 1000, 1 << 30)
    seen["part"] = transaction.unended(uuids[5], uuids[20], 9)
    return seen


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_all_that_is_read(seed: int, database: str, postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "LOOKED_AT", 20)
    model = MemoryStore(capacity=[1 << 60, 60_000, 1 << 60][seed])
    uuids = live(model, random.Random(seed), 90)
    if seed == 2:
        with model.write() as transaction:
            transaction.update_archive(register=True)
            transaction.update_archive(upto=closed_range(transaction)[1] // 2)
    copy(model, database)
    for prefetched, replies in ((False, False), (True, False), (True, True)):
        with model.read() as expected, postgres.read() as transaction:
            if prefetched:
                transaction.prefetch(uuids, replies)
            found = all_that_is_read(transaction, uuids, random.Random(seed))
            for what, value in all_that_is_read(expected, uuids, random.Random(seed)).items():
                assert found[what] == value, what


def test_what_is_no_id_is_unknown(postgres: PostgresStore) -> None:
    with postgres.read() as transaction:
        transaction.prefetch([b"", b"short", bytes(17)])
        assert state_of(transaction, b"short") is transaction.reply(b"") is transaction.request(bytes(17)) is None


def test_what_was_foreseen_is_not_read_again(database: str, postgres: PostgresStore) -> None:
    model = MemoryStore()
    uuids = live(model, random.Random(9), 40)
    copy(model, database)
    with postgres.read() as transaction, model.read() as expected:
        transaction.prefetch([*uuids, bytes(16)], replies=True)
        copy(MemoryStore(), database)
        assert [transaction.reply(uuid) for uuid in uuids] == [expected.reply(uuid) for uuid in uuids]
        assert state_of(transaction, bytes(16)) is None
    with postgres.read() as transaction:
        assert state_of(transaction, uuids[0]) is None


def test_large_replies_are_read_when_they_are_asked_for(database: str, postgres: PostgresStore) -> None:
    model = MemoryStore()
    with model.write() as transaction:
        uuids = accept_all(transaction, [NewRequest(b"a", [])] * 3, NOW)
        for uuid in uuids:
            transaction.finish(uuid, Status.DONE, [b"x"], attempts=1, dispatched_at=1, finished_at=NOW)
    copy(model, database)
    size = 9 << 20
    with psycopg.connect(database) as connection:
        change = "UPDATE titanic.reply SET frames = ARRAY[repeat('x', %s)::bytea], frames_bytes = %s"
        connection.execute(change, [size, size])
    with postgres.read() as transaction:
        transaction.prefetch(uuids, replies=True)
        assert sum(transaction.answers[uuid].frames is not None for uuid in uuids) == 1
        assert [len(transaction.reply(uuid).frames[0]) for uuid in uuids] == [size] * 3


def test_bulk_is_laid_out_as_in_lmdb(database: str, postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record is one that LMDB's decoder takes, with its checksum."""
    monkeypatch.setattr(closed, "AT_ONCE", 7)
    model = MemoryStore()
    live(model, random.Random(4))
    with model.write() as transaction:
        (uuid,) = accept_all(transaction, [NewRequest(b"a", [bytes(70_000)], owner=b"eve")], NOW)
        transaction.close(uuid, NOW)
    copy(model, database)
    with postgres.read() as transaction, model.read() as expected:
        entries = closed_in(expected, 0, 1000, 1 << 30)
        bulk = transaction.closed_bulk(1, 1000)
        assert [len(transaction.closed_bulk(first, 9).starts) for first in (1, 5, 9, 10)] == [9, 5, 1, 0]
        assert transaction.closed_bulk(len(entries) + 1, 1000).starts == []
        assert len(transaction.closed_bulk(1, 1000, max_bytes=1).starts) == 1
        assert transaction.cut_closed(1, 1000, 1) == 1
        assert transaction.cut_closed(1, 20, 1 << 30) == 20
        sizes = [one.request_bytes + one.reply_bytes for one in entries]
        assert 3 <= transaction.cut_closed(1, 20, sum(sizes[:5]) + 30) <= 5
    assert len(bulk.starts) == len(entries)
    assert any(entry.request_left_out for entry in bulk.apart.values())
    header = sum({"B": 1, "H": 2, "I": 4, "Q": 8, "16s": 16}[code] for _, code in CLOSED_LAYOUT)
    for n, (start, end, entry) in enumerate(zip(bulk.starts, [*bulk.starts[1:], len(bulk.data)], entries, strict=True)):
        record = bulk.data[start:end]
        several = len(entry.request) > 1 or len(entry.reply) > 1
        assert (n in bulk.apart) == (several or entry.request_left_out or entry.reply_left_out)
        if n in bulk.apart:
            frames = b"".join([*entry.request, *entry.reply])
            assert bulk.apart[n] == entry
            assert record.endswith(frames)
            record = record[: len(record) - len(frames)]
        assert len(record) >= header
        assert closed_record.decode(n + 1, memoryview(record)) == entry


def test_damage_is_named(database: str, postgres: PostgresStore) -> None:
    model = MemoryStore()
    live(model, random.Random(2), 100)
    with model.write() as transaction:
        new = NewRequest(b"a", [b"body"], expires_at=0)
        one, other, *rest = accept_all(transaction, [new] * 12, NOW)
        transaction.finish(other, Status.DONE, [b"reply"], attempts=1, dispatched_at=1, finished_at=NOW)
        for uuid in rest:
            transaction.close(uuid, NOW)
        last = closed_range(transaction)[1]
    copy(model, database)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE titanic.request SET body_bytes = 3 WHERE uuid = %s", [one.hex()])
        connection.execute("UPDATE titanic.reply SET frames = '{}' WHERE uuid = %s", [other.hex()])
        connection.execute("UPDATE titanic.closed SET status = 9 WHERE seq = %s", [last - 3])
        connection.execute("DELETE FROM titanic.closed WHERE seq = %s", [last - 6])
    with postgres.read() as transaction:
        for read, uuid in ((transaction.request, one), (transaction.reply, other)):
            with pytest.raises(RecordCorrupt, match=uuid.hex()):
                read(uuid)
        assert state_of(transaction, one) is State.WAITING
        assert transaction.describe(one).body_bytes == 3
        assert transaction.request(other).body == [b"body"]
        assert len(closed_in(transaction, last - 6, 2)) == 2
        for begin, missing in ((1, last - 6), (last - 5, last - 3)):
            with pytest.raises(RecordCorrupt, match=missing.to_bytes(8, "big").hex()):
                transaction.closed_bulk(begin, last)
        assert len(transaction.closed_bulk(last - 2, last).starts) == 3
