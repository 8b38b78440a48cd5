"""Messages a second, by user."""

from __future__ import annotations

from support.secured import user

from broker.access.authorization import TokenBuckets


def test_no_limit() -> None:
    buckets = TokenBuckets()
    assert all(buckets.take(user("free"), 0.0) for _ in range(1000))
    assert len(buckets) == 0


def test_a_second_s_worth_at_once_and_no_more() -> None:
    buckets, ten = TokenBuckets(), user("ten", limits={"messages": 10})
    assert [buckets.take(ten, 5.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert not buckets.take(ten, 5.09)
    assert buckets.take(ten, 5.11)
    assert not buckets.take(ten, 5.11)
    assert sum(buckets.take(ten, 60.0) for _ in range(100)) == 10, "it does not fill beyond a second's worth"


def test_refused_messages_take_nothing() -> None:
    buckets, one = TokenBuckets(), user("one", limits={"messages": 1})
    assert buckets.take(one, 0.0)
    assert not any(buckets.take(one, number / 1000) for number in range(999))
    assert buckets.take(one, 1.001)


def test_each_user_has_his_own() -> None:
    buckets = TokenBuckets()
    one, other = user("one", limits={"messages": 1}), user("other", limits={"messages": 1})
    assert buckets.take(one, 0.0)
    assert buckets.take(other, 0.0)
    assert not buckets.take(one, 0.0)


def test_a_lowered_limit_counts_at_once() -> None:
    buckets = TokenBuckets()
    assert buckets.take(user("one", limits={"messages": 1000}), 0.0)
    less = user("one", limits={"messages": 2})
    assert sum(buckets.take(less, 0.0) for _ in range(10)) == 2


def test_users_that_are_gone_are_forgotten() -> None:
    buckets = TokenBuckets()
    for name in ("one", "other"):
        buckets.take(user(name, limits={"messages": 1}), 0.0)
    buckets.keep({"one"})
    assert len(buckets) == 1
