"""The clock is set: years ahead, back again, before 1970. Nothing is lost, and nothing waits for years."""

import os
import shutil
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.cli_titanic import running
from support.each import each
from support.serving import QUICK, serving
from support.store_facts import accept_all
from support.waiting import until

from broker import RemoteError, Worker
from titanic import Client, RequestFailed
from titanic.dispatch import maintenance
from titanic.store import NewRequest, Status, open_store
from titanic.store.lmdb.tools import check
from titanic.util import clock
from titanic.util.clock import AHEAD, BELIEVED_AFTER, LATEST_US, ClockJumps
from titanic.util.ids import IdMaker

NOW = 1_795_258_520_106_479
SECOND = 1_000_000
YEAR = 365 * 86_400 * SECOND
AHEAD_30 = NOW + 30 * YEAR
MOMENTS = [AHEAD_30, -1, -30 * YEAR, 0, 2**63, LATEST_US + 1, NOW]


@each("now", [-(2**63), -1, 0, 1, NOW, LATEST_US, 2**63, 2**80])
def test_any_clock_makes_ids_that_ascend(now):
    maker = IdMaker(None)
    made = [uuid for moment in (NOW, now, NOW, now, NOW) for uuid in maker.make(3, moment)]
    assert all(low < high for low, high in pairwise(made))
    assert IdMaker(made[-1]).make(1, NOW)[0] > made[-1]


@pytest.mark.parametrize(("ns", "us"), [(-(10**18), 1), (0, 1), (NOW * 1000, NOW), (10**21, LATEST_US)])
def test_times_that_are_stored_fit(monkeypatch, ns, us):
    monkeypatch.setattr(clock, "time", SimpleNamespace(time_ns=lambda: ns))
    assert clock.wall_us() == us


class Times:
    """A wall clock, and one that nobody sets."""

    def __init__(self):
        self.wall, self.true = NOW, 1000.0
        self.clock_jumps = ClockJumps(lambda: self.true)
        self.clock_jumps.unchecked = None

    def go(self, seconds, leap=0.0):
        self.true += seconds
        self.wall += round((seconds + leap) * SECOND)
        self.clock_jumps.observe(self.wall)
        return self.clock_jumps


def test_at_the_start_nobody_knows_whether_the_clock_was_wrong():
    assert ClockJumps().unchecked == b""


def test_a_clock_that_goes_right_is_not_doubted():
    times = Times()
    for _ in range(100):
        clock_jumps = times.go(3600, leap=0.5)
        assert clock_jumps.ahead_us == 0
        assert clock_jumps.unchecked is None


def test_a_clock_that_was_set_back_is_noticed():
    times = Times()
    times.go(1)
    assert times.go(1, leap=-2).unchecked == b""


def test_a_clock_that_was_set_ahead_is_doubted_for_a_time():
    times = Times()
    times.go(1)
    assert times.go(1, leap=AHEAD + 1).ahead_us == (AHEAD + 1) * SECOND
    assert times.go(BELIEVED_AFTER - 1).ahead_us == (AHEAD + 1) * SECOND
    assert times.go(2).ahead_us == 0


def test_each_time_it_was_set_ahead_is_doubted_for_itself():
    times = Times()
    times.go(1)
    times.go(1, leap=10)
    assert times.go(BELIEVED_AFTER / 2, leap=100).ahead_us == 110 * SECOND
    assert times.go(BELIEVED_AFTER / 2).ahead_us == 100 * SECOND
    assert times.go(BELIEVED_AFTER / 2).ahead_us == 0


@each(("back", "ahead"), [(100, 10), (60, 50), (105, 5), (110, 0), (1000, 0)])
def test_a_clock_that_was_set_ahead_and_back_is_doubted_for_the_rest(back, ahead):
    times = Times()
    times.go(1)
    times.go(1, leap=10)
    times.go(1, leap=100)
    clock_jumps = times.go(1, leap=-back)
    assert (clock_jumps.ahead_us, clock_jumps.unchecked) == (ahead * SECOND, b"")
    assert clock_jumps.observe(times.wall) == times.wall - ahead * SECOND


def due(store):
    with store.read() as txn:
        return {row.uuid: row.due for row in txn.select(limit=1000)}


def test_what_was_put_off_by_a_clock_that_was_ahead_keeps_its_delay(store):
    with store.write() as txn:
        right, late = accept_all(
            txn,
            [NewRequest(b"s", []), NewRequest(b"s", [], not_before=NOW + 50 * YEAR)],
            NOW,
        )
        delayed, failed = accept_all(
            txn, [NewRequest(b"s", [], not_before=AHEAD_30 + 7 * SECOND), NewRequest(b"s", [])], AHEAD_30
        )
        for uuid, now in ((right, NOW), (failed, AHEAD_30)):
            assert txn.postpone(uuid, due=now + 5 * SECOND, attempts=1, dispatched_at=now - SECOND, reason="no")
    later = NOW + SECOND
    with store.write() as txn:
        assert txn.clamp_timers(later) == (2, None)
        assert txn.clamp_timers(later) == (0, None)
    assert due(store) == {
        right: NOW + 5 * SECOND,
        late: NOW + 50 * YEAR,
        delayed: later + 7 * SECOND,
        failed: later + 6 * SECOND,
    }
    assert check(store) == []
    with store.write() as txn:
        assert txn.clamp_timers(later + 3 * SECOND) == (0, None), "once is enough"
        assert txn.promote(later + 7 * SECOND) == [(b"s", 3)]


def test_the_same_of_one_that_was_ahead_for_less_than_the_delay(store):
    ahead = NOW + 20 * SECOND
    with store.write() as txn:
        (delayed, failed) = accept_all(
            txn, [NewRequest(b"s", [], not_before=ahead + 60 * SECOND), NewRequest(b"s", [])], ahead
        )
        assert txn.postpone(failed, due=ahead + 60 * SECOND, attempts=1, dispatched_at=ahead, reason="no")
    for now in (NOW, NOW + SECOND, NOW + 19 * SECOND, NOW + 30 * SECOND):  # again at each start
        with store.write() as txn:
            txn.clamp_timers(now)
        assert due(store) == {delayed: NOW + 60 * SECOND, failed: NOW + 60 * SECOND}


def test_a_time_to_live_that_was_given_by_a_clock_that_was_ahead_keeps_its_length(store):
    mortal = NewRequest(b"s", [], expires_at=AHEAD_30 + 60 * SECOND)
    with store.write() as txn:
        right, early = accept_all(txn, [mortal._replace(expires_at=NOW + 60 * SECOND), mortal], NOW)
        waiting, delayed, failed, closed, retried = accept_all(txn, [mortal] * 5, AHEAD_30)
        txn.postpone(delayed, due=AHEAD_30 + SECOND, attempts=1, dispatched_at=AHEAD_30, reason="no")
        for uuid in (failed, retried):
            txn.finish(uuid, Status.FAILED, [], attempts=1, dispatched_at=NOW, finished_at=NOW)
        txn.retry(retried, AHEAD_30)
    for now in (NOW, NOW + SECOND):
        with store.write() as txn:
            assert txn.clamp_timers(now) == (5 if now == NOW else 0, None)
            found = {row.uuid: row.expires_at for row in txn.select(limit=1000)}
            assert txn.next_ready(b"s", None, 1, 1)[0].expires_at == found[right]
        capped = dict.fromkeys((waiting, delayed, closed, retried), NOW + 60 * SECOND)
        assert found == {right: NOW + 60 * SECOND, early: mortal.expires_at, failed: mortal.expires_at, **capped}
        assert check(store) == []
    with store.write() as txn:
        assert txn.close(closed, NOW)
        assert txn.promote(NOW + SECOND) == [(b"s", 1)]
        assert txn.describe(delayed).expires_at == NOW + 60 * SECOND
        assert txn.retry(failed, NOW + 10 * SECOND)
        assert txn.describe(failed).expires_at == NOW + 70 * SECOND
        assert {uuid for uuid, _ in txn.expire(NOW + 60 * SECOND)} == {right, waiting, delayed, retried}
        assert txn.retry(waiting, NOW + 61 * SECOND)
        assert txn.describe(waiting).expires_at in (0, NOW + 121 * SECOND)


def test_a_key_that_came_while_the_clock_was_ahead_keeps_its_length(store):
    def keyed(key, until):
        return NewRequest(b"s", [], key=key, key_until=until)

    with store.write() as txn:
        txn.accept([keyed(b"right", NOW + 5 * SECOND), keyed(b"long", NOW + 90 * YEAR)], NOW)
        ((gone, _),) = txn.accept([keyed(b"ahead", AHEAD_30 + 60 * SECOND)], AHEAD_30)
        txn.close(gone, AHEAD_30)
        txn.accept([keyed(b"back", NOW + 60 * SECOND)], NOW)  # its id is ahead
    for now in (NOW, NOW + SECOND):
        with store.write() as txn:
            assert txn.clamp_timers(now) == (1 if now == NOW else 0, None)
            assert txn.accept([keyed(b"ahead", NOW + 60 * SECOND)], NOW + 59 * SECOND) == [(gone, False)]
        assert check(store) == []
    with store.write() as txn:
        assert txn.trim(NOW + 60 * SECOND).keys == 3
        assert txn.accept([keyed(b"ahead", NOW + 90 * SECOND)], NOW + 60 * SECOND)[0].new


def test_it_is_done_in_steps(store):
    with store.write() as txn:
        for now in (NOW, AHEAD_30):
            rows = [(now + n, b"%d %d" % (now, n)) for n in range(1, 101)]
            accept_all(
                txn,
                [NewRequest(b"s", [], not_before=at, expires_at=at, key=key, key_until=at) for at, key in rows],
                now,
            )
    changed, after, steps = 0, b"", 0
    while after is not None:
        with store.write() as txn:
            n, after = txn.clamp_timers(NOW, after, 30)
        changed, steps = changed + n, steps + 1
    assert changed == 300
    assert steps == 20


class Wall:
    """The wall clock of this process, as Titanic sees it. It goes on from what it was set to, in µs."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME
    clock_gettime = staticmethod(time.clock_gettime)

    def __init__(self):
        self.set(NOW)

    def set(self, now):
        self._ahead = now - time.monotonic_ns() // 1000

    def time_ns(self):
        return (self._ahead + time.monotonic_ns() // 1000) * 1000


@pytest.fixture
def wall(monkeypatch):
    wall = Wall()
    monkeypatch.setattr(clock, "time", wall)
    monkeypatch.setattr(maintenance, "LONGEST_ALARM", 0.2)
    return wall


@contextmanager
def shouting(server):
    with Worker("shout", lambda frames: frames[0].upper(), server.endpoints[0], config=QUICK) as worker:
        yield worker


def test_a_server_takes_and_does_requests_whatever_the_clock_shows(tmp_path, wall):
    with serving(tmp_path) as server, Client(server.endpoints[0], timeout=30) as client, shouting(server):
        uuids = []
        for moment in MOMENTS * 2:
            wall.set(moment)
            for options in ({}, {"delay": 0.01}, {"key": str(len(uuids))}):
                uuids.append(client.submit("shout", b"x", **options))
        assert uuids == sorted(uuids)
        assert {uuid: client.wait(uuid, 30) for uuid in uuids} == {uuid: [b"X"] for uuid in uuids}


def test_a_failure_while_the_clock_was_ahead_is_tried_again_soon_after_it_is_right(tmp_path, wall):
    tries = []

    def fail_once(frames):
        tries.append(frames)
        if len(tries) == 1:
            raise RemoteError(500, "not yet")
        return b"done"

    with serving(tmp_path, retry_first=20, retry_most=20) as server, Client(server.endpoints[0], timeout=30) as client:
        wall.set(AHEAD_30)
        uuid = client.submit("once", b"x")
        with Worker("once", fail_once, server.endpoints[0], config=QUICK):
            until(lambda: client.stats()["store"]["delayed"] == 1)
        wall.set(NOW)
        until(lambda: due(server.store)[bytes.fromhex(uuid)] < NOW + 60 * SECOND)
        wall.set(NOW + 60 * SECOND)
        with Worker("once", fail_once, server.endpoints[0], config=QUICK):
            assert client.wait(uuid, 30) == [b"done"]


def test_what_came_while_the_clock_was_ahead_for_a_moment_is_not_put_off(tmp_path, wall, monkeypatch):
    """Between two looks at what is due: what was accepted has the time of that moment."""
    monkeypatch.setattr(maintenance, "LONGEST_ALARM", 1.0)
    with serving(tmp_path) as server, Client(server.endpoints[0], timeout=30) as client, shouting(server):
        until(lambda: server.dispatcher.maintenance.clock_jumps.unchecked is None)
        wall.set(AHEAD_30)
        uuid = client.submit("shout", b"x", delay=0.5)
        wall.set(NOW)
        assert client.wait(uuid, 30) == [b"X"]


def test_replies_outlive_a_clock_that_is_years_ahead_for_a_moment(tmp_path, wall):
    with serving(tmp_path) as server, Client(server.endpoints[0], timeout=30) as client, shouting(server):
        uuid = client.submit("shout", b"x")
        assert client.wait(uuid, 30) == [b"X"]
        wall.set(AHEAD_30)
        assert client.wait(client.submit("shout", b"y", delay=0.01), 30) == [b"Y"]
        wall.set(NOW)
        assert client.reply(uuid) == [b"X"]


def test_a_time_to_live_of_that_moment_ends_when_it_should(tmp_path, wall):
    with serving(tmp_path) as server, Client(server.endpoints[0], timeout=30) as client:
        wall.set(AHEAD_30)
        mortal = client.submit("later", b"x", ttl=0.5)
        wall.set(NOW)
        with pytest.raises(RequestFailed, match="expired"):
            client.wait(mortal, 30)


def test_keys_and_times_to_live_outlive_it_too(tmp_path, wall):
    with serving(tmp_path) as server, Client(server.endpoints[0], timeout=30) as client, shouting(server):
        mortal = client.submit("later", b"x", ttl=600, key="mortal")
        wall.set(AHEAD_30)
        # What keeps time has looked at the clock once this is done.
        assert client.wait(client.submit("shout", b"y", delay=0.01), 30) == [b"Y"]
        assert client.submit("later", b"x", ttl=600, key="mortal") == mortal
        assert client.show(mortal)["state"] == "waiting"
        with Worker("later", lambda frames: b"in time", server.endpoints[0], config=QUICK):
            assert client.wait(mortal, 30) == [b"in time"]
        wall.set(NOW)
        assert client.submit("later", b"x", key="mortal") == mortal


def test_a_time_to_live_from_before_it_was_set_ahead_ends_when_it_should(tmp_path, wall):
    with serving(tmp_path) as server, Client(server.endpoints[0], timeout=30) as client:
        mortal = client.submit("later", b"x", ttl=1)
        wall.set(AHEAD_30)
        with pytest.raises(RequestFailed, match="expired"):
            client.wait(mortal, 30)


@pytest.mark.skipif(
    shutil.which("faketime") is None and "CI" not in os.environ, reason="needs faketime, which isn't installed"
)
@pytest.mark.parametrize("start", ["1969-06-01 00:00:00", "2056-11-21 12:00:00"])
def test_a_real_server_lives_in_another_time_and_comes_back(tmp_path, start):
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    faked = {"LD_PRELOAD": str(library), "FAKETIME": f"@{start}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    serve = ("serve", "--bind", "tcp://127.0.0.1:*", "--store", tmp_path / "store")
    with running(tmp_path / "log", *serve, **faked) as server:
        endpoint = server.says(r"serving at (\S+);")[1]
        with Client(endpoint, timeout=30) as client:
            uuids = [client.submit("shout", b"x", delay=delay) for delay in (0, 1, 2)]
            assert client.stats()["store"]["requests"] == 3
    with running(tmp_path / "again", *serve) as server:
        endpoint = server.says(r"serving at (\S+);")[1]
        with (
            Client(endpoint, timeout=30) as client,
            Worker("shout", lambda frames: frames[0].upper(), endpoint, config=QUICK),
        ):
            uuids.append(client.submit("shout", b"x"))
            assert uuids == sorted(uuids)
            assert {uuid: client.wait(uuid, 30) for uuid in uuids} == {uuid: [b"X"] for uuid in uuids}
    with open_store(tmp_path / "store") as store:
        assert check(store) == []
