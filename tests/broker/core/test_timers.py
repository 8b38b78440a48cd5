"""Deadlines by key, and waits that double."""

from __future__ import annotations

import random

from broker.core.timers import Backoff, Timers


def test_due_in_order_of_time() -> None:
    timers: Timers[str] = Timers()
    timers.set("c", 3)
    timers.set("a", 1)
    timers.set("b", 2)
    assert timers.next() == 1
    assert list(timers.due(0.9)) == []
    assert list(timers.due(2)) == ["a", "b"]
    assert "c" in timers
    assert "a" not in timers
    assert len(timers) == 1
    assert timers.get("c") == 3
    assert timers.get("a") is None


def test_moved_later_and_earlier() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 5)
    timers.set("a", 9)
    assert timers.next() == 9
    timers.set("a", 2)
    assert timers.next() == 2
    timers.set("a", 4)
    assert list(timers.due(3)) == []
    assert list(timers.due(4)) == ["a"]
    assert timers.next() is None


def test_cancelled() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 1)
    timers.set("b", 2)
    timers.cancel("a")
    timers.cancel("unknown")
    assert list(timers.due(5)) == ["b"]
    timers.set("a", 6)
    assert timers.next() == 6


def test_asking_again_at_the_time_of_a_moved_deadline_is_enough() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 5)
    timers.set("a", 9)
    assert timers.wake_at == 5
    assert list(timers.due(5)) == []
    assert timers.wake_at == 9
    timers.cancel("a")
    assert timers.wake_at is None


def test_set_while_taking() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 1)
    taken = []
    for key in timers.due(5):
        taken.append(key)
        timers.set(key, taken.count("a") * 2 + 1)
    assert taken == ["a", "a", "a"]
    assert timers.next() == 7


def test_cancelled_keys_leave_nothing_behind() -> None:
    """A client with a long timeout and many short requests."""
    timers: Timers[int] = Timers()
    for number in range(10_000):
        timers.set(number, 3600.0 + number)
        timers.cancel(number)
    assert len(timers._heap) < 100


def test_like_a_dictionary() -> None:
    chance = random.Random(1)
    timers: Timers[int] = Timers()
    model: dict[int, float] = {}
    now = 0.0
    for _ in range(20_000):
        key = chance.randrange(50)
        match chance.randrange(4):
            case 0 | 1:
                model[key] = when = now + chance.random() * 10
                timers.set(key, when)
            case 2:
                model.pop(key, None)
                timers.cancel(key)
            case 3:
                now += chance.random() / 10
                due = list(timers.due(now))
                assert due == sorted((key for key in model if model[key] <= now), key=model.__getitem__)
                for key in due:
                    del model[key]
        wake_at, first = timers.wake_at, min(model.values(), default=None)
        assert first is None if wake_at is None else first is not None and wake_at <= first
        assert timers.next() == first
        assert len(timers) == len(model)


def test_backoff_doubles_up_to_the_most() -> None:
    backoff = Backoff(1, 32)
    assert [backoff.take() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 32, 32]
    backoff.reset()
    assert backoff.take() == 1
