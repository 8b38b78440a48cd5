"""Damage is noticed, named, and can be got rid of; check() sees what reading doesn't, and repair() puts it right."""

import pytest
from support.store_damage import BODY, NOW, edit, make
from support.store_facts import accept_all, closed_in, closed_range, load_of, state_of, waiting_in

from titanic.errors import RecordCorrupt
from titanic.store import NewRequest, Outcome, Retention, State, Status
from titanic.store.lmdb.request_record import decode_header
from titanic.store.lmdb.schema import closed_key
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check, repair


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


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


def damage(path, database, uuid):
    """Make a record nonsense of the same length, its header included."""

    def change(txn, databases):
        size = len(txn.get(uuid, db=databases[database]))
        txn.put(uuid, b"\xff" * size, db=databases[database])

    edit(path, change)


def drain(store):
    """Close all requests, by their keys."""
    with store.write() as txn:
        for uuid in [bytes(key) for key in txn.raw.cursor(txn.db.requests).iternext(values=False)]:
            assert txn.close(uuid)
        assert txn.counts()[:4] == (0, 0, 0, 0)
        assert waiting_in(txn) == {}
    # Left are only blobs that nothing refers to any more, or that were handed on with their damage.
    assert {problem.where.split()[0] for problem in check(store)} <= {"blobs", "closed"}
    repair(store, NOW)
    assert check(store) == []


def test_a_flipped_bit_in_a_body_is_named(path):
    waiting, *_ = make(path)
    flip_in_file(path, BODY + b"\1\0\0\x000", offset=20)
    with LmdbStore.open(path) as store:
        with store.read() as txn, pytest.raises(RecordCorrupt, match=waiting.hex()) as raised:
            txn.request(waiting)
        assert (raised.value.uuid, raised.value.database) == (waiting, "requests")
        with store.read() as txn, pytest.raises(RecordCorrupt):
            txn.next_ready(b"echo", None, 10, 1 << 20)
        assert [problem.where for problem in check(store)] == [f"requests {waiting.hex()}"]
        drain(store)


def test_a_flipped_bit_in_a_reply_is_no_wrong_reply(path):
    *_, done = make(path)
    flip_in_file(path, b"the reply", offset=3)
    with LmdbStore.open(path) as store:
        with store.read() as txn, pytest.raises(RecordCorrupt, match=rf"{done.hex()} in 'replies'"):
            txn.reply(done)
        assert [problem.where for problem in check(store)] == [f"replies {done.hex()}"]
        drain(store)


def test_a_flipped_bit_in_a_retry_is_named(path):
    _, delayed, _ = make(path)
    flip_in_file(path, b"it broke")
    with LmdbStore.open(path) as store:
        with store.read() as txn, pytest.raises(RecordCorrupt, match=rf"{delayed.hex()} in 'retries'"):
            txn.reply(delayed)
        assert f"retries {delayed.hex()}" in [problem.where for problem in check(store)]
        drain(store)


@pytest.mark.parametrize("database", ["requests", "replies", "retries"])
def test_what_is_wholly_damaged_can_be_closed(path, database):
    uuids = make(path)
    for uuid in uuids if database == "requests" else uuids[{"replies": 2, "retries": 1}[database] :][:1]:
        damage(path, database, uuid)
    with LmdbStore.open(path) as store:
        assert check(store) != []
        drain(store)


@pytest.mark.parametrize("index", [0, 1])
def test_what_is_damaged_can_be_ended_so_that_nobody_meets_it_again(path, index):
    uuid = make(path)[index]
    damage(path, "requests", uuid)
    if index == 1:
        damage(path, "retries", uuid)
    with LmdbStore.open(path) as store:
        with store.write() as txn:
            waiting, size = load_of(txn, b"echo")
            assert txn.finish(uuid, Status.FAILED, [], attempts=1, dispatched_at=0, finished_at=1, reason="damaged")
            assert load_of(txn, b"echo") == (waiting - 1, size), "what its size was can't be read any more"
        with store.read() as txn:
            assert txn.reply(uuid) == Outcome(Status.FAILED, [], "damaged", 1, 0, 1)
        drain(store)


def test_a_damaged_delay_still_ends(path):
    _, delayed, _ = make(path)
    damage(path, "retries", delayed)
    with LmdbStore.open(path) as store:
        with store.write() as txn:
            assert txn.promote(NOW + 1) == [(b"echo", 1)]
        with store.read() as txn:
            assert txn.next_ready(b"echo", None, 9, 1 << 20)[1].uuid == delayed
        assert check(store) == []


def test_a_damaged_closed_request_does_not_stay_longer_than_others(path):
    make(path)
    damage(path, "closed", closed_key(1))
    policy = Retention(0, 0, closed_retention=10)
    with LmdbStore.open(path) as store, store.write() as txn:
        assert closed_range(txn) == (1, 3)
        assert txn.next_due(policy) == 10, "when it was closed can't be read: long ago"
        assert txn.trim(NOW, policy).closed == 1
        assert closed_range(txn) == (2, 3)


def test_the_rows_before_a_damaged_one_are_served(path):
    with LmdbStore.open(path) as store, store.write() as txn:
        uuids = accept_all(txn, [NewRequest(b"echo", [b"%d" % n]) for n in range(3)], NOW)
    damage(path, "requests", uuids[1])
    with LmdbStore.open(path) as store, store.read() as txn:
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


def _drop_waiting_request(txn, db, uuids):
    txn.delete(uuids[0], db=db["requests"])


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


def _delay_under_another_service(txn, db, uuids):
    key, value = next(txn.cursor(db["later"]).iternext())
    txn.put(key, b"ohce" + value[4:], db=db["later"])


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


def _keep_a_retry_of_nobody(txn, db, uuids):
    txn.put(bytes(16), txn.get(uuids[1], db=db["retries"]), db=db["retries"])


def _spoil_a_retry(txn, db, uuids):
    txn.put(uuids[1], b"\xff" * 40, db=db["retries"])


def _add_a_short_key(txn, db, uuids):
    txn.put(b"short", b"", db=db["replies"])


def _miscount_waiting(txn, db, uuids):
    txn.put(b"necho", (2).to_bytes(8, "little") * 3, db=db["meta"])


def _count_nobody(txn, db, uuids):
    txn.put(b"nnobody", bytes(24), db=db["meta"])


def _forget_to_count(txn, db, uuids):
    txn.delete(b"necho", db=db["meta"])


def _drop_timer(kind):
    def drop(txn, db, uuids):
        cursor = txn.cursor(db["timers"])
        assert cursor.set_range(kind)
        assert cursor.key()[:1] == kind
        txn.delete(cursor.key(), db=db["timers"])

    return drop


def _add_timer(kind, subject):
    def add(txn, db, uuids):
        txn.put(kind + (NOW + 7).to_bytes(8) + (subject or uuids[0]), b"", db=db["timers"])

    return add


def _fill_a_timer(txn, db, uuids):
    txn.put(next(txn.cursor(db["timers"]).iternext(values=False)), b"x", db=db["timers"])


def _shorten_a_key_row(txn, db, uuids):
    txn.put(b"key", b"short", db=db["keys"])


def _take_the_key_of_another(txn, db, uuids):
    row = txn.get(b"key", db=db["keys"])
    txn.put(b"other", row, db=db["keys"])
    txn.put(b"K" + row[:8][::-1] + b"other", b"", db=db["timers"])


def _drop_a_closed_one(number):
    def drop(txn, db, uuids):
        assert txn.delete(number.to_bytes(8), db=db["closed"])

    return drop


def _spoil_a_closed_one(txn, db, uuids):
    record = bytearray(txn.get((2).to_bytes(8), db=db["closed"]))
    record[20] ^= 1
    txn.put((2).to_bytes(8), bytes(record), db=db["closed"])


def _misname_a_closed_one(txn, db, uuids):
    txn.put(b"x", b"", db=db["closed"])


def _set_sequence_back(txn, db, uuids):
    txn.put(b"sequence", (2).to_bytes(8, "little"), db=db["meta"])


def _archive_too_much(txn, db, uuids):
    txn.put(b"archive", b"\1" + (4).to_bytes(8, "little"), db=db["meta"])


def _leave_a_blob(txn, db, uuids):
    txn.put((99).to_bytes(8) + bytes(4), b"x", db=db["blobs"])


def _lengthen_a_blob(txn, db, uuids):
    key = next(txn.cursor(db["blobs"]).iternext(values=False))
    txn.put(key[:8] + (99).to_bytes(4), b"x", db=db["blobs"])


def _drop_a_piece(which):
    def drop(txn, db, uuids):
        keys = list(txn.cursor(db["blobs"]).iternext(values=False))
        assert txn.delete(keys[which], db=db["blobs"])

    return drop


def _bury_the_living(txn, db, uuids):
    key = next(txn.cursor(db["blobs"]).iternext(values=False))
    txn.put(key[:8], (5).to_bytes(4, "little"), db=db["graves"])


def _dig_a_grave_for_nobody(txn, db, uuids):
    txn.put((99).to_bytes(8), (5).to_bytes(4, "little"), db=db["graves"])


DAMAGES = [
    (_drop_ready, "no queue and has no reply"),
    (_drop_later, "but not in 'later'"),
    (_drop_retry, "'retries' says 0"),
    (_drop_reply, "no queue and has no reply"),
    (_drop_request, "there is no such request"),
    (_drop_waiting_request, "there is no such request"),
    (_queue_a_finished_one, "it is in replies and ready"),
    (_queue_a_delayed_one, "it is in ready and later"),
    (_queue_a_stranger, "there is no such request"),
    (_queue_under_another_service, "it is filed under"),
    (_delay_under_another_service, "it is filed under"),
    (_fill_a_ready_row, "the row has a value"),
    (_move_the_due_time, f"'retries' says {NOW + 1}"),
    (_swap_records, "its checksum is"),
    (_keep_a_retry_of_a_finished_one, "the request has ended"),
    (_keep_a_retry_of_nobody, "there is no such request"),
    (_spoil_a_retry, "its checksum is"),
    (_add_a_short_key, "the key has the wrong length"),
    (_miscount_waiting, "b'echo' (ready, pending, bytes) are (2, 2, 2), but should be (1, 2, "),
    (_count_nobody, "b'nobody' (ready, pending, bytes) are (0, 0, 0), but should be None"),
    (_forget_to_count, "b'echo' (ready, pending, bytes) are None, but should be (1, 2, "),
    (_drop_timer(b"E"), "it would never expire"),
    (_drop_timer(b"R"), "its retention would never end"),
    (_drop_timer(b"K"), "it would never be forgotten"),
    (_add_timer(b"E", bytes(16)), "there is no such request"),
    (_add_timer(b"E", None), f"the request says {NOW + 50}"),
    (_add_timer(b"R", None), "there is no such reply"),
    (_add_timer(b"K", b"key"), "there is no such key"),
    (_add_timer(b"X", None), "unknown kind"),
    (_add_timer(b"", b"x"), "the key has the wrong length"),
    (_fill_a_timer, "the row has a value"),
    (_shorten_a_key_row, "the row has 5 bytes"),
    (_take_the_key_of_another, "has the key b'key'"),
    (_drop_a_closed_one(2), "2 … 2 are missing"),
    (_drop_a_closed_one(3), "3 … 3 are missing"),
    (_spoil_a_closed_one, "its checksum is"),
    (_misname_a_closed_one, "the key has the wrong length"),
    (_set_sequence_back, "'sequence' is 2, but 'closed' goes up to 3"),
    (_archive_too_much, "the archive is at 4, but the last closed request is 3"),
    (_leave_a_blob, "no record refers to it"),
    (_lengthen_a_blob, "it has only 5 pieces"),
    (_drop_a_piece(0), "is damaged"),
    (_drop_a_piece(-1), "is damaged"),
    (_bury_the_living, "a record refers to it"),
    (_dig_a_grave_for_nobody, "it doesn't have 5 pieces"),
]


@pytest.mark.parametrize(("change", "fault"), DAMAGES)
def test_check_sees_what_repair_puts_right_and_nobody_is_lost(path, change, fault):
    uuids = make(path)
    edit(path, lambda txn, db: change(txn, db, uuids))
    with LmdbStore.open(path) as store:
        found = check(store)
        assert any(fault in problem.what for problem in found), found
        assert any(problem.repair for problem in found)
        repaired = repair(store, NOW + 5)
        assert set(found) <= set(repaired)
        assert check(store) == []
        assert repair(store, NOW + 6) == []
        with store.read() as txn:
            for uuid in uuids:
                assert state_of(txn, uuid) is not None
                assert txn.request(uuid) is not None
            assert closed_range(txn) == (1, 3)
            assert [entry.sequence for entry in closed_in(txn, 0, 9, 1 << 20)] == [1, 2, 3]
        drain(store)


def test_a_delayed_request_without_a_retry_is_closed_where_it_is(path):
    uuids = make(path)
    edit(path, lambda txn, db: _drop_retry(txn, db, uuids))
    with LmdbStore.open(path) as store:
        with store.write() as txn:
            assert txn.close(uuids[1], NOW)
        assert check(store) == []


def repaired(path, change):
    """A store that was damaged and repaired, and its requests."""
    uuids = make(path)
    edit(path, lambda txn, db: change(txn, db, uuids))
    store = LmdbStore.open(path)
    repair(store, NOW + 5)
    return store, uuids


def test_a_damaged_request_fails_with_a_reason_and_is_kept_aside(path):
    store, uuids = repaired(path, lambda txn, db, uuids: txn.put(uuids[0], b"\xff" * 60, db=db["requests"]))
    with store, store.read() as txn:
        (row,) = txn.select(states=(State.FAILED,))
        assert (row.uuid, row.service, row.reason) == (uuids[0], b"echo", "the request was damaged")
        assert row.finished_at == NOW + 5
        ((key, value),) = txn.raw.cursor(txn.db.aside).iternext()
        assert bytes(key) == b"requests %d " % (NOW + 5) + row.uuid
        assert bytes(value) == b"\xff" * 60


def test_a_request_without_a_row_is_dispatched_after_repair(path):
    store, uuids = repaired(path, _drop_ready)
    with store, store.read() as txn:
        assert [row.uuid for row in txn.next_ready(b"echo", None, 9, 1 << 20)] == uuids[:1]
        assert waiting_in(txn) == {b"echo": 1}


def test_a_lost_reply_fails_and_can_be_tried_again(path):
    store, uuids = repaired(path, _drop_a_piece(-1))
    with store:
        with store.read() as txn:
            assert txn.reply(uuids[2]) == Outcome(Status.FAILED, [], "the reply was damaged", 0, 0, NOW + 5)
        with store.write() as txn:
            assert txn.retry(uuids[2], NOW + 6)
        with store.read() as txn:
            assert [row.uuid for row in txn.next_ready(b"echo", None, 9, 1 << 20)] == [uuids[0], uuids[2]]
        assert check(store) == []


def test_what_is_missing_in_the_ring_says_so(path):
    with repaired(path, _drop_a_closed_one(2))[0] as store, store.read() as txn:
        entries = closed_in(txn, 0, 9, 1 << 20)
        assert [entry.error for entry in entries] == ["", "its record was missing", ""]
        assert entries[1].request_left_out


def test_repairing_a_sound_store_changes_nothing(path):
    make(path)
    with LmdbStore.open(path) as store:
        assert repair(store, NOW) == []
        with store.read() as txn:
            assert txn.raw.stat(txn.db.aside)["entries"] == 0
