"""The life of requests in the store: accepted, queued, delayed, ended, closed; across restarts."""

import itertools
import random
import threading
from contextlib import suppress

import pytest
from msgspec.structs import replace
from support.each import each
from support.store_facts import accept_all, load_of, state_of, waiting_in

from titanic.errors import InvalidRequest, StoreFailed
from titanic.store import NOTHING_SET, NewRequest, Outcome, Pending, ServiceSetting, State, Status, service_settings
from titanic.store.lmdb import listing, service_spans
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check
from titanic.store.request import COLUMNS
from titanic.util.ids import IdMaker

pytestmark = pytest.mark.usefixtures("engine")

NOW = 1_795_258_520_106_479
SECOND = 1_000_000
FAR = NOW + 10**12


def accept(store, *requests, now=NOW):
    with store.write() as txn:
        return accept_all(txn, requests, now)


def finish(store, uuid, status=Status.DONE, frames=(b"reply",), reason=""):
    with store.write() as txn:
        return txn.finish(uuid, status, frames, attempts=1, dispatched_at=NOW + 1, finished_at=NOW + 2, reason=reason)


def postpone(store, uuid, due, attempts=1, reason="it broke"):
    with store.write() as txn:
        return txn.postpone(uuid, due=due, attempts=attempts, dispatched_at=NOW + 1, reason=reason)


def promote(store, now, limit=1000):
    with store.write() as txn:
        return txn.promote(now, limit)


def close(store, uuid):
    with store.write() as txn:
        return txn.close(uuid)


def state(store, uuid):
    with store.read() as txn:
        return state_of(txn, uuid)


def reply(store, uuid):
    with store.read() as txn:
        return txn.reply(uuid)


def queue(store, service=b"echo", after=None, limit=100, max_bytes=1 << 20):
    with store.read() as txn:
        return txn.next_ready(service, after, limit, max_bytes)


def counts(store):
    with store.read() as txn:
        return txn.counts()[:4]


def in_state(store, wanted):
    """A request of `echo` in the state `wanted`."""
    (uuid,) = accept(store, NewRequest(b"echo", [b"body"]))
    if wanted is State.DELAYED:
        assert postpone(store, uuid, NOW + SECOND)
    elif wanted is not State.WAITING:
        assert finish(store, uuid, Status(wanted))
    assert state(store, uuid) is wanted
    return uuid


STORED = [state for state in State if state is not State.RUNNING]


def test_a_request_comes_back_as_it_was_accepted(store):
    new = NewRequest("größe".encode(), [b"one", b"", b"\0" * 5000], 7, 0, NOW + 60 * SECOND, 3, b'{"key": "k"}')
    new = new._replace(owner=b"shop")
    (uuid,) = accept(store, new)
    with store.read() as txn:
        found = txn.request(uuid)
    assert found.uuid == uuid
    assert found.submitted_at == NOW
    assert found.body == list(new.body)
    for name in set(COLUMNS) - {"uuid", "submitted_at"}:
        assert getattr(found, name) == getattr(new, name), name


def test_ids_come_in_the_order_of_the_requests(store):
    uuids = accept(store, *[NewRequest(b"echo", [b"%d" % n]) for n in range(100)])
    assert uuids == sorted(uuids)
    assert [(row.uuid, row.body) for row in queue(store)] == [(u, [b"%d" % n]) for n, u in enumerate(uuids)]


def test_nothing_accepted_is_nothing_changed(store):
    assert accept(store) == []
    assert counts(store) == (0, 0, 0, 0)


def test_the_queue_is_oldest_first_within_a_priority(store):
    low, high, middle = accept(store, NewRequest(b"echo", [], 0), NewRequest(b"echo", [], 9), NewRequest(b"echo", []))
    (later,) = accept(store, NewRequest(b"echo", [], 9))
    assert [row.uuid for row in queue(store)] == [high, later, middle, low]


def test_services_do_not_see_each_other(store):
    names = [b"e", b"echo", b"echo2", b"ech", b"echo\xc2\xb5"]
    uuids = accept(store, *[NewRequest(name, []) for name in names])
    for name, uuid in zip(names, uuids, strict=True):
        assert [row.uuid for row in queue(store, name)] == [uuid]
    assert queue(store, b"ec") == []
    with store.read() as txn:
        assert waiting_in(txn) == dict.fromkeys(names, 1)


def test_the_queue_is_read_on_from_any_row(store):
    uuids = accept(store, *[NewRequest(b"echo", []) for _ in range(10)])
    first = queue(store, limit=4)
    rest = queue(store, after=first[-1].key)
    assert [row.uuid for row in first + rest] == uuids
    assert queue(store, after=rest[-1].key) == []


def test_the_queue_is_read_on_behind_a_row_that_is_gone(store):
    uuids = accept(store, *[NewRequest(b"echo", []) for _ in range(3)])
    key = queue(store, limit=1)[0].key
    close(store, uuids[0])
    assert [row.uuid for row in queue(store, after=key)] == uuids[1:]


def test_the_queue_is_read_in_pieces_of_bounded_size(store):
    uuids = accept(store, *[NewRequest(b"echo", [bytes(10_000)]) for _ in range(5)])
    assert [row.uuid for row in queue(store, max_bytes=25_000)] == uuids[:2]
    assert [row.uuid for row in queue(store, max_bytes=1)] == uuids[:1]


def test_a_row_says_what_the_dispatcher_needs(store):
    (uuid,) = accept(store, NewRequest(b"echo", [b"a", b"b"], expires_at=NOW + 5, max_attempts=9))
    postpone(store, uuid, NOW + 1, attempts=2)
    promote(store, NOW + 1)
    (row,) = queue(store)
    assert row[1:] == (uuid, 2, [b"a", b"b"], 9, NOW + 5, b"", b"", 0, 0)


def test_deliveries_that_were_no_attempts_are_kept_until_the_end(store):
    (uuid,) = accept(store, NewRequest(b"echo", [b"a"]))
    for attempts, deliveries, known in ((0, 1, 1), (1, 3, 3), (3, 3, 0)):
        with store.write() as txn:
            assert txn.postpone(
                uuid, due=NOW + 1, attempts=attempts, dispatched_at=NOW, reason="no", deliveries=deliveries
            )
        with store.read() as txn:
            assert txn.describe(uuid).deliveries == known
        promote(store, NOW + 1)
        (row,) = queue(store)
        assert (row.attempts, row.deliveries) == (attempts, known)
    with store.write() as txn:
        txn.finish(uuid, Status.FAILED, [], attempts=4, dispatched_at=NOW, finished_at=NOW)
        assert txn.describe(uuid).deliveries == 0
        assert txn.retry(uuid, NOW)
    (row,) = queue(store)
    assert (row.attempts, row.deliveries) == (0, 0)


def test_a_bad_request_in_a_batch_leaves_the_transaction_good(store):
    with store.write() as txn:
        with pytest.raises(InvalidRequest):
            accept_all(txn, [NewRequest(b"echo", []), NewRequest(b"", [])], NOW)
        (uuid,) = accept_all(txn, [NewRequest(b"echo", [])], NOW)
    assert [row.uuid for row in queue(store)] == [uuid]


def test_an_exception_drops_all_that_the_transaction_did(store):
    def break_off():
        with store.write() as txn:
            accept_all(txn, [NewRequest(b"echo", [b"lost"])], NOW)
            txn.close(kept[0])
            raise ZeroDivisionError

    kept = accept(store, NewRequest(b"echo", []))
    with pytest.raises(ZeroDivisionError):
        break_off()
    assert [row.uuid for row in queue(store)] == kept
    assert counts(store) == (1, 1, 0, 0)


def test_a_write_transaction_sees_its_own_changes(store):
    with store.write() as txn:
        one, two = accept_all(txn, [NewRequest(b"echo", []), NewRequest(b"echo", [])], NOW)
        assert waiting_in(txn) == {b"echo": 2}
        txn.close(one)
        assert waiting_in(txn) == {b"echo": 1}
        assert txn.counts()[:4] == (1, 1, 0, 0)
        assert [row.uuid for row in txn.next_ready(b"echo", None, 9, 1 << 20)] == [two]
    with store.read() as txn:
        assert waiting_in(txn) == {b"echo": 1}


def test_a_reply_is_the_same_each_time(store):
    (uuid,) = accept(store, NewRequest(b"echo", []))
    frames = [b"a", b"", bytes(range(256)) * 100]
    assert reply(store, uuid) == Pending(State.WAITING)
    assert finish(store, uuid, frames=frames)
    end = Outcome(Status.DONE, frames, "", 1, NOW + 1, NOW + 2)
    assert reply(store, uuid) == end
    assert reply(store, uuid) == end
    assert queue(store) == []


def test_the_first_reply_is_the_one_that_stays(store):
    (uuid,) = accept(store, NewRequest(b"echo", []))
    assert finish(store, uuid, frames=[b"first"])
    assert not finish(store, uuid, frames=[b"second"])
    assert not finish(store, uuid, Status.FAILED, reason="too late")
    assert reply(store, uuid).frames == [b"first"]


def test_a_failure_keeps_its_reason(store):
    (uuid,) = accept(store, NewRequest(b"echo", []))
    assert finish(store, uuid, Status.FAILED, [], "after 3 attempts: näh")
    assert reply(store, uuid)[:3] == (Status.FAILED, [], "after 3 attempts: näh")


def test_a_late_reply_of_a_postponed_request_counts(store):
    uuid = in_state(store, State.DELAYED)
    assert finish(store, uuid)
    assert counts(store) == (1, 0, 0, 1)
    assert promote(store, NOW + 9 * SECOND) == []


@each("wanted", STORED)
def test_a_request_can_be_closed_in_every_state(store, wanted):
    uuid = in_state(store, wanted)
    other = in_state(store, wanted)
    assert close(store, uuid)[:2] == (b"echo", wanted)
    assert close(store, uuid) is None
    assert state(store, uuid) is None
    assert reply(store, uuid) is None
    assert state(store, other) is wanted


@pytest.mark.lmdb
@each("wanted", STORED)
def test_an_emptied_store_has_no_page_left_but_two(store, wanted):
    for _ in range(3):
        close(store, in_state(store, wanted))
    with store.read() as txn:
        assert txn.counts()[:5] == (0, 0, 0, 0, 2 * 4096)  # one of counters, one of closed requests
        assert waiting_in(txn) == {}
        assert load_of(txn, b"echo") == (0, 0)


def test_nothing_happens_to_a_closed_request(store):
    uuid = in_state(store, State.WAITING)
    close(store, uuid)
    assert not finish(store, uuid)
    assert not postpone(store, uuid, NOW + SECOND)
    with store.read() as txn:
        assert txn.request(uuid) is None
        assert txn.describe(uuid) is None
    assert counts(store) == (0, 0, 0, 0)


def test_a_postponed_request_comes_back_when_it_is_due(store):
    (uuid,) = accept(store, NewRequest(b"echo", [b"body"]))
    assert postpone(store, uuid, NOW + SECOND)
    assert reply(store, uuid) == Pending(State.DELAYED)
    assert queue(store) == []
    assert promote(store, NOW + SECOND - 1) == []
    assert promote(store, NOW + SECOND) == [(b"echo", 1)]
    assert [(row.uuid, row.attempts) for row in queue(store)] == [(uuid, 1)]


def test_a_delayed_request_is_not_postponed_again(store):
    uuid = in_state(store, State.DELAYED)
    assert not postpone(store, uuid, NOW + 2 * SECOND)
    with store.read() as txn:
        assert txn.next_due() == NOW + SECOND


def test_a_request_postponed_to_no_time_is_due_at_once(store):
    uuid = in_state(store, State.WAITING)
    assert postpone(store, uuid, 0)
    assert state(store, uuid) is State.DELAYED
    assert promote(store, NOW) == [(b"echo", 1)]


def test_a_request_can_ask_to_be_delayed(store):
    late, now = accept(
        store, NewRequest(b"echo", [], 9, not_before=NOW + SECOND), NewRequest(b"echo", [], 9, not_before=NOW)
    )
    assert [row.uuid for row in queue(store)] == [now]
    assert state(store, late) is State.DELAYED
    assert promote(store, NOW + SECOND) == [(b"echo", 1)]
    assert [(row.uuid, row.attempts) for row in queue(store)] == [(late, 0), (now, 0)]


def test_a_promoted_request_keeps_its_priority_and_place(store):
    first, second = accept(store, NewRequest(b"echo", [], 2), NewRequest(b"echo", [], 2))
    postpone(store, first, NOW + 1)
    promote(store, NOW + 1)
    assert [row.uuid for row in queue(store)] == [first, second]


def test_promotion_takes_the_longest_due_first_and_no_more_than_asked(store):
    uuids = accept(store, *[NewRequest(b"s%d" % (n % 2), []) for n in range(6)])
    for n, uuid in enumerate(uuids):
        postpone(store, uuid, NOW + 100 - n)
    assert sorted(promote(store, NOW + SECOND, limit=3)) == [(b"s0", 1), (b"s1", 2)]
    assert [state(store, uuid) for uuid in uuids] == [State.DELAYED] * 3 + [State.WAITING] * 3
    with store.read() as txn:
        assert txn.next_due() == NOW + 98


def test_next_due_is_none_when_nothing_is_delayed(store):
    accept(store, NewRequest(b"echo", []))
    with store.read() as txn:
        assert txn.next_due() is None


def test_all_is_there_after_a_restart(tmp_path):
    with LmdbStore.open(tmp_path) as store:
        uuids = {wanted: in_state(store, wanted) for wanted in STORED}
        rows, totals = queue(store), counts(store)
    with LmdbStore.open(tmp_path) as store:
        assert {wanted: state(store, uuid) for wanted, uuid in uuids.items()} == {wanted: wanted for wanted in STORED}
        assert queue(store) == rows
        assert counts(store) == totals == (6, 1, 1, 4)
        assert check(store) == []


def test_ids_ascend_after_a_restart_with_the_clock_behind(tmp_path):
    with LmdbStore.open(tmp_path) as store:
        before = accept(store, NewRequest(b"echo", []))
        before += accept(store, NewRequest(b"echo", []), now=NOW - SECOND)
    with LmdbStore.open(tmp_path) as store:
        after = accept(store, *[NewRequest(b"echo", [])] * 3, now=NOW - 3600 * SECOND)
        assert [row.uuid for row in queue(store)] == before + after
        assert check(store) == []


@pytest.mark.lmdb
def test_an_id_out_of_order_is_never_acknowledged(store):
    accept(store, NewRequest(b"echo", []))
    store.environment = store.environment._replace(ids=IdMaker(None))
    with pytest.raises(StoreFailed, match="IDs do not ascend"):
        accept(store, NewRequest(b"echo", []), now=NOW - SECOND)
    assert counts(store) == (1, 1, 0, 0)


def test_a_description_follows_the_request(store):
    (uuid,) = accept(store, NewRequest(b"echo", [b"abc", b"de"], 6, max_attempts=4, options=b"{}"))
    other = in_state(store, State.WAITING)
    with store.read() as txn:
        first = txn.describe(uuid)
    assert (first.uuid, first.state, first.service, first.priority) == (uuid, State.WAITING, b"echo", 6)
    assert (first.submitted_at, first.not_before, first.expires_at) == (NOW, 0, 0)
    assert (first.max_attempts, first.options, first.body_frames, first.body_bytes) == (4, b"{}", 2, 5)
    postpone(store, uuid, NOW + 7, attempts=3, reason="oh")
    with store.read() as txn:
        delayed = txn.describe(uuid)
    assert delayed == replace(first, state=State.DELAYED, attempts=3, due=NOW + 7, dispatched_at=NOW + 1, reason="oh")
    finish(store, uuid, Status.FAILED, [b"xyz", b""], "dead")
    with store.read() as txn:
        assert txn.describe(uuid) == replace(
            first,
            state=State.FAILED,
            attempts=1,
            dispatched_at=NOW + 1,
            finished_at=NOW + 2,
            reason="dead",
            reply_frames=2,
            reply_bytes=3,
        )
        assert txn.describe(other).state is State.WAITING


def test_what_is_set_for_services_is_kept(store):
    paused, told = ServiceSetting(paused=True), ServiceSetting(on_end=b"told")
    with store.write() as txn:
        assert txn.set_service(b"b", paused) == {b"b": paused}
        assert (
            txn.set_service("größe".encode(), told) == txn.service_settings() == {b"b": paused, "größe".encode(): told}
        )
    with store.write() as txn:
        txn.set_service(b"b", NOTHING_SET)
    with store.read() as txn:
        assert txn.service_settings() == {"größe".encode(): told}
    with suppress(ZeroDivisionError), store.write() as txn:
        txn.set_service(b"c", paused)
        raise ZeroDivisionError
    with store.write() as txn:
        assert txn.service_settings() == {"größe".encode(): told}
        for number in range(service_settings.MOST - 1):
            txn.set_service(b"%d" % number, paused)
        with pytest.raises(InvalidRequest, match="too many services"):
            txn.set_service(b"c", paused)
        txn.set_service(b"5", told)


def test_a_listing_is_read_page_by_page(store):
    uuids = accept(store, *[NewRequest(b"s%d" % (n % 2), []) for n in range(10)])
    finish(store, uuids[3])
    with store.read() as txn:
        page = txn.select(limit=4)
        assert [row.uuid for row in page] == uuids[:4]
        assert [row.uuid for row in txn.select(after=page.next)] == uuids[4:]
        assert [row.uuid for row in txn.select(service=b"s1", states=(State.WAITING,))] == [
            uuids[n] for n in (1, 5, 7, 9)
        ]
        assert [row.uuid for row in txn.select(states=(State.DONE,))] == [uuids[3]]
        assert txn.select(limit=10).next is None
        assert txn.select(service=b"nobody") == []


def test_a_listing_newest_first_is_read_page_by_page(store):
    uuids = accept(store, *[NewRequest(b"s%d" % (n % 2), []) for n in range(10)])
    finish(store, uuids[3])
    with store.read() as txn:
        page = txn.select(limit=4, newest=True)
        assert [row.uuid for row in page] == uuids[:5:-1]
        assert [row.uuid for row in txn.select(after=page.next, newest=True)] == uuids[5::-1]
        waiting = txn.select(service=b"s1", states=(State.WAITING,), newest=True)
        assert [row.uuid for row in waiting] == [uuids[n] for n in (9, 7, 5, 1)]
        assert [row.uuid for row in txn.select(states=(State.DONE,), newest=True)] == [uuids[3]]
        assert txn.select(states=(State.DONE,), after=uuids[3], newest=True) == []
        assert txn.select(limit=10, newest=True).next is None


def test_a_listing_finds_text_in_reasons_and_keys(store):
    new = [NewRequest(b"s", [], key=key, key_until=FAR if key else 0) for key in (b"shop: 1", b"", "größe".encode())]
    uuids = accept(store, *new)
    postpone(store, uuids[0], NOW + 7, reason="100 % lost")
    finish(store, uuids[1], Status.FAILED, [b"shop"], "it broke")
    with store.read() as txn:

        def listed(text, **more):
            return [uuids.index(row.uuid) for row in txn.select(text=text, **more)]

        assert [listed(text) for text in ("shop", "öß", "% l", "broke", "_")] == [[0], [2], [0], [1], []]
        assert [listed(text) for text in ("Shop", "LOST", "\\303", "303o")] == [[0], [0], [], []]
        assert [listed(text) for text in ("GRöß", "IT B")] == [[2], [1]]
        assert listed("o", newest=True) == [1, 0]
        assert listed("o", states=(State.FAILED,)) == [1]


@pytest.mark.parametrize("newest", [False, True])
def test_a_listing_of_a_service_does_not_look_at_what_waits_for_others(store, monkeypatch, newest):
    for engine in ("lmdb.listing", "postgres.queries"):
        monkeypatch.setattr(f"titanic.store.{engine}.LOOKED_AT", 8)
    later = NewRequest(b"mine", [], not_before=NOW + 9, expires_at=0)
    uuids = accept(store, NewRequest(b"mine", []), later, *[NewRequest(b"mine", [])] * 2)
    accept(store, *[NewRequest(b"other", [])] * 30)
    uuids += accept(store, NewRequest(b"mine", []), NewRequest(b"mine", []))
    finish(store, uuids[2], Status.DONE)
    postpone(store, uuids[3], NOW + 7)
    with store.read() as txn:
        page = txn.select(service=b"mine", newest=newest)
        assert [row.uuid for row in page] == (uuids[::-1] if newest else uuids)
        assert page.next is None
        page = txn.select(service=b"mine", newest=newest, limit=3)
        rest = txn.select(service=b"mine", newest=newest, after=page.next)
        assert [row.uuid for row in page + rest] == (uuids[::-1] if newest else uuids)


@pytest.mark.lmdb
@pytest.mark.parametrize("newest", [False, True])
def test_a_listing_looks_at_no_more_than_it_lists(store, monkeypatch, newest):
    uuids = accept(store, *[NewRequest(b"s", [])] * 50)
    for uuid in uuids[::2]:
        finish(store, uuid, Status.FAILED)
    described = []
    describe = listing.describe
    monkeypatch.setattr(listing, "describe", lambda tx, uuid: described.append(uuid) or describe(tx, uuid))
    with store.read() as txn:
        for states in (None, (State.FAILED,), (State.WAITING,)):
            assert len(txn.select(states, service=b"s", newest=newest, limit=3)) == 3
    assert len(described) == 9


@pytest.mark.lmdb
def test_a_listing_looks_at_a_bounded_number_of_requests(store, monkeypatch):
    monkeypatch.setattr("titanic.store.lmdb.listing.LOOKED_AT", 4)
    uuids = accept(store, *[NewRequest(b"many", [])] * 9, NewRequest(b"one", []))
    for uuid in uuids:
        finish(store, uuid)
    with store.read() as txn:
        pages = [txn.select(service=b"one")]
        while pages[-1].next:
            pages.append(txn.select(service=b"one", after=pages[-1].next))
    assert [[row.uuid for row in page] for page in pages] == [[], [], [uuids[9]]]


@pytest.mark.parametrize("newest", [False, True])
def test_a_listing_of_what_waits_does_not_look_at_what_has_ended(store, monkeypatch, newest):
    for engine in ("lmdb.listing", "postgres.queries"):
        monkeypatch.setattr(f"titanic.store.{engine}.LOOKED_AT", 8)
    ended = accept(store, *[NewRequest(b"many", [])] * 30)
    uuids = accept(store, *[NewRequest(b"s%d" % (n % 3), [], priority=n % 4) for n in range(6)])
    ended += accept(store, *[NewRequest(b"many", [])] * 30)
    for uuid in ended:
        finish(store, uuid, Status.FAILED)
    postpone(store, uuids[3], NOW + 7)
    waiting = [uuid for uuid in uuids if uuid != uuids[3]]
    with store.read() as txn:
        for states, right in ((State.WAITING,), waiting), ((State.WAITING, State.DELAYED), uuids):
            page = txn.select(states, newest=newest)
            assert [row.uuid for row in page] == (right[::-1] if newest else right)
            assert page.next is None


@pytest.mark.lmdb
def test_too_many_queues_are_not_merged(store, monkeypatch):
    monkeypatch.setattr(listing, "LOOKED_AT", 3)
    monkeypatch.setattr(listing, "_MOST_QUEUES", 3)
    finished = accept(store, *[NewRequest(b"many", [])] * 4)
    uuids = accept(store, *[NewRequest(b"s%d" % n, []) for n in range(4)])
    for uuid in finished:
        finish(store, uuid)
    with store.read() as txn:
        pages = [txn.select((State.WAITING,))]
        while pages[-1].next:
            pages.append(txn.select((State.WAITING,), after=pages[-1].next))
        assert [row.uuid for page in pages for row in page] == uuids
        assert len(pages) > 1


def test_a_listing_with_time_finds_what_is_rare_at_once(store, monkeypatch):
    for engine in ("lmdb.listing", "postgres.queries"):
        monkeypatch.setattr(f"titanic.store.{engine}.LOOKED_AT", 4)
    uuids = accept(store, NewRequest(b"rare", []), *[NewRequest(b"many", [])] * 20, NewRequest(b"rare", []))
    for uuid in uuids:
        finish(store, uuid)
    rare = [uuids[0], uuids[-1]]
    with store.read() as txn:
        for states in (None, (State.DONE,), (State.DONE, State.FAILED), (State.WAITING, State.DONE)):
            for newest in (False, True):
                page = txn.select(states, service=b"rare", newest=newest, seconds=60)
                assert [row.uuid for row in page] == (rare[::-1] if newest else rare)
                assert page.next is None


@pytest.mark.lmdb
@pytest.mark.parametrize("newest", [False, True])
def test_a_listing_of_a_service_skips_what_is_known_to_have_none_of_it(tmp_path, monkeypatch, newest):
    monkeypatch.setattr(listing, "LOOKED_AT", 25)
    for module in (listing, service_spans):
        monkeypatch.setattr(module, "SPAN", 10)
    monkeypatch.setattr(service_spans, "MOST_SPANS", 8)
    uuids = []

    def fill(store, requests, *rare):
        names = [b"rare" if number in rare else b"many" for number in range(requests)]
        for first in range(0, requests, 5):
            uuids.extend(accept(store, *[NewRequest(name, []) for name in names[first : first + 5]]))
        for uuid in uuids[-requests:]:
            finish(store, uuid)

    def listed(store, after=None, seconds=0.0):
        start = None if after is None else uuids[after]
        with store.read() as txn:
            page = txn.select(service=b"rare", newest=newest, after=start, seconds=seconds)
        return sorted(uuids.index(row.uuid) for row in page), page.next is None

    with LmdbStore.open(tmp_path) as store:
        fill(store, 60, 38)
        assert listed(store) == ([38], True)  # noted when they were stored
    for start in (None, 47, 17):  # what one listing has read, another one with another start knows
        with LmdbStore.open(tmp_path) as store:
            assert not listed(store)[1]
            listed(store, start, 60)
            assert listed(store, seconds=60) == ([38], True)
            assert listed(store) == ([38], True)
            assert accept(store, NewRequest(b"rare", []))[0] not in uuids
            with store.read() as txn:
                found = {row.uuid for row in txn.select(service=b"rare", newest=newest)}
            (new,) = found - {uuids[38]}
            assert close(store, new)
    with LmdbStore.open_read_only(tmp_path) as store:
        assert listed(store, seconds=60) == listed(store) == ([38], True)
    uuids.clear()
    with LmdbStore.open(tmp_path / "more") as store:
        fill(store, 200, 38, 199)  # more than is remembered
        assert listed(store, seconds=60) == ([38, 199], True)


@pytest.mark.lmdb
@pytest.mark.parametrize("most", [5, 1000])
def test_what_is_known_of_services_is_true_of_each_request(monkeypatch, most):
    monkeypatch.setattr(service_spans, "SPAN", 10)
    monkeypatch.setattr(service_spans, "MOST_SPANS", most)
    chance, names, ids = random.Random(most), [b"s%d" % n for n in range(30)], IdMaker(None)
    service_of = {uuid: chance.choice(names[:3]) for uuid in ids.make(100, NOW)}  # before anything was noted
    spans, learned = service_spans.ServiceSpans(), set()
    for _ in range(300):
        if chance.random() < 0.3:
            batch = ids.make(chance.randrange(1, 8), NOW)
            service_of |= {uuid: chance.choice(names) for uuid in batch}
            spans.note(batch[0], batch[-1], len(batch), {service_of[uuid] for uuid in batch})
            learned |= {*batch}
        else:
            there = [*service_of]
            start = chance.randrange(len(there))
            read = there[start : start + chance.randrange(1, 30)]
            is_last = len(there) <= start + len(read)
            end = service_spans.behind(read[-1]) if is_last else there[start + len(read)]
            spans.learn(read[0], end, {service_of[uuid] for uuid in read})
            learned |= {*read}
        found = {uuid: spans.find(uuid) for uuid in service_of}
        assert not [uuid for uuid, span in found.items() if span and span.lacks(service_of[uuid])]
        known = sorted({span for span in found.values() if span})
        assert all(one.end <= other.first for one, other in itertools.pairwise(known))
        assert {uuid for uuid, span in found.items() if span} <= learned
        assert len(known) <= most
        assert most == 5 or {uuid for uuid, span in found.items() if span} == learned
    assert any(span.lacks(name) for span in known for name in names)


@pytest.mark.parametrize("share", [0.2, 0.9])
@pytest.mark.parametrize("newest", [False, True])
def test_pages_of_all_filters_have_what_each_request_says(store, monkeypatch, share, newest):
    """`share`: of the requests that have ended."""
    for module in (listing, service_spans):
        monkeypatch.setattr(module, "SPAN", 4)
    chance = random.Random(share)
    services = (b"a", b"ab", b"b")
    uuids = []
    for minute in range(6):
        there = chance.sample(services, 2)
        new = [NewRequest(chance.choice(there), [], chance.randrange(10)) for _ in range(10)]
        uuids += accept(store, *new, now=NOW + minute * 66_000_000)
    for uuid in uuids:
        if chance.random() < share:
            finish(store, uuid, chance.choice([Status.DONE, Status.DONE, Status.FAILED, Status.EXPIRED]))
        elif chance.random() < 0.4:
            postpone(store, uuid, FAR)
    with store.read() as txn:
        rows = [txn.describe(uuid) for uuid in uuids]
        for _ in range(60):
            states = chance.choice([None, chance.sample([*State], chance.randrange(1, 4))])
            service = chance.choice([None, *services])
            limit, looked_at, seconds = (
                chance.choice([1, 5, 100]),
                chance.choice([1, 7, 50]),
                chance.choice([0.0, 0.001]),
            )
            for engine in ("lmdb.listing", "postgres.queries"):
                monkeypatch.setattr(f"titanic.store.{engine}.LOOKED_AT", looked_at)
            found, after = [], None
            while True:
                page = txn.select(states, service=service, newest=newest, limit=limit, after=after, seconds=seconds)
                assert len(page) <= limit
                assert page.next != after or after is None
                found, after = found + [row.uuid for row in page], page.next
                if after is None:
                    break
            right = [
                row.uuid
                for row in rows
                if (states is None or row.state in states) and (service is None or row.service == service)
            ]
            assert found == (right[::-1] if newest else right), (states, service, limit, looked_at)


def test_a_listing_of_one_state_does_not_look_at_the_others(store, monkeypatch):
    monkeypatch.setattr("titanic.store.lmdb.listing.LOOKED_AT", 3)
    far = NOW + 10**12
    some = accept(store, *[NewRequest(b"s%d" % (n % 2), [], priority=n % 10) for n in range(20)])
    late = accept(store, *[NewRequest(b"late", [], not_before=far)] * 2)
    for n in (4, 11, 17):
        finish(store, some[n])
    with store.read() as txn:

        def listed(**what):
            page = txn.select(**what)
            uuids = [row.uuid for row in page]
            while page.next:
                page = txn.select(after=page.next, **what)
                assert page, "it looked at others"
                uuids += [row.uuid for row in page]
            return uuids

        for limit in (1, 2, 3):
            assert listed(states=(State.DONE,), limit=limit) == [some[n] for n in (4, 11, 17)]
            assert listed(states=(State.DELAYED,), limit=limit) == late
            waiting = [some[n] for n in range(1, 20, 2) if n not in (11, 17)]
            assert listed(states=(State.WAITING,), service=b"s1", limit=limit) == waiting
        assert txn.select(states=(State.WAITING,), service=b"s") == []


def test_threads_write_one_after_the_other(store):
    def work(name):
        for _ in range(30):
            accept(store, NewRequest(name, [name]), NewRequest(name, [name]))

    names = [b"a", b"b", b"c"]
    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.read() as txn:
        assert waiting_in(txn) == dict.fromkeys(names, 60)
    assert counts(store) == (180, 180, 0, 0)


def test_a_reader_sees_the_store_as_it_was_when_it_began(store):
    uuids = accept(store, NewRequest(b"echo", []))
    with store.read() as txn:
        assert txn.counts().requests == 1
        thread = threading.Thread(target=close, args=(store, uuids[0]))
        thread.start()
        thread.join()
        assert state_of(txn, uuids[0]) is State.WAITING
    assert state(store, uuids[0]) is None


# -- change --------------------------------------------------------------------------------------------------------


def change(store, uuid, now=NOW, **changes):
    with store.write() as txn:
        return txn.change(uuid, now, **changes)


def row_of(store, uuid):
    with store.read() as txn:
        row = txn.describe(uuid)
        return row.state, row.priority, row.not_before, row.due, row.attempts


def loads(store):
    with store.read() as txn:
        return waiting_in(txn), load_of(txn, b"echo"), txn.load(b"alice")


def test_another_priority_is_another_place_in_the_queue(store):
    first, second = accept(store, NewRequest(b"echo", [b"1"]), NewRequest(b"echo", [b"2"], key=b"k", key_until=FAR))
    assert change(store, second, priority=9) == (b"echo", State.WAITING)
    assert [row.uuid for row in queue(store)] == [second, first]
    assert change(store, second, priority=0) == (b"echo", State.WAITING)
    assert [(row.uuid, row.body) for row in queue(store)] == [(first, [b"1"]), (second, [b"2"])]
    assert row_of(store, second) == (State.WAITING, 0, 0, 0, 0)
    assert (counts(store)[:3], loads(store)[0]) == ((2, 2, 0), {b"echo": 2})


@each("attempts", [0, 2])
def test_another_time(store, attempts):
    """A request that waits is delayed, one that is delayed is delayed for another time, and then it is due at once."""
    (uuid,) = accept(store, NewRequest(b"echo", [b"x" * 20_000], owner=b"alice"))
    before = loads(store)
    if attempts:
        assert postpone(store, uuid, NOW + SECOND, attempts=attempts)
    assert change(store, uuid, due=NOW + 5 * SECOND) == (b"echo", State.DELAYED)
    assert row_of(store, uuid) == (State.DELAYED, 4, NOW + 5 * SECOND, NOW + 5 * SECOND, attempts)
    assert change(store, uuid, due=NOW + 9 * SECOND, priority=7) == (b"echo", State.DELAYED)
    assert promote(store, NOW + 8 * SECOND) == []
    assert (queue(store), counts(store)[:3]) == ([], (1, 0, 1))
    assert change(store, uuid, priority=8) == (b"echo", State.DELAYED)
    assert promote(store, NOW + 9 * SECOND) == [(b"echo", 1)]
    assert change(store, uuid, due=NOW + 99 * SECOND)
    assert change(store, uuid, due=NOW) == (b"echo", State.WAITING)
    assert row_of(store, uuid) == (State.WAITING, 8, 0, 0, attempts)
    ((row),) = queue(store)
    assert (row.uuid, row.attempts, row.body) == (uuid, attempts, [b"x" * 20_000])
    assert (counts(store)[:3], loads(store)) == ((1, 1, 0), before)
    assert finish(store, uuid)
    assert close(store, uuid).state is State.DONE
    assert counts(store)[:3] == (0, 0, 0)
    assert loads(store) == ({}, (0, 0), (0, 0))


@each("sizes", [(5, 9), (5, 30_000), (30_000, 5), (30_000, 70_000)])
def test_another_body(store, sizes):
    """It counts as if the request had been accepted with it, and nothing of the old one stays."""
    old, new = ([b"x" * size, b"y"] for size in sizes)
    shared = {"owner": b"alice", "options": b'{"limit": 5}', "source": b"::1", "max_attempts": 3}
    (first,) = accept(store, NewRequest(b"echo", old, **shared))
    assert change(store, first, body=new, priority=7) == (b"echo", State.WAITING)
    (row,) = queue(store)
    assert (row.uuid, row.body, row.max_attempts, row.options) == (first, new, 3, b'{"limit": 5}')
    with store.read() as txn:
        assert (txn.request(first).body, txn.request(first).source) == (new, b"::1")
    changed = loads(store)
    (second,) = accept(store, NewRequest(b"echo", new, **shared))
    assert loads(store) == tuple(
        {b"echo": 2} if isinstance(load, dict) else tuple(2 * one for one in load) for load in changed
    )
    assert change(store, first, body=[b""], due=NOW + SECOND) == (b"echo", State.DELAYED)
    assert promote(store, NOW + SECOND) == [(b"echo", 1)]
    assert {row.uuid: row.body for row in queue(store)} == {first: [b""], second: new}
    for uuid in (first, second):
        assert finish(store, uuid)
        assert close(store, uuid).state is State.DONE
    assert (counts(store)[:3], loads(store)) == ((0, 0, 0), ({}, (0, 0), (0, 0)))


def test_a_changed_request_keeps_its_time_to_live(store):
    (uuid,) = accept(store, NewRequest(b"echo", [b"x"], expires_at=NOW + 3 * SECOND))
    assert change(store, uuid, due=NOW + 9 * SECOND)
    with store.write() as txn:
        assert txn.expire(NOW + 3 * SECOND) == [(uuid, b"echo")]
    assert state(store, uuid) is State.EXPIRED


@each("wanted", [State.DONE, State.FAILED, State.EXPIRED])
def test_what_has_ended_is_not_changed(store, wanted):
    uuid = in_state(store, wanted)
    assert change(store, uuid, priority=9, due=FAR) is None
    assert change(store, bytes(16), priority=9) is None
    assert state(store, uuid) is wanted


def test_a_change_is_undone_with_its_transaction(store):
    (uuid,) = accept(store, NewRequest(b"echo", [b"x"]))
    with suppress(LookupError), store.write() as txn:
        assert txn.change(uuid, NOW, priority=9, due=FAR)
        raise LookupError
    assert row_of(store, uuid) == (State.WAITING, 4, 0, 0, 0)
