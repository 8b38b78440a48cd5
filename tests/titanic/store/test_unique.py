"""Unique requests: of those with the same service, owner, rule and name, one is accepted while it counts."""

import json
from itertools import count, product

import pytest
from support.each import each
from support.store_engines import is_sound, place_of

from titanic.errors import StoreFull
from titanic.store import LeaseConfig, NewRequest, NodeFacts, Retention, Status, open_export, open_import
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check
from titanic.store.moving import move
from titanic.store.uniqueness import MAX_REQUESTS, made_unique

pytestmark = pytest.mark.usefixtures("engine")

NOW = 1_795_258_520_106_479
SECOND = 1_000_000
FOR = 100
RULES = {"started": {"unique_until": "started"}, "done": {}, "for": {"unique_for": FOR}}
_numbers = count(1000)


def unique(rule, name="order 7", service=b"echo", **more):
    said = {"unique": name, **RULES[rule]}
    ends_at = NOW + FOR * SECOND if rule == "for" else 0
    new = NewRequest(service, [b"body"], options=json.dumps(said).encode(), **more)
    return made_unique(new, name, said.get("unique_until", "done"), ends_at)


def accept(store, *requests, now=NOW, running=()):
    with store.write() as txn:
        return txn.accept(requests, now, running=running)


def finish(store, uuid, status=Status.DONE):
    with store.write() as txn:
        times = {"attempts": 1, "dispatched_at": NOW, "finished_at": NOW}
        assert txn.finish(uuid, status, [b"reply"], reason="why", **times)


def run(store, uuid, service=b"echo"):
    """Have a worker get the request. Returns what `accept` is told about that."""
    if store.remote:
        me = next(_numbers)
        store.join(me, None, (), NodeFacts("host", "1.0", [], {}), LeaseConfig(renew=60.0))
        with store.write() as txn:
            assert uuid in [row.uuid for row in txn.claim(me, {service: 100}, 1 << 20, {}).rows[service]]
    return [uuid]


def expire(store, uuid):
    with store.write() as txn:
        assert [found for found, _ in txn.expire(NOW + 60 * SECOND)] == [uuid]


def close(store, uuid):
    with store.write() as txn:
        txn.close(uuid, NOW)


def close_done(store, uuid):
    finish(store, uuid)
    close(store, uuid)


def trim_done(store, uuid):
    finish(store, uuid)
    with store.write() as txn:
        assert txn.trim(NOW + 50 * SECOND, Retention(reply_retention=SECOND)).replies == 1


def trim_failed(store, uuid):
    finish(store, uuid, Status.FAILED)
    with store.write() as txn:
        assert txn.trim(NOW + 50 * SECOND, Retention(dead_retention=SECOND)).dead == 1


def postpone(store, uuid):
    with store.write() as txn:
        txn.postpone(uuid, due=NOW + 10**9, attempts=1, dispatched_at=NOW, reason="no")


def fail(store, uuid):
    finish(store, uuid, Status.FAILED)


STATES = {  # what happens to the first request; for which rules a second one finds it then
    "waiting": (lambda store, uuid: (), {"started", "done", "for"}),
    "delayed": (postpone, {"started", "done", "for"}),
    "running": (run, {"done", "for"}),
    "done": (finish, {"for"}),
    "failed": (fail, set()),
    "expired": (expire, set()),
    "cancelled": (close, set()),
    "closed": (close_done, set()),
    "done and trimmed": (trim_done, {"for"}),
    "failed and trimmed": (trim_failed, set()),
}


@pytest.mark.parametrize("state", STATES)
@each(("rule", "keys"), [*product(RULES, [("", ""), ("a", "b"), ("a", "a")])])
def test_each_cell(store, state, rule, keys):
    happen, found_for = STATES[state]
    name = f"{rule} {keys}"
    mine, other = ({"key": f"{key} {name}".encode(), "key_until": NOW + 10**9} if key else {} for key in keys)
    (first,) = accept(store, unique(rule, name, expires_at=NOW + SECOND if state == "expired" else 0, **mine))
    assert first.new
    running = happen(store, first.uuid) or ()
    second = unique(rule, name, **other)
    is_found = rule in found_for or keys == ("a", "a")
    with store.write() as txn:
        assert txn.fresh([second], NOW, running=running) == ([] if is_found else [second])
    (found,) = accept(store, second, running=running)
    assert (found.new, found.uuid == first.uuid) == (not is_found, is_found)
    if not is_found:  # now that one counts
        assert accept(store, unique(rule, name)) == [(found.uuid, False)]
        close(store, first.uuid)
        assert accept(store, unique(rule, name)) == [(found.uuid, False)]
    with store.write() as txn:
        assert txn.load(b"").bytes == 0


@pytest.mark.parametrize("rule", RULES)
def test_the_same_message_twice_in_a_batch(store, rule):
    """Its key is that of no request, because the name is taken."""
    ((first, _),) = accept(store, unique(rule))
    key = {"key": b"k", "key_until": NOW + 10**9}
    assert accept(store, *[unique(rule, **key)] * 3) == [(first, False)] * 3
    other, again = accept(store, unique(rule, "order 8", **key), unique(rule, **key))
    assert (other.new, again) == (True, (other.uuid, False))
    assert is_sound(store)


def test_the_time_of_a_rule_ends(store):
    (first,) = accept(store, unique("for"))
    finish(store, first.uuid)
    assert accept(store, unique("for"), now=NOW + FOR * SECOND - 1) == [(first.uuid, False)]
    with store.write() as txn:
        assert txn.accept([unique("for")], NOW + FOR * SECOND, 10) == [(first.uuid, False)]  # the clock may be ahead
    assert accept(store, unique("for"), now=NOW + FOR * SECOND)[0].new
    with store.write() as txn:
        assert txn.trim(NOW + 2 * FOR * SECOND).keys == 1


@pytest.mark.parametrize("rule", RULES)
def test_others_are_not_the_same(store, rule):
    made = accept(
        store,
        unique(rule),
        unique(rule, "order 8"),
        unique(rule, service=b"other"),
        unique(rule, owner=b"eve"),
        unique(rule, owner=b"evelyn"),
        *[unique(other) for other in RULES if other != rule],
        NewRequest(b"echo", [b"body"]),
        NewRequest(b"echo", [b"body"], key=b"order 7", key_until=NOW + 10**9),
    )
    assert all(one.new for one in made)
    assert accept(store, unique(rule, owner=b"eve")) == [(made[3].uuid, False)]


@pytest.mark.parametrize("rule", RULES)
def test_also_within_one_batch_and_one_transaction(store, rule):
    other = NewRequest(b"echo", [b"other"])
    keyed = {"key": b"k", "key_until": NOW + 10**9}
    with store.write() as txn:
        first, between, second = txn.accept([unique(rule), other, unique(rule)], NOW)
        (third,) = txn.accept([unique(rule, **keyed)], NOW)
        (fourth,) = txn.accept([NewRequest(b"echo", [b"new"], **keyed)], NOW)
    assert [one.new for one in (first, between, second, third, fourth)] == [True, True, False, False, True]
    assert {second.uuid, third.uuid} == {first.uuid}, "the key of the one that was found is free"
    assert is_sound(store)


def test_a_message_that_is_sent_again_finds_its_request_by_its_key(store):
    keyed = {"key": b"~1", "key_until": NOW + 10**9}
    (first,) = accept(store, unique("started", **keyed))
    running = run(store, first.uuid)
    assert accept(store, unique("started", **keyed), running=running) == [(first.uuid, False)]
    assert accept(store, unique("started"), running=running)[0].new


def test_a_retried_request_counts_again(store):
    (first,) = accept(store, unique("done"))
    fail(store, first.uuid)
    with store.write() as txn:
        assert txn.retry(first.uuid, NOW)
    assert accept(store, unique("done")) == [(first.uuid, False)]


def retry(store, uuid, now=NOW):
    with store.write() as txn:
        return txn.retry(uuid, now)


def test_one_that_is_delayed_counts_again_after_another_was_accepted(store):
    (first,) = accept(store, unique("started"))
    (second,) = accept(store, unique("started"), running=run(store, first.uuid))
    assert second.new
    postpone(store, first.uuid)
    running = run(store, second.uuid)
    with store.write() as txn:
        assert txn.fresh([unique("started")], NOW, running=running) == []
    assert accept(store, unique("started"), running=running) == [(first.uuid, False)]
    close(store, first.uuid)
    assert accept(store, unique("started"), running=running)[0].new


def test_one_that_is_retried_counts_again_after_another_has_succeeded(store):
    (first,) = accept(store, unique("done"))
    fail(store, first.uuid)
    (second,) = accept(store, unique("done"))
    finish(store, second.uuid)
    assert retry(store, first.uuid)
    assert accept(store, unique("done")) == [(first.uuid, False)]
    close(store, second.uuid)
    assert accept(store, unique("done")) == [(first.uuid, False)]
    close(store, first.uuid)
    assert accept(store, unique("done"))[0].new


@each("change", [postpone, finish, fail, close])
def test_with_a_time_only_the_newest_can_be_retried(store, change):
    name = change.__name__
    (first,) = accept(store, unique("for", name))
    fail(store, first.uuid)
    (second,) = accept(store, unique("for", name))
    assert not retry(store, first.uuid)
    change(store, second.uuid)
    assert not retry(store, first.uuid, NOW + FOR * SECOND - 1)
    assert retry(store, second.uuid) == (change is fail)
    assert retry(store, first.uuid, NOW + FOR * SECOND)
    assert accept(store, unique("for", name))[0].new == (change is close)


def test_with_a_time_one_of_a_clock_that_was_ahead_can_be_retried_when_that_is_over(store):
    ahead = NOW + 10**15
    (one,) = accept(store, unique("for")._replace(unique_until=ahead + FOR * SECOND), now=ahead)
    fail(store, one.uuid)
    with store.write() as txn:
        assert txn.clamp_timers(NOW) == (1, None)
        assert txn.trim(NOW + FOR * SECOND, Retention(0, 0)).keys == 1
    assert retry(store, one.uuid, NOW + FOR * SECOND)


@pytest.mark.parametrize("rule", ["started", "done"])
def test_the_requests_before_the_newest_one_are_few_and_leave_nothing(store, rule):
    made = []
    for _ in range(MAX_REQUESTS + 3):
        made += [one.uuid for one in accept(store, unique(rule, owner=b"eve"))]
        fail(store, made[-1])
    for uuid in made[:-1]:
        assert retry(store, uuid)
    assert accept(store, unique(rule, owner=b"eve")) == [(made[-2], False)]
    for uuid in reversed(made[4:]):
        close(store, uuid)
    assert accept(store, unique(rule, owner=b"eve")) == [(made[3], False)], "the last one that is kept"
    assert is_sound(store)
    with store.write() as txn:  # at once
        txn.prefetch(made[:4])
        for uuid in made[:4]:
            txn.close(uuid, NOW)
    with store.write() as txn:
        assert txn.load(b"eve") == (0, 0)
    assert is_sound(store)


@pytest.mark.parametrize("rule", ["started", "done"])
def test_several_of_a_row_are_closed_at_once(store, rule):
    (first,) = accept(store, unique(rule, owner=b"eve"))
    fail(store, first.uuid)
    (second,) = accept(store, unique(rule, owner=b"eve"))
    with store.write() as txn:
        for uuid in (first.uuid, second.uuid):
            txn.close(uuid, NOW)
            txn.accept([NewRequest(b"echo", [b"body"], key=uuid.hex().encode(), key_until=NOW + 1)], NOW)
    with store.write() as txn:
        assert txn.load(b"eve") == (0, 0)
    assert is_sound(store)


def test_one_that_was_given_back_counts_again(store):
    (first,) = accept(store, unique("started"))
    assert accept(store, unique("started"), running=()) == [(first.uuid, False)]


def test_the_row_goes_with_its_request(store):
    """What is counted for the owner is nothing in the end, and no key is left."""
    for rule in RULES:
        (one,) = accept(store, unique(rule, owner=b"eve"))
        fail(store, one.uuid)
        (other,) = accept(store, unique(rule, owner=b"eve"))
        with store.write() as txn:
            for uuid in (other.uuid, one.uuid):
                txn.close(uuid, NOW)
    with store.write() as txn:
        assert txn.load(b"eve") == (0, 0)
        assert txn.trim(NOW + 10**15, Retention(0, 0)).keys == 0


@pytest.mark.settings(capacity=16 << 20)
def test_a_full_store_refuses_and_keeps_no_name(store):
    large = unique("done", owner=b"eve")._replace(body=[bytes(17 << 20)])
    with store.write() as txn, pytest.raises(StoreFull):
        txn.accept([large], NOW)
    with store.write() as txn:
        assert txn.load(b"eve") == (0, 0)
    assert accept(store, unique("done", owner=b"eve"))[0].new


@pytest.mark.lmdb
def test_a_check_compares_rows_with_their_requests(store):
    (first,) = accept(store, unique("done", key=b"k", key_until=NOW + 10**9, owner=b"eve"))
    assert check(store) == []
    with store.write() as txn:
        (name,) = [
            bytes(key) for key in txn.raw.cursor(txn.db.keys).iternext(values=False) if b"\xff\xff" in bytes(key)
        ]
        txn.forget_key(name)
        other = name[:-1] + bytes([name[-1] ^ 1])
        txn.put_key(other, bytes(16) + first.uuid)
    assert any("has the key" in one.what for one in check(store))
    with store.write() as txn:
        txn.delete_key(other)


@pytest.mark.lasting
def test_they_move_to_another_engine(engine, tmp_path):
    with engine(tmp_path / "one") as store:
        made = accept(store, *[unique(rule, owner=b"eve") for rule in RULES])
        place = place_of("postgres" if store.remote else "lmdb", tmp_path / "one")
    with open_export(place) as source, open_import(str(tmp_path / "moved")) as target:
        move(source, target, lambda doing, done, total: None)
    with LmdbStore.open(tmp_path / "moved") as moved:
        assert accept(moved, *[unique(rule, owner=b"eve") for rule in RULES]) == [(one.uuid, False) for one in made]
