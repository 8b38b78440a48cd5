"""How long requests that have ended are kept: by an option of their own, or by the settings."""

import json

import pytest
from support.store_engines import is_sound
from support.store_facts import accept_all, closed_in
from support.torture import LONG, figures, tally

from titanic.store import DEFAULT_CAPACITY, MIN_CAPACITY, NewRequest, Retention, Status
from titanic.store.lmdb.tools import check

pytestmark = pytest.mark.usefixtures("engine")

NOW = 1_795_258_520_106_479
SECOND = 1_000_000
POLICY = Retention(reply_retention=100 * SECOND, dead_retention=300 * SECOND)
KEEP = b'{"limit": 5, "keep": 10, "keep_failed": 20}'


def ended(store, *requests, status=Status.DONE, at=0):
    """Accept requests and end them. Returns their ids."""
    with store.write() as txn:
        uuids = accept_all(txn, requests, NOW)
        for uuid in uuids:
            txn.finish(uuid, status, [b"reply"], attempts=1, dispatched_at=NOW, finished_at=NOW + at, reason="why")
    return uuids


def job(options=b"", service=b"echo", **more):
    return NewRequest(service, [b"body"], options=options, **more)


def trim(store, after, policy=POLICY, **more):
    with store.write() as txn:
        return txn.trim(NOW + int(after * SECOND), policy, **more)


def next_due(store, policy=POLICY):
    with store.read() as txn:
        due = txn.next_due(policy)
        return due and (due - NOW) / SECOND


def known(store, uuids):
    with store.read() as txn:
        return [txn.describe(uuid) is not None for uuid in uuids]


@pytest.mark.parametrize(("status", "kept"), [(Status.DONE, 10), (Status.FAILED, 20)])
def test_an_option_counts_instead_of_the_setting(store, status, kept):
    uuids = ended(store, job(), job(KEEP), status=status)
    assert next_due(store) == kept
    assert (trim(store, kept - 0.1).replies, known(store, uuids)) == (0, [True, True])
    assert trim(store, kept).replies == 1
    assert known(store, uuids) == [True, False]
    assert next_due(store) == (100 if status is Status.DONE else 300)
    with store.read() as txn:
        (closed,) = closed_in(txn, 0, 9, 1 << 20)
    assert (closed.uuid, closed.unclaimed, closed.status, closed.reply) == (uuids[1], True, status, [b"reply"])


def test_one_of_the_two_leaves_the_other_to_the_setting(store):
    short, lasting = b'{"keep": 1}', b'{"keep_failed": 2}'
    done = ended(store, job(short), job(lasting))
    failed = ended(store, job(short), job(lasting), status=Status.FAILED)
    trim(store, 99)
    assert known(store, [*done, *failed]) == [False, True, True, False]


def test_the_option_may_be_longer_than_the_setting(store):
    uuids = ended(store, job(), job(b'{"keep": 1000}'))
    assert trim(store, 999).replies == 1
    assert known(store, uuids) == [False, True]
    assert 1000 <= next_due(store) <= 1001


def test_those_of_the_same_second_are_due_together(store):
    first, second, third = (ended(store, job(b'{"keep": 60}'), at=at)[0] for at in (0, 800_000, 900_000))
    (due,) = {next_due(store)}
    assert trim(store, due).replies == 2
    assert known(store, [first, second, third]) == [False, False, True]
    assert next_due(store) == due + 1


def test_it_counts_where_the_setting_keeps_for_ever(store):
    uuids = ended(store, job(), job(KEEP))
    assert trim(store, 365 * 24 * 3600, Retention(0, 0)).replies == 1
    assert known(store, uuids) == [True, False]


def test_the_first_due_goes_first_whenever_it_ended(store):
    late = ended(store, job(b'{"keep": 3}'), at=5 * SECOND)
    early = ended(store, job(b'{"keep": 30}'))
    assert next_due(store) == 8
    assert trim(store, 60, limit=1).replies == 1
    assert known(store, [*late, *early]) == [False, True]


def test_an_expired_request_is_a_failed_one(store):
    with store.write() as txn:
        (uuid,) = accept_all(txn, [job(KEEP, expires_at=NOW + SECOND)], NOW)
        txn.expire(NOW + SECOND)
    assert next_due(store) == 21
    trim(store, 21)
    assert known(store, [uuid]) == [False]


def test_a_retried_request_is_not_due(store):
    (uuid,) = ended(store, job(KEEP), status=Status.FAILED)
    with store.write() as txn:
        assert txn.retry(uuid, NOW)
    assert next_due(store) is None
    assert (trim(store, 1000).replies, known(store, [uuid])) == (0, [True])
    with store.write() as txn:
        txn.finish(uuid, Status.DONE, [], attempts=1, dispatched_at=NOW, finished_at=NOW + 50 * SECOND)
    assert next_due(store) == 60


def test_a_closed_request_is_not_due(store):
    (uuid,) = ended(store, job(KEEP))
    with store.write() as txn:
        txn.close(uuid, NOW)
    assert next_due(store) is None
    assert is_sound(store)


def test_a_clock_that_is_ahead_ends_nothing(store):
    (uuid,) = ended(store, job(KEEP))
    assert trim(store, 15, ahead_us=10 * SECOND).replies == 0
    assert known(store, [uuid]) == [True]


NO_BODY = b'{"keep_body": "never"}'


def body_of(store, uuid):
    """The body, its size, and what is kept for the owner."""
    with store.read() as txn:
        row = txn.describe(uuid)
        return list(txn.request(uuid).body), (row.body_frames, row.body_bytes), txn.load(b"shop").bytes


@pytest.mark.parametrize("size", [4, 300_000])
def test_a_body_that_goes_with_the_success(store, size):
    job = NewRequest(b"echo", [b"x" * size, b"y"], options=NO_BODY, owner=b"shop")
    (uuid,) = ended(store, job._replace(body=[b""]))
    least = body_of(store, uuid)[2]
    (uuid,) = ended(store, job)
    body, counts, kept = body_of(store, uuid)
    assert (body, counts) == ([], (0, 0))
    assert kept == 2 * least
    with store.read() as txn:
        assert txn.reply(uuid).frames == [b"reply"]
    assert is_sound(store)
    with store.write() as txn:
        txn.close(uuid, NOW)
    with store.read() as txn:
        (closed,) = closed_in(txn, 0, 9, 1 << 20)
    assert (closed.request, closed.reply) == ([], [b"reply"])
    assert is_sound(store)


def test_a_body_of_a_failure_stays_for_a_retry(store):
    (uuid,) = ended(store, job(NO_BODY, owner=b"shop"), status=Status.FAILED)
    assert body_of(store, uuid)[0] == [b"body"]
    with store.write() as txn:
        assert txn.retry(uuid, NOW)
        txn.finish(uuid, Status.DONE, [b"reply"], attempts=1, dispatched_at=NOW, finished_at=NOW)
    assert body_of(store, uuid)[0] == []
    assert is_sound(store)


BRIEFLY = b'{"keep_body": 5}'


@pytest.mark.parametrize("size", [4, 300_000])
@pytest.mark.parametrize("status", [Status.DONE, Status.FAILED])
def test_a_body_goes_before_its_request(store, size, status):
    """After a success or a failure; the reply stays as long as it would, and what is counted falls."""
    new = NewRequest(b"echo", [b"x" * size, b"y"], options=BRIEFLY, owner=b"shop")
    (least,) = ended(store, new._replace(body=[b""]), status=status)
    assert next_due(store) == 5
    assert trim(store, 5).bodies == 1
    (uuid,) = ended(store, new, status=status)
    kept, used = body_of(store, least)[2], used_in(store)
    assert trim(store, 4.9).bodies == 0
    assert body_of(store, uuid)[1] == (2, size + 1)
    found = trim(store, 5)
    assert (found.bodies, found.replies, found.dead) == (1, 0, 0)
    assert body_of(store, uuid) == ([], (0, 0), kept - 8 - size - 1)
    if size > 100_000:
        assert used_in(store) < used - size
    with store.read() as txn:
        assert txn.reply(uuid).frames == [b"reply"]
    assert is_sound(store)
    assert trim(store, 6).bodies == 0
    assert next_due(store) == (100 if status is Status.DONE else 300)
    trim(store, 300)
    assert known(store, [uuid]) == [False]
    with store.read() as txn:
        closed = closed_in(txn, 0, 9, 1 << 20)
    assert [one.request for one in closed] == [[], []]
    assert next_due(store) is None
    assert is_sound(store)


def used_in(store):
    with store.write() as txn:
        txn.put_facts([])
    with store.read() as txn:
        return txn.counts().used


@pytest.mark.parametrize("after", [10, 100])
def test_a_body_goes_at_the_latest_with_its_request(store, after):
    """With that of its own keep, or of the settings; the archive has it then."""
    options = b'{"keep_body": 50, "keep": 10}' if after == 10 else b'{"keep_body": 1000}'
    (uuid,) = ended(store, job(options))
    assert next_due(store) == after
    found = trim(store, after)
    assert (found.bodies, found.replies, known(store, [uuid])) == (0, 1, [False])
    with store.read() as txn:
        (closed,) = closed_in(txn, 0, 9, 1 << 20)
    assert closed.request == [b"body"]
    assert next_due(store) is None
    assert is_sound(store)


def test_a_body_is_not_archived_after_its_time(store):
    """When both are due at once, as after a pause of the server."""
    (uuid,) = ended(store, job(b'{"keep_body": 5, "keep": 10}'))
    found = trim(store, 1000)
    assert (found.bodies, found.replies, known(store, [uuid])) == (1, 1, [False])
    with store.read() as txn:
        (closed,) = closed_in(txn, 0, 9, 1 << 20)
    assert (closed.request, closed.reply) == ([], [b"reply"])


def test_a_retried_request_keeps_its_body_until_it_ends_again(store):
    (uuid,) = ended(store, job(BRIEFLY), status=Status.FAILED)
    with store.write() as txn:
        assert txn.retry(uuid, NOW)
    assert (trim(store, 6).bodies, next_due(store)) == (0, None)
    with store.write() as txn:
        txn.finish(uuid, Status.DONE, [], attempts=1, dispatched_at=NOW, finished_at=NOW + 50 * SECOND)
    assert body_of(store, uuid)[0] == [b"body"]
    assert next_due(store) == 55
    assert trim(store, 55).bodies == 1
    assert body_of(store, uuid)[0] == []
    assert is_sound(store)


def test_a_closed_request_leaves_no_time_of_its_body(store):
    (uuid,) = ended(store, job(BRIEFLY))
    with store.write() as txn:
        txn.close(uuid, NOW)
    assert next_due(store) is None
    assert is_sound(store)


def test_bodies_go_in_parts(store):
    uuids = ended(store, *[job(BRIEFLY)] * 7)
    found = trim(store, 5, limit=5)
    assert (found.bodies, found.more) == (5, True)
    assert trim(store, 5, limit=5).bodies == 2
    assert [body_of(store, uuid)[0] for uuid in uuids] == [[]] * 7


def test_a_clock_that_is_ahead_deletes_no_body(store):
    ended(store, job(BRIEFLY))
    assert trim(store, 9, ahead_us=5 * SECOND).bodies == 0


@pytest.mark.lmdb
def test_a_damaged_request_leaves_no_timer(store):
    (uuid,) = ended(store, job(b'{"keep": 10, "keep_body": 5}'))
    with store.write() as txn:
        record = bytearray(txn.raw.get(uuid, db=txn.db.requests))
        record[0] ^= 1
        txn.raw.put(uuid, bytes(record), db=txn.db.requests)
    with store.write() as txn:
        assert txn.close(uuid, NOW) is not None
        assert txn.raw.stat(txn.db.timers)["entries"] == 0


# -- for ever ----------------------------------------------------------------------------------------------------

RATE = 100
"""Tasks a second in a store of 1 GiB, the default. Both are scaled down by the same."""
SCALE = DEFAULT_CAPACITY // MIN_CAPACITY
KEPT = 3600
HOURS = 30 * 24 if LONG else 6
STEP = 60
FILE = "a.png" if LONG else "a" * 300 + ".png"
"""An argument of each. The longer it is, the sooner closed requests have filled the store."""


@pytest.mark.torture(short=True)
@pytest.mark.lmdb
@pytest.mark.settings(capacity=MIN_CAPACITY, durability="relaxed")
def test_tasks_that_return_nothing_run_for_ever(store):
    """100 a second for a month (in CI some hours) in 1 GiB, each kept for an hour, at a scale of 1 : 64:
    1.6 a second in 16 MiB."""
    body = json.dumps({"args": [FILE], "kwargs": {}}).encode()
    task = NewRequest(b"shop.tidy", [body], options=b'{"keep": %d}' % KEPT)
    data, sizes, ended, due = store.path / "data.mdb", [], [], 0.0
    for step in range(HOURS * 3600 // STEP):
        now = NOW + step * STEP * SECOND
        due += RATE * STEP / SCALE
        with store.write() as txn:  # StoreFull would end the test
            for uuid in accept_all(txn, [task] * int(due), now):
                txn.finish(uuid, Status.DONE, [b"null"], attempts=1, dispatched_at=now, finished_at=now)
        with store.write() as txn:
            assert not txn.trim(now, limit=10_000).more
        tally["operations modelled"] += int(due)
        due -= int(due)
        if step % 60 == 59:
            with store.read() as txn:
                ended.append(txn.counts().replies)
                left = txn.room_left()
            sizes.append((data.stat().st_size, left))
    hour = RATE * KEPT // SCALE
    assert all(hour - 10 <= count <= hour + 2 * RATE * STEP // SCALE for count in ended)
    files, lefts = zip(*sizes[len(sizes) // 2 :], strict=True)  # closed requests have filled it by then
    assert max(files) <= MIN_CAPACITY
    assert max(files) - min(files) < MIN_CAPACITY // 100, "a few pages, by chance"
    assert min(lefts) > MIN_CAPACITY // 4
    assert check(store) == []
    figures.append(
        f"{HOURS} hours of {RATE} tasks a second, kept for an hour, 1 : {SCALE}: {ended[-1]} are kept; the file has"
        f" {max(files) >> 10} KiB, and {min(lefts) >> 10} KiB are left for new requests"
    )
