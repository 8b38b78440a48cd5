"""Two nodes share a database: what one has claimed, the other does not get, until the one gives it back or ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from support.postgres import needs_postgres, shared_server

from titanic.errors import StoreFailed
from titanic.store import NewRequest, Status
from titanic.store.postgres import incarnation
from titanic.store.postgres.store import PostgresStore

pytestmark = needs_postgres

NOW = 1_795_258_520_106_479
MUCH = 1 << 20


@pytest.fixture
def nodes() -> Iterator[tuple[PostgresStore, PostgresStore]]:
    server = shared_server()
    name = server.new_database()
    with PostgresStore.open(server.url(name)) as one, PostgresStore.open(server.url(name)) as other:
        yield one, other
    server.drop_database(name)


def accept(store, *services, size=10, **options):
    with store.write() as txn:
        return txn.accept_many([NewRequest(service, [bytes(size)], **options) for service in services], NOW)


def claim(store, *services, most=MUCH):
    """The ids by service."""
    with store.write() as txn:
        claimed = txn.claim(services, most)
    return {service: [row.uuid for row in rows] for service, rows in claimed.items()}


def test_a_request_is_claimed_once(nodes):
    one, other = nodes
    a, b, c = accept(one, b"x", b"x", b"x")
    (urgent,) = accept(other, b"y", priority=9)
    assert claim(one, (b"x", 2), (b"z", 5), (b"y", 1)) == {b"x": [a, b], b"z": [], b"y": [urgent]}
    assert claim(other, (b"x", 9), (b"y", 9)) == {b"x": [c], b"y": []}
    assert claim(one, (b"x", 9)) == {b"x": []}
    with one.read() as txn:
        assert txn.waiting() == {b"x": 3, b"y": 1}, "who runs them is not the store's business"


def test_a_claim_has_what_a_worker_gets(nodes):
    one, _ = nodes
    with one.write() as txn:
        new = NewRequest(b"x", [b"a", b"", b"c"], 3, 0, NOW + 10, 7, b"{}")
        (uuid,) = txn.accept_many([new], NOW)
        expected = txn.next_ready(b"x", None, 1, MUCH)
        assert txn.claim([(b"x", 1)], MUCH) == {b"x": expected}
    assert expected[0].uuid == uuid
    assert expected[0].body == new.body


def test_a_claim_ends_at_its_bytes(nodes):
    one, _ = nodes
    a, b, c = accept(one, b"x", b"x", b"x", size=1000)
    assert claim(one, (b"x", 9), (b"y", 1), most=2000) == {b"x": [a, b]}, "y was not looked at"
    assert claim(one, (b"x", 9), (b"y", 1), most=1) == {b"x": [c], b"y": []}, "one, however large"


def test_a_claim_with_fewer_bytes_has_all_there_is(nodes):
    """Who has claimed less than was asked for does not ask again before something comes. Only the bodies count."""
    one, _ = nodes
    uuids = accept(one, b"x", b"x", b"x", b"y", size=1000)
    assert claim(one, (b"x", 9), (b"y", 9), most=3001) == {b"x": uuids[:3], b"y": uuids[3:]}


def test_what_is_released_is_free(nodes):
    one, other = nodes
    a, b = accept(one, b"x", b"x")
    claim(one, (b"x", 2))
    with other.write() as txn:
        txn.release([a])
    assert claim(other, (b"x", 2)) == {b"x": []}, "only who has claimed it can release it"
    with one.write() as txn:
        txn.release([a])
    assert claim(other, (b"x", 2)) == {b"x": [a]}
    with one.write() as txn:
        assert txn.finish(b, Status.DONE, [], attempts=1, dispatched_at=NOW, finished_at=NOW)
        assert txn.finish(a, Status.DONE, [], attempts=1, dispatched_at=NOW, finished_at=NOW), "the work is done"


def test_a_node_in_doubt_keeps_what_it_executes_and_gives_back_the_rest(nodes):
    one, other = nodes
    a, b = accept(one, b"x", b"x")
    claim(one, (b"x", 2))
    with one.write() as txn:
        txn.release_all_but([a])
    assert claim(other, (b"x", 9)) == {b"x": [b]}
    with one.write() as txn:
        txn.release_all_but([a, b])
        txn.release([a, b])
    assert claim(one, (b"x", 9)) == {b"x": [a]}, "b is not its own"


def test_a_doubt_that_was_dropped_changes_nothing(nodes):
    one, other = nodes
    (a,) = accept(one, b"x")
    claim(one, (b"x", 1))
    with suppress(ZeroDivisionError), one.write() as txn:
        txn.release_all_but([])
        raise ZeroDivisionError
    assert claim(other, (b"x", 1)) == {b"x": []}
    with one.write() as txn:
        txn.release_all_but([])
    assert claim(other, (b"x", 1)) == {b"x": [a]}


def test_a_node_that_ends_leaves_its_claims_to_others(nodes):
    one, other = nodes
    (a,) = accept(one, b"x")
    claim(one, (b"x", 1))
    one.close()
    assert claim(other, (b"x", 1)) == {b"x": [a]}


def test_a_node_that_is_silent_loses_its_claims(nodes, monkeypatch):
    one, other = nodes
    for node in nodes:
        node.caretaker.stop()  # it would look by itself
    (a,) = accept(one, b"x")
    claim(one, (b"x", 1))
    claim(other, (b"x", 1))  # it has joined
    monkeypatch.setattr(incarnation, "RENEW", 0)
    other.look_after()
    one.look_after()
    other.look_after()  # one has renewed its lease
    monkeypatch.setattr(incarnation, "LEASE", -1)
    one.look_after()
    other.look_after()
    assert claim(other, (b"x", 1)) == {b"x": []}, "it was not silent"
    other.look_after()
    assert claim(other, (b"x", 1)) == {b"x": [a]}
    with pytest.raises(StoreFailed, match="others"):
        claim(one, (b"x", 1))
    with one.write() as txn:
        txn.release_all_but([a])
    assert claim(one, (b"x", 1)) == {b"x": []}, "it has begun anew"


def test_what_runs_elsewhere_does_not_expire(nodes):
    one, other = nodes
    a, b = accept(one, b"x", b"x", expires_at=NOW + 1)
    claim(one, (b"x", 1))
    with other.write() as txn:
        assert txn.expire(NOW + 2) == [(b, b"x")]
    with one.write() as txn:
        assert txn.expire(NOW + 2, skip=[a]) == []
        assert txn.expire(NOW + 2) == [(a, b"x")]
