"""The store is killed, its disk fails, the power is cut: whatever was acknowledged is there.

A few points by default, evenly spread; all of them with TITANIC_TORTURE=1.
"""

import os
import random
import shutil

import pytest
from support import store_strace
from support.store_strace import Acknowledged, Sync, Write, calls, power_cut, record
from support.store_workload import CAPACITY, verify

from titanic.store import Store

TORTURE = "TITANIC_TORTURE" in os.environ
SEED, STEPS = 3, 40

pytestmark = [
    pytest.mark.skipif(
        shutil.which("strace") is None and "CI" not in os.environ, reason="needs strace, which isn't installed"
    ),
    pytest.mark.timeout(3600 if TORTURE else 120),
]


@pytest.fixture
def path(tmp_path):
    Store.open(tmp_path / "store", capacity=CAPACITY).close()
    return tmp_path / "store"


def points(found, few):
    """Which calls are struck: all of them, or a few from the first to the last."""
    return found if TORTURE else [found[n * (len(found) - 1) // (few - 1)] for n in range(few)]


def afresh(path, name):
    """A copy of the empty store."""
    copy = path.with_name(f"run-{name}")
    shutil.copytree(path, copy)
    return copy


def strike(path, call, what):
    """Run the workload, and have something done to one call on the data file."""
    name, n = call
    options = "-P", str(path / "data.mdb"), "-e", f"trace={name}", "-e", f"inject={name}:{what}:when={n}"
    return store_strace.run(path, SEED, STEPS, *options)


def test_the_workload_is_one(path):
    found = calls(afresh(path, 0), SEED, STEPS)
    assert {name for name, _ in found} == {"pwrite64", "writev", "fdatasync"}
    assert len(found) > 150
    done = store_strace.run(path, SEED, STEPS, "-e", "trace=none")
    assert {line["act"] for line in done.ledger if "try" in line} == {"accept", "finish", "close", "postpone", "tidy"}
    assert sum("did" in line for line in done.ledger) == STEPS
    assert verify(path, done.ledger) > 50


def test_killed_anywhere_it_has_what_was_acknowledged(path):
    found = calls(afresh(path, 0), SEED, STEPS)
    for name, n in points(found, 7):
        run = afresh(path, f"{name}-{n}")
        done = strike(run, (name, n), "signal=KILL")
        assert "+++ killed by SIGKILL +++" in done.log, f"{name} {n} was made"
        assert "try" in done.ledger[-1]
        verify(run, done.ledger)
        shutil.rmtree(run)


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_disk_error_is_reported_and_drops_its_step_alone(path, error):
    found = calls(afresh(path, 0), SEED, STEPS)
    for name, n in points(found, 4):
        run = afresh(path, f"{name}-{n}")
        done = strike(run, (name, n), f"error={error}")
        assert done.log.count("(INJECTED)") == 1, f"{name} {n} was made"
        assert done.status == 0
        assert any("failed" in line for line in done.ledger), f"nobody noticed that {name} {n} failed"
        verify(run, done.ledger)
        shutil.rmtree(run)


def test_after_a_power_cut_it_has_what_was_acknowledged(path, tmp_path):
    before = (path / "data.mdb").read_bytes()
    events = record(afresh(path, 0), SEED, STEPS)
    ledger = store_strace.read_ledger(tmp_path / "run-0.ledger")
    assert sum(isinstance(event, Sync) for event in events) >= STEPS / 2
    assert sum(isinstance(event, Acknowledged) for event in events) == len(ledger)
    rng = random.Random(SEED)
    cuts = [n for n, event in enumerate(events, 1) if isinstance(event, Write | Sync)]
    checked = 0
    for cut in cuts * 5 if TORTURE else rng.sample(cuts, 60):
        image, lines = power_cut(before, events[:cut], rng)
        run = tmp_path / "image"
        run.mkdir()
        (run / "data.mdb").write_bytes(image)
        checked += verify(run, ledger[:lines])
        shutil.rmtree(run)
    assert checked > 500


def test_a_missing_sync_would_be_noticed(path, tmp_path):
    """The power cuts can fail: without the syncs of the data, they find acknowledged requests gone."""
    before = (path / "data.mdb").read_bytes()
    events = [event for event in record(afresh(path, 0), SEED, STEPS) if not isinstance(event, Sync)]
    ledger = store_strace.read_ledger(tmp_path / "run-0.ledger")
    rng = random.Random(SEED)
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
