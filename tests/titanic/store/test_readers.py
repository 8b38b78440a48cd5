"""Readers: the killed pin no pages and take no places for long, and those that hang do not stop the queue."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress

import pytest
from support.cli_titanic import titanic
from support.processes import PYTHONPATH, SUPPORT
from support.serving import serving
from support.store_facts import accept_all, closed_range
from support.torture import tally
from support.waiting import until

from titanic import Client, Refused
from titanic.dispatch import maintenance
from titanic.errors import StoreError, StoreFull
from titanic.store import NewRequest, Retention, Status
from titanic.store.lmdb import readers
from titanic.store.lmdb.readers import COPY
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check, findings
from titanic.store.lmdb.tools.backup import expect_room
from titanic.store.lmdb.tools.check import check_in_use

CAPACITY = 16 << 20
PLACES = 126
ROUNDS, EACH = 8, 25
NOW = 1_795_258_520_106_479


class Readers:
    """Processes that read the store and are killed."""

    def __init__(self, process):
        self._process = process

    def die(self):
        """EACH of them."""
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "killed\n"
        tally["readers killed"] += EACH


@pytest.fixture
def killed_readers(tmp_path):
    script = [sys.executable, SUPPORT / "killed_readers.py", tmp_path / "store", str(ROUNDS), str(EACH)]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Readers(process)
        process.kill()


def pids(store):
    """The process of each reader in the store's table, dead ones too."""
    return [int(row.split()[0]) for row in store.environment.env.readers().splitlines()[1:]]


def places(store):
    """The number of readers in the store's table."""
    return len(pids(store))


@pytest.mark.torture(short=True)
def test_a_server_forgets_readers_that_were_killed(tmp_path, killed_readers, monkeypatch):
    monkeypatch.setattr(maintenance, "READERS_EVERY", 0.05)
    with (
        serving(tmp_path, capacity=CAPACITY, closed_body_limit=0) as server,
        Client(server.endpoints[0], timeout=30) as client,
    ):
        for _ in range(ROUNDS):
            killed_readers.die()
            until(lambda: set(pids(server.store)) <= {os.getpid()})
            # a third of the capacity in each round: it would not fit if the killed ones pinned what they saw
            uuids = client.submit_many("absent", [bytes(50_000)] * 100)
            client.close_many(uuids)
            assert (tmp_path / "store" / "data.mdb").stat().st_size <= CAPACITY
        assert client.stats()["since_start"]["refused"] == 0
        assert titanic("check", "--store", tmp_path / "store").code == 0


def test_whoever_finds_no_place_takes_those_of_the_killed(tmp_path, killed_readers):
    """Nobody has looked for a while."""
    with LmdbStore.open(tmp_path / "store") as store:
        while places(store) < PLACES - 1:
            killed_readers.die()
        with store.read() as one, store.read() as another:
            assert one.counts() == another.counts()
        assert places(store) < EACH
    with LmdbStore.open(tmp_path / "store") as store:
        for _ in range(3):
            killed_readers.die()
        titanic("check", "--store", store.path)
        assert places(store) < EACH


@pytest.fixture
def long_reader(tmp_path):
    """Start a process that reads the store and comes to no end, with a name for the kernel."""
    with ExitStack() as stack:

        def begin(*name):
            script = [sys.executable, "-m", "support.long_reader", tmp_path / "store", *name]
            environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
            process = stack.enter_context(subprocess.Popen(script, stdout=subprocess.PIPE, text=True, env=environment))
            stack.callback(process.kill)
            assert process.stdout.readline() == "begun\n"
            return process

        yield begin


def live(store, count=20, size=20_000):
    """The life of some requests. Returns them when they could not be accepted, or not be ended."""
    with store.write() as txn:
        uuids = accept_all(txn, [NewRequest(b"echo", [bytes(size)])] * count, NOW)
    finish(store, uuids)


def lives(store):
    try:
        live(store)
    except StoreFull:
        return False
    return True


def finish(store, uuids):
    end = {"attempts": 1, "dispatched_at": NOW, "finished_at": NOW}
    with store.write() as txn:
        for uuid in uuids:
            assert txn.finish(uuid, Status.DONE, [b"small"], **end)
    with store.write() as txn:
        for uuid in uuids:
            assert txn.close(uuid, NOW)


@pytest.mark.parametrize("keep_closed", [True, False])
def test_a_reader_that_stands_still_stops_accepting_and_neither_closing_nor_replies(tmp_path, long_reader, keep_closed):
    with LmdbStore.open(tmp_path / "store", capacity=CAPACITY, keep_closed=keep_closed) as store:
        with store.write() as txn:
            waiting = accept_all(txn, [NewRequest(b"echo", [bytes(1000)])] * 1000, NOW)
        reader = long_reader()
        for count in (20, 1):
            with pytest.raises(StoreFull):  # noqa: PT012
                while True:
                    live(store, count, 1000 * count)
        [row] = until(store.readers)
        assert (row.pid, "long_reader" in row.command) == (reader.pid, True)
        assert row.pinned > CAPACITY // 10
        with store.read() as txn:
            assert txn.space().full
        for at in range(0, len(waiting), 100):
            finish(store, waiting[at : at + 100])
        reader.kill()
        reader.wait()
        assert store.reader_check() == 1
        for _ in range(50):
            live(store)
        assert check(store) == []


def test_a_copy_that_stands_still_is_ended_when_the_store_needs_the_room(tmp_path, long_reader, monkeypatch, caplog):
    monkeypatch.setattr(readers, "GRACE", 0.1)
    with LmdbStore.open(tmp_path / "store", capacity=CAPACITY) as store:
        reader = long_reader(COPY)
        os.kill(reader.pid, signal.SIGSTOP)
        until(store.readers)
        until(lambda: not lives(store))
        until(lambda: lives(store))
        assert reader.wait() == -signal.SIGKILL
        assert f"killed process {reader.pid} (titanic-copy)" in caplog.text


def test_what_is_pinned_is_what_cannot_be_used_again(tmp_path, long_reader):
    with LmdbStore.open(tmp_path / "store", capacity=CAPACITY, keep_closed=False) as store:
        long_reader()
        for _ in range(20):
            live(store)
        until(store.readers)
        [row] = store.readers()
        file = (store.environment.env.info()["last_pgno"] + 1) * 4096
        with store.read() as txn:
            free = file - txn.used()
        assert free * 0.8 < row.pinned <= free


def test_a_reader_of_a_file_that_was_deleted_pins_nothing(tmp_path, long_reader):
    with LmdbStore.open(tmp_path / "store", capacity=CAPACITY) as store:
        long_reader()
        until(store.readers)
        (tmp_path / "store").rename(tmp_path / "old")
        [row] = store.readers()
        assert row.pinned == 0
        with store.read() as txn:
            assert txn.space().disk_full


def kill(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.torture(short=True)
def test_a_backup_that_hangs_does_not_stop_the_queue(tmp_path, monkeypatch):
    """It stands still half way, as it does on a disk that hangs."""
    monkeypatch.setattr(readers, "GRACE", 0.1)
    with (
        serving(tmp_path, capacity=CAPACITY, closed_body_limit=0) as server,
        Client(server.endpoints[0], timeout=30) as client,
    ):
        at = server.endpoints[0]
        kept = client.submit_many("absent", [os.urandom(50_000)] * 60)
        # The copy is written a MiB at a time. It is stopped after the first.
        stop = "-P", tmp_path / ".copy.partial" / "data.mdb", "-e", "inject=write:signal=SIGSTOP:when=2"
        command = sys.executable, "-m", "titanic", "backup", tmp_path / "copy", "--store", tmp_path / "store"
        traced = ["strace", "-f", "-q", "-o", tmp_path / "log", *stop, *command]
        with subprocess.Popen(traced, stderr=subprocess.PIPE) as backup, ExitStack() as stack:
            [reader] = until(server.store.readers)
            stack.callback(kill, reader.pid)  # should it not have been ended
            assert f"process {reader.pid} (titanic-copy)" in titanic("status", "--endpoint", at).out.decode()
            refused = []

            def is_served():
                try:
                    client.close_many(client.submit_many("absent", [os.urandom(50_000)] * 20))
                except Refused as refusal:
                    refused.append(refusal)
                return not server.store.readers()

            until(is_served)
            assert b"was killed (SIGKILL)" in backup.stderr.read()
        assert backup.returncode == 1
        assert not list(tmp_path.glob("*copy*"))
        del refused[:]
        assert all(is_served() for _ in range(50))
        assert not refused
        client.close_many(kept)


# -- checks of a store that is in use ------------------------------------------------------------------------


def lively(store, n):
    """Something of everything happens."""
    with store.write() as txn:
        txn.update_archive(register=True)
        sizes = (10, 3000, 20_000)
        new = [NewRequest(b"s%d" % i, [bytes(sizes[i % 3])], owner=b"eve" if i % 2 else b"") for i in range(12)]
        uuids = accept_all(txn, new, NOW + n)
    with store.write() as txn:
        for uuid in uuids[:6]:
            frames = [bytes(sizes[uuid[-1] % 3])]
            txn.finish(uuid, Status.DONE, frames, attempts=1, dispatched_at=NOW, finished_at=NOW + n)
        txn.postpone(uuids[6], due=NOW + 99, attempts=1, dispatched_at=NOW, reason="it broke")
    with store.write() as txn:
        for uuid in uuids[2:10]:
            txn.close(uuid, NOW + n)
        txn.update_archive(upto=max(0, closed_range(txn)[1] - 40))
        txn.trim(NOW + n, Retention(closed_retention=1), limit=5)


def test_a_check_of_a_store_in_use_pins_nothing_and_raises_no_false_alarm(tmp_path, monkeypatch):
    monkeypatch.setattr(findings, "SLICE", 3)
    monkeypatch.setattr(findings, "_EVERY", 100)
    with LmdbStore.open(tmp_path / "store", capacity=256 << 20) as store:
        for n in range(60):
            lively(store, n)
        ages = []

        def go_on(*progress):
            lively(store, len(ages))
            seen = [line.split()[2] for line in store.environment.env.readers().splitlines()[1:]]
            oldest = min(int(number) for number in seen if number != "-")
            ages.append(store.environment.env.info()["last_txnid"] - oldest)

        again = []
        assert check_in_use(store, go_on, again.append) == []
        assert len(set(again)) == 1, "what seemed wrong was looked at again, in one transaction"
        slices = ages[: -len(again)]
        assert len(slices) > 40
        assert max(slices) < 30 < max(ages)
        with store.write() as txn:
            txn.raw.put(b"nbusy", bytes(24), db=txn.db.meta)
            txn.raw.put(b"oeve", bytes(16), db=txn.db.meta)
            txn.raw.put(bytes(12), b"", db=txn.db.blobs)
            txn.raw.put(b"x", b"", db=txn.db.replies)
        problems = check_in_use(store, lambda name, done, total: lively(store, 1) if done == 0 else None, again.append)
        assert sorted({problem.where.split()[0] for problem in problems}) == ["blobs", "meta", "replies"]
        assert len(problems) == 4


def test_a_check_of_a_store_in_use_ends_when_it_needs_the_room(tmp_path):
    with LmdbStore.open(tmp_path / "store", capacity=CAPACITY, keep_closed=False) as store:
        since = store.environment.env.info()["last_txnid"]
        expect_room(store, since)
        ended = r"the read of the store in .* was stopped; .* try again when the load"
        with store.read(), pytest.raises(StoreError, match=ended):  # noqa: PT012
            for _ in range(1000):
                live(store)
                expect_room(store, since)
