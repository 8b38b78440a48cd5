"""Whose a request is: each owner's keys, requests and loads are apart from everybody else's."""

import pytest
from support.dropping import drop
from support.each import each
from support.store_engines import is_sound
from support.store_facts import holder_of, state_of

from titanic.errors import InvalidRequest
from titanic.store import AcceptResult, NewRequest, Retention, State, Status
from titanic.store.lmdb import listing
from titanic.store.lmdb.request_record import decode_header
from titanic.store.lmdb.schema import OWNER_PREFIX
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check, repair

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.settings(capacity=16 << 20)]

NOW = 1_795_258_520_106_479
LATER = NOW + 1000
EVE, BOB, NOBODY = b"eve", b"bob", b""
OWNERS = [EVE, BOB, NOBODY]


def owned(owner, body=b"body", key=b"", **options):
    return NewRequest(b"echo", [body], key=key, key_until=LATER if key else 0, owner=owner, **options)


def accept(store, *requests, now=NOW):
    with store.write() as txn:
        return txn.accept(requests, now)


def ids(store, *requests):
    return [one.uuid for one in accept(store, *requests)]


def loads(store):
    """How many requests of each owner have not ended."""
    with store.read() as txn:
        found = {owner: txn.load(owner) for owner in OWNERS}
        has = {owner: bool(owner and txn.select(owner=owner)) for owner in OWNERS}
    assert all(bool(found[owner].bytes) == has[owner] for owner in OWNERS)
    return [found[owner].waiting for owner in OWNERS]


def sizes(store):
    """The bytes that are kept for each owner."""
    with store.read() as txn:
        return [txn.load(owner).bytes for owner in OWNERS]


def finish(store, uuid, status=Status.DONE):
    with store.write() as txn:
        return txn.finish(uuid, status, [], attempts=1, dispatched_at=NOW, finished_at=NOW + 1)


def close(store, *uuids):
    with store.write() as txn:
        for uuid in uuids:
            assert txn.close(uuid, NOW + 2)


# -- keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [True, False])
def test_a_key_is_each_owners_own(store, at_once):
    requests = [owned(owner, owner, b"k") for owner in OWNERS]
    first = accept(store, *requests) if at_once else [accept(store, one)[0] for one in requests]
    assert [one.new for one in first] == [True] * 3
    assert accept(store, *requests) == [AcceptResult(one.uuid, False) for one in first]
    with store.write() as txn:
        assert txn.fresh(requests, NOW) == []
        assert [holder_of(txn, b"k", owner) for owner in OWNERS] == [one.uuid for one in first]
        assert [txn.request(one.uuid).body for one in first] == [[owner] for owner in OWNERS]
        assert [txn.describe(one.uuid).key for one in first] == [b"k"] * 3
        assert txn.fresh([owned(b"mallory", key=b"k")], NOW)
        assert holder_of(txn, b"k", b"mallory") is None


def test_it_is_forgotten_for_its_owner_alone(store):
    uuids = ids(store, *(owned(owner, key=b"k") for owner in OWNERS))
    with store.write() as txn:
        txn.forget([b"k"], EVE)
        assert [holder_of(txn, b"k", owner) for owner in OWNERS] == [None, *uuids[1:]]
        txn.forget([b"k"])
        assert [holder_of(txn, b"k", owner) for owner in OWNERS] == [None, uuids[1], None]
    with store.write() as txn:
        assert txn.trim(LATER - 1).keys == 0
        assert txn.trim(LATER).keys == 1
    assert not any(accept(store, owned(owner, key=b"k"), now=LATER)[0].uuid in uuids for owner in OWNERS)


def test_a_message_of_several_shares_the_key_of_its_owner(store):
    def group(owner):
        return [owned(owner, key=b"g", together=3), owned(owner), owned(owner)]

    first = {owner: ids(store, *group(owner)) for owner in OWNERS}
    assert len({uuid for uuids in first.values() for uuid in uuids}) == 9
    assert all(accept(store, *group(owner)) == [(uuid, False) for uuid in first[owner]] for owner in OWNERS)
    with pytest.raises(InvalidRequest, match="is in use for other requests"):
        accept(store, owned(EVE, key=b"g"))
    assert accept(store, owned(b"mallory", key=b"g"))[0].new


def test_no_key_leads_to_another_owners(store):
    """As it stands in `keys`, or where an owner and a key together look like others."""
    (uuid,) = ids(store, owned(b"ab", key=b"cd"))
    with store.write() as txn:
        for key, owner in ((b"\xffab\xffcd", b""), (b"bcd", b"a"), (b"d", b"abc"), (b"cd", b"a"), (b"cd", b"")):
            assert holder_of(txn, key, owner) is None
            txn.forget([key], owner)
        assert holder_of(txn, b"cd", b"ab") == uuid
    for key, owner in ((b"\xffab\xffcd", b""), (b"\xffcd", b"ab"), (b"cd", b"ab\xff"), (b"cd", b"x" * 33)):
        with pytest.raises(InvalidRequest):
            accept(store, owned(owner, key=key))


def test_an_owners_keys_follow_a_clock_that_is_set_back(store):
    (uuid,) = ids(store, owned(EVE, key=b"k"))
    with store.write() as txn:
        assert txn.clamp_timers(NOW - 5000) == (1, None)
        assert txn.trim(NOW - 4001).keys == 0
        assert holder_of(txn, b"k", EVE) == uuid
        assert txn.trim(NOW - 4000).keys == 1
        assert holder_of(txn, b"k", EVE) is None


# -- loads ---------------------------------------------------------------------------------------------------


@each("size", [0, 100, 5000, 200_000])
@each("more", [{}, {"key": b"k" * 255}, {"options": b'{"limit": 1}', "key": b"k"}, {"not_before": LATER}])
def test_what_a_request_will_take_is_known_before(store, size, more):
    several = [owned(EVE, bytes(size), b"all", together=3), *[owned(EVE, b"")] * 2]
    for requests in ([owned(EVE, bytes(size), **more)], several, [NewRequest(b"s", [b"a", b"", b"b"], owner=EVE)]):
        before = sizes(store)[0]
        accept(store, *requests)
        assert sizes(store)[0] - before == sum(request.kept for request in requests)
    with store.write() as txn:
        txn.forget([b"all", b"k", b"k" * 255], EVE)


def test_who_waits_is_counted_by_owner_through_every_state(store):
    one, two, late, mortal, other, nobodys = ids(
        store,
        owned(EVE),
        owned(EVE, bytes(5000)),
        owned(EVE, not_before=NOW + 50),
        owned(EVE, expires_at=NOW + 60),
        owned(BOB),
        owned(NOBODY),
    )
    assert loads(store) == [4, 1, 0]
    finish(store, one)
    assert loads(store) == [3, 1, 0]
    finish(store, two, Status.FAILED)
    assert loads(store) == [2, 1, 0]
    with store.write() as txn:
        assert txn.postpone(other, due=NOW + 9, attempts=1, dispatched_at=NOW, reason="no")
        assert txn.promote(NOW + 50) == [(b"echo", 2)]
        assert txn.load(EVE).waiting == 2
        assert txn.expire(NOW + 60) == [(mortal, b"echo")]
        assert txn.load(EVE).waiting == 1, "a transaction sees what it has changed"
    assert loads(store) == [1, 1, 0]
    with store.write() as txn:
        before = txn.load(EVE).bytes
        assert txn.retry(two, NOW + 70)
        assert txn.retry(mortal, NOW + 70)
        assert 5000 < txn.load(EVE).bytes < before, "two outcomes less"
    assert loads(store) == [3, 1, 0]
    close(store, one, two)
    assert loads(store) == [2, 1, 0]
    close(store, late, mortal, other, nobodys)
    assert loads(store) == [0, 0, 0]


def test_what_is_closed_by_time_was_counted_before(store):
    done, failed, _ = ids(store, *[owned(EVE)] * 3)
    finish(store, done)
    finish(store, failed, Status.FAILED)
    with store.write() as txn:
        trimmed = txn.trim(NOW + 365 * 24 * 3600 * 1_000_000)
    assert (trimmed.replies, trimmed.dead) == (1, 1)
    assert loads(store) == [1, 0, 0]


def test_what_was_dropped_or_is_known_is_not_counted(store):
    accept(store, owned(EVE, key=b"k"), owned(EVE, key=b"k"))
    accept(store, owned(EVE, key=b"k"))
    drop(store, lambda txn: txn.accept([owned(EVE)], NOW) and txn.load(EVE))
    assert loads(store) == [1, 0, 0]


@pytest.mark.parametrize("large", [10, 9000])
def test_what_has_ended_counts_until_it_is_closed(store, large):
    """Or a user with a limit would fill the store with requests that expire at once, or replies that he never takes."""
    done, late = ids(store, owned(EVE, bytes(large)), owned(EVE, bytes(large), expires_at=NOW + 1))
    (waiting, _, _), (accepted, _, _) = loads(store), sizes(store)
    assert waiting == 2
    assert accepted > 2 * large
    with store.write() as txn:
        txn.finish(done, Status.DONE, [bytes(large)], attempts=1, dispatched_at=NOW, finished_at=NOW + 1)
        assert txn.expire(NOW + 1) == [(late, b"echo")]
    assert loads(store) == [0, 0, 0]
    ended = sizes(store)[0]
    assert accepted + large < ended < accepted + large + 200
    close(store, done)
    left = sizes(store)[0]
    assert large < left < ended - 2 * large
    with store.write() as txn:
        assert txn.trim(NOW + 365 * 24 * 3600 * 1_000_000).dead == 1
    assert sizes(store) == [0, 0, 0]


def test_a_key_counts_until_it_is_forgotten(store):
    """Also when its request is closed: it may be given for years."""
    accept(
        store, owned(EVE, key=b"k" * 200), owned(EVE, key=b"l" * 200, together=2), owned(EVE), owned(NOBODY, key=b"k")
    )
    with store.write() as txn:
        for row in txn.select():
            txn.close(row.uuid, NOW)
    both = sizes(store)[0]
    assert 400 < both < 600
    accept(store, owned(EVE, key=b"k" * 200))  # the row of a known key stays as it is
    assert sizes(store)[0] == both
    with store.write() as txn:
        assert txn.clamp_timers(NOW - 5000)[0] > 0
        txn.forget([b"k" * 200, b"never given"], EVE)
        assert 200 < txn.load(EVE).bytes < both - 200
        assert txn.trim(LATER).keys == 2
        assert txn.load(EVE) == (0, 0)
    accept(store, owned(EVE, key=b"k"))
    once = sizes(store)
    accept(store, owned(EVE, key=b"k"), now=LATER)  # its time is over: the row is written anew
    close(store, *[row.uuid for row in listed(store)])
    again = sizes(store)
    assert 0 < again[0] < once[0]


def listed(store):
    with store.read() as txn:
        return txn.select()


# -- listing -------------------------------------------------------------------------------------------------


def test_requests_are_listed_by_owner(store):
    uuids = ids(store, *(owned(OWNERS[n % 3]) for n in range(12)))
    for uuid in uuids[6:]:
        finish(store, uuid)
    with store.read() as txn:
        for n, owner in enumerate(OWNERS):
            assert [row.uuid for row in txn.select(owner=owner)] == uuids[n::3]
            assert [row.uuid for row in txn.select(owner=owner, states=(State.DONE,))] == uuids[6 + n :: 3]
            waiting = txn.select(owner=owner, states=(State.WAITING,), service=b"echo")
            assert [(row.uuid, row.owner) for row in waiting] == [(uuid, owner) for uuid in uuids[n:6:3]]
            page = txn.select(owner=owner, limit=1)
            assert [row.uuid for row in txn.select(owner=owner, after=page.next)] == uuids[3 + n :: 3]
        assert [row.uuid for row in txn.select()] == uuids
        assert [txn.owner(uuid) for uuid in uuids] == OWNERS * 4
        assert txn.owner(bytes(16)) is None
        assert txn.select(owner=b"ev") == txn.select(owner=b"even") == []


@pytest.mark.lmdb
def test_a_listing_looks_at_a_bounded_number_of_others_requests(store):
    others = listing.LOOKED_AT + 100
    accept(store, *[owned(BOB, b"")] * others)
    (mine,) = ids(store, owned(EVE))
    with store.read() as txn:
        page = txn.select(owner=EVE)
        assert (page, page.next is not None) == ([], True)
        assert [row.uuid for row in txn.select(owner=EVE, after=page.next)] == [mine]


# -- damage --------------------------------------------------------------------------------------------------


def change(store, uuid, edit):
    """Change the record of a request."""
    with store.write() as txn:
        record = bytearray(txn.raw.get(uuid, db=txn.db.requests))
        edit(record)
        txn.raw.put(uuid, bytes(record), db=txn.db.requests)


def problems(store):
    return sorted({problem.where.split()[0] for problem in check(store)})


@pytest.mark.lmdb
@pytest.mark.parametrize("row", [None, b"\1", bytes(16), b"\7" * 16])
def test_a_wrong_count_is_found_and_mended(store, row):
    accept(store, owned(EVE), owned(EVE), owned(BOB))
    with store.read() as txn:
        right = txn.load(EVE)
    with store.write() as txn:
        txn.raw.put(OWNER_PREFIX + b"gone", bytes(16), db=txn.db.meta)
        if row is None:
            txn.raw.delete(OWNER_PREFIX + EVE, db=txn.db.meta)
        else:
            txn.raw.put(OWNER_PREFIX + EVE, row, db=txn.db.meta)
    assert problems(store) == ["meta"]
    assert len(check(store)) == 2
    repair(store, NOW)
    with store.read() as txn:
        assert (txn.load(EVE), txn.load(b"gone").waiting) == (right, 0)


@pytest.mark.lmdb
def test_a_damaged_request_stays_its_owners_where_that_can_be_told(store):
    whole, spoilt = ids(store, owned(EVE), owned(EVE, key=b"k"))
    change(store, spoilt, lambda record: record.__setitem__(-1, record[-1] ^ 1))
    repair(store, NOW)
    with store.read() as txn:
        assert (txn.owner(spoilt), state_of(txn, spoilt)) == (EVE, State.FAILED)
        assert [row.uuid for row in txn.select(owner=EVE)] == [whole, spoilt]
        assert holder_of(txn, b"k", EVE) == spoilt
    assert loads(store) == [1, 0, 0]


@pytest.mark.lmdb
def test_what_cannot_be_told_belongs_to_nobody_and_hinders_no_owner(store):
    spoilt, mine = ids(store, owned(EVE), owned(EVE))
    change(store, spoilt, lambda record: record.__setitem__(slice(None), b"\xff" * len(record)))
    with store.read() as txn:
        assert txn.owner(spoilt) == NOBODY
        assert [row.uuid for row in txn.select(owner=EVE)] == [mine]
    repair(store, NOW)
    with store.read() as txn:
        assert (txn.owner(spoilt), txn.request(spoilt).service) == (NOBODY, b"echo")
        assert [row.uuid for row in txn.select(owner=EVE)] == [mine]
    assert loads(store) == [1, 0, 0]


@pytest.mark.lmdb
def test_a_request_whose_owner_is_damaged_can_end(store):
    """No row beside the record says whose it is, so the counts are wrong until they are mended."""
    one, two = ids(store, owned(EVE), owned(EVE))

    def rename(record):
        at = decode_header(one, bytes(record)).body_at - len(EVE)
        assert record[at : at + len(EVE)] == EVE
        record[at] ^= 1

    change(store, one, rename)
    assert finish(store, one)
    close(store, one)
    assert loads(store) == [2, 0, 0]
    assert "meta" in problems(store)
    repair(store, NOW)
    assert loads(store) == [1, 0, 0]
    close(store, two)
    assert loads(store) == [0, 0, 0]


# -- what waits for the archive ------------------------------------------------------------------------------


def close_all(store, owner, *bodies):
    uuids = ids(store, *(owned(owner, body) for body in bodies))
    for uuid in uuids:
        finish(store, uuid)
    close(store, *uuids)


def archived(store, upto):
    with store.write() as txn:
        txn.update_archive(upto=upto)


def settle(store):
    """Let the store do what it does by itself."""
    with store.write() as txn:
        while txn.trim(NOW).more:
            pass
    with store.read() as txn:
        assert txn.next_due(Retention(), ahead_us=0) is None


def test_what_waits_for_the_archive_counts_for_its_owner(store):
    close_all(store, EVE, bytes(1000))
    assert sizes(store) == [0, 0, 0], "nothing waits for an archive"
    with store.write() as txn:
        txn.update_archive(register=True)
    close_all(store, EVE, *[bytes(60_000)] * 5, b"small")
    close_all(store, BOB, *[bytes(100)] * 300)
    close_all(store, NOBODY, b"x")
    eve, bob, nobody = sizes(store)
    assert 300_000 < eve < 305_000
    assert 50_000 < bob < 120_000
    assert nobody == 0
    assert is_sound(store)
    archived(store, 3)  # the first was closed before
    settle(store)
    assert 180_000 < sizes(store)[0] < 185_000
    assert is_sound(store)
    archived(store, 7 + 150)
    settle(store)
    assert [sizes(store)[0], sizes(store)[1]] == [0, bob // 2]
    assert is_sound(store)
    archived(store, 7 + 300)
    settle(store)
    assert sizes(store) == [0, 0, 0]
    close_all(store, BOB, bytes(100))
    assert sizes(store)[1] == bob // 300
    assert is_sound(store)


def test_without_an_archive_any_more_nothing_waits(store):
    with store.write() as txn:
        txn.update_archive(register=True)
    close_all(store, EVE, *[bytes(100)] * 100)
    with store.write() as txn:
        txn.update_archive(register=False)
    close_all(store, EVE, bytes(100))
    settle(store)
    assert sizes(store) == [0, 0, 0]
    close_all(store, EVE, bytes(100))
    assert sizes(store) == [0, 0, 0]
    assert is_sound(store)


@pytest.mark.settings(capacity=16 << 20, drop_unarchived=True)
def test_what_makes_way_before_the_archive_has_it_counts_no_longer(store):
    with store.write() as txn:
        txn.update_archive(register=True)
    for _ in range(22):
        close_all(store, EVE, *[bytes(50_000)] * 20)
    with store.read() as txn:
        assert txn.counts().lost
    assert 4 << 20 < sizes(store)[0] < 16 << 20
    assert is_sound(store)


def test_what_was_closed_before_waits_for_an_archive_that_is_registered_later(store):
    """LMDB does not count it."""
    close_all(store, EVE, bytes(1000))
    with store.write() as txn:
        txn.update_archive(register=True)
    assert (sizes(store)[0] > 1000) != isinstance(store, LmdbStore)
    close_all(store, EVE, bytes(2000))
    archived(store, 1)
    settle(store)
    assert 2000 < sizes(store)[0] < 3000
    assert is_sound(store)
