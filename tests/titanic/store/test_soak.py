"""The ring turns over and over: its file stays as large as it is, and nobody is refused."""

import random
import time

import pytest
from support.store_facts import accept_all, closed_range
from support.torture import SEED, figures, tally

from titanic.store import NewRequest
from titanic.store.lmdb.pages import faults
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check

NOW = 1_795_258_520_106_479
CAPACITY = 16 << 20
TURNS = 50
LIVE, BATCH = 400, 20


def p99(times):
    return sorted(times)[len(times) * 99 // 100]


@pytest.mark.torture
def test_fifty_turns_in_random_order(tmp_path):
    rng = random.Random(SEED)
    content = rng.randbytes(9000)
    live, passed, sizes = [], 0, []
    calm, trimming = [], []  # seconds that accepting took before the ring was full, and since
    with LmdbStore.open(tmp_path / "store", capacity=CAPACITY) as store:
        data = store.path / "data.mdb"
        while passed < TURNS * CAPACITY:
            batch = [NewRequest(b"s%d" % rng.randrange(3), [content[: rng.randrange(9000)]]) for _ in range(BATCH)]
            begin = time.perf_counter()
            with store.write() as txn:
                live += accept_all(txn, batch, NOW)  # StoreFull would end the test
            took = time.perf_counter() - begin
            tally["operations modelled"] += 1
            passed += sum(len(new.body[0]) for new in batch)
            with store.read() as txn:
                first, _ = closed_range(txn)
            (calm if first == 1 else trimming).append(took)
            if first > 1:
                sizes.append(data.stat().st_size)
            if len(live) > LIVE:
                rng.shuffle(live)
                with store.write() as txn:
                    for _ in range(BATCH):
                        assert txn.close(live.pop(), NOW)
        assert check(store) == []
        with store.read() as txn:
            assert all(txn.request(uuid) for uuid in live)
    assert faults(data) == []
    tally["acknowledged requests checked"] += len(live)
    late = sizes[len(sizes) // 10 :]
    assert max(late) - min(late) < CAPACITY // 100, "a few pages, by chance"
    assert max(late) <= CAPACITY
    figures.append(
        f"accepting {BATCH} requests, p99: {p99(calm) * 1000:.1f} ms before the ring is full,"
        f" {p99(trimming) * 1000:.1f} ms while it is trimmed ({p99(trimming) / p99(calm):.1f}×)"
    )
