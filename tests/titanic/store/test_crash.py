"""The store is killed, its disk fails, the power is cut: whatever was acknowledged is there.

A few points, evenly spread; with TITANIC_TORTURE all of them, and several workloads.
"""

import os
import random
import shutil

import pytest
from support import store_strace
from support.store_strace import INJECTED, KILLED, Acknowledged, Sync, Write, calls, power_cut, record
from support.store_workload import CAPACITY, verify
from support.torture import LONG, SEED, part, tally

from titanic.store.lmdb.store import LmdbStore

STEPS = 40

pytestmark = [
    pytest.mark.skipif(
        shutil.which("strace") is None and "CI" not in os.environ, reason="needs strace, which isn't installed"
    ),
    pytest.mark.torture(short=True),
    pytest.mark.parametrize("seed", (SEED, SEED + 1) if LONG else [SEED]),
]


@pytest.fixture
def path(tmp_path):
    LmdbStore.open(tmp_path / "store", capacity=CAPACITY).close()
    return tmp_path / "store"


def afresh(path, name):
    """A copy of the empty store."""
    copy = path.with_name(f"run-{name}")
    shutil.copytree(path, copy)
    return copy


def strike(path, seed, call, what):
    """Run the workload, and have something done to one call on the data file."""
    name, n = call
    options = "-P", str(path / "data.mdb"), "-e", f"trace={name}", "-e", f"inject={name}:{what}:when={n}"
    return store_strace.run(path, seed, STEPS, *options)


def test_the_workload_does_everything(path, seed):
    found = calls(afresh(path, 0), seed, STEPS)
    assert {name for name, _ in found} == {"pwrite64", "writev", "fdatasync"}
    assert len(found) > 120
    acts, happened, keyed, batches = set(), set(), set(), set()
    for number in range(seed, seed + 4):
        run = afresh(path, f"all-{number}")
        done = store_strace.run(run, number, STEPS, "-e", "trace=none")
        assert sum("did" in line for line in done.ledger) == STEPS
        acts |= {line["act"] for line in done.ledger if "try" in line}
        happened |= {what for line in done.ledger for what in line.get("result", ()) if len(what) < 32}
        keyed |= {line["keyed"] for line in done.ledger if "keyed" in line}
        batches |= {len(line["numbers"]) for line in done.ledger if "numbers" in line}
        assert any(line["result"] for line in done.ledger if "did" in line)
        assert verify(run, done.ledger) > 30
    assert acts == {"accept", "finish", "close", "postpone", "retry", "tidy"}
    assert happened == {"tidied", "expired", "promoted", "trimmed"}
    assert keyed == {True, False}
    assert batches >= {1, 5, 20}


def test_killed_anywhere_it_has_what_was_acknowledged(path, seed):
    found = calls(afresh(path, 0), seed, STEPS)
    for name, n in part(found, 7):
        run = afresh(path, f"{name}-{n}")
        done = strike(run, seed, (name, n), "signal=KILL")
        tally["crash points tried"] += 1
        assert KILLED in done.log, f"{name} {n} was made"
        tally["crash points fired"] += 1
        assert "try" in done.ledger[-1]
        tally["acknowledged requests checked"] += verify(run, done.ledger)
        shutil.rmtree(run)


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_disk_error_is_reported_and_drops_its_step_alone(path, seed, error):
    found = calls(afresh(path, 0), seed, STEPS)
    for name, n in part(found, 4):
        run = afresh(path, f"{name}-{n}")
        done = strike(run, seed, (name, n), f"error={error}")
        assert done.log.count(INJECTED) == 1, f"{name} {n} was made"
        tally["disk errors injected"] += 1
        assert done.status == 0
        assert any("failed" in line for line in done.ledger), f"nobody noticed that {name} {n} failed"
        tally["disk errors noticed"] += 1
        tally["acknowledged requests checked"] += verify(run, done.ledger)
        shutil.rmtree(run)


def test_after_a_power_cut_it_has_what_was_acknowledged(path, tmp_path, seed):
    before = (path / "data.mdb").read_bytes()
    events = record(afresh(path, 0), seed, STEPS)
    ledger = store_strace.read_ledger(tmp_path / "run-0.ledger")
    assert sum(isinstance(event, Sync) for event in events) >= STEPS / 2
    assert sum(isinstance(event, Acknowledged) for event in events) == len(ledger)
    rng = random.Random(seed)
    cuts = [n for n, event in enumerate(events, 1) if isinstance(event, Write | Sync)]
    checked = 0
    for cut in cuts * 5 if LONG else rng.sample(cuts, 60):
        image, lines = power_cut(before, events[:cut], rng)
        run = tmp_path / "image"
        run.mkdir()
        (run / "data.mdb").write_bytes(image)
        checked += verify(run, ledger[:lines])
        tally["power-cut images checked"] += 1
        shutil.rmtree(run)
    tally["acknowledged requests checked"] += checked
    assert checked > 500


def test_a_missing_sync_would_be_noticed(path, tmp_path, seed):
    """The power cuts can fail: without the syncs of the data, they find acknowledged requests gone."""
    before = (path / "data.mdb").read_bytes()
    events = [event for event in record(afresh(path, 0), seed, STEPS) if not isinstance(event, Sync)]
    ledger = store_strace.read_ledger(tmp_path / "run-0.ledger")
    rng = random.Random(seed)
    for cut in range(len(events) // 2, len(events)):
        image, lines = power_cut(before, events[:cut], rng)
        run = tmp_path / "image"
        run.mkdir()
        (run / "data.mdb").write_bytes(image)
        try:
            verify(run, ledger[:lines])
        except Exception:
            return
        shutil.rmtree(run)
    pytest.fail("it went unnoticed")
