"""Titanic's services without a broker: asks in, answers out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from support.desk import Ask, Desk
from support.shortages import broken_disk
from support.store_engines import damage_reply

from titanic.errors import StoreFailed, StoreFull
from titanic.protocol import tsp
from titanic.protocol.submit_options import MOST_UUIDS
from titanic.services import reader
from titanic.services.ask import Answers
from titanic.services.reader import ReadService
from titanic.store import MIN_CAPACITY, ReadTransaction, Status, Store, WriteTransaction


def accept(desk: Desk, *names: bytes) -> list[bytes]:
    return [answer[1] for answer in desk.ask(tsp.REQUEST, *([name, b"x"] for name in names))]


def test_the_dispatcher_is_told_what_arrived_and_what_was_closed(desk: Desk) -> None:
    first, _, third = accept(desk, b"a", b"b", b"a")
    desk.ask(tsp.CLOSE, [first], [third], [b"0" * 32], [b"bad"])
    assert desk.told == [{b"a": 4, b"b": 4}, [bytes.fromhex(first.decode()), bytes.fromhex(third.decode())]]


def test_a_commit_that_fails_is_a_500_for_all_of_it_and_nothing_is_stored(desk: Desk) -> None:
    (kept,) = accept(desk, b"a")
    with broken_disk():
        answers = desk.ask(tsp.REQUEST, [b"a", b"x"], [b"a", b"y"])
        assert answers == [[b"500 not stored: the disk failed"]] * 2
        assert desk.ask(tsp.CLOSE, [kept]) == [[b"500 not closed: the disk failed"]]
    assert desk.ask(tsp.REPLY, [kept]) == [[b"300"]]
    with desk.store.read() as transaction:
        assert transaction.counts().requests == 1
    assert desk.told == [{b"a": 4}]


def test_one_damaged_reply_fails_no_other(desk: Desk) -> None:
    good, bad = accept(desk, b"a", b"a")
    with desk.store.write() as transaction:
        for uuid in (good, bad):
            transaction.finish(
                bytes.fromhex(uuid.decode()), Status.DONE, [b"R"], attempts=1, dispatched_at=1, finished_at=2
            )
    damage_reply(desk.store, bytes.fromhex(bad.decode()))
    answers = desk.ask(tsp.REPLY, [good], [bad], [good])
    assert answers[0] == answers[2] == [b"200", b"R"]
    assert answers[1][0].startswith(b"500 not read: ")
    assert desk.ask(tsp.CLOSE, [bad]) == [[b"200"]]


def test_replies_to_several_in_one_message(desk: Desk) -> None:
    done, failed, pending, damaged = accept(desk, b"a", b"a", b"a", b"a")
    ends = ((done, Status.DONE, [b"R", b"S"]), (failed, Status.FAILED, [b"why"]), (damaged, Status.DONE, [b"R"]))
    with desk.store.write() as transaction:
        for uuid, status, frames in ends:
            transaction.finish(
                bytes.fromhex(uuid.decode()), status, frames, attempts=1, dispatched_at=1, finished_at=2, reason="x"
            )
    damage_reply(desk.store, bytes.fromhex(damaged.decode()))
    unknown = b"0" * 32
    (answer,) = desk.ask(tsp.REPLY, [b"\n".join((pending, failed, unknown, damaged, done, done.upper()))])
    text = answer.pop(5)
    assert answer == [
        b"200",
        b"300 0\n500 3\n400 0\n500 1\n200 2\n200 2",
        b"failed: x",
        b"failed",
        b"why",
        *[b"R", b"S"] * 2,
    ]
    assert text.startswith(b"not read: ")
    assert desk.services.counts["replies_given"] == 4


def test_an_answer_to_several_ends_when_it_is_large_enough(desk: Desk) -> None:
    uuids = accept(desk, b"a", b"a", b"a")
    for uuid in uuids:
        with desk.store.write() as transaction:
            transaction.finish(
                bytes.fromhex(uuid.decode()),
                Status.DONE,
                [bytes(reader.MOST_BYTES // 2)],
                attempts=1,
                dispatched_at=1,
                finished_at=2,
            )
    (answer,) = desk.ask(tsp.REPLY, [b"\n".join(uuids)])
    assert [len(frame) for frame in answer[2:]] == [reader.MOST_BYTES // 2] * 2
    assert answer[1] == b"200 1\n200 1"


@pytest.mark.parametrize("name", [tsp.REPLY, tsp.CLOSE])
def test_several_of_which_one_is_none_are_refused_as_a_whole(desk: Desk, name: bytes) -> None:
    (uuid,) = accept(desk, b"a")
    most = [uuid] * MOST_UUIDS
    lists = ([uuid, b"x"], [uuid, b""], [b"", uuid], [*most, uuid], [b"\n"] * 5000)
    bodies = [b"\n".join(frames) for frames in lists]
    assert desk.ask(name, *([body] for body in bodies), [uuid, uuid]) == [tsp.BAD_UUID] * 6
    assert desk.ask(tsp.REPLY, [uuid]) == [[b"300"]]
    assert desk.ask(name, [b"\n".join(most)])[0][0] == b"200"


def test_several_are_closed_at_once(desk: Desk) -> None:
    first, second, third, fourth = accept(desk, b"a", b"a", b"a", b"a")
    answers = desk.ask(tsp.CLOSE, [b"\n".join((first, b"0" * 32, second, second))], [b"bad"], [third])
    assert answers == [[b"200"], tsp.BAD_UUID, [b"200"]]
    assert desk.told[1:] == [[bytes.fromhex(uuid.decode()) for uuid in (first, second, third)]]
    assert desk.ask(tsp.REPLY, [b"\n".join((first, second, third, fourth))]) == [
        [b"200", b"400 0\n400 0\n400 0\n300 0"]
    ]


def test_closing_several_in_parts_is_answered_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a full store a transaction must not change too much, and nobody knows before what is too much."""
    uuids = accept(desk, *[b"a"] * 9)
    closed = 0
    kind = type(desk.store.write())
    close, leave = kind.close, kind.__exit__

    def counting(self: WriteTransaction, uuid: bytes, now_us: int | None = None) -> Any:
        nonlocal closed
        closed += 1
        return close(self, uuid, now_us)

    def limited(self: WriteTransaction, *args: Any) -> None:
        nonlocal closed
        if closed > 2:
            closed, full = 0, StoreFull(1, 1)
            leave(self, StoreFull, full, None)
            raise full
        closed = 0
        leave(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "close", counting)
        patch.setattr(kind, "__exit__", limited)
        assert desk.ask(tsp.CLOSE, [b"\n".join(uuids[:8])], [b"bad"], [uuids[8]]) == [[b"200"], tsp.BAD_UUID, [b"200"]]
    assert desk.ask(tsp.REPLY, [b"\n".join(uuids)]) == [[b"200", b"\n".join([b"400 0"] * 9)]]


def test_a_fault_of_the_program_is_answered_too(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(self: ReadTransaction, uuid: bytes) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(type(desk.store.read()), "reply", faulty)
    answers = desk.ask(tsp.REPLY, [b"0" * 32], [b"bad"])
    assert answers[0] == [b"500 not read: KeyError: 'oops'"]
    assert answers[1][0].startswith(b"400 ")
    assert "a bug in this program" in caplog.text


@pytest.mark.parametrize("status", [Status.FAILED, Status.EXPIRED, Status.CANCELLED])
def test_an_end_without_a_reply_says_how(desk: Desk, status: Status) -> None:
    (uuid,) = accept(desk, b"a")
    with desk.store.write() as transaction:
        transaction.finish(
            bytes.fromhex(uuid.decode()), status, [b"why"], attempts=1, dispatched_at=1, finished_at=2, reason="so"
        )
    state = status.name.lower()
    assert desk.ask(tsp.REPLY, [uuid]) == [[f"500 {state}: so".encode(), state.encode(), b"why"]]


def test_more_than_may_wait_for_the_disk_is_refused_at_once(tmp_path: Path, engine: Callable[..., Store]) -> None:
    with engine(tmp_path / "store", capacity=MIN_CAPACITY) as store:
        desk = Desk(store, most_bytes=10_000)
        first, second, third = Ask(b"a", bytes(20_000)), Ask(b"a", b"x"), Ask(b"a", b"x")
        desk.services.handle_batch(tsp.REQUEST, [first])  # however large: one must be able to get in
        desk.services.handle_batch(tsp.REQUEST, [second])
        assert first not in desk.answers
        assert desk.answers[second][0].startswith(b"500 busy: ")
        desk.writer.start()
        assert desk.ask(tsp.CLOSE, [b"0" * 32]) == [[b"200"]]
        desk.services.handle_batch(tsp.REQUEST, [third])
        desk.writer.stop()
        assert desk.answers[first][0] == desk.answers[third][0] == b"200"
        desk.reader.stop()


def test_stats_are_there_with_names_that_are_not_text(desk: Desk) -> None:
    accept(desk, "größe".encode())
    ((status, document),) = desk.ask(tsp.STATS, [b""])
    assert status == b"200"
    assert json.loads(document)["services"] == {"größe": 1}


def test_who_waits_is_told_once_that_the_store_cannot_be_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    done = Event()

    def read(answers: Answers) -> None:
        found.extend(answers)
        done.set()

    ask = Ask(b"5", b"0" * 32)
    desk.services.handle_batch(tsp.WAIT, [ask])

    def failing(self: ReadTransaction) -> None:
        raise StoreFailed("the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(type(desk.store.read()), "__enter__", failing)
        desk.reader.enqueue(ReadService(tsp.WAIT, desk.reader.read_awaited, read, shared=True), [ask])
        assert done.wait(30)
    assert (desk.told, found) == ([("wait", [ask])], [(ask, [b"500 not read: the disk failed"])])
    assert desk.answers == {}


def test_one_that_cannot_be_closed_keeps_no_other_from_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, free = accept(desk, b"a", b"a")
    kind = type(desk.store.write())
    close = kind.close

    def full(self: WriteTransaction, uuid: bytes, now_us: int | None = None) -> Any:
        if uuid.hex().encode() == stuck:
            raise StoreFull(1, 1)
        return close(self, uuid, now_us)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "close", full)
        refused, closed = desk.ask(tsp.CLOSE, [stuck], [free])
        assert refused[0].startswith(b"500 not closed: the store is full")
        assert closed == [b"200"]
        ((refused,),) = desk.ask(tsp.ADMIN, [b'{"do": "purge", "state": "waiting"}'])
        assert refused.startswith(b"500 not done, or only in part: the store is full")
    assert desk.ask(tsp.REPLY, [stuck], [free]) == [[b"300"], tsp.UNKNOWN]


def test_a_retry_is_told_to_the_dispatcher(desk: Desk) -> None:
    (uuid,) = accept(desk, b"a")
    with desk.store.write() as transaction:
        transaction.finish(bytes.fromhex(uuid.decode()), Status.FAILED, [], attempts=1, dispatched_at=1, finished_at=2)
    desk.told.clear()
    ((status, document),) = desk.ask(tsp.ADMIN, [b'{"do": "retry"}'])
    assert (status, json.loads(document)) == (b"200", {"done": 1, "next": None})
    assert desk.told == [("returned", {b"a"})]
