"""Idempotency keys: one request per key."""

import pytest
from support.dropping import drop
from support.each import each
from support.store_engines import is_sound
from support.store_facts import accept_all, holder_of, load_of

from titanic.errors import InvalidRequest, StoreFull
from titanic.protocol.submit_options import MOST_TOGETHER
from titanic.store import NewRequest, Status
from titanic.store.lmdb.store import LmdbStore

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.settings(capacity=16 << 20)]

NOW = 1_795_258_520_106_479
LATER = NOW + 1000


def keyed(key, body=b"body", until=LATER, service=b"echo"):
    return NewRequest(service, [body], key=key, key_until=until)


def accept(store, *requests, now=NOW):
    with store.write() as txn:
        return txn.accept(requests, now)


def request(store, uuid):
    with store.read() as txn:
        return txn.request(uuid)


def requests(store):
    with store.read() as txn:
        return txn.counts().requests


def fill(store, batch):
    """Accept requests until there is no room for a batch of them."""
    try:
        while True:
            accept(store, *[NewRequest(b"echo", [bytes(1000)])] * batch)
    except StoreFull:
        return


def trim(store, now):
    with store.write() as txn:
        return txn.trim(now)


def test_the_same_key_is_the_same_request(store):
    (first,) = accept(store, keyed(b"k"))
    (second,) = accept(store, keyed(b"k", b"other body", service=b"other"))
    assert (first.new, second.new) == (True, False)
    assert second.uuid == first.uuid
    assert request(store, first.uuid).body == [b"body"]
    assert request(store, first.uuid).key == b"k"
    assert requests(store) == 1
    with store.read() as txn:
        assert txn.describe(first.uuid).key == b"k"
        assert load_of(txn, b"other") == (0, 0)


def test_also_within_one_batch(store):
    batch = [keyed(b"k", b"1"), NewRequest(b"echo", [b"2"]), keyed(b"k", b"3"), keyed(b"l", b"4"), keyed(b"l", b"5")]
    found = accept(store, *batch, NewRequest(b"echo", [b"6"]))
    assert [one.new for one in found] == [True, True, False, True, False, True]
    assert found[2].uuid == found[0].uuid
    assert found[4].uuid == found[3].uuid
    assert [request(store, one.uuid).body for one in found] == [[b"1"], [b"2"], [b"1"], [b"4"], [b"4"], [b"6"]]


def test_accept_many_gives_the_first_id_too(store):
    with store.write() as txn:
        first, again = accept_all(txn, [keyed(b"k"), keyed(b"k")], NOW)
        assert first == again
        assert accept_all(txn, [keyed(b"k")], NOW) == [first]
    assert requests(store) == 1


def test_also_when_it_has_ended_or_was_closed(store):
    (one,) = accept(store, keyed(b"k"))
    with store.write() as txn:
        txn.finish(one.uuid, Status.DONE, [b"r"], attempts=1, dispatched_at=NOW, finished_at=NOW)
    assert accept(store, keyed(b"k")) == [(one.uuid, False)]
    with store.write() as txn:
        txn.close(one.uuid, NOW)
    assert accept(store, keyed(b"k")) == [(one.uuid, False)]
    assert requests(store) == 0


def test_until_its_time_is_over(store):
    (one,) = accept(store, keyed(b"k"))
    assert not accept(store, keyed(b"k"), now=LATER - 1)[0].new
    (two,) = accept(store, keyed(b"k", until=LATER + 5), now=LATER)
    assert two.new
    assert two.uuid != one.uuid
    assert is_sound(store)
    assert trim(store, LATER + 4).keys == 0
    assert trim(store, LATER + 5).keys == 1
    assert accept(store, keyed(b"k", until=LATER + 99), now=LATER + 5)[0].new


@pytest.mark.lmdb
def test_keys_are_forgotten_by_trimming(store):
    accept(store, *[keyed(b"%d" % n, until=NOW + n + 1) for n in range(10)])
    with store.write() as txn:
        assert txn.trim(NOW + 5, limit=3)[:5] == (0, 0, 0, 3, True)
        assert txn.trim(NOW + 5, limit=3)[:5] == (0, 0, 0, 2, False)
        assert txn.raw.stat(txn.db.keys)["entries"] == 5


def test_a_key_is_forgotten_before_its_time(store):
    (one, *_) = accept(store, keyed(b"k"), keyed(b"other"), *together(b"group", b"1", b"2"))
    with store.write() as txn:
        txn.forget([b"k", b"group", b"unknown", b"k"])
    assert is_sound(store)
    assert trim(store, LATER).keys == 1
    assert accept(store, keyed(b"k"))[0].new
    assert request(store, one.uuid).key == b"k"


def test_across_a_restart(tmp_path):
    with LmdbStore.open(tmp_path) as store:
        (one,) = accept(store, keyed(b"k"))
    with LmdbStore.open(tmp_path) as store:
        assert accept(store, keyed(b"k")) == [(one.uuid, False)]
        assert is_sound(store)


@pytest.mark.lmdb
def test_a_key_belongs_to_nobody_if_its_request_was_not_stored(store):
    with store.write() as txn:
        with pytest.raises(StoreFull):
            txn.accept([keyed(b"k"), NewRequest(b"echo", [bytes(15 << 20)])], NOW)
        with pytest.raises(InvalidRequest):
            txn.accept([keyed(b"l"), NewRequest(b"", [])], NOW)
    drop(store, lambda txn: txn.accept([keyed(b"m")], NOW))
    assert all(one.new for one in accept(store, keyed(b"k"), keyed(b"l"), keyed(b"m")))


def test_a_repeated_request_must_be_valid_all_the_same(store):
    accept(store, keyed(b"k"))
    with store.write() as txn, pytest.raises(InvalidRequest):
        txn.accept([keyed(b"k", service=b"")], NOW)


@each("key", [b"x" * 256, b"\xff"])
def test_what_cannot_be_a_key_is_refused(store, key):
    with store.write() as txn, pytest.raises(InvalidRequest):
        txn.accept([keyed(key)], NOW)


def test_a_key_must_say_until_when_it_counts(store):
    with store.write() as txn, pytest.raises(InvalidRequest, match="no expiry"):
        txn.accept([keyed(b"k", until=0)], NOW)


def test_a_repeated_request_needs_no_room(store):
    (one,) = accept(store, keyed(b"k", bytes(1000)))
    for batch in (50, 1):
        fill(store, batch)
    assert accept(store, keyed(b"k", bytes(1000))) == [(one.uuid, False)]


def together(key, *bodies, until=LATER):
    first, *others = [NewRequest(b"echo", [body]) for body in bodies]
    return [first._replace(key=key, key_until=until, together=len(bodies)), *others]


def test_one_key_for_several(store):
    first = accept(store, *together(b"k", b"1", b"2", b"3"))
    assert [one.new for one in first] == [True] * 3
    again = accept(store, NewRequest(b"echo", [b"0"]), *together(b"k", b"1", b"2", b"3"), keyed(b"l"))
    assert [one.new for one in again] == [True, False, False, False, True]
    assert [one.uuid for one in again[1:4]] == [one.uuid for one in first]
    assert [request(store, one.uuid).body for one in first] == [[b"1"], [b"2"], [b"3"]]
    with store.read() as txn:
        assert holder_of(txn, b"k") == first[0].uuid
        assert txn.describe(first[0].uuid).key == b""


def test_one_key_for_several_within_one_batch(store):
    found = accept(store, *together(b"k", b"1", b"2"), *together(b"k", b"1", b"2"))
    assert [one.new for one in found] == [True, True, False, False]
    assert [one.uuid for one in found[2:]] == [one.uuid for one in found[:2]]
    assert requests(store) == 2


def test_one_key_for_several_outlives_them_and_is_forgotten(store):
    first = accept(store, *together(b"k", b"1", b"2"))
    with store.write() as txn:
        for one in first:
            txn.close(one.uuid, NOW)
    assert [one.new for one in accept(store, *together(b"k", b"1", b"2"))] == [False, False]
    assert trim(store, LATER).keys == 1
    assert [one.new for one in accept(store, *together(b"k", b"1", b"2", until=LATER + 9), now=LATER)] == [True, True]


@pytest.mark.parametrize(
    ("before", "after"), [(together(b"k", b"1", b"2"), [keyed(b"k")]), ([keyed(b"k")], together(b"k", b"1", b"2"))]
)
def test_a_key_of_several_is_not_that_of_another_number(store, before, after):
    accept(store, *before)
    with store.write() as txn, pytest.raises(InvalidRequest, match="the key is in use for other requests"):
        txn.accept(after, NOW)
    assert requests(store) == len(before)


@each("count", [2, 1000])
def test_a_key_stands_for_no_more_than_there_are_and_fit_into_a_page(store, count):
    request = NewRequest(b"echo", [b"x"], key=b"k", key_until=LATER, together=count)
    others = [NewRequest(b"echo", [b"x"])] * (0 if count == 2 else count - 1)
    with store.write() as txn, pytest.raises(InvalidRequest, match="too many"):
        txn.accept([request, *others], NOW)


def test_those_that_would_be_stored(store):
    accept(store, *together(b"k", b"1", b"2"))
    new = NewRequest(b"echo", [b"new"])
    with store.write() as txn:
        assert txn.fresh([new, *together(b"k", b"1", b"2"), new, *together(b"l", b"3", b"4")], NOW) == [
            new,
            new,
            *together(b"l", b"3", b"4"),
        ]


@pytest.mark.lmdb
def test_the_most_that_share_a_key_stay_in_a_page(store):
    found = accept(store, *together(b"x" * 255, *[b""] * MOST_TOGETHER))
    with store.read() as txn:
        assert txn.raw.stat(txn.db.keys)["overflow_pages"] == 0
    assert [one.uuid for one in accept(store, *together(b"x" * 255, *[b""] * MOST_TOGETHER))] == [
        one.uuid for one in found
    ]
