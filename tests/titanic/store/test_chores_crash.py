"""Killed, or failed by the disk, while a store is made, converted, repaired, restored or given another capacity.

Afterwards it can be done again, and nothing is lost. A few points each; with TITANIC_TORTURE all of them.
"""

import os
import random
import re
import shutil
import time
from collections import Counter
from itertools import product
from typing import NamedTuple

import lmdb
import pytest
from support.store_chores import CANNOT
from support.store_contents import contents, difference
from support.store_facts import accept_all, state_of
from support.store_formats import synthetic_step, unpack
from support.store_strace import INJECTED, KILLED, RECORDING, power_cut, read_record, trace
from support.torture import LONG, SEED, part, tally

from titanic.store import NewRequest, State, Status
from titanic.store.lmdb.schema import Databases
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import backup, check, repair, restore

NOW = 1_795_258_520_106_479
HOUR = 3_600_000_000
CAPACITY = 16 << 20
OWNERS = (b"", b"shop")
CALLS = "pwrite64,pwritev,writev,write,fdatasync,fsync,ftruncate,fallocate,rename,mkdir,unlink"

pytestmark = [
    pytest.mark.skipif(
        shutil.which("strace") is None and "CI" not in os.environ, reason="needs strace, which isn't installed"
    ),
    pytest.mark.torture(short=True),
]


def fill(path, now=NOW, ahead=1):
    """A store with requests in every place; their ids. What has a time has it a few times `ahead` µs after `now`."""
    with LmdbStore.open(path, capacity=CAPACITY) as store, store.write() as txn:
        uuids = accept_all(
            txn,
            [NewRequest(b"s", [bytes(n * 300)], expires_at=now + 9 * ahead, owner=OWNERS[n % 2]) for n in range(60)],
            now,
        )
        for uuid in uuids[:20]:
            txn.finish(uuid, Status.DONE, [uuid], attempts=1, dispatched_at=now, finished_at=now)
        for uuid in uuids[20:30]:
            txn.postpone(uuid, due=now + 5 * ahead, attempts=1, dispatched_at=now, reason="no")
    return uuids


def expect(path, uuids):
    """All that `fill` put there is there."""
    with LmdbStore.open(path) as store:
        assert check(store) == []
        with store.read() as txn:
            assert all(txn.request(uuid).body == [bytes(n * 300)] for n, uuid in enumerate(uuids))
            assert all(txn.owner(uuid) == OWNERS[n % 2] for n, uuid in enumerate(uuids))
            assert all(txn.reply(uuid).frames == [uuid] for uuid in uuids[:20])
            assert all(state_of(txn, uuid) is State.DELAYED for uuid in uuids[20:30])
            assert all(state_of(txn, uuid) is State.WAITING for uuid in uuids[30:])
        with store.write() as txn:
            assert accept_all(txn, [NewRequest(b"s", [])], NOW)
    tally["acknowledged requests checked"] += len(uuids)


class Creating:
    arguments = ("open",)

    def prepare(self, path):
        pass

    def expect(self, path):
        expect(path, [])


class Converting:
    arguments = ("convert",)

    def prepare(self, path):
        self.expected = unpack(path, "format-1")

    def expect(self, path):
        with synthetic_step():
            with LmdbStore.open(path) as store:
                assert check(store) == []
                with store.read() as txn:
                    converted = [key for key, _ in txn.raw.cursor(txn.db.aside)]
            assert difference(self.expected, contents(str(path))) == []
        assert len(converted) == len(self.expected["requests"])
        tally["acknowledged requests checked"] += len(self.expected["requests"])


class ChangingCapacity:
    arguments = ("open", str(3 * CAPACITY))

    def prepare(self, path):
        self.uuids = fill(path)

    def expect(self, path):
        expect(path, self.uuids)


class Repairing:
    """Rows of all indexes are gone. They follow from the records, so that repairing brings everything back."""

    arguments = ("repair",)

    def prepare(self, path):
        self.uuids = fill(path)
        with lmdb.open(str(path), max_dbs=16, map_size=1 << 24) as env:
            databases = {name: env.open_db(name.encode(), create=False) for name in Databases._fields}
            with env.begin(write=True) as txn:
                for name in ("ready", "later", "timers"):
                    txn.drop(databases[name], delete=False)
                txn.delete(b"ns", db=databases["meta"])
        with LmdbStore.open(path) as store:
            assert len(check(store)) > 60

    def expect(self, path):
        with LmdbStore.open(path) as store:
            repair(store, NOW)
        expect(path, self.uuids)


class Restoring:
    def prepare(self, path):
        copy = path.with_name(f"{path.name}-copy")
        self.arguments = ("restore", copy)
        self.uuids = fill(path)
        with LmdbStore.open(path) as store:
            backup(store, copy)
        shutil.rmtree(path)

    def expect(self, path):
        if not path.exists():  # all of it, or nothing
            restore(self.arguments[1], path)
        expect(path, self.uuids)


CHORES = [Creating, Converting, ChangingCapacity, Repairing, Restoring]


class Point(NamedTuple):
    """A call, and which of its name in its thread."""

    name: str
    n: int


@pytest.fixture(params=CHORES, ids=lambda chore: chore.__name__)
def chore(request):
    return request.param()


def files(path):
    """What strace is to look at: all that can be in the store or becomes it."""
    partial = path.with_name(f".{path.name}.partial")
    names = [path.parent, path, partial, partial / "data.mdb", partial / "lock.mdb"]
    names += [path / name for name in ("data.mdb", "new.mdb", "lock.mdb", "titanic.lock")]
    return [option for name in names for option in ("-P", name)]


def run(chore, path, *options):
    name, *more = chore.arguments
    return trace(path.with_suffix(".strace"), options, "store_chores", name, path, *more)


def points(chore, path):
    """The calls of the chore that change something on the disk. They are the same each time."""
    chore.prepare(path)
    done = run(chore, path, *files(path), "-e", f"trace={CALLS}")
    assert done.status == 0, done.said
    count = Counter()
    found = {}
    for thread, name in re.findall(rf"^(\d+) +({CALLS.replace(',', '|')})\(", done.log, re.MULTILINE):
        count[thread, name] += 1
        found[Point(name, count[thread, name])] = None
    chore.expect(path)
    return list(found)


def struck(chore, path, point, what):
    chore.prepare(path)
    strike = f"inject={point.name}:{what}:when={point.n}"
    return run(chore, path, *files(path), "-y", "-e", f"trace={point.name}", "-e", strike)


def test_killed_or_failed_by_the_disk_anywhere_it_can_be_done_again_and_nothing_is_lost(tmp_path, chore):
    found = points(chore, tmp_path / "all")
    assert len(found) > 5
    for point in part(found, 3):
        path = tmp_path / f"killed at {point.name} {point.n}"
        done = struck(chore, path, point, "signal=KILL")
        tally["crash points tried"] += 1
        assert KILLED in done.log, f"{point} was made"
        tally["crash points fired"] += 1
        chore.expect(path)
    for point, error in product(part(found, 2), ["EIO", "ENOSPC"] if LONG else ["ENOSPC"]):
        path = tmp_path / f"{error} of {point.name} {point.n}"
        done = struck(chore, path, point, f"error={error}")
        assert INJECTED in done.log, f"{point} was made"
        tally["disk errors injected"] += 1
        (line,) = [line for line in done.log.splitlines() if INJECTED in line]
        if done.status != CANNOT:
            # What is written in the lock is for people, and a full disk is no reason to give a store no service.
            assert done.status == 0, done.said
            assert "titanic.lock" in line, line
        tally["disk errors noticed"] += done.status == CANNOT
        chore.expect(path)


@pytest.mark.parametrize("chore", [Converting, Repairing, ChangingCapacity], indirect=True)
def test_after_a_power_cut_nothing_is_lost(tmp_path, chore):
    path = tmp_path / "store"
    chore.prepare(path)
    before = (path / "data.mdb").read_bytes()
    done = run(chore, path, *RECORDING)
    assert done.status == 0, done.said
    events = read_record(done.log, path)
    rng = random.Random(SEED)
    for _ in range(20 if LONG else 2):
        for cut in range(1, len(events) + 1):
            shutil.rmtree(path)
            path.mkdir()
            (path / "data.mdb").write_bytes(power_cut(before, events[:cut], rng)[0])
            chore.expect(path)
            tally["power-cut images checked"] += 1


def test_a_store_has_its_name_when_it_is_whole_and_on_disk(tmp_path):
    path = tmp_path / "store"
    done = run(Creating(), path, *files(path), "-e", f"trace={CALLS}")
    log = re.sub(r"^\d+ +", "", done.log, flags=re.MULTILINE)
    assert log.index("fdatasync(") < log.index("rename(") < log.rindex("fsync(")
    assert log.count("fsync(") >= 2, "of its directory, and of the one above"


def test_a_server_whose_disk_fails_at_the_root_of_all_pages_ends_to_be_started_again(tmp_path):
    """LMDB can't go on then: until it is opened again it would refuse everything."""
    # strace counts the writes of each thread; which one commits first, and how much it writes, differs between runs.
    for run in range(30):
        path = tmp_path / str(run)
        uuids = fill(path / "store", time.time_ns() // 1000, HOUR)  # nothing is due while the server runs
        failing = ["-e", f"inject=pwrite64:error=EIO:when={1 + run % 4}"] if run else []
        options = ["-P", path / "store" / "data.mdb", "-e", "trace=pwrite64", *failing]
        done = trace(path / "strace", options, "store_panic", path)
        if not run:
            assert "accepted" in done.said.splitlines()
        hit = re.findall(r"pwrite64\(.*, (\d+), \d+\) += .*INJECTED", done.log)
        if hit == ["120"] and "not stored: the store in" in done.said:  # and no commit of the server's own
            break
    else:
        pytest.fail("the root of all pages was written in no run alone")
    assert "it knows that it can't go on" in done.said
    expect(path / "store", uuids)
