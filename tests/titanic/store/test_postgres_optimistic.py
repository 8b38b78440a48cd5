"""What a transaction relies on without asking, and what becomes of it when another node was quicker."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import psycopg
import pytest
from support.desk import Desk
from support.postgres import needs_postgres
from support.store_facts import accept_all, closed_in, holder_of, state_of
from support.waiting import until

from titanic.errors import StoreFailed, WriteConflict
from titanic.protocol import tsp
from titanic.store import Archivist, CloseResult, LeaseConfig, NewRequest, NodeFacts, Place, Retention, State, Status
from titanic.store.postgres.store import PostgresStore
from titanic.store.postgres.tools import check
from titanic.store.postgres.transaction import MOST_REPLIES
from titanic.store.uniqueness import made_unique

pytestmark = needs_postgres

NOW = 1_795_258_520_106_479
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def nodes(url: str) -> Iterator[tuple[PostgresStore, PostgresStore]]:
    with PostgresStore.open(url) as one, PostgresStore.open(url) as other:
        yield one, other
        assert check(one) == []


def new(key=b"", owner=b"", **options):
    return NewRequest(b"x", [b"body"], key=key, key_until=NOW + 10 if key else 0, owner=owner, **options)


def submit(store, *requests, forget=(), owner=b"", now=NOW):
    """In hope. Which of them are new."""
    with store.write() as txn:
        txn.optimistic()
        txn.forget(forget, owner)
        return [one.new for one in txn.accept(requests, now)]


def test_new_keys_and_old_ones_cost_no_round_trip(nodes, trips):
    one, other = nodes
    assert submit(one, new(b"a"), new(b"a", b"eve"), new(b"b", together=2), new()) == [True] * 4
    assert submit(one, new(b"c"), forget=[b"a", b"unknown"]) == [True]
    with one.read() as txn:
        before = txn.load(b"eve").bytes
    del trips[2:]
    assert submit(one, new(b"d", b"eve"), forget=[b"a"], owner=b"eve") == [True]
    assert trips == [1, 1, 1]
    with other.read() as txn:
        assert [holder_of(txn, key) is not None for key in (b"a", b"b", b"c")] == [False, True, True]
        assert holder_of(txn, b"a", b"eve") is None
        assert txn.load(b"eve").waiting == 2
        assert txn.load(b"eve").bytes > before


def test_all_that_is_submitted_in_a_commit_is_one_statement(nodes, trips):
    one, _ = nodes
    with one.write() as txn:
        txn.optimistic()
        first = txn.accept([new(b"a"), new(b"b")], NOW)
        again = txn.accept([new(b"c"), new(b"a")], NOW)
        assert [one.uuid for one in txn.fresh([new(b"c"), new(b"d")], NOW) if one.key == b"c"] == []
        assert [one.new for one in again] == [True, False]
        assert again[1].uuid == first[0].uuid
    assert trips == [1, 2], "what `fresh` asks; the rest and COMMIT"


def test_a_key_that_was_forgotten_is_free_in_the_same_transaction(nodes):
    one, _ = nodes
    assert submit(one, new(b"a")) == [True]
    assert submit(one, new(b"a"), new(b"b"), forget=[b"a"]) == [True, True]
    with one.write() as txn:
        txn.optimistic()
        assert txn.accept([new(b"c")], NOW)[0].new
        txn.forget([b"c"])
        assert txn.accept([new(b"c")], NOW)[0].new
    with one.read() as txn:
        assert txn.counts().requests == 5


def test_who_was_outrun_asks_the_next_time(nodes):
    one, other = nodes
    assert submit(other, new(b"a")) == [True]
    with pytest.raises(WriteConflict, match="another node"):
        submit(one, new(b"a"), new(b"b"))
    with one.read() as txn:
        assert txn.counts().requests == 1
    assert submit(one, new(b"a"), new(b"b")) == [False, True]
    assert submit(one, new(b"a"), now=NOW + 20) == [True], "its time is over"


def test_a_client_is_not_told_that_a_node_was_outrun(nodes):
    one, other = nodes
    desk = Desk(one)
    desk.writer.start()
    submission = [b'{"key": "k"}', b"x", b"body"]
    try:
        with other.write() as txn:
            (first,) = accept_all(txn, [new(b"k")._replace(key_until=2**62)], NOW)
        assert desk.ask(tsp.SUBMIT, submission) == [[b"200", first.hex().encode()]]
    finally:
        desk.writer.stop()


def test_an_archive_and_what_is_closed_do_not_wait_for_each_other(nodes, url):
    """Whoever has the row of `meta` waits for nothing else."""
    one, other = nodes
    with one.write() as txn:
        a, b = accept_all(txn, [new(), new()], NOW)
        txn.close(a, NOW)
        txn.update_archive(register=True)

    def close() -> None:
        with other.write() as txn:
            txn.close(b, NOW)

    thread = Thread(target=close)
    with psycopg.connect(url) as watcher, one.write() as txn:
        txn.update_archive(upto=1)
        assert txn.archive().archived_upto == 1
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), "it waits for the archive"
        assert state_of(txn, b) is None
        until(lambda: watcher.execute("SELECT closed_last FROM titanic.meta").fetchone() == (2,))
    with other.read() as txn:
        assert txn.archive()[:4] == (True, 1, 1, 2)


def test_two_who_change_the_agreement_at_once_do_not_overwrite_each_other(nodes):
    one, other = nodes
    with pytest.raises(StoreFailed, match="another node"), one.write() as txn:  # noqa: PT012
        txn.update_archive(Archivist(b"a" * 16, "first"), register=True)
        with other.write() as second:
            second.update_archive(Archivist(b"b" * 16, "second"), register=True)
    with one.read() as txn:
        assert txn.archive().archivist == Archivist(b"b" * 16, "second")


def test_reading_what_was_foreseen_is_one_round_trip(nodes, trips):
    one, other = nodes
    with one.write() as txn:
        a, b = accept_all(txn, [new(), new()], NOW)
    del trips[:]
    with one.read() as txn:
        txn.prefetch([a, b], replies=True)
        assert txn.reply(a) is not None
        assert not txn.started, "there is nothing to roll back"
    assert trips == [1]
    with one.read() as txn:
        txn.prefetch([a, b])
        with other.write() as second:
            second.close(a)
        assert txn.request(a) is None
        assert txn.request(b) is not None


ME = 1
ENDED = {"attempts": 1, "dispatched_at": NOW, "finished_at": NOW}


def claimed(store, n, **options):
    """Requests that a node has claimed, alone in its transaction."""
    with store.write() as txn:
        uuids = accept_all(txn, [new(**options)] * n, NOW)
    store.join(ME, None, (), NodeFacts("one", "", [], {}), LeaseConfig(renew=60.0))
    with store.write() as txn:
        txn.optimistic(alone=True)
        rows = txn.claim(ME, {b"x": n}, 1 << 20, {}).rows[b"x"]
    assert [row.uuid for row in rows] == uuids
    return uuids


def finish(store, *uuids, status=Status.DONE):
    with store.write() as txn:
        txn.optimistic()
        txn.prefetch(uuids)
        return [txn.finish(uuid, status, [b"reply"], **ENDED) for uuid in uuids]


def close(store, *uuids):
    with store.write() as txn:
        txn.optimistic()
        txn.prefetch(uuids)
        return [txn.close(uuid, NOW) for uuid in uuids]


@pytest.mark.parametrize("n", [1, 100])
def test_what_a_node_has_claimed_ends_and_closes_in_one_round_trip_each(nodes, trips, n):
    one, other = nodes
    uuids = claimed(one, n, owner=b"eve", expires_at=NOW + 10)
    assert trips == [1, 1], "accepted; claimed"
    assert finish(one, *uuids) == [True] * n
    with other.read() as txn:
        assert [txn.reply(uuid).frames for uuid in uuids] == [[b"reply"]] * n
        assert txn.load(b"eve").waiting == txn.counts().waiting == 0
    trips.clear()
    assert [one.state for one in close(one, *uuids)] == [State.DONE] * n
    assert trips == [1]
    with other.read() as txn:
        assert txn.counts().requests == 0
        assert [closed.reply for closed in closed_in(txn, 0, n, 1 << 20)] == [[b"reply"]] * n


def test_what_another_node_has_closed_meanwhile_does_not_end(nodes):
    one, other = nodes
    a, b = claimed(one, 2)
    assert close(other, a) == [CloseResult(b"x", State.WAITING)]
    with pytest.raises(WriteConflict):
        finish(one, a, b)
    with one.read() as txn:
        assert state_of(txn, b) is State.WAITING, "nothing was kept"
    assert finish(one, a, b) == [False, True]


def test_a_unique_name_stays_or_goes_with_what_other_nodes_do_meanwhile(nodes, url):
    one, other = nodes
    unique = made_unique(new(options=b'{"unique":"a"}'), "a", "done", 0)
    with psycopg.connect(url, autocommit=True) as watcher:

        def meanwhile(uuid: bytes) -> Thread:
            """Close a request, which waits for a lock when this returns."""

            def close() -> None:
                with one.write() as txn:
                    txn.close(uuid, NOW)

            thread = Thread(target=close)
            thread.start()
            until(lambda: watcher.execute(WAITING).fetchone() == (1,))
            return thread

        def failed() -> bytes:
            with other.write() as txn:
                (made,) = txn.accept([unique], NOW)
                assert made.new
                assert txn.finish(made.uuid, Status.FAILED, [], attempts=1, dispatched_at=NOW, finished_at=NOW)
            return made.uuid

        first = failed()
        with other.write() as txn:
            (second,) = txn.accept([unique], NOW)
            thread = meanwhile(first)
        thread.join(60)
        with other.write() as txn:
            assert txn.accept([unique], NOW) == [(second.uuid, False)]
            txn.finish(second.uuid, Status.FAILED, [], attempts=1, dispatched_at=NOW, finished_at=NOW)
        third = failed()
        with other.write() as txn:
            txn.close(third, NOW)
            txn.flush()
            thread = meanwhile(second.uuid)
        thread.join(60)
        assert watcher.execute("SELECT count(*) FROM titanic.key").fetchone() == (0,)


def test_who_ends_a_request_waits_for_who_closes_it(nodes):
    one, other = nodes
    (a,) = claimed(one, 1)
    found: list[object] = []

    def end() -> None:
        try:
            finish(one, a)
        except WriteConflict as error:
            found.append(error)

    thread = Thread(target=end)
    with other.write() as txn:
        assert txn.close(a, NOW) is not None
        txn.flush()
        thread.start()
        thread.join(0.2)
        assert thread.is_alive(), "it waits"
    thread.join(60)
    assert len(found) == 1
    assert finish(one, a) == [False]


def test_what_is_relied_on_is_never_why_something_is_refused(nodes):
    """It has failed here, and was tried again there: a late reply counts."""
    one, other = nodes
    (a,) = claimed(one, 1)
    assert finish(one, a, status=Status.FAILED) == [True]
    with other.write() as txn:
        assert txn.retry(a, NOW)
    assert finish(one, a) == [True]
    with one.write() as txn:
        txn.optimistic()
        txn.prefetch([a])
        assert txn.owner(a) == b""
        assert state_of(txn, a) is State.DONE
        assert txn.reply(a).frames == [b"reply"]
        assert txn.close(a, NOW)[:2] == (b"x", State.DONE)


@pytest.mark.parametrize("action", ["retry", "close"])
def test_what_another_node_has_retried_ended_in_another_way(nodes, action):
    """It failed here, and succeeded there: it is not executed again, and its reply stays; counters are right."""
    one, other = nodes
    (a,) = claimed(one, 1, owner=b"eve")
    assert finish(one, a, status=Status.FAILED) == [True]
    with other.write() as txn:
        assert txn.retry(a, NOW)
        assert txn.finish(a, Status.DONE, [b"another reply"], **(ENDED | {"finished_at": NOW + 9}))

    def act() -> None:
        with one.write() as txn:
            txn.optimistic()
            txn.prefetch([a])
            getattr(txn, action)(a, NOW)

    with pytest.raises(WriteConflict):
        act()
    with one.write() as txn:
        assert not txn.retry(a, NOW)
        assert txn.reply(a).frames == [b"another reply"]
    assert check(one) == []


def test_what_has_ended_at_another_node_is_closed_in_time(nodes):
    one, other = nodes
    (a,) = claimed(one, 1)
    with one.write() as txn:
        txn.release(ME, [Place(b"x", 9 - new().priority, a)])
    assert finish(other, a) == [True]
    policy = Retention(reply_retention=5)
    with one.write() as txn:
        txn.optimistic()
        trimmed = txn.trim(NOW + 5, policy)
        assert (trimmed.replies, trimmed.services) == (1, {b"x": 1})
    assert check(one) == []


def test_a_large_reply_that_another_node_closes_after_it_was_foreseen_is_none(nodes):
    one, other = nodes
    (a,) = claimed(one, 1)
    with one.write() as txn:
        txn.finish(a, Status.DONE, [bytes(MOST_REPLIES + 1)], **ENDED)
    with one.read() as txn:
        txn.prefetch([a], replies=True)
        txn.prefetch([a])
        with other.write() as writing:
            assert writing.close(a, NOW)
        txn.counts()
        assert txn.reply(a) is None


def test_what_is_due_again_was_not_where_it_was(nodes):
    one, _ = nodes
    (a,) = claimed(one, 1)
    with one.write() as txn:
        txn.optimistic()
        txn.prefetch([a])
        assert txn.postpone(a, due=NOW + 1, attempts=1, dispatched_at=NOW, reason="no")
        assert txn.finish(a, Status.DONE, [], **ENDED), "twice in a transaction"
    with one.write() as txn:
        (b,) = accept_all(txn, [new()], NOW)
        txn.claim(ME, {b"x": 1}, 1 << 20, {})
    with one.write() as txn:
        txn.optimistic()
        assert txn.postpone(b, due=NOW + 1, attempts=1, dispatched_at=NOW, reason="no")
    with one.write() as txn:
        assert txn.promote(NOW + 1) == [(b"x", 1)]
    assert finish(one, b) == [True]


def test_another_node_has_changed_the_body_of_a_request_that_was_claimed_before(nodes):
    one, other = nodes
    (uuid,) = claimed(one, 1, owner=b"eve")
    with one.write() as txn:
        txn.release(ME, [Place(b"x", 9 - new().priority, uuid)])
    with other.write() as txn:
        assert txn.change(uuid, NOW, body=[b"body" * 1000]) is not None
    with pytest.raises(WriteConflict):
        close(one, uuid)
    assert close(one, uuid) == [CloseResult(b"x", State.WAITING, owner=b"eve")]
    assert check(one) == []


@pytest.mark.parametrize("changes", [{"priority": 9}, {"due": NOW + 10}, {"priority": 0, "due": NOW + 10}])
@pytest.mark.parametrize("delayed", [False, True])
def test_what_another_node_has_changed(nodes, changes, delayed):
    """Counters are right then: `check` finds nothing."""
    one, other = nodes
    with one.write() as txn:
        (uuid,) = accept_all(txn, [new(owner=b"eve", not_before=NOW + 5 if delayed else 0)], NOW)
    with other.write() as txn:
        assert txn.change(uuid, NOW, **changes) is not None
    for hope in (True, False):
        try:
            with one.write() as txn:
                if hope:
                    txn.optimistic()
                txn.prefetch([uuid])
                assert txn.close(uuid).service == b"x"
            break
        except WriteConflict:
            assert hope
    assert check(one) == []
