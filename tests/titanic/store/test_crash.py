"""The store is killed, its disk fails, the power is cut: whatever was acknowledged is there.

A `relaxed` store may lose its last commit in a power cut, and nothing else. A few points, evenly spread; with
TITANIC_TORTURE all of them, and several workloads.
"""

import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from support import store_strace
from support.store_strace import (
    INJECTED,
    KILLED,
    PAGE,
    Acknowledged,
    FailedSync,
    Sync,
    Write,
    calls,
    left_of,
    power_cut,
    record,
)
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


@pytest.fixture
def ram():
    """A folder in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def afresh(path, name):
    """A copy of the empty store."""
    copy = path.with_name(f"run-{name}")
    shutil.copytree(path, copy)
    return copy


def strike(path, seed, call, what, durability="synced"):
    """Run the workload, and have something done to one call on the data file."""
    name, n = call
    options = "-P", str(path / "data.mdb"), "-e", f"trace={name}", "-e", f"inject={name}:{what}:when={n}"
    return store_strace.run(path, seed, STEPS, *options, durability=durability)


def power_cuts(path, before, events, cuts, rng, durability="relaxed"):
    """Cut the power after so many events, for each of `cuts`, and look at what is left. How many requests were looked
    at, and how often the last commit was lost."""
    ledger = store_strace.read_ledger(path.with_suffix(".ledger"))
    image = path.with_name("image")
    checked = lost = 0
    for cut in cuts:
        content, lines = power_cut(before, events[:cut], rng)
        missing, told = left_of(content, events[:cut], lines)
        assert missing <= 1, "only the last commit can be lost"
        assert told == lines or durability == "relaxed"
        image.mkdir()
        (image / "data.mdb").write_bytes(content)
        checked += verify(image, ledger[:told])
        lost += told < lines
        tally["power-cut images checked"] += 1
        shutil.rmtree(image)
    tally["acknowledged requests checked"] += checked
    return checked, lost


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


@pytest.mark.parametrize(("durability", "few"), [("synced", 7), ("relaxed", 4), ("memory", 4)])
def test_killed_anywhere_it_has_what_was_acknowledged(path, ram, seed, durability, few):
    if durability == "memory":
        path = Path(shutil.copytree(path, ram / "store"))
    found = calls(afresh(path, 0), seed, STEPS, durability)
    assert {name for name, _ in found} >= ({"pwrite64"} if durability == "memory" else {"pwrite64", "fdatasync"})
    for name, n in part(found, few):
        run = afresh(path, f"{name}-{n}")
        done = strike(run, seed, (name, n), "signal=KILL", durability)
        tally["crash points tried"] += 1
        assert KILLED in done.log, f"{name} {n} was made"
        tally["crash points fired"] += 1
        opening, closing = done.ledger == [], durability == "relaxed" and len(done.ledger) == 2 * STEPS
        assert opening or closing or "try" in done.ledger[-1]
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
        if done.ledger:
            assert done.status == 0
            assert any("failed" in line for line in done.ledger), f"nobody noticed that {name} {n} failed"
        else:
            assert done.status != 0, "it could not be opened"
        tally["disk errors noticed"] += 1
        tally["acknowledged requests checked"] += verify(run, done.ledger)
        shutil.rmtree(run)


def test_after_a_power_cut_it_has_what_was_acknowledged(path, seed):
    before = (path / "data.mdb").read_bytes()
    run = afresh(path, 0)
    events = record(run, seed, STEPS)
    assert sum(isinstance(event, Sync) for event in events) >= STEPS / 2
    assert max(event.lines for event in events if isinstance(event, Acknowledged)) > STEPS
    rng = random.Random(seed)
    cuts = [n for n, event in enumerate(events, 1) if isinstance(event, Write | Sync)]
    checked, _ = power_cuts(run, before, events, cuts * 5 if LONG else rng.sample(cuts, 60), rng, "synced")
    assert checked > 500


def test_after_a_power_cut_a_relaxed_store_lacks_its_last_commit_at_most(path, seed):
    before = (path / "data.mdb").read_bytes()
    run = afresh(path, 0)
    events = record(run, seed, STEPS, durability="relaxed")
    assert not any(isinstance(event, Write) and event.lasts for event in events)
    rng = random.Random(seed)
    cuts = [n for n, event in enumerate(events, 1) if not isinstance(event, Sync)]
    checked, lost = power_cuts(run, before, events, cuts * 5 if LONG else rng.sample(cuts, 60), rng)
    assert checked > 500
    assert lost > 5


def test_a_relaxed_store_that_was_closed_has_everything(path, seed):
    before = (path / "data.mdb").read_bytes()
    run = afresh(path, 0)
    events = record(run, seed, STEPS, durability="relaxed")
    rng = random.Random(seed)
    assert power_cuts(run, before, events, [len(events)] * 3, rng, "synced")[1] == 0


def relaxed_with_failed_syncs(path, seed):
    """What a relaxed store does to its file while the disk fails now and then."""
    run = afresh(path, 0)
    events = record(run, seed, STEPS, "-e", "inject=fdatasync:error=EIO:when=3..30+3", durability="relaxed")
    assert sum(isinstance(event, FailedSync) for event in events) > 3
    return run, events


def test_after_failed_syncs_too(path, seed):
    before = (path / "data.mdb").read_bytes()
    run, events = relaxed_with_failed_syncs(path, seed)
    rng = random.Random(seed)
    cuts = [n for n, event in enumerate(events, 1) if not isinstance(event, Acknowledged)]
    power_cuts(run, before, events, cuts * 5 if LONG else rng.sample(cuts, 30), rng)


def test_after_failed_syncs_it_has_what_was_acknowledged(path, seed):
    """Pages of a sync that failed may never arrive, though the system has them in memory and takes them for clean."""
    before = (path / "data.mdb").read_bytes()
    run = afresh(path, 0)
    events = record(run, seed, STEPS, "-e", "inject=fdatasync:error=EIO:when=3..60+3")
    assert sum(isinstance(event, FailedSync) for event in events) > 3
    assert sum(isinstance(event, Sync) for event in events) > 10, "it goes on afterwards"
    rng = random.Random(seed)
    cuts = [n for n, event in enumerate(events, 1) if not isinstance(event, Acknowledged)]
    checked, _ = power_cuts(run, before, events, cuts * 5 if LONG else rng.sample(cuts, 60), rng, "synced")
    assert checked > 100


def test_unless_the_meta_pages_were_written_again_more_would_be_lost(path, seed):
    before = (path / "data.mdb").read_bytes()
    run, events = relaxed_with_failed_syncs(path, seed)
    events = [
        event for event in events if not (isinstance(event, Write) and len(event.data) == 2 * PAGE and not event.offset)
    ]
    rng = random.Random(seed)
    with pytest.raises(AssertionError, match="only the last commit can be lost"):
        power_cuts(run, before, events, list(range(len(events) // 4, len(events))) * 3, rng)


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
