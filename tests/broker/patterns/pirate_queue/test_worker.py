"""A worker's side of Simple and Paranoid Pirate, against raw frames."""

from __future__ import annotations

import pytest
from support.each import each
from support.transcript import WorkerTranscript

from broker import WorkerConfig, WorkerSession
from broker.core.worker import SessionState
from broker.patterns import ParanoidWorker
from broker.patterns.pirate_queue.core import PARANOID, SIMPLE, PirateDialect


class Work(WorkerTranscript):
    """A worker's session."""

    def __init__(self, dialect: PirateDialect = PARANOID, config: WorkerConfig = ParanoidWorker._default) -> None:
        super().__init__(WorkerSession(b"x", config, now=self.now, dialect=dialect))

    def said(self, *messages: list[bytes] | None) -> None:
        assert [frames for _, frames in self.session.take_output()] == list(messages)


def test_paranoid() -> None:
    work = Work()
    work.said([b"\1"])
    work.told(b"\2")
    assert work.session.registered
    work.told(b"C", b"further", b"", b"hello", b"world")
    job = work.job()
    assert job.body == [b"hello", b"world"]
    work.final(job, b"HELLO", b"WORLD")
    work.said([b"C", b"further", b"", b"HELLO", b"WORLD"])


def test_simple() -> None:
    work = Work(SIMPLE)
    work.said([b"", b"\1"])
    assert work.session.registered, "its queue will not say more"
    assert work.session.next_deadline() is None
    work.told(b"", b"C", b"", b"hello")
    work.final(work.job(), b"HELLO")
    work.said([b"", b"C", b"", b"HELLO"])
    work.later(1e6)
    work.said()


def test_the_address_stack_is_optional() -> None:
    work = Work()
    work.told(b"hello")
    work.final(work.job(), b"HELLO")
    work.said([b"\1"], [b"HELLO"])


def test_a_reply_has_a_frame_at_least() -> None:
    work = Work()
    work.told(b"C", b"", b"x")
    work.final(work.job())
    work.said([b"\1"], [b"C", b"", b""])


def test_parts_go_out_together() -> None:
    work = Work()
    work.told(b"C", b"", b"x")
    job = work.job()
    work.session.partial(job.number, [b"1"], work.now)
    work.final(job, b"2")
    work.said([b"\1"], [b"C", b"", b"1", b"2"])


def test_heartbeats() -> None:
    work = Work()
    work.said([b"\1"])
    for _ in range(5):
        work.told(b"\2")
        work.later(1.0)
        work.said([b"\2"])


def test_silent_while_it_works_and_bears_silence() -> None:
    work = Work()
    work.told(b"C", b"", b"x")
    job = work.job()
    work.later(1000)
    work.final(job, b"y")
    work.later(0.9)
    work.said([b"\1"], [b"C", b"", b"y"])
    work.later(2.2)
    assert work.session.state is SessionState.AWAY, "idle again, it wants to hear its queue"


def test_the_wait_doubles_up_to_32_s() -> None:
    work = Work()
    waits, last = [], work.now
    for _ in range(8):
        work.later(3.0)
        assert work.session.state is SessionState.AWAY
        last = work.now
        wake = work.session.next_deadline()
        assert wake is not None
        waits.append(round(wake - last))
        work.later(wake - last)
    assert waits == [1, 2, 4, 8, 16, 32, 32, 32]
    work.told(b"\2")
    work.later(3.0)
    assert work.session.next_deadline() == pytest.approx(work.now + 1), "a queue that was heard begins anew"


def test_each_connection_begins_with_ready() -> None:
    work = Work()
    for _ in range(3):
        work.session.lost(work.now)
        work.later(40)
    assert work.session.connection > 3
    said = [frames for _, frames in work.session.take_output() if frames not in (None, [b"\2"])]
    assert said == [[b"\1"]] * work.session.connection


def test_leaving_says_nothing_as_there_is_no_word_for_it() -> None:
    work = Work()
    work.told(b"C", b"", b"x")
    job = work.job()
    work.session.leave(work.now)
    assert not work.session.stopped
    work.final(job, b"y")
    assert work.session.stopped
    work.said([b"\1"], [b"C", b"", b"y"])


@each(
    ("dialect", "frames"),
    [(PARANOID, []), (SIMPLE, []), (SIMPLE, [b""]), (SIMPLE, [b"C", b"", b"x"]), (SIMPLE, [b"\2"])],
)
def test_wrong_frames_end_the_connection(dialect: PirateDialect, frames: list[bytes]) -> None:
    work = Work(dialect)
    work.told(*frames)
    assert work.session.state is SessionState.AWAY
    assert work.session.take_jobs() == []
    work.later(1)
    assert work.session.state is SessionState.IDLE


def test_a_second_request_while_busy_begins_a_new_conversation() -> None:
    work = Work()
    work.told(b"C", b"", b"x")
    job = work.job()
    work.told(b"C", b"", b"y")
    assert work.session.state is SessionState.AWAY
    work.final(job, b"X")
    assert work.session.dropped_replies == 1
