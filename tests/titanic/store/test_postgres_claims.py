"""Nodes share a database: what one has claimed, the others do not get, until it gives it back, ends, or is ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from itertools import count as count_up

import psycopg
import pytest
from support.postgres import needs_postgres, shared_server
from support.store_facts import accept_all, waiting_in
from support.waiting import until

from titanic.errors import OutcomeUnknown, RecordCorrupt, StoreFailed, StoreTooNew, WriteConflict
from titanic.store import Bound, LeaseConfig, NewRequest, NodeFacts, Place, Silent, State, Status
from titanic.store.postgres import claims, queries
from titanic.store.postgres import nodes as nodes_module
from titanic.store.postgres import store as postgres_store
from titanic.store.postgres.claims import CONTENDED
from titanic.store.postgres.schema import FORMAT
from titanic.store.postgres.store import PostgresStore
from titanic.store.postgres.tools import check
from titanic.store.postgres.transaction import PostgresReading

pytestmark = needs_postgres

NOW = 1_795_258_520_106_479
MUCH = 1 << 20
NAMES = NodeFacts("host", "1.0", ["tcp://host:5555"], {b"x": (2, 1), b"\xff\0": (1, 0)})
LEASE = LeaseConfig(renew=60.0)
"""Such statements have as long for an answer: a busy machine may stand still."""
_numbers = count(1)


class Node:
    """A store, and under which incarnation it claims."""

    def __init__(self, url: str) -> None:
        self.store = PostgresStore.open(url)
        self.database = url.split("?")[0].rpartition("/")[2]
        self.join()

    def join(self, *held: Place, before: int | None = None):
        self.me = next(_numbers)
        self.joined = self.store.join(self.me, before, held, NAMES, LEASE)
        return self.joined

    def renew(self, *silent: Silent):
        return self.store.renew(self.me, silent, NAMES, LEASE)

    def accept(self, *services, size=10, **options):
        with self.store.write() as txn:
            return accept_all(txn, [NewRequest(service, [bytes(size)], **options) for service in services], NOW)

    def claim_all(self, *wants, most=MUCH, **bounds):
        with self.store.write() as txn:
            return txn.claim(
                self.me, dict(wants), most, {name.encode(): Bound(bound) for name, bound in bounds.items()}
            )

    def claim(self, *wants, most=MUCH, **bounds):
        """The ids by service."""
        rows = self.claim_all(*wants, most=most, **bounds).rows
        return {service: [row.uuid for row in found] for service, found in rows.items()}

    def release(self, *uuids, service=b"x"):
        with self.store.write() as txn:
            txn.release(self.me, [Place(service, 5, uuid) for uuid in uuids])
            txn.count_no_more(self.me, [Place(service, 5, uuid) for uuid in uuids])

    def end(self, uuid, status=Status.DONE, service=b"x"):
        """Whether it counts."""
        with self.store.write() as txn:
            txn.under(self.me, [] if status == Status.DONE else [uuid])
            txn.count_no_more(self.me, [Place(service, 5, uuid)])
            return txn.finish(uuid, status, [b"reply"], attempts=1, dispatched_at=NOW, finished_at=NOW)

    def postpone(self, *uuids):
        with self.store.write() as txn:
            txn.under(self.me, uuids)
            return [txn.postpone(uuid, due=NOW, attempts=1, dispatched_at=NOW, reason="") for uuid in uuids]


@pytest.fixture(autouse=True)
def full_claims(monkeypatch) -> None:
    """On a busy machine a claim may be slow, and the next ones then pass over what became free before it."""
    monkeypatch.setattr(claims, "SLOW", 1e9)


@pytest.fixture
def nodes(url) -> Iterator[tuple[Node, Node]]:
    one, other = Node(url), Node(url)
    with one.store, other.store:
        yield one, other
        assert check(one.store) == []


def places(*uuids, service=b"x"):
    return [Place(service, 5, uuid) for uuid in uuids]


# -- claims ---------------------------------------------------------------------------------------------------


def test_a_request_is_claimed_once(nodes):
    one, other = nodes
    a, b, c = one.accept(b"x", b"x", b"x")
    (urgent,) = other.accept(b"y", priority=9)
    assert one.claim((b"x", 2), (b"z", 5), (b"y", 1)) == {b"x": [a, b], b"y": [urgent]}
    assert other.claim((b"x", 9), (b"y", 9)) == {b"x": [c]}
    assert one.claim((b"x", 9)) == {}
    with one.store.read() as txn:
        assert waiting_in(txn) == {b"x": 3, b"y": 1}, "who runs them is not asked here"


def test_a_claimed_request_is_not_changed(nodes):
    one, other = nodes
    a, b = one.accept(b"x", b"x")
    assert one.claim((b"x", 1)) == {b"x": [a]}
    for node in nodes:
        with node.store.write() as txn:
            assert txn.change(a, NOW, priority=9, due=NOW + 10) is None
    with other.store.write() as txn:
        assert txn.change(b, NOW, priority=9) == (b"x", State.WAITING)
    assert one.claim((b"x", 1)) == {b"x": [b]}
    with one.store.write() as txn:
        txn.keep(one.me, [Place(b"x", 0, b)])
    one.store.leave([one.me])
    with other.store.write() as txn:
        assert txn.change(b, NOW, priority=8) is None, "its worker may come back with it"
        assert txn.change(a, NOW, priority=8) == (b"x", State.WAITING)
    assert other.claim((b"x", 2)) == {b"x": [a]}


def test_a_claim_has_what_a_worker_gets(nodes):
    one, _ = nodes
    with one.store.write() as txn:
        new = NewRequest(b"x", [b"a", b"", b"c"], 3, 0, NOW + 10, 7, b"{}")
        (uuid,) = accept_all(txn, [new], NOW)
        expected = txn.next_ready(b"x", None, 1, MUCH)
        assert txn.claim(one.me, {b"x": 1}, MUCH, {}).rows == {b"x": expected}
    assert expected[0].uuid == uuid
    assert expected[0].body == new.body


def test_a_claim_ends_at_its_bytes_and_says_who_had_more(nodes):
    one, _ = nodes
    a, b, c = one.accept(b"x", b"x", b"x", size=1000)
    (d,) = one.accept(b"y", size=1000)
    found = one.claim_all((b"x", 9), (b"y", 1), most=2000)
    assert [row.uuid for row in found.rows.pop(b"x")] == [a, b]
    assert found.rows == {}
    assert set(found.more) == {b"x", b"y"}
    found = one.claim_all((b"x", 9), (b"y", 1), most=1)
    assert [row.uuid for row in found.rows[b"x"]] == [c], "one, however large"
    assert b"y" in found.more
    assert one.claim((b"x", 9), (b"y", 1)) == {b"y": [d]}


def test_a_claim_with_fewer_bytes_has_all_there_is(nodes):
    """Who has claimed less than was asked for does not ask again before something comes. Only the bodies count."""
    one, _ = nodes
    uuids = one.accept(b"x", b"x", b"x", b"y", size=1000)
    found = one.claim_all((b"x", 9), (b"y", 9), most=3001)
    assert [row.uuid for rows in found.rows.values() for row in rows] == uuids
    assert not found.more


def test_what_others_have_locked_is_passed_over(nodes):
    one, other = nodes
    a, b = one.accept(b"x", b"x")
    with one.store.write() as txn:
        assert [row.uuid for row in txn.claim(one.me, {b"x": 1}, MUCH, {}).rows[b"x"]] == [a]
        assert other.claim((b"x", 9)) == {b"x": [b]}


def test_what_is_released_is_free(nodes):
    one, other = nodes
    a, b = one.accept(b"x", b"x")
    one.claim((b"x", 2))
    other.release(a)
    assert other.claim((b"x", 2)) == {}, "only who has claimed it can release it"
    one.release(a)
    assert other.claim((b"x", 2)) == {b"x": [a]}
    assert one.end(b)
    assert one.end(a), "the work is done"
    assert not other.end(a), "by somebody"


def test_a_damaged_request_is_claimed_without_its_body(nodes):
    one, _ = nodes
    a, b = one.accept(b"x", b"x")
    with one.store.write() as txn:
        txn.fetch("UPDATE request SET body_bytes = body_bytes + 1 WHERE uuid = %s::uuid", a.hex())
    found = one.claim_all((b"x", 9))
    assert [(row.uuid, row.body) for row in found.rows[b"x"]] == [(a, []), (b, [bytes(10)])]
    assert isinstance(found.damaged[a], RecordCorrupt)
    assert len(found.damaged) == 1
    with one.store.write() as txn:
        txn.fetch("UPDATE request SET body_bytes = body_bytes - 1 WHERE uuid = %s::uuid", a.hex())


def test_a_claim_costs_two_round_trips_and_a_bound_one_more(nodes, trips):
    one, _ = nodes
    one.accept(*[b"x"] * 9)
    del trips[:]
    one.claim((b"x", 3))
    assert trips == [1, 1], "the claim, and whether it is over; COMMIT"
    del trips[:]
    one.claim((b"x", 3), x=9)
    assert trips == [2, 1, 1, 1]
    del trips[:]
    with one.store.write() as txn:
        txn.release(one.me, places(bytes(16)))
    assert trips == [1, 1]


# -- who stands still ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0, 1])
def test_who_stands_still_in_the_middle_of_a_claim_holds_up_the_others_no_longer_than_a_lease(
    nodes, monkeypatch, bound
):
    monkeypatch.setattr(nodes_module, "STALLED", 0.2)
    one, other = nodes
    uuids = one.accept(b"x")

    def claim_and_stand_still():
        with one.store.write() as txn:
            assert txn.claim(one.me, {b"x": 1}, MUCH, {b"x": Bound(bound)} if bound else {}).rows
            assert other.claim((b"x", 1), x=bound) == {}, "it is locked"
            other.store.leave([one.me])
            until(lambda: ended_stalled(other) and other.claim((b"x", 1), x=bound) == {b"x": uuids})

    with pytest.raises(OutcomeUnknown):
        claim_and_stand_still()


def test_who_stands_still_while_it_sends_a_claim_holds_up_the_others_no_longer_than_a_lease(nodes, monkeypatch):
    """The server has executed what has come, and waits for the rest: that is not idle."""
    monkeypatch.setattr(nodes_module, "STALLED", 0.2)
    one, other = nodes
    uuids = one.accept(b"x")
    connection = one.store.pool.connect().connection
    connection.pgconn.enter_pipeline_mode()
    connection.pgconn.send_query_params(b"SELECT FROM ready FOR UPDATE", [])
    connection.pgconn.send_flush_request()
    while connection.pgconn.flush():
        pass
    waits = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND state = 'active' AND wait_event = 'ClientRead'"
    until(lambda: shared_server().sql(f"{waits} AND backend_xid IS NOT NULL", connection.info.backend_pid) == 1)
    assert other.claim((b"x", 1)) == {}, "it is locked"
    other.store.leave([one.me])
    until(lambda: ended_stalled(other) and other.claim((b"x", 1)) == {b"x": uuids})
    connection.close()


def ended_stalled(node):
    return node.store.renew(node.me, [], NAMES, LeaseConfig(lease=0.2)).alive


def test_who_lives_and_sends_for_long_is_not_ended(nodes, monkeypatch):
    monkeypatch.setattr(nodes_module, "STALLED", 0.0)
    one, other = nodes
    uuids = one.accept(b"x")
    with one.store.write() as txn:
        assert txn.claim(one.me, {b"x": 1}, MUCH, {}).rows
        for _ in range(3):
            assert other.store.renew(other.me, [], NAMES, LeaseConfig(lease=0.0)).alive
    assert one.end(*uuids)


def test_who_reads_for_long_is_not_ended(nodes, monkeypatch):
    monkeypatch.setattr(nodes_module, "STALLED", 0.0)
    one, other = nodes
    with one.store.read() as reading:
        before = reading.fetch("SELECT count(*) FROM ready")
        one.accept(b"x")
        other.store.leave([one.me])
        for _ in range(3):
            assert other.store.renew(other.me, [], NAMES, LeaseConfig(lease=0.0)).alive
        assert reading.fetch("SELECT count(*) FROM ready") == before


def test_who_stands_still_while_it_renews_its_lease_can_be_ended(nodes, monkeypatch):
    one, other = nodes
    (a,) = one.accept(b"x")
    one.claim((b"x", 1))
    execute, renewed, go_on = psycopg.Connection.execute, threading.Event(), threading.Event()

    def slow(self, text, *rest, **more):
        found = execute(self, text, *rest, **more)
        if text is nodes_module._RENEW and threading.current_thread() is standing:
            renewed.set()
            assert go_on.wait(60)
        return found

    standing = threading.Thread(target=one.renew, daemon=True)
    monkeypatch.setattr(psycopg.Connection, "execute", slow)
    standing.start()
    assert renewed.wait(60)
    other.renew(*other.renew().others)
    assert other.claim((b"x", 1)) == {b"x": [a]}
    go_on.set()
    standing.join()


# -- dead rows ------------------------------------------------------------------------------------------------


def take_claims_for_slow(monkeypatch):
    """The first is full, and no other one."""
    for name, seconds in (("SLOW", -1), ("REST", 1e9), ("MOST_REST", 1e9)):
        monkeypatch.setattr(claims, name, seconds)


def test_beside_an_old_snapshot_rows_that_are_gone_are_not_read_each_time(url, monkeypatch):
    """Such as pg_dump's: they cannot be removed as long as it is there."""
    take_claims_for_slow(monkeypatch)

    def entries_read(index, lives=40):
        """Of an index, by a node that executes so many requests, one after another."""
        node = Node(url)
        before = count(index)
        for _ in range(lives):
            node.accept(b"x")
            ((uuid,),) = node.claim((b"x", 1)).values()
            assert node.end(uuid)
            with node.store.write() as txn:
                assert txn.close(uuid)
        node.store.close()
        connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND state = 'idle'"
        until(lambda: shared_server().sql(connections, node.database) == 0)  # then they have told what they did
        return count(index) - before

    def count(index):
        read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = %s"
        return shared_server().sql(read, index, database=url.split("?")[0].rpartition("/")[2])

    with psycopg.connect(url) as old:
        PostgresStore.open(url).close()
        for table in ("ready", "reply"):  # nobody else looks what is in them
            statement = f"ALTER TABLE titanic.{table} SET (autovacuum_enabled = off)"
            shared_server().sql(statement, database=old.info.dbname)
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT FROM titanic.ready")
        assert 40 < entries_read("ready_pkey") < 40 * 20
        for table in ("ready", "reply"):  # it finds that they are empty
            shared_server().sql(f"VACUUM ANALYZE titanic.{table}", database=old.info.dbname)
        assert 40 < entries_read("reply_pkey") < 40 * 20
        assert 40 < entries_read("ready_pkey") < 40 * 20


def test_an_old_snapshot_is_a_reader_of_the_store(nodes, url, monkeypatch):
    _, node = nodes
    monkeypatch.setattr(postgres_store, "READERS_EVERY", 0.0)
    monkeypatch.setattr(queries, "LONG", 0.2)

    def dumps():
        return [(one.pid, one.age > 0.2) for one in node.store.readers() if one.command == "pg_dump"]

    with psycopg.connect(url, application_name="pg_dump") as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT FROM titanic.ready")
        until(dumps)
        assert dumps() == [(old.info.backend_pid, True)]
    until(lambda: not dumps())


def test_what_a_quick_claim_does_not_look_at_the_next_full_one_finds(nodes, monkeypatch):
    take_claims_for_slow(monkeypatch)
    one, other = nodes
    a, b, c = one.accept(b"x", b"x", b"x")
    assert other.claim((b"x", 1)) == {b"x": [a]}
    assert one.claim((b"x", 1)) == {b"x": [b]}
    other.release(a)
    (urgent,) = one.accept(b"x", priority=9)
    found = one.claim_all((b"x", 9))
    assert [row.uuid for row in found.rows[b"x"]] == [urgent, c], "of all priorities, the highest first"
    assert found.again[b"x"] > 0, "there may be more"
    one.store.writer.scan_starts[b"x"].full_at = 0
    monkeypatch.setattr(claims, "SLOW", 1e9)
    assert one.claim((b"x", 9)) == {b"x": [a]}
    assert one.store.writer.scan_starts == {}, "it was quick"


def test_the_next_full_claim_is_not_long_after_one_that_took_very_long(nodes, monkeypatch):
    take_claims_for_slow(monkeypatch)
    monkeypatch.setattr(claims, "MOST_REST", 5.0)
    one, _ = nodes
    one.accept(b"x")
    before = time.monotonic()
    one.claim((b"x", 1))
    assert one.store.writer.scan_starts[b"x"].full_at <= time.monotonic() + 5.0
    assert one.claim_all((b"x", 1)).again[b"x"] <= 5.0
    assert one.store.writer.scan_starts[b"x"].full_at > before


def test_a_quick_claim_locks_no_more_than_it_claims(nodes, monkeypatch):
    take_claims_for_slow(monkeypatch)
    one, other = nodes
    uuids = one.accept(b"x", b"x", b"x", b"x")
    one.claim((b"x", 1))
    with one.store.write() as txn:
        assert [row.uuid for row in txn.claim(one.me, {b"x": 1}, MUCH, {}).rows[b"x"]] == uuids[1:2]
        assert other.claim((b"x", 9)) == {b"x": uuids[2:]}


# -- outcomes -------------------------------------------------------------------------------------------------


def test_a_failure_counts_only_under_an_own_living_claim(nodes):
    one, other = nodes
    a, b, c = one.accept(b"x", b"x", b"x")
    assert one.claim((b"x", 1)) == {b"x": [a]}
    assert other.postpone(a, b) == [False, False], "of others, and of nobody"
    assert not other.end(a, Status.FAILED)
    assert one.postpone(a, bytes(16)) == [True, False]
    assert one.claim((b"x", 2)) == {b"x": [b, c]}
    other.store.leave([one.me])
    assert one.postpone(b, c) == [False, False]
    assert not one.end(b, Status.EXPIRED)
    assert one.end(b), "but the work is done"
    assert other.claim((b"x", 2)) == {b"x": [c]}
    assert one.end(c), "also when somebody else has claimed it"


def test_nobody_claims_what_is_being_postponed(nodes):
    one, other = nodes
    (a,) = one.accept(b"x")
    one.claim((b"x", 1))
    with one.store.write() as txn:
        txn.under(one.me, [a])
        other.store.leave([one.me])
        assert other.claim((b"x", 1)) == {}
        assert txn.postpone(a, due=NOW, attempts=1, dispatched_at=NOW, reason="")


def test_what_runs_does_not_expire(nodes):
    one, other = nodes
    a, b = one.accept(b"x", b"x", expires_at=NOW + 1)
    one.claim((b"x", 1))
    with other.store.write() as txn:
        assert txn.expire(NOW + 2) == [(b, b"x")]
    with one.store.write() as txn:
        assert txn.expire(NOW + 2) == []
    other.store.leave([one.me])
    with one.store.write() as txn:
        assert txn.expire(NOW + 2, skip=[a]) == [], "it goes on without its claim"
        assert txn.expire(NOW + 2) == [(a, b"x")]


# -- incarnations ---------------------------------------------------------------------------------------------


def test_who_goes_on_under_another_number_keeps_what_it_names(nodes):
    one, other = nodes
    a, b = one.accept(b"x", b"x")
    one.claim((b"x", 2))
    before = one.me
    assert one.join(*places(a), before=before).held == {a}
    assert one.joined.alive
    assert other.claim((b"x", 9)) == {b"x": [b]}
    assert one.store.join(one.me, before, places(a, b), NAMES, LEASE).held == {a}, "b is another's by now"
    one.me = before
    assert one.claim_all((b"x", 9)) is None
    assert not one.renew().alive
    assert not one.store.join(before, None, [], NAMES, LEASE).alive


def test_a_join_that_is_repeated_takes_over_nothing_more(nodes):
    """The first may have been executed, and a claim under the former number may have come behind it."""
    one, other = nodes
    a, b = one.accept(b"x", b"x")
    one.claim((b"x", 1))
    before = one.me
    one.join(*places(a), before=before)
    with one.store.write() as txn:
        txn.fetch("UPDATE ready SET incarnation = %s WHERE uuid = %s::uuid", before, b.hex())
    assert one.store.join(one.me, before, places(a, b), NAMES, LEASE).held == {a}
    assert other.claim((b"x", 2)) == {b"x": [b]}


def test_who_leaves_frees_what_it_has_claimed_also_under_a_number_that_has_not_begun(nodes):
    one, other = nodes
    (a,) = one.accept(b"x")
    one.claim((b"x", 1))
    one.store.leave([one.me, 10**15])
    assert other.claim((b"x", 1)) == {b"x": [a]}
    assert not one.store.join(10**15, one.me, places(a), NAMES, LEASE).alive


def test_who_closes_its_store_leaves(url):
    one, other = Node(url), Node(url)
    with other.store:
        (a,) = one.accept(b"x")
        one.claim((b"x", 1))
        one.store.close()
        assert other.claim((b"x", 1)) == {b"x": [a]}


def test_who_is_silent_is_ended_if_it_still_is(nodes):
    one, other = nodes
    (a,) = one.accept(b"x")
    one.claim((b"x", 1))
    (seen,) = [silent for silent in other.renew().others if silent.incarnation == one.me]
    one.renew()
    (later,) = [silent for silent in other.renew(seen).others if silent.incarnation == one.me]
    assert later.lease_until > seen.lease_until
    assert other.claim((b"x", 1)) == {}, "it was not silent"
    assert one.renew().alive
    (later,) = [silent for silent in other.renew().others if silent.incarnation == one.me]
    other.renew(later)
    assert other.claim((b"x", 1)) == {b"x": [a]}
    assert not one.renew().alive
    assert one.claim_all((b"x", 1)) is None
    assert one.join(*places(a), before=one.me).held == set()


def test_who_is_over_ends_nobody(nodes):
    one, other = nodes
    (seen,) = other.renew().others
    other.store.leave([other.me])
    assert not other.renew(seen).alive
    assert one.renew().alive


def test_an_operator_drains_a_node_and_its_next_incarnation(nodes):
    one, other = nodes
    assert not one.renew().draining
    with other.store.write() as txn:
        txn.fetch("UPDATE node SET draining = true WHERE incarnation = %s", one.me)
    assert one.renew().draining
    one.join(before=one.me)
    assert one.renew().draining
    assert not other.renew().draining


def test_a_drain_is_not_lost_when_its_node_joins_again_meanwhile(nodes):
    one, other = nodes
    with ThreadPoolExecutor(1) as threads:
        with other.store.write() as txn:
            txn.drain_nodes([one.me])
            joined = threads.submit(one.join, before=one.me)
            until(lambda: waiting_for_locks(other))
        joined.result()
    assert one.renew().draining


def test_a_drain_of_an_incarnation_that_is_over_is_tried_again(nodes):
    one, other = nodes
    before = one.me
    one.join(before=before)
    with pytest.raises(WriteConflict, match="joined again"), other.store.write() as txn:
        txn.drain_nodes([before])


def waiting_for_locks(node):
    with node.store.read() as txn:
        (waiting,) = txn.fetch_row(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
    return waiting


def test_each_node_tells_of_itself(nodes):
    one, _ = nodes
    one.renew()
    with one.store.read() as txn:
        row = txn.fetch_row("SELECT name, version, endpoints, services FROM node WHERE incarnation = %s", one.me)
    assert row == ("host", "1.0", ["tcp://host:5555"], {"x": [2, 1], "��": [1, 0]})


def test_each_node_counts_in_a_shard_of_its_own_and_the_next_takes_that_of_a_dead_one(url):
    one, two = Node(url), Node(url)
    assert (one.store.settings.shard, two.store.settings.shard) == (1, 2)
    with two.store:
        one.accept(b"x", b"x")
        (a, _) = two.accept(b"x", b"x")
        one.claim((b"x", 1))
        two.claim((b"x", 9))
        assert one.end(a)
        with two.store.read() as txn:
            assert txn.counts()[:4] == (4, 3, 0, 1)
            assert txn.fetch("SELECT shard, waiting FROM usage WHERE shard > 0 ORDER BY shard") == [(1, 1), (2, 2)]
        one.join(before=one.me)
        assert one.store.settings.shard == 1
        one.store.close()
        with Node(url).store as three:
            assert three.settings.shard == 1
        assert check(two.store) == []


def test_nodes_that_join_at_once_get_different_shards(url):
    stores = [PostgresStore.open(url) for _ in range(5)]
    threads = [
        threading.Thread(target=store.join, args=(next(_numbers), None, [], NAMES, LEASE), daemon=True)
        for store in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(store.settings.shard for store in stores) == [1, 2, 3, 4, 5]
    for store in stores:
        store.close()


def test_beyond_the_last_shard_nodes_share_one(url, monkeypatch):
    with PostgresStore.open(url) as tool:
        with tool.write() as txn:
            for shard in range(1, nodes_module.SHARDS + 1):
                txn.fetch(
                    "INSERT INTO node (incarnation, name, version, endpoints, lease_until, shard)"
                    " VALUES (%s, '', '', '{}', now(), %s)",
                    10**9 + shard,
                    shard,
                )
        one = Node(url)
        assert one.store.settings.shard == 0
        assert one.accept(b"x")
        one.store.close()


def test_a_store_for_later_versions_refuses_nodes_that_are_there(nodes):
    one, other = nodes
    with other.store.write() as txn:
        txn.fetch("UPDATE meta SET store_format = %s, oldest = %s", FORMAT + 1, FORMAT)
    assert one.renew().alive, "they say that this version will do"
    with other.store.write() as txn:
        txn.fetch("UPDATE meta SET oldest = %s", FORMAT + 1)
    with pytest.raises(StoreTooNew, match=f"it has format {FORMAT + 1}, this version reads {FORMAT}"):
        one.renew()
    with pytest.raises(StoreTooNew):
        one.join()
    with other.store.write() as txn:
        assert txn.fetch("SELECT count(*) FROM node WHERE incarnation = %s", one.me) == [(0,)]
        txn.fetch("UPDATE meta SET store_format = %s, oldest = %s", FORMAT, FORMAT)


def test_a_renewal_without_an_answer_is_given_up(url):
    one = Node(url)
    quick = LeaseConfig(renew=0.2)

    def joins(store):
        try:
            return store.join(next(_numbers), None, [], NAMES, quick).alive
        except StoreFailed:
            return False

    with one.store, PostgresStore.open(url) as other:
        until(lambda: joins(other))  # a busy machine may take longer at first
        with one.store.write() as txn:
            txn.fetch("SELECT FROM node FOR UPDATE")
            with pytest.raises(StoreFailed):
                other.join(next(_numbers), one.me, [], NAMES, quick)


def test_rows_of_nodes_that_ended_long_ago_go_when_no_request_is_left(nodes):
    one, other = nodes
    one.accept(b"x")
    one.claim((b"x", 1))
    dead = one.me
    other.store.leave([dead])
    with other.store.write() as txn:
        txn.fetch("UPDATE node SET started_at = now() - interval '2 days'")

    def there():
        nodes_module.forget_dead(other.store.pool)
        with other.store.read() as txn:
            return {number for (number,) in txn.fetch("SELECT incarnation FROM node")}

    assert there() == {dead, other.me}
    other.claim((b"x", 1))
    assert there() == {dead, other.me}, "it began long ago, and has just ended"
    with other.store.write() as txn:
        txn.fetch("UPDATE node SET ended_at = ended_at - interval '2 days'")
    assert there() == {other.me}


def test_rows_of_services_go_that_have_no_request(nodes):
    """They were counted by several nodes, and are while they are to go."""
    one, other = nodes
    names = [b"made up %d" % n for n in range(100)]
    uuids = one.accept(*names)

    def close(node, *some):
        with node.store.write() as txn:
            txn.prefetch(some)
            assert all(txn.close(uuid, NOW) for uuid in some)

    def counted():
        nodes_module.forget_dead(other.store.pool)
        with other.store.read() as txn:
            return {name for (name,) in txn.fetch("SELECT name FROM load WHERE kind = 's'")}

    close(other, *uuids[1:])
    assert counted() == {names[0]}
    with one.store.write() as txn:
        accept_all(txn, [NewRequest(names[1], [b""])], NOW)
        txn.flush()
        assert counted() == {names[0]}
    assert counted() == {*names[:2]}

    def work():
        for _ in range(200):
            close(one, *one.accept(b"x"))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        counted()
    assert counted() == {*names[:2]}


def test_a_claim_that_is_committed_late_is_free_again_although_its_node_was_to_be_forgotten(nodes):
    """A node stands still between the two, longer than its lease; it had been running for days."""
    one, other = nodes
    (a,) = one.accept(b"x")
    with other.store.write() as txn:
        txn.fetch("UPDATE node SET started_at = now() - interval '2 days'")
    with one.store.write() as txn:
        assert txn.claim(one.me, {b"x": 1}, MUCH, {}).rows
        (seen,) = other.renew().others
        assert [silent.incarnation for silent in other.renew(seen).others] == [one.me], "as it was before"
        assert other.renew().others == [], "others can end it although its claim is not committed"
        nodes_module.forget_dead(other.store.pool)
        shared_server().sql(
            "UPDATE titanic.node SET ended_at = now() - interval '2 days' WHERE lease_until = '-infinity'",
            database=one.database,
        )
        nodes_module.forget_dead(other.store.pool)
    assert other.claim((b"x", 1)) == {b"x": [a]}


def test_a_claim_without_its_node_is_impossible(nodes):
    one, _ = nodes
    one.accept(b"x")
    one.claim((b"x", 1))
    with pytest.raises(StoreFailed, match="ready_incarnation"), one.store.write() as txn:
        txn.fetch("DELETE FROM node WHERE incarnation = %s", one.me)


def test_a_store_that_was_made_for_nothing_goes_although_a_node_has_been_there():
    server = shared_server()
    database = server.new_database()
    Node(server.url(database)).store.discard()
    assert server.sql("SELECT to_regnamespace('titanic')::text", database=database) is None
    server.drop_database(database)


# -- bounds ---------------------------------------------------------------------------------------------------


def test_a_bound_holds_over_all_nodes(nodes):
    one, other = nodes
    a, b, c, d = one.accept(b"x", b"x", b"x", b"x")
    (free,) = one.accept(b"y")
    assert one.claim((b"x", 2), x=3) == {b"x": [a, b]}
    assert other.claim((b"x", 9), (b"y", 1), x=3) == {b"x": [c], b"y": [free]}
    assert one.claim((b"x", 9), x=3) == {}
    assert one.end(a)
    other.release(c)
    assert other.claim((b"x", 9), x=3) == {b"x": [c, d]}
    other.store.leave([one.me])
    assert other.claim((b"x", 9), x=3) == {b"x": [b]}, "what the dead has claimed is free, and does not count"
    with one.store.read() as txn:
        assert txn.fetch("SELECT count(*) FROM bounded WHERE incarnation = %s", other.me) == [(3,)]


def test_what_is_closed_counts_until_its_worker_is_done(nodes):
    one, other = nodes
    a, b, c = one.accept(b"x", b"x", b"x")
    assert one.claim((b"x", 1), x=1) == {b"x": [a]}
    for node, uuid in ((other, a), (one, b)):
        with node.store.write() as txn:
            assert txn.close(uuid)
    assert other.claim((b"x", 1), x=1) == {}
    one.join(*places(a), before=one.me)
    assert other.claim((b"x", 1), x=1) == {}, "it goes on under its next incarnation"
    assert not one.end(a), "it was closed; but its worker is done"
    assert other.claim((b"x", 1), x=1) == {b"x": [c]}
    with other.store.write() as txn:
        assert txn.close(c)
    assert one.claim((b"x", 1), x=1) == {}
    one.accept(b"x")
    other.store.leave([other.me])
    assert len(one.claim((b"x", 1), x=1)[b"x"]) == 1, "and what counts for an incarnation ends with it"
    nodes_module.forget_dead(one.store.pool)
    with one.store.read() as txn:
        assert txn.fetch("SELECT incarnation FROM bounded") == [(one.me,)]


def test_what_is_kept_for_its_worker_counts_after_its_node(nodes):
    """Its worker goes on with it, and comes to another node, or not in time. What was only sent ahead is free."""
    one, other = nodes
    a, b, c = one.accept(b"x", b"x", b"x")
    bound = {b"x": Bound(2)}
    with one.store.write() as txn:
        assert len(txn.claim(one.me, {b"x": 2}, MUCH, bound, {b"x": 1}).rows[b"x"]) == 2
    one.store.leave([one.me])
    nodes_module.forget_dead(one.store.pool)
    assert other.claim((b"x", 3), x=1) == {}
    assert other.claim((b"x", 3), x=2) == {b"x": [b]}
    with other.store.write() as txn:
        assert txn.take_over(other.me, places(a), bound) == {a: True}
    assert other.claim((b"x", 3), x=2) == {}
    assert other.end(b)
    assert other.claim((b"x", 3), x=2) == {b"x": [c]}, "what was taken over counts once"
    one.join()
    other.store.leave([other.me])
    assert one.claim((b"x", 3), x=1) == {}
    one.store.renew(one.me, [], NAMES, LEASE, [other.me])
    assert one.claim((b"x", 3), x=1) == {b"x": [a]}, "it is free, and so is its place"
    assert one.end(a)
    assert one.claim((b"x", 3), x=1) == {b"x": [c]}


def test_what_a_bound_costs_is_a_claims_and_nothing_of_an_end(nodes, monkeypatch):
    one, _ = nodes
    a, b = one.accept(b"x", b"x")
    one.claim((b"x", 2), x=2)
    trips: list[int] = []
    exchange = PostgresReading.exchange
    monkeypatch.setattr(PostgresReading, "exchange", lambda tx, given: trips.append(len(given)) or exchange(tx, given))
    assert one.end(a)
    assert trips == [2, 2]
    del trips[:]
    with one.store.write() as txn:
        txn.count_no_more(one.me, places(b))
    assert trips == [1], "it is a transaction by itself"


def test_who_comes_second_does_not_wait(nodes):
    one, other = nodes
    a, b = one.accept(b"x", b"x")
    (free,) = one.accept(b"y")
    with one.store.write() as txn:
        txn.claim(one.me, {b"x": 1}, MUCH, {b"x": Bound(1)})
        found = other.claim_all((b"x", 1), (b"y", 1), x=1)
        assert found.again == {b"x": CONTENDED}
        assert [row.uuid for row in found.rows.pop(b"y")] == [free]
        assert found.rows == {}
    assert other.claim((b"x", 1), x=1) == {}
    assert one.end(a)
    assert other.claim((b"x", 1), x=1) == {b"x": [b]}


def test_a_rate_holds_over_all_nodes(nodes):
    bounds = {b"x": Bound(rate=10)}

    def claim(node):
        with node.store.write() as txn:
            found = txn.claim(node.me, {b"x": 100}, MUCH, bounds)
        return len(found.rows.get(b"x", ())), found.again[b"x"]

    nodes[0].accept(*[b"x"] * 100)
    began = time.monotonic()
    first, soon = claim(nodes[0])
    assert (1 <= first <= 2, CONTENDED <= soon <= 0.1) == (True, True)
    count, soon = claim(nodes[1])
    assert (count <= 1 + 10 * (time.monotonic() - began), CONTENDED <= soon <= 0.1) == (True, True)
    count += first
    for turn in count_up(1):
        count += claim(nodes[turn % 2])[0]
        if count >= 12:
            break
    assert count <= 2 + 10 * (time.monotonic() - began)


def test_a_time_that_the_rate_cannot_have_set_does_not_hold_it_up(nodes):
    """The clock of the last primary was ahead, or the rate was lower."""
    one, _ = nodes
    one.accept(b"x", b"x")
    with one.store.pool.borrow() as connection:
        connection.execute("INSERT INTO rate VALUES ('x', extract(epoch FROM now()) + 3600)")
        connection.execute("COMMIT")
    for most in (1, 0):
        with one.store.write() as txn:
            found = txn.claim(one.me, {b"x": 2}, MUCH, {b"x": Bound(rate=0.1)})
        assert len(found.rows.get(b"x", ())) == most
        assert CONTENDED <= found.again[b"x"] <= 10


def test_a_bound_holds_when_nodes_claim_at_once(url):
    nodes = [Node(url) for _ in range(4)]
    nodes[0].accept(*[b"x"] * 100)
    seen = []

    def work(node):
        mine = node.claim((b"x", 3), x=5).get(b"x", [])
        seen.append(running(node))
        for uuid in mine:
            assert node.end(uuid)
        return len(mine)

    def run(node):
        until(lambda: work(node) == 0 and empty(node))

    def empty(node):
        with node.store.read() as txn:
            return not waiting_in(txn)

    def running(node):
        with node.store.read() as txn:
            return txn.fetch_row("SELECT count(*) FROM ready WHERE incarnation IS NOT NULL")[0]

    threads = [threading.Thread(target=run, args=(node,), daemon=True) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < max(seen) <= 5
    for node in nodes:
        node.store.close()
