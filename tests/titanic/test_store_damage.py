"""Damage is noticed, named, and can be got rid of; check() sees what reading doesn't."""

import lmdb
import pytest

from titanic.errors import RecordCorrupt
from titanic.store import NewRequest, Outcome, Status, Store, check
from titanic.store.request import decode_header

NOW = 1_795_258_520_106_479
BODY = b"a body that can be found in the file " * 3


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def make(path):
    """A store with a waiting, a delayed and a finished request, in this order, closed."""
    with Store.open(path) as store:
        with store.write() as txn:
            uuids = txn.accept_many([NewRequest(b"echo", [BODY, b"%d" % n]) for n in range(3)], NOW)
            txn.postpone(uuids[1], due=NOW + 1, attempts=1, dispatched_at=NOW, reason="it broke")
            txn.finish(uuids[2], Status.DONE, [b"the reply"], attempts=1, dispatched_at=NOW, finished_at=NOW)
        assert check(store) == []
    return uuids


def flip_in_file(path, marker, offset=0):
    """Flip a bit of every place in the data file where `marker` stands (freed pages keep older copies)."""
    data = path / "data.mdb"
    content = bytearray(data.read_bytes())
    at = content.find(marker)
    assert at >= 0
    while at >= 0:
        content[at + offset] ^= 0x10
        at = content.find(marker, at + 1)
    data.write_bytes(content)


def edit(path, change):
    """Let `change(txn, databases)` do to the store what the store never does."""
    names = ["meta", "requests", "replies", "ready", "later", "retries"]
    with lmdb.open(str(path), max_dbs=16, map_size=1 << 24) as env:
        databases = {name: env.open_db(name.encode(), create=False) for name in names}
        with env.begin(write=True) as txn:
            change(txn, databases)


def damage(path, database, uuid):
    """Make a record nonsense of the same length, its header included."""

    def change(txn, databases):
        size = len(txn.get(uuid, db=databases[database]))
        txn.put(uuid, b"\xff" * size, db=databases[database])

    edit(path, change)


def drain(store):
    """Close all requests, by their keys."""
    with store.write() as txn:
        for uuid in [bytes(key) for key in txn._txn.cursor(txn._db.requests).iternext(values=False)]:
            assert txn.close(uuid)
        assert txn.counts()[:5] == (0, 0, 0, 0, 0)
        assert txn.waiting() == {}
    assert check(store) == []


def test_a_flipped_bit_in_a_body_is_named(path):
    waiting, *_ = make(path)
    flip_in_file(path, BODY + b"\1\0\0\x000", offset=20)
    with Store.open(path) as store:
        with store.read() as txn, pytest.raises(RecordCorrupt, match=waiting.hex()) as raised:
            txn.request(waiting)
        assert (raised.value.uuid, raised.value.database) == (waiting, "requests")
        with store.read() as txn, pytest.raises(RecordCorrupt):
            txn.next_ready(b"echo", None, 10, 1 << 20)
        assert [problem.where for problem in check(store)] == [f"requests {waiting.hex()}"]
        drain(store)


def test_a_flipped_bit_in_a_reply_is_no_wrong_reply(path):
    *_, done = make(path)
    flip_in_file(path, b"the reply")
    with Store.open(path) as store:
        with store.read() as txn, pytest.raises(RecordCorrupt, match=rf"{done.hex()} in 'replies'"):
            txn.reply(done)
        assert [problem.where for problem in check(store)] == [f"replies {done.hex()}"]
        drain(store)


def test_a_flipped_bit_in_a_retry_is_named(path):
    _, delayed, _ = make(path)
    flip_in_file(path, b"it broke")
    with Store.open(path) as store:
        with store.read() as txn, pytest.raises(RecordCorrupt, match=rf"{delayed.hex()} in 'retries'"):
            txn.reply(delayed)
        assert f"retries {delayed.hex()}" in [problem.where for problem in check(store)]
        drain(store)


@pytest.mark.parametrize("database", ["requests", "replies", "retries"])
def test_what_is_wholly_damaged_can_be_closed(path, database):
    uuids = make(path)
    for uuid in uuids if database == "requests" else uuids[{"replies": 2, "retries": 1}[database] :][:1]:
        damage(path, database, uuid)
    with Store.open(path) as store:
        assert check(store) != []
        drain(store)


@pytest.mark.parametrize("index", [0, 1])
def test_what_is_damaged_can_be_ended_so_that_nobody_meets_it_again(path, index):
    uuid = make(path)[index]
    damage(path, "requests", uuid)
    if index == 1:
        damage(path, "retries", uuid)
    with Store.open(path) as store:
        with store.write() as txn:
            assert txn.finish(uuid, Status.FAILED, [], attempts=1, dispatched_at=0, finished_at=1, reason="damaged")
        with store.read() as txn:
            assert txn.reply(uuid) == Outcome(Status.FAILED, [], "damaged", 1, 0, 1)
        drain(store)


def test_a_damaged_delay_still_ends(path):
    _, delayed, _ = make(path)
    damage(path, "retries", delayed)
    with Store.open(path) as store:
        with store.write() as txn:
            assert txn.promote(NOW + 1) == [(b"echo", 1)]
        with store.read() as txn:
            assert txn.next_ready(b"echo", None, 9, 1 << 20)[1].uuid == delayed
        assert check(store) == []


def test_the_rows_before_a_damaged_one_are_served(path):
    with Store.open(path) as store, store.write() as txn:
        uuids = txn.accept_many([NewRequest(b"echo", [b"%d" % n]) for n in range(3)], NOW)
    damage(path, "requests", uuids[1])
    with Store.open(path) as store, store.read() as txn:
        rows = txn.next_ready(b"echo", None, 10, 1 << 20)
        assert [row.uuid for row in rows] == uuids[:1]
        with pytest.raises(RecordCorrupt) as raised:
            txn.next_ready(b"echo", rows[-1].key, 10, 1 << 20)
        assert raised.value.uuid == uuids[1]


def _ready_key(txn, db, uuid):
    header = decode_header(uuid, memoryview(txn.get(uuid, db=db["requests"])))
    return header.service + bytes((0, 9 - header.priority)) + uuid


def _drop_ready(txn, db, uuids):
    txn.delete(_ready_key(txn, db, uuids[0]), db=db["ready"])


def _drop_later(txn, db, uuids):
    txn.delete(next(txn.cursor(db["later"]).iternext(values=False)), db=db["later"])


def _drop_retry(txn, db, uuids):
    txn.delete(uuids[1], db=db["retries"])


def _drop_reply(txn, db, uuids):
    txn.delete(uuids[2], db=db["replies"])


def _drop_request(txn, db, uuids):
    txn.delete(uuids[2], db=db["requests"])


def _queue_a_finished_one(txn, db, uuids):
    txn.put(_ready_key(txn, db, uuids[2]), b"", db=db["ready"])


def _queue_a_delayed_one(txn, db, uuids):
    txn.put(_ready_key(txn, db, uuids[1]), b"", db=db["ready"])


def _queue_a_stranger(txn, db, uuids):
    txn.put(b"echo\0\5" + bytes(16), b"", db=db["ready"])


def _queue_under_another_service(txn, db, uuids):
    key = _ready_key(txn, db, uuids[0])
    txn.delete(key, db=db["ready"])
    txn.put(b"ohce" + key[4:], b"", db=db["ready"])


def _fill_a_ready_row(txn, db, uuids):
    txn.put(_ready_key(txn, db, uuids[0]), b"x", db=db["ready"])


def _move_the_due_time(txn, db, uuids):
    key, value = next(txn.cursor(db["later"]).iternext())
    txn.delete(key, db=db["later"])
    txn.put((NOW + 99).to_bytes(8) + key[8:], value, db=db["later"])


def _swap_records(txn, db, uuids):
    one, two = (txn.get(uuid, db=db["requests"]) for uuid in uuids[:2])
    txn.put(uuids[0], two, db=db["requests"])
    txn.put(uuids[1], one, db=db["requests"])


def _keep_a_retry_of_a_finished_one(txn, db, uuids):
    txn.put(uuids[2], txn.get(uuids[1], db=db["retries"]), db=db["retries"])


def _add_a_short_key(txn, db, uuids):
    txn.put(b"short", b"", db=db["replies"])


def _miscount_bytes(txn, db, uuids):
    used = int.from_bytes(txn.get(b"used", db=db["meta"]), "little")
    txn.put(b"used", (used + 1).to_bytes(8, "little"), db=db["meta"])


def _miscount_waiting(txn, db, uuids):
    txn.put(b"necho", (2).to_bytes(8, "little"), db=db["meta"])


def _count_nobody(txn, db, uuids):
    txn.put(b"nnobody", (0).to_bytes(8, "little"), db=db["meta"])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (_drop_ready, "no queue and has no reply"),
        (_drop_later, "but not in 'later'"),
        (_drop_retry, "'retries' says 0"),
        (_drop_reply, "no queue and has no reply"),
        (_drop_request, "there is no such request"),
        (_queue_a_finished_one, "it is in replies and ready"),
        (_queue_a_delayed_one, "it is in ready and later"),
        (_queue_a_stranger, "there is no such request"),
        (_queue_under_another_service, "it is filed under"),
        (_fill_a_ready_row, "the row has a value"),
        (_move_the_due_time, f"'retries' says {NOW + 1}"),
        (_swap_records, "its checksum is"),
        (_keep_a_retry_of_a_finished_one, "the request has ended"),
        (_add_a_short_key, "the key has a wrong length"),
        (_miscount_bytes, "'used' is"),
        (_miscount_waiting, "2 for b'echo', 'ready' has 1"),
        (_count_nobody, "0 for b'nobody'"),
    ],
)
def test_check_sees(path, change, found):
    uuids = make(path)
    edit(path, lambda txn, db: change(txn, db, uuids))
    with Store.open(path) as store:
        problems = check(store)
    assert any(found in problem.what for problem in problems), problems
