"""The queue of Simple and Paranoid Pirate, against raw frames."""

from __future__ import annotations

from typing import Any

import pytest
from support.each import each
from support.transcript import Clocked

from broker import UsageError
from broker.patterns import QueueConfig
from broker.patterns.pirate_queue.core import (
    CLIENT,
    PARANOID,
    SIMPLE,
    TRANSITIONS,
    WORKER,
    At,
    PirateDialect,
    PirateQueueCore,
    PirateState,
)


class Talk(Clocked):
    """A queue, its peers by name, and a clock."""

    def __init__(self, dialect: PirateDialect = PARANOID, **config: Any) -> None:
        self.core = self.queue = PirateQueueCore(QueueConfig(**config), dialect=dialect, now=self.now)

    def client(self, name: bytes, *frames: bytes) -> None:
        self.queue.receive(At(CLIENT, name), list(frames), self.now)

    def worker(self, name: bytes, *frames: bytes) -> None:
        self.queue.receive(At(WORKER, name), list(frames), self.now)

    def said(self, *expected: tuple[At, list[bytes]]) -> None:
        assert self.queue.take_output() == list(expected)


@pytest.fixture
def talk() -> Talk:
    return Talk()


def to_worker(name: bytes, *frames: bytes) -> tuple[At, list[bytes]]:
    return At(WORKER, name), list(frames)


def to_client(name: bytes, *frames: bytes) -> tuple[At, list[bytes]]:
    return At(CLIENT, name), list(frames)


def test_paranoid(talk: Talk) -> None:
    """RFC 6: READY, HEARTBEAT, REQUEST and REPLY as they are on the wire."""
    talk.worker(b"W", b"\1")
    talk.said(to_worker(b"W", b"\2"))
    talk.client(b"C", b"", b"hello", b"world")
    talk.said(to_worker(b"W", b"C", b"", b"hello", b"world"))
    talk.worker(b"W", b"C", b"", b"HELLO")
    talk.said(to_client(b"C", b"", b"HELLO"))


def test_simple() -> None:
    talk = Talk(SIMPLE)
    talk.worker(b"W", b"", b"\1")
    talk.said()
    talk.client(b"C", b"", b"hello")
    talk.said(to_worker(b"W", b"", b"C", b"", b"hello"))
    talk.worker(b"W", b"", b"C", b"", b"HELLO")
    talk.said(to_client(b"C", b"", b"HELLO"))
    assert talk.queue.count(PirateState.READY) == 1
    assert talk.queue.next_deadline() is None, "nobody is waited for"


def test_an_address_stack_is_kept(talk: Talk) -> None:
    talk.worker(b"W", b"\1")
    talk.client(b"C", b"device", b"further", b"", b"x")
    talk.said(to_worker(b"W", b"\2"), to_worker(b"W", b"C", b"device", b"further", b"", b"x"))
    talk.worker(b"W", b"C", b"device", b"further", b"", b"y")
    talk.said(to_client(b"C", b"device", b"further", b"", b"y"))


def test_least_recently_used_first(talk: Talk) -> None:
    for name in (b"1", b"2", b"3"):
        talk.worker(name, b"\1")
    talk.queue.take_output()
    order = []
    for _ in range(6):
        talk.client(b"C", b"", b"x")
        ((at, _),) = talk.queue.take_output()
        order.append(at.identity)  # type: ignore[union-attr]
        talk.worker(order[-1], b"C", b"", b"y")
        talk.queue.take_output()
    assert order == [b"1", b"2", b"3"] * 2


def test_requests_wait_for_a_worker_in_order(talk: Talk) -> None:
    for number in range(3):
        talk.client(b"C", b"", b"%d" % number)
    talk.said()
    talk.worker(b"W", b"\1")
    talk.said(to_worker(b"W", b"\2"), to_worker(b"W", b"C", b"", b"0"))
    talk.worker(b"W", b"C", b"", b"a")
    talk.said(to_client(b"C", b"", b"a"), to_worker(b"W", b"C", b"", b"1"))


def test_heartbeats_to_workers_only_while_there_are_some(talk: Talk) -> None:
    assert talk.queue.next_deadline() is None
    talk.worker(b"W", b"\1")
    talk.queue.take_output()
    for _ in range(2):
        talk.later(1.0)
        talk.said(to_worker(b"W", b"\2"))


def test_a_silent_worker_is_forgotten(talk: Talk) -> None:
    talk.worker(b"W", b"\1")
    for _ in range(10):
        talk.later(2.9)
        talk.worker(b"W", b"\2")
    assert talk.queue.count(PirateState.READY) == 1
    talk.later(3.1)
    assert talk.queue.count(PirateState.READY) == 0
    talk.queue.take_output()
    talk.client(b"C", b"", b"x")
    talk.said()


@pytest.mark.parametrize("word", [[b"\1"], [b"\2"], [b"C", b"", b"late"]], ids=["ready", "heartbeat", "reply"])
def test_a_new_queue_takes_old_workers_by_any_word(talk: Talk, word: list[bytes]) -> None:
    talk.worker(b"W", *word)
    assert talk.queue.count(PirateState.READY) == 1


def test_a_heartbeat_of_a_busy_worker_does_not_free_it(talk: Talk) -> None:
    talk.worker(b"W", b"\1")
    talk.client(b"C", b"", b"x")
    talk.worker(b"W", b"\2")
    assert (talk.queue.count(PirateState.READY), talk.queue.count(PirateState.BUSY)) == (0, 1)
    talk.worker(b"W", b"\1")
    assert talk.queue.count(PirateState.READY) == 1, "it has begun a new conversation"


def test_a_request_nobody_takes_is_dropped(talk: Talk) -> None:
    talk.client(b"C", b"", b"old")
    talk.later(59)
    talk.client(b"C", b"", b"new")
    talk.later(2)
    talk.worker(b"W", b"\1")
    talk.said(to_worker(b"W", b"\2"), to_worker(b"W", b"C", b"", b"new"))
    assert talk.queue.dropped == 1


def test_only_so_many_wait_and_work() -> None:
    talk = Talk(max_waiting=2, max_workers=2)
    for _ in range(3):
        talk.client(b"C", b"", b"x")
    assert (len(talk.queue), talk.queue.dropped) == (2, 1)
    for name in (b"1", b"2", b"3"):
        talk.worker(name, b"\1")
    assert sum(talk.queue.count(state) for state in PirateState) == 2


def test_what_a_gone_worker_did_not_get_goes_to_the_next() -> None:
    for dialect, ready in ((PARANOID, [b"\1"]), (SIMPLE, [b"", b"\1"])):
        talk = Talk(dialect)
        talk.worker(b"1", *ready)
        talk.worker(b"2", *ready)
        talk.queue.take_output()
        talk.client(b"C", b"", b"x")
        ((at, frames),) = talk.queue.take_output()
        assert at == At(WORKER, b"1")
        assert frames is not None
        talk.queue.undeliverable(at, frames, talk.now)
        talk.said(to_worker(b"2", *dialect.prefix, b"C", b"", b"x"))
        talk.queue.undeliverable(At(CLIENT, b"C"), [b"", b"y"], talk.now)
        assert talk.queue.dropped == 1


def test_a_gone_worker_that_should_get_a_heartbeat(talk: Talk) -> None:
    talk.worker(b"W", b"\1")
    talk.queue.undeliverable(At(WORKER, b"W"), [b"\2"], talk.now)
    assert (talk.queue.count(PirateState.READY), len(talk.queue)) == (0, 0)


WRONG = [[], [b""], [b"\3"], [b"x"], [b"", b"\2"], [b"C", b"x"], [b"C", b""], [b"", b"", b"x"], [b"a"] * 20]


@each("frames", WRONG)
@each("dialect", [PARANOID, SIMPLE])
def test_wrong_frames_from_a_worker_change_nothing(dialect: PirateDialect, frames: list[bytes]) -> None:
    talk = Talk(dialect)
    talk.worker(b"W", *frames)
    talk.said()
    assert talk.queue.malformed == 1
    assert sum(talk.queue.count(state) for state in PirateState) == 0


@pytest.mark.parametrize("frames", [[], [b""], [b"x"], [b"x", b"y"], [b"a"] * 17 + [b"", b"x"]], ids=repr)
def test_wrong_frames_from_a_client_reach_no_worker(talk: Talk, frames: list[bytes]) -> None:
    talk.worker(b"W", b"\1")
    talk.queue.take_output()
    talk.client(b"C", *frames)
    talk.said()
    assert talk.queue.malformed == 1


def test_a_jump_of_the_clock(talk: Talk) -> None:
    talk.worker(b"W", b"\1")
    talk.client(b"C", b"", b"x")
    talk.client(b"C", b"", b"y")
    talk.now += 1e6
    talk.queue.tick(talk.now)
    assert sum(talk.queue.count(state) for state in PirateState) == 0
    assert len(talk.queue) == 0
    talk.worker(b"W", b"C", b"", b"X")
    talk.client(b"D", b"", b"z")
    assert talk.queue.take_output()[-1] == to_worker(b"W", b"D", b"", b"z")


def test_the_table_has_an_entry_for_all_that_a_worker_may_say() -> None:
    said = set(PARANOID.commands.values())
    assert set(TRANSITIONS) == {(state, command) for state in (None, *PirateState) for command in said}


@each(
    "wrong", [{"heartbeat_interval": 0}, {"liveness": 1}, {"request_expiry": 0}, {"max_waiting": 0}, {"max_workers": 0}]
)
def test_settings_that_cannot_work(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        QueueConfig(**wrong)
