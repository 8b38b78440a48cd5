"""Threads that work in batches."""

from __future__ import annotations

import pytest
from support.waiting import until

from titanic.commit.writer import BatchThread


def test_a_batch_thread_survives_its_work(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    def work(items: list[int]) -> None:
        if 0 in items:
            raise KeyError("no")
        done.extend(items)

    thread = BatchThread("test", work)
    thread.start()
    thread.put(0)
    until(lambda: "unexpected error" in caplog.text)
    for number in range(1, 100):
        thread.put(number)
    thread.stop()
    assert done == list(range(1, 100))


def test_a_batch_thread_takes_all_that_waits_and_ends_after_it() -> None:
    batches: list[list[int]] = []
    thread = BatchThread("test", batches.append)
    for number in range(10):
        thread.put(number)
    thread.start()
    thread.stop()
    thread.put(11)
    assert batches == [list(range(10))]


def test_a_batch_thread_that_never_started_can_be_stopped() -> None:
    BatchThread("test", lambda items: None).stop()
