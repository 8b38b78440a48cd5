"""What happens by itself: requests expire, replies and keys are forgotten; and what is brought back."""

import pytest
from support.each import each
from support.store_engines import is_sound
from support.store_facts import accept_all, closed_in, load_of, state_of

from titanic.store import DAY, NewRequest, Retention, State, Status

pytestmark = pytest.mark.usefixtures("engine")

NOW = 1_795_258_520_106_479
POLICY = Retention(reply_retention=100, dead_retention=300)


def accept(store, *requests):
    with store.write() as txn:
        return accept_all(txn, requests, NOW)


def mortal(expires_at, service=b"echo", **more):
    return NewRequest(service, [b"body"], expires_at=NOW + expires_at, **more)


def expire(store, now, limit=1000, skip=()):
    with store.write() as txn:
        return txn.expire(NOW + now, limit, skip)


def finish(store, uuid, status=Status.DONE, at=0, frames=(b"reply",)):
    with store.write() as txn:
        return txn.finish(uuid, status, frames, attempts=1, dispatched_at=NOW, finished_at=NOW + at, reason="why")


def retry(store, uuid, now=0):
    with store.write() as txn:
        return txn.retry(uuid, NOW + now)


def trim(store, now, limit=1000, policy=POLICY):
    with store.write() as txn:
        return txn.trim(NOW + now, policy, limit)


def next_due(store, policy=None, skip=()):
    with store.read() as txn:
        due = txn.next_due(policy, skip)
        return due and due - NOW


def state(store, uuid):
    with store.read() as txn:
        return state_of(txn, uuid)


def load(store, service=b"echo"):
    with store.read() as txn:
        return load_of(txn, service)


def test_a_request_expires_when_its_time_is_over(store):
    (uuid,) = accept(store, mortal(50))
    assert next_due(store) == 50
    assert expire(store, 49) == []
    assert expire(store, 50) == [(uuid, b"echo")]
    with store.read() as txn:
        end = txn.reply(uuid)
        assert txn.next_ready(b"echo", None, 9, 1 << 20) == []
    assert (end.status, end.finished_at, end.attempts) == (Status.EXPIRED, NOW + 50, 0)
    assert end.reason == "not done in time, after 0 attempts"
    assert next_due(store) is None
    assert expire(store, 99) == []


def test_a_delayed_request_expires_too(store):
    (uuid,) = accept(store, mortal(50))
    with store.write() as txn:
        txn.postpone(uuid, due=NOW + 80, attempts=2, dispatched_at=NOW + 1, reason="it broke")
    assert expire(store, 60) == [(uuid, b"echo")]
    with store.read() as txn:
        end = txn.reply(uuid)
        assert txn.counts()[:4] == (1, 0, 0, 1)
    assert (end.attempts, end.dispatched_at) == (2, NOW + 1)
    assert "after 2 attempts" in end.reason


def test_those_that_run_do_not_expire(store):
    running, waiting, other = accept(store, mortal(10), mortal(20), mortal(30))
    assert next_due(store, skip={running}) == 20
    assert expire(store, 25, skip={running}) == [(waiting, b"echo")]
    assert next_due(store, skip={running, other}) is None
    assert state(store, running) is State.WAITING
    assert finish(store, running)
    assert next_due(store) == 30


def test_expiring_goes_in_bounded_steps_the_oldest_first(store):
    uuids = accept(store, *[mortal(100 - n, b"s%d" % n) for n in range(10)])
    assert [uuid for uuid, _ in expire(store, 200, limit=4)] == uuids[:5:-1]
    assert len(expire(store, 200, limit=1000)) == 6
    assert load(store, b"s3") == (0, 0)


@each("way", ["finish", "close"])
def test_what_has_ended_or_gone_expires_no_more(store, way):
    (uuid,) = accept(store, mortal(50))
    if way == "finish":
        finish(store, uuid)
    else:
        with store.write() as txn:
            txn.close(uuid, NOW)
    assert next_due(store) is None
    assert expire(store, 99) == []


def test_the_next_thing_to_do_is_the_first_of_all(store):
    accept(store, mortal(50), NewRequest(b"echo", [], not_before=NOW + 40))
    assert next_due(store) == 40
    accept(store, mortal(30))
    assert next_due(store) == 30
    (done,) = accept(store, NewRequest(b"echo", [], key=b"k", key_until=NOW + 25))
    assert next_due(store) == 30
    assert next_due(store, POLICY) == 25
    finish(store, done, at=-80)
    assert next_due(store, POLICY) == 20
    assert next_due(store, Retention(0, 0)) == 25


def test_a_delayed_request_has_had_no_attempts(store):
    (uuid,) = accept(store, NewRequest(b"echo", [], not_before=NOW + 40))
    with store.read() as txn:
        found = txn.describe(uuid)
    assert (found.state, found.attempts, found.due) == (State.DELAYED, 0, NOW + 40)
    with store.write() as txn:
        assert txn.promote(NOW + 40) == [(b"echo", 1)]


def test_the_load_counts_what_has_not_ended(store):
    new = NewRequest(b"echo", [bytes(1000)])
    uuids = accept(store, new, new, new._replace(not_before=NOW + 5), new._replace(body=[bytes(50_000)]))
    waiting, size = load(store)
    assert waiting == 4
    assert 53_000 < size < 53_500
    with store.write() as txn:
        txn.postpone(uuids[0], due=NOW + 1, attempts=1, dispatched_at=NOW, reason="")
        assert load_of(txn, b"echo") == (4, size)
        txn.promote(NOW + 1)
        assert load_of(txn, b"echo") == (4, size)
        txn.close(uuids[3], NOW)
        assert load_of(txn, b"echo").waiting == 3
        assert load_of(txn, b"echo").bytes < size - 50_000
    finish(store, uuids[0], Status.FAILED)
    assert load(store).waiting == 2
    retry(store, uuids[0])
    assert load(store).waiting == 3
    assert load(store, b"nobody") == (0, 0)


@each("status", [Status.FAILED, Status.EXPIRED])
def test_a_dead_request_gets_another_life(store, status):
    (uuid,) = accept(store, NewRequest(b"echo", [b"body"], max_attempts=3))
    finish(store, uuid, status, frames=[bytes(5000)])
    assert retry(store, uuid)
    with store.read() as txn:
        (row,) = txn.next_ready(b"echo", None, 9, 1 << 20)
        assert row[1:] == (uuid, 0, [b"body"], 3, 0, b"", b"", 0, 0)
        assert txn.describe(uuid).reason == ""
    assert not retry(store, uuid)
    assert finish(store, uuid)
    with store.read() as txn:
        assert txn.reply(uuid).frames == [b"reply"]


@each("status", [Status.DONE, Status.CANCELLED])
def test_others_do_not(store, status):
    (uuid,) = accept(store, NewRequest(b"echo", [b"body"]))
    finish(store, uuid, status)
    assert not retry(store, uuid)
    assert not retry(store, bytes(16))
    assert state(store, uuid) is State(status)


def test_a_retried_request_expires_again_only_if_its_time_is_still_to_come(store):
    failed, expired = accept(store, mortal(100), mortal(10))
    expire(store, 10)
    finish(store, failed, Status.FAILED)
    assert retry(store, failed, 20)
    assert retry(store, expired, 20)
    assert next_due(store) == 100
    with store.read() as txn:
        assert [row.expires_at for row in txn.next_ready(b"echo", None, 9, 1 << 20)] == [NOW + 100, 0]
        assert txn.describe(expired).expires_at == 0
    with store.write() as txn:
        txn.postpone(expired, due=NOW + 30, attempts=1, dispatched_at=NOW, reason="it broke")
        txn.promote(NOW + 30)
    assert is_sound(store)
    assert [uuid for uuid, _ in expire(store, 200)] == [failed]
    assert state(store, expired) is State.WAITING


def test_a_request_that_expired_during_its_delay_is_not_tried_before_the_delay_is_over(store):
    (uuid,) = accept(store, mortal(50, not_before=NOW + 80))
    assert expire(store, 60) == [(uuid, b"echo")]
    assert retry(store, uuid, 61)
    with store.read() as txn:
        assert (txn.describe(uuid).state, txn.describe(uuid).due) == (State.DELAYED, NOW + 80)
        assert txn.next_ready(b"echo", None, 9, 1 << 20) == []
    assert load(store).waiting == 1
    assert next_due(store) == 80
    assert is_sound(store)
    with store.write() as txn:
        assert txn.promote(NOW + 79) == []
        assert txn.promote(NOW + 80) == [(b"echo", 1)]
        assert [row.expires_at for row in txn.next_ready(b"echo", None, 9, 1 << 20)] == [0]


def test_a_clock_that_was_set_back_makes_neither_longer_than_it_was(store):
    (uuid,) = accept(store, mortal(50, not_before=NOW + 80))
    expire(store, 60)
    assert retry(store, uuid, -1000)
    with store.read() as txn:
        found = txn.describe(uuid)
    assert (found.due, found.expires_at) == (NOW - 1000 + 80, NOW - 1000 + 50)


def test_a_request_that_was_tried_has_no_delay_any_more(store):
    (uuid,) = accept(store, NewRequest(b"echo", [b"body"], not_before=NOW + 80))
    with store.write() as txn:
        txn.promote(NOW + 80)
    finish(store, uuid, Status.FAILED, at=90)
    assert retry(store, uuid, 70), "the clock was set back"
    assert state(store, uuid) is State.WAITING


def test_what_nobody_closes_is_closed_in_the_end(store):
    done, cancelled, failed, waiting = accept(store, *[NewRequest(b"echo", [b"body"])] * 4)
    finish(store, done, at=0)
    finish(store, cancelled, Status.CANCELLED, at=5)
    finish(store, failed, Status.FAILED, at=0)
    assert trim(store, 99)[:5] == (0, 0, 0, 0, False)
    assert next_due(store, POLICY) == 100
    assert trim(store, 100)[:5] == (1, 0, 0, 0, False)
    assert state(store, done) is None
    assert trim(store, 299)[:5] == (1, 0, 0, 0, False)
    assert next_due(store, POLICY) == 300
    assert trim(store, 300)[:5] == (0, 1, 0, 0, False)
    assert next_due(store, POLICY) is None
    with store.read() as txn:
        lives = closed_in(txn, 0, 9, 1 << 20)
    assert [(life.uuid, life.status, life.closed_at - NOW) for life in lives] == [
        (done, Status.DONE, 100),
        (cancelled, Status.CANCELLED, 299),
        (failed, Status.FAILED, 300),
    ]
    assert all(life.unclaimed for life in lives)
    assert state(store, waiting) is State.WAITING


def test_trimming_is_a_trickle(store):
    for n, uuid in enumerate(accept(store, *[NewRequest(b"echo", [b"body"])] * 20)):
        finish(store, uuid, Status.FAILED if n % 2 else Status.DONE)
    steps = []
    while not steps or steps[-1].more:
        steps.append(trim(store, 1000, limit=6))
    assert [step[:2] for step in steps] == [(6, 0), (4, 2), (0, 6), (0, 2)]


def test_the_defaults_are_a_week_and_a_month():
    assert Retention() == (7 * DAY, 30 * DAY, 0)


def test_no_retention_is_for_ever(store):
    (uuid,) = accept(store, NewRequest(b"echo", [b"body"]))
    finish(store, uuid)
    assert trim(store, 10**15, policy=Retention(0, 0))[:5] == (0, 0, 0, 0, False)


def test_many_are_selected_by_state_service_and_age(store):
    uuids = accept(store, *[NewRequest(b"s%d" % (n % 2), [b"body"]) for n in range(12)])
    for n, uuid in enumerate(uuids[:8]):
        finish(store, uuid, [Status.DONE, Status.FAILED, Status.EXPIRED, Status.FAILED][n % 4], at=n)
    dead = {State.FAILED, State.EXPIRED}
    with store.read() as txn:
        assert [row.uuid for row in txn.select(dead)] == [uuids[n] for n in (1, 2, 3, 5, 6, 7)]
        assert [row.uuid for row in txn.select(dead, service=b"s0")] == [uuids[2], uuids[6]]
        assert [row.uuid for row in txn.select(dead, older_than=NOW + 5)] == [uuids[n] for n in (1, 2, 3)]
        assert [row.uuid for row in txn.select(older_than=NOW)] == []
        assert len(txn.select(older_than=NOW + 1)) == 5
        first = txn.select(dead, limit=4)
        rest = txn.select(dead, limit=4, after=first.next)
        assert [row.uuid for row in first + rest] == [uuids[n] for n in (1, 2, 3, 5, 6, 7)]
        assert len(txn.select()) == 12
