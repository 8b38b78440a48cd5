"""What a node finds of the others in the database, and the recalls of what was closed while another had claimed it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.postgres import needs_postgres, shared_server
from support.store_facts import accept_all, closed_range

from titanic.store import LeaseConfig, NewRequest, NodeFacts, Place, Recall, Retention, State, Status, StatusQuery
from titanic.store.postgres import lifecycle
from titanic.store.postgres.store import PostgresStore
from titanic.store.postgres.tools import check

pytestmark = needs_postgres

NOW = 1_795_258_520_106_479
MUCH = 1 << 20
ONE, OTHER = 1, 2
FINISHED = {"attempts": 1, "dispatched_at": NOW, "finished_at": NOW}


@pytest.fixture
def nodes() -> Iterator[tuple[PostgresStore, PostgresStore]]:
    """Two, which have joined as ONE and OTHER."""
    server = shared_server()
    name = server.new_store()
    with PostgresStore.open(server.url(name)) as one, PostgresStore.open(server.url(name)) as other:
        join(one, ONE)
        join(other, OTHER)
        yield one, other
        assert check(one) == []
    server.drop_database(name)


def join(store, incarnation, before=None, held=()):
    assert store.join(incarnation, before, held, NodeFacts("n", "v"), LeaseConfig(renew=60.0)).alive


def accept(store, *services, **options):
    with store.write() as txn:
        return accept_all(txn, [NewRequest(service, [b"body"], **options) for service in services], NOW)


def claim(store, incarnation, service, count):
    with store.write() as txn:
        found = txn.claim(incarnation, {service: count}, MUCH, {})
    return [row.uuid for row in found.rows.get(service, ())]


def close(store, *uuids):
    with store.write() as txn:
        txn.prefetch(uuids)
        return [txn.close(uuid, NOW) is not None for uuid in uuids]


def recalled(store, uuids):
    with store.read() as txn:
        return set(txn.recalled(uuids))


def look(store, awaited=(), flights=(), incarnations=(), recalled=()):
    with store.read() as txn:
        return txn.cluster_view(StatusQuery(awaited, flights, incarnations, recalled))


def test_a_close_leaves_a_recall_for_the_node_that_has_claimed_it(nodes):
    one, other = nodes
    a, b, c, d = accept(one, b"x", b"x", b"x", b"x")
    assert claim(other, OTHER, b"x", 2) == [a, b]
    assert claim(one, ONE, b"x", 1) == [c]
    assert all(close(one, a, b, c, d))
    assert recalled(one, [a, b, c, d]) == {Recall(a, OTHER), Recall(b, OTHER)}, "its own, and what is free, it knows"
    assert close(one, a) == [False]
    assert set(look(other, incarnations=[OTHER]).recalls) == {Recall(a, OTHER), Recall(b, OTHER)}
    assert look(one, incarnations=[ONE]).recalls == []
    with other.write() as txn:
        txn.settle([(a, OTHER), (b, ONE)])
    assert recalled(one, [a, b]) == {Recall(b, OTHER)}, "the other one settles only what is its own"
    assert look(one, recalled=[a, b]).recalled == [Recall(b, OTHER)]


@pytest.mark.parametrize("hopes", [False, True])
def test_a_close_that_relies_on_what_it_knows_leaves_one_too(nodes, hopes):
    one, other = nodes
    (a,) = accept(one, b"x")
    with one.write() as txn:
        txn.prefetch([a])
        assert txn.describe(a).state is State.WAITING
    assert claim(other, OTHER, b"x", 1) == [a]
    with one.write() as txn:
        if hopes:
            txn.optimistic()
        txn.prefetch([a])
        assert txn.close(a, NOW) is not None
    assert recalled(one, [a]) == {Recall(a, OTHER)}


def test_what_has_ended_or_was_claimed_by_a_dead_node_leaves_none(nodes):
    one, other = nodes
    a, b = accept(one, b"x", b"x")
    assert claim(other, OTHER, b"x", 2) == [a, b]
    with other.write() as txn:
        txn.finish(a, Status.DONE, [b"R"], **FINISHED)
    other.leave([OTHER])
    assert all(close(one, a, b))
    assert recalled(one, [a, b]) == set()


def test_a_recall_says_that_its_incarnation_is_over_and_old_ones_go_with_others(nodes):
    one, other = nodes
    a, b = accept(one, b"x", b"x")
    claim(other, OTHER, b"x", 2)
    close(one, a, b)
    join(other, 3, OTHER)
    assert recalled(one, [a, b]) == {Recall(a, OTHER, True), Recall(b, OTHER, True)}
    with one.write() as txn:
        txn.settle([(a, OTHER)])
    assert recalled(one, [a, b]) == {Recall(b, OTHER, True)}
    with one.write() as txn:
        txn.fetch("UPDATE recall SET since = since - interval '2 hours'")
        txn.settle([(a, OTHER)])
    assert recalled(one, [b]) == set()


def test_what_moved_to_the_next_incarnation_is_recalled_from_that(nodes):
    one, other = nodes
    (a,) = accept(one, b"x")
    claim(other, OTHER, b"x", 1)
    join(other, 3, OTHER, [Place(b"x", 5, a)])
    close(one, a)
    assert recalled(one, [a]) == {Recall(a, 3)}


def test_a_look_finds_what_has_ended_and_what_was_closed(nodes):
    one, other = nodes
    a, b, c, d = accept(one, b"x", b"x", b"x", b"x")
    with one.write() as txn:
        txn.finish(b, Status.FAILED, [], **FINISHED)
        txn.postpone(c, due=NOW * 2, attempts=1, dispatched_at=NOW, reason="")
    close(one, d)
    sight = look(other, awaited=[a, b, c, d, bytes(16)], flights=[a, b, c, d], incarnations=[OTHER])
    assert set(sight.ended) == {b, d, bytes(16)}
    assert set(sight.closed) == {d}
    assert sight.others == 1
    one.leave([ONE])
    assert look(other, incarnations=[OTHER]).others == 0


def test_running_is_what_a_node_has_claimed_that_has_not_ended(nodes):
    one, other = nodes
    a, b, c, d = accept(one, b"x", b"x", b"x", b"y", owner=b"shop")
    (e,) = accept(one, b"x")
    assert claim(one, ONE, b"x", 1) == [a]
    assert claim(other, OTHER, b"x", 1) == [b]
    assert claim(other, OTHER, b"y", 1) == [d]
    with one.read() as txn:
        assert txn.running([a, b, c, d, e, bytes(16)]) == {a, b, d}
        assert txn.running([]) == set()

        def listed(service=None, owner=None, after=None, limit=9, **more):
            page = txn.list_running(service=service, owner=owner, after=after, limit=limit, **more)
            return [row.uuid for row in page], page.next

        assert listed() == ([a, b, d], None)
        assert listed(b"x") == ([a, b], None)
        assert listed(owner=b"shop") == ([a, b, d], None)
        assert listed(owner=b"nobody") == ([], None)
        assert listed(limit=2) == ([a, b], b)
        assert listed(after=b, limit=2) == ([d], None)
        assert listed(limit=2, newest=True) == ([d, b], b)
        assert listed(after=b, limit=2, newest=True) == ([a], None)
        assert listed(text="broke") == ([], None)
    other.leave([OTHER])
    with one.read() as txn:
        assert txn.running([a, b, c, d]) == {a}
        assert [row.uuid for row in txn.list_running(service=None, owner=None, after=None, limit=9)] == [a]


def test_what_one_closes_while_another_agrees_with_the_archive_is_counted_once(nodes):
    """Of owners, it counts while it waits for a registered archive."""
    one, other = nodes
    owners = [b"eve", b"bob", b""]

    def close_many():
        for n in range(60):
            uuids = [uuid for owner in owners for uuid in accept(other, *[b"x"] * (n % 3 + 1), owner=owner)]
            assert all(close(other, *uuids))

    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(close_many)
        while not closing.done():
            with one.write() as txn:
                txn.update_archive(register=True)
            with one.write() as txn:
                txn.update_archive(upto=sum(closed_range(txn)) // 2)
            with one.write() as txn:
                txn.trim(NOW + 2, Retention(closed_retention=1))
            with one.write() as txn:
                txn.update_archive(register=False)
        closing.result()
    with one.read() as txn:
        assert closed_range(txn)[1] == 360
        assert [txn.load(owner).bytes for owner in owners] == [0, 0, 0]


def test_bodies_that_two_delete_at_once_are_deleted_once(nodes, monkeypatch):
    """And one that was retried since a node found it due keeps its body."""
    one, other = nodes
    job = NewRequest(b"x", [b"body"], options=b'{"keep_body": 5}', owner=b"eve")
    with one.write() as txn:
        uuids = accept_all(txn, [job] * 60, NOW)
        for uuid in uuids:
            txn.finish(uuid, Status.FAILED, [], **FINISHED, reason="why")
    with other.write() as txn:
        assert txn.retry(uuids[0], NOW)

    def delete(store):
        count = 0
        for _ in range(20):
            with store.write() as txn:
                count += txn.trim(NOW + 5_000_000, limit=7).bodies
        return count

    with ThreadPoolExecutor(2) as threads:
        assert sum(threads.map(delete, nodes)) == 59
    with one.read() as txn:
        assert [txn.request(uuid).body for uuid in uuids] == [[b"body"], *[[]] * 59]
    # What a node finds whose search had begun before the other's commit, and that locks it after it.
    monkeypatch.setattr(lifecycle, "_BODIES", "SELECT uuid FROM request WHERE %s > 0 LIMIT %s")
    with one.write() as txn:
        assert txn.trim(NOW + 5_000_000).bodies == 0


def test_what_is_retried_while_a_node_is_about_to_close_it_stays(nodes, monkeypatch):
    """The node's search had begun before the retry, and locks the request after it: so it finds it."""
    one, other = nodes
    with one.write() as txn:
        (uuid,) = accept_all(txn, [NewRequest(b"x", [b"body"], options=b'{"keep_failed": 5}')], NOW)
        txn.finish(uuid, Status.FAILED, [], **FINISHED, reason="why")
    with other.write() as txn:
        assert txn.retry(uuid, NOW)
    monkeypatch.setattr(lifecycle, "_KEPT", "SELECT uuid FROM request WHERE %s > 0 LIMIT %s")
    with one.write() as txn:
        assert txn.trim(NOW + 5_000_000).services == {}
    with one.read() as txn:
        assert txn.describe(uuid).state is State.WAITING
