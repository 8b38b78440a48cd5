"""What the server counts: exact over a clean restart, marked after a kill, bounded, the same on all nodes."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from support.nodes import cluster
from support.ports import free_port
from support.postgres import needs_postgres
from support.processes import SUPPORT, Process
from support.serving import serving
from support.store_facts import accept_all
from support.waiting import until

from broker import RemoteError, Worker
from titanic import Client, Server
from titanic.facts import counts, recorder
from titanic.facts.counts import ACCEPTED, FAILED, OTHER, RUN, SIZE, SUCCEEDED, WAIT, Tallies
from titanic.facts.groups import MAX_GROUPS, OTHER_TEXT, FailureGroups, decode_group, merged, normalize
from titanic.facts.reading import FactsCache, facts_of, faults
from titanic.facts.recorder import FLUSH_EVERY, HOURS, OPEN, TOTALS, AttemptEnd, FactsRecorder, Unwritten
from titanic.store import NewRequest
from titanic.store.lmdb.store import LmdbStore
from titanic.store.memory import MemoryStore

HOUR = 3600.0
HOUR_US = 3_600_000_000
UUID = bytes(16)


def fail(frames: list[bytes]) -> list[bytes]:
    raise RemoteError(500, f"ValueError: no order {frames[0].decode()} at 0x{id(frames):x}")


def counted(client: Client, service: str) -> dict[str, int]:
    """The counts of a service that are not 0."""
    found = client.facts(HOUR)["services"].get(service, {})
    return {name: number for name, number in found.items() if name in counts.COUNTS and number}


class TestServer:
    def test_counts_everything_that_becomes_of_requests(self, server: Server, client: Client) -> None:
        with Worker("echo", lambda frames: frames, server.endpoints[0]), Worker("bad", fail, server.endpoints[0]):
            done = client.submit_many("echo", [b"%d" % n for n in range(10)])
            for one in done:
                client.wait(one, 30)
            client.submit("absent", b"", ttl=0.01)
            until(lambda: counted(client, "absent").get("expired") == 1)  # before "bad" fails: the last one comes first
            client.submit("bad", b"17", max_attempts=3)
            closed = client.submit("absent", b"")
            client.close(closed)
            client.close(done[0])
            until(lambda: counted(client, "bad").get("failed") == 1)
            assert counted(client, "echo") == {"accepted": 10, "dispatched": 10, "succeeded": 10, "closed": 1}
            assert counted(client, "bad") == {"accepted": 1, "dispatched": 3, "failed": 1, "retried": 2}
            assert counted(client, "absent") == {"accepted": 2, "expired": 1, "closed": 1, "cancelled": 1}
            echo = client.facts(HOUR, of=["echo"])["services"]["echo"]
            assert echo["wait"] is not None
            assert echo["run"] is not None
            assert 0 < echo["run"]["p50"] <= echo["run"]["p99"] < 60
            assert sum(echo["series"]["counts"]["succeeded"]) == 10
            two = client.facts(HOUR, of=["echo", "absent"])["services"]
            assert [sum(two[name]["series"]["counts"]["accepted"]) for name in ("echo", "absent")] == [10, 2]
            groups = [
                (one["service"], one["text"], one["failed"], one["retried"])
                for one in client.facts(failures=True)["failures"]
            ]
            assert groups == [("bad", "ValueError: no order … at …", 1, 2), ("absent", "not done in time", 1, 0)]

    def test_a_retry_of_a_failed_request_is_counted(self, server: Server, client: Client) -> None:
        with Worker("bad", fail, server.endpoints[0]):
            one = client.submit("bad", b"1", max_attempts=1)
            until(lambda: counted(client, "bad").get("failed") == 1)
            client.retry(one)
            until(lambda: counted(client, "bad").get("failed") == 2)
            assert counted(client, "bad") == {"accepted": 1, "dispatched": 2, "failed": 2, "requeued": 1}

    def test_a_delay_is_no_wait(self, server: Server, client: Client) -> None:
        with Worker("echo", lambda frames: frames, server.endpoints[0]):
            one = client.submit("echo", b"", delay=1.5)
            client.wait(one, 30)
            until(lambda: counted(client, "echo").get("succeeded") == 1)
            with server.store.read() as transaction:
                row = transaction.describe(bytes.fromhex(one))
            assert row is not None
            waited = (row.dispatched_at - row.not_before) / 1e6
            wait = client.facts(HOUR)["services"]["echo"]["wait"]
            assert wait is not None
            assert counts.bucket(wait["p50"]) <= counts.bucket(max(0, waited)) + 1

    def test_is_not_written_with_each_close(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recorder, "FLUSH_EVERY", 3600_000_000)
        with serving(tmp_path) as server, Client(server.endpoints[0], timeout=30) as client:
            uuids = client.submit_many("absent", [b"x"] * 3)
            with server.store.read() as transaction:
                before = transaction.facts(OPEN)
            for uuid_ in uuids:
                client.close(uuid_)
            with server.store.read() as transaction:
                assert transaction.facts(OPEN) == before
                assert transaction.counts().closed == 3

    def test_is_exact_after_a_clean_restart(self, tmp_path: Path) -> None:
        for run in range(1, 4):
            with serving(tmp_path) as server, Client(server.endpoints[0], timeout=30) as client:
                with Worker("echo", lambda frames: frames, server.endpoints[0]):
                    for uuid_ in client.submit_many("echo", [b"x"] * 7):
                        client.wait(uuid_, 30)
                        client.close(uuid_)
                    client.submit("absent", b"")
                    until(lambda run=run: counted(client, "echo").get("succeeded") == 7 * run)
                found = client.facts(HOUR)
            assert found["services"]["echo"]["closed"] == 7 * run
            assert found["services"]["absent"]["accepted"] == run
            assert found["incomplete"] == []
            with LmdbStore.open(tmp_path / "store") as store, store.read() as transaction:
                assert transaction.facts(OPEN) == []
                assert faults(transaction) == []

    def test_is_marked_after_a_kill_and_the_totals_are_right_again(self, tmp_path: Path) -> None:
        endpoint = f"tcp://127.0.0.1:{free_port()}"
        arguments = SUPPORT / "server_process.py", "serve", endpoint, tmp_path / "store"
        with Process(*arguments, output=tmp_path / "log") as process, Client(endpoint, timeout=60) as client:
            client.submit_many("echo", [b"x"] * 50)
            process.kill()
        with LmdbStore.open(tmp_path / "store") as store, store.read() as transaction:
            assert len(transaction.facts(OPEN)) == 1
            assert faults(transaction) == [], "the totals are not compared while they are not certain"
        with serving(tmp_path) as server, Client(server.endpoints[0], timeout=30) as client:
            client.submit("echo", b"y")
            found = client.facts(HOUR)
            assert len(found["incomplete"]) == 1
            since, until_ = found["incomplete"][0]
            assert since <= until_ <= server.store.now_us()
        with LmdbStore.open(tmp_path / "store") as store, store.read() as transaction:
            assert faults(transaction) == []
            assert transaction.counts().requests == 51

    def test_a_kill_of_an_idle_server_loses_nothing(self) -> None:
        store = MemoryStore()
        facts = FactsRecorder(store)
        now = store.now_us()
        flush(facts, store, now)
        facts.count(ACCEPTED, {b"echo": 3})
        facts.changed_at = now
        assert not facts.is_due(now + FLUSH_EVERY - 1)
        assert facts.is_due(now + FLUSH_EVERY)
        flush(facts, store, now + FLUSH_EVERY, alone=True)
        assert not facts.is_due(now + 2 * FLUSH_EVERY), "nothing more can have been counted"
        flush(FactsRecorder(store), store, now + 3 * FLUSH_EVERY)
        with store.read() as transaction:
            assert facts_of(transaction, Unwritten(), now + 3 * FLUSH_EVERY, HOUR)["incomplete"] == []

    def test_check_finds_a_count_that_was_falsified(self, tmp_path: Path) -> None:
        with serving(tmp_path) as server, Client(server.endpoints[0], timeout=30) as client:
            client.submit_many("echo", [b"x"] * 5)
        with LmdbStore.open(tmp_path / "store") as store:
            with store.write() as transaction:
                (key, _), *_ = transaction.facts(TOTALS, newest=True)
                transaction.put_facts([(key, b"\x9a" + b"\x07" + b"\x00" * 9)])
                (period, _), *_ = transaction.facts(HOURS)
                transaction.put_facts([(period, b"nothing")])
            with store.read() as transaction:
                found = faults(transaction)
        assert [key for key, _ in found] in ([period, b""], [period, b""])
        assert "but there are 5" in found[-1][1]


@needs_postgres
def test_counts_of_nodes_add_up(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as nodes:
        with Worker("echo", lambda frames: frames, nodes[0].endpoints[0]):
            for client in nodes.clients:
                for one in client.submit_many("echo", [b"x"] * 20):
                    client.wait(one, 60)
                    client.close(one)
        for server in nodes.servers:
            server.writer.facts._flushed_at = 0  # it writes within a second, and not only after ten
        # Each answers with what it has in memory, and what the others have written.
        for client in nodes.clients:
            until(lambda client=client: counted(client, "echo").get("succeeded") == 40)
            until(lambda client=client: counted(client, "echo").get("closed") == 40)
            assert counted(client, "echo")["accepted"] == 40


# -- without a server -----------------------------------------------------------------------------------------------


def flush(facts: FactsRecorder, store: MemoryStore, now_us: int, *, alone: bool = False, last: bool = False) -> None:
    with store.write() as transaction:
        more = facts.flush(transaction, now_us, alone=alone, last=last)
    facts.flushed(now_us, more)


class SharedNodes:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now = self.store.now_us()
        self.one, self.other = FactsRecorder(self.store), FactsRecorder(self.store)
        self.one._shared = self.other._shared = True

    def flush(self, facts: FactsRecorder, now_us: int) -> None:
        flush(facts, self.store, now_us)

    def accept(self, facts: FactsRecorder, count: int, now_us: int, *, flushes: bool = True) -> None:
        """One commit, with what was counted before; what is in it counts afterwards."""
        with self.store.write() as transaction:
            more = facts.flush(transaction, now_us) if flushes else True
            accept_all(transaction, [NewRequest(b"echo", [b"x"])] * count, now_us)
        if flushes:
            facts.flushed(now_us, more)
        facts.count(ACCEPTED, {b"echo": count})

    def end(self, now_us: int) -> None:
        """Of both."""
        for last in (False, True):
            for facts in (self.other, self.one):
                flush(facts, self.store, now_us, last=last)
        self.expect_right()

    def expect_right(self) -> None:
        """Or corrected by the next node that has the store to itself."""
        with self.store.read() as transaction:
            assert faults(transaction) == []
        for last in (False, True):
            flush(FactsRecorder(self.store), self.store, self.now + 2 * recorder.GONE, last=last)
        with self.store.read() as transaction:
            assert faults(transaction) == []
            assert not transaction.facts(recorder.DOUBT)


class TestBounds:
    def test_three_thousand_services_become_a_thousand_and_others(self) -> None:
        store = MemoryStore()
        facts = FactsRecorder(store)
        now = store.now_us()
        flush(facts, store, now)
        names = [b"%04d %s" % (n, bytes([33 + n % 90]) * (n % 200)) for n in range(3000)]
        for name in names:
            facts.count(ACCEPTED, {name: 2 if int(name[:4]) < 500 else 1})
        flush(facts, store, now + FLUSH_EVERY)
        with store.read() as transaction:
            assert all(len(value) <= 64 << 10 for _, value in transaction.facts(b""))
            found = facts_of(transaction, Unwritten(), now, HOUR)
        assert len(found["services"]) <= counts.MAX_SERVICES
        assert sum(name[:4] < "0500" for name in found["services"]) == 500, "the most active ones are there by name"
        assert found["other"] is not None
        assert found["total"]["accepted"] == 3500

    def test_errors_of_one_service_become_a_hundred_groups_and_others(self) -> None:
        groups = FailureGroups()
        words = ["".join(chr(97 + n // 26**at % 26) for at in range(4)) for n in range(2000)]
        for n, word in enumerate(words):
            groups.add(b"bad", "failed", f"KeyError: {word}", UUID, n + 1, retried=False)
        groups.add(b"quiet", "failed", "ValueError", UUID, 3000, retried=False)
        found = merged(map(decode_group, groups.changed().values()))
        assert len(found) == MAX_GROUPS + 2
        assert sum(one.failed for one in found) == 2001
        assert found[0].text == OTHER_TEXT
        assert (found[0].first, found[0].last) == (MAX_GROUPS + 1, 2000)
        assert ("ValueError", 1) in [(one.text, one.failed) for one in found if one.service == b"quiet"]

    def test_old_counts_go(self) -> None:
        store = MemoryStore()
        facts = FactsRecorder(store)
        now = store.now_us()
        for age in (-40 * 86_400, 40 * 86_400, 5 * 3600, 60):
            facts.count(ACCEPTED, {b"echo": 1})
            facts._since = now - age * 1_000_000
            flush(facts, store, now - age * 1_000_000)
        flush(facts, store, now)
        with store.read() as transaction:
            assert len(transaction.facts(b"cm")) == 1
            assert len(transaction.facts(b"ch")) == 2
            assert facts_of(transaction, Unwritten(), now, 30 * 86_400)["total"]["accepted"] == 2

    def test_answers_that_are_kept_for_other_viewers_take_a_bounded_room(self) -> None:
        store, cache = MemoryStore(), FactsCache()
        facts = FactsRecorder(store)
        names, now = [b"%d" % n for n in range(100)], store.now_us()
        with store.read() as transaction:
            answers = [cache.get(transaction, facts, now, 28 * 86_400 - n, names, False) for n in range(10)]
        assert all(len(json.loads(one)["services"]) == 100 for one in answers)
        assert sum(map(len, answers)) > cache.MAX_BYTES
        assert sum(len(text) for _, text in cache._known.values()) <= cache.MAX_BYTES


def test_usual_times_are_of_the_day_before_though_finished_hours_are_summed_up_once() -> None:
    store, cache = MemoryStore(), FactsCache()
    facts = FactsRecorder(store)
    begin = store.now_us() // HOUR_US * HOUR_US + HOUR_US // 2

    def usual(now: int) -> dict[str, int]:
        cache._known.clear()
        with store.read() as transaction:
            found = json.loads(cache.get(transaction, facts, now, HOUR, (), False))
            alone = facts_of(transaction, facts.unwritten(), now, HOUR)
        assert found["services"] == alone["services"]
        return {name: one["usual"]["attempts"] for name, one in found["services"].items() if "usual" in one}

    for hour in range(30):
        at = begin + hour * HOUR_US
        facts.attempts([AttemptEnd(UUID, b"echo", SUCCEEDED, 0.0, 1.0, "")], at)
        facts._since = at
        flush(facts, store, at)
        for later in (HOUR_US // 8, HOUR_US // 4):
            assert usual(at + later) == ({"echo": min(hour, 25)} if hour else {})


def test_what_a_killed_node_has_not_written_is_marked_while_no_other_starts() -> None:
    store = MemoryStore()
    killed, lives = FactsRecorder(store), FactsRecorder(store)
    killed._shared = lives._shared = True
    now = store.now_us() // 60_000_000 * 60_000_000
    later = now + 4 * FLUSH_EVERY
    for facts, at in ((killed, now), (lives, now), (lives, later)):
        facts.count(ACCEPTED, {b"echo": 1})
        flush(facts, store, at)
    with store.read() as transaction:
        assert facts_of(transaction, lives.unwritten(), now + FLUSH_EVERY, HOUR)["incomplete"] == []
        assert facts_of(transaction, lives.unwritten(), later, HOUR)["incomplete"] == [(now, now + 15_000_000)]


class TestSharedTotals:
    """Of two nodes: the requests that are stored by them are those that are there."""

    @pytest.fixture
    def nodes(self) -> SharedNodes:
        return SharedNodes()

    def test_who_waited_for_another_to_join_does_not_take_it_for_killed(self, nodes: SharedNodes) -> None:
        """Its time is of before it waited, when the other one had not begun to join."""
        nodes.accept(nodes.other, 5, nodes.now + 1000)
        nodes.flush(nodes.one, nodes.now)
        nodes.end(nodes.now + 2000)

    def test_what_one_that_was_taken_for_killed_had_not_written_counts_once(self, nodes: SharedNodes) -> None:
        nodes.accept(nodes.other, 5, nodes.now)
        later = nodes.now + recorder.GONE
        nodes.flush(nodes.one, later)
        nodes.accept(nodes.other, 3, later)
        nodes.end(later)

    def test_who_was_taken_for_killed_by_one_that_has_ended_counts_once(self, nodes: SharedNodes) -> None:
        nodes.accept(nodes.other, 5, nodes.now)
        later = nodes.now + recorder.GONE
        flush(nodes.one, nodes.store, later, last=True)
        nodes.accept(nodes.other, 3, later, flushes=False)
        nodes.flush(nodes.other, later)
        flush(nodes.other, nodes.store, later, last=True)
        nodes.expect_right()

    def test_after_a_bug_what_is_counted_before_the_next_write_counts_once(self, nodes: SharedNodes) -> None:
        nodes.one._shared = False
        nodes.accept(nodes.one, 5, nodes.now)
        nodes.one.give_up(nodes.now)
        nodes.accept(nodes.one, 3, nodes.now, flushes=False)
        flush(nodes.one, nodes.store, nodes.now, last=True)
        nodes.expect_right()


class TestClock:
    def test_a_minute_that_comes_again_adds_to_its_counts(self) -> None:
        store = MemoryStore()
        facts = FactsRecorder(store)
        now = store.now_us() // 3_600_000_000 * 3_600_000_000
        for at in (now, now + 2 * HOUR_US, now + 1_000_000, now + 2_000_000, now + 2 * HOUR_US):
            facts.count(ACCEPTED, {b"echo": 1})
            facts._since = at
            flush(facts, store, at)
        with store.read() as transaction:
            for seconds in (3 * HOUR, 86_400):
                found = facts_of(transaction, Unwritten(), now + 2 * HOUR_US, seconds)
                assert found["services"]["echo"]["accepted"] == 5

    def test_groups_of_a_clock_that_was_ahead_make_room(self) -> None:
        groups = FailureGroups()
        for n, at in enumerate((100 * HOUR_US, HOUR_US)):
            groups.add(b"bad", "failed", f"Error {'ab'[n]}", UUID, at, retried=False)
        groups.written(3 * HOUR_US)
        assert not groups._groups
        assert not groups._of, "nothing is kept of services without groups"

    def test_counts_are_written_when_the_clock_has_gone_back(self) -> None:
        store = MemoryStore()
        facts = FactsRecorder(store)
        now = store.now_us()
        facts.count(ACCEPTED, {b"echo": 1})
        facts.changed_at = now
        flush(facts, store, now)
        before = now - 1000 * HOUR_US
        assert facts.is_due(before)
        flush(facts, store, before, alone=True)
        assert not facts.is_due(before + FLUSH_EVERY), "nothing more may follow"


class TestRows:
    def test_a_row_is_what_was_encoded(self) -> None:
        tally = [0] * SIZE
        tally[ACCEPTED], tally[SUCCEEDED], tally[WAIT + 3], tally[RUN + counts.BUCKETS - 1] = 7, 1 << 40, 5, 2
        tallies: Tallies = {b"echo": tally, OTHER: [1] * SIZE, b"\xff": [0] * SIZE}
        found: Tallies = {}
        for row in counts.encode(tallies):
            for one in counts.decode(row):
                counts.add_stored(found.setdefault(one[0], [0] * SIZE), one)
        assert found == tallies

    def test_percentiles_are_near_the_times(self) -> None:
        buckets = [0] * counts.BUCKETS
        assert counts.percentile(buckets, 0.5) is None
        for n in range(1, 1001):
            buckets[counts.bucket(n / 1000)] += 1
        for share in (0.5, 0.9, 0.99):
            found = counts.percentile(buckets, share)
            assert found is not None
            assert abs(found - share) < 0.15 * share
        assert counts.percentile([0] * (counts.BUCKETS - 1) + [1], 0.5) == counts.BOUNDS[-1]

    def test_a_process_that_writes_twice_counts_once(self) -> None:
        store = MemoryStore()
        one, other = FactsRecorder(store), FactsRecorder(store)
        now = store.now_us()
        for facts in (one, other):
            facts.count(FAILED, {b"echo": 2})
            facts.attempts([AttemptEnd(UUID, b"echo", FAILED, 0.1, 2.0, "no")], now)
        for facts in (one, other, other, one):
            flush(facts, store, now)
        with store.read() as transaction:
            found = facts_of(transaction, one.unwritten(), now, HOUR, [b"echo"], failures=True)
        assert found["services"]["echo"]["failed"] == 6
        assert [(each["text"], each["failed"]) for each in found["failures"]] == [("no", 2)]


def test_texts_that_differ_in_ids_numbers_and_quotes_are_one_group() -> None:
    texts = [
        f"KeyError: 'order {n}' of {uuid.UUID(int=n * 7919)} in /var/lib/{n}/x at 0x{n:x}, {n} times" for n in range(50)
    ]
    assert {normalize(text) for text in texts} == {"KeyError: … of … in … at …, … times"}
    assert normalize("ValueError: a") != normalize("ValueError: b")
    assert normalize("\n\n  first \n second") == "first"
    assert normalize("", "expired") == "not done in time"
