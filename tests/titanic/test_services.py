"""Titanic's services without a broker: asks in, answers out."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from titanic import tsp
from titanic.asks import Answers
from titanic.errors import StoreFailed
from titanic.services import Services
from titanic.store import MIN_CAPACITY, ReadTransaction, Status, Store, WriteTransaction
from titanic.tsp import Frames
from titanic.writer import Writer


class Ask:
    def __init__(self, *body: bytes) -> None:
        self.body: Frames = list(body)


class Desk:
    """The services, with somebody who writes down all that is answered and told."""

    def __init__(self, store: Store, **settings: Any) -> None:
        self.store = store
        self.writer = Writer(store)
        self.answers: dict[Ask, Frames] = {}
        self.told: list[Any] = []
        self.services = Services(store, self.writer, self, self._answer, **settings)

    def _answer(self, answers: Answers) -> None:
        for ask, body in answers:
            assert ask not in self.answers, "answered twice"
            self.answers[ask] = body

    def arrived(self, services: Mapping[bytes, int]) -> None:
        self.told.append(dict(services))

    def returned(self, services: Collection[bytes]) -> None:
        self.told.append(("returned", set(services)))

    def look_at_clock(self) -> None:
        self.told.append("clock")

    def closed(self, uuids: list[bytes]) -> None:
        self.told.append(uuids)

    def stats(self) -> dict[str, Any]:
        return {"running": 0}

    def running(self) -> set[bytes]:
        return set()

    def ask(self, name: bytes, *bodies: list[bytes]) -> list[Frames]:
        """All in one batch."""
        asks = [Ask(*body) for body in bodies]
        self.services.handle(name, asks)
        while not all(ask in self.answers for ask in asks):
            done = Event()
            self.writer.put(_Flag(done))
            assert done.wait(30)
        return [self.answers[ask] for ask in asks]


class _Flag:
    def __init__(self, event: Event) -> None:
        self._event = event

    def write(self, transaction: WriteTransaction, now_us: int) -> None: ...

    def committed(self) -> None:
        self._event.set()

    def failed(self, error: Exception) -> None:
        self._event.set()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Store.open(tmp_path / "store", capacity=MIN_CAPACITY) as store:
        desk = Desk(store)
        desk.writer.start()
        desk.services.start()
        yield desk
        desk.services.stop()
        desk.writer.stop()


def accept(desk: Desk, *names: bytes) -> list[bytes]:
    return [answer[1] for answer in desk.ask(tsp.REQUEST, *([name, b"x"] for name in names))]


def test_the_dispatcher_is_told_what_arrived_and_what_was_closed(desk: Desk) -> None:
    first, _, third = accept(desk, b"a", b"b", b"a")
    desk.ask(tsp.CLOSE, [first], [third], [b"0" * 32], [b"bad"])
    assert desk.told == [{b"a": 4, b"b": 4}, [bytes.fromhex(first.decode()), bytes.fromhex(third.decode())]]


def test_a_commit_that_fails_is_a_500_for_all_of_it_and_nothing_is_stored(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kept,) = accept(desk, b"a")
    with monkeypatch.context() as patch:

        def failing(self: WriteTransaction, *args: Any) -> None:
            self._txn.abort()
            raise StoreFailed("the disk failed")

        patch.setattr(WriteTransaction, "__exit__", failing)
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
        record = bytearray(transaction._txn.get(bytes.fromhex(bad.decode()), db=transaction._db.replies))
        record[-1] ^= 1
        transaction._txn.put(bytes.fromhex(bad.decode()), bytes(record), db=transaction._db.replies)
    answers = desk.ask(tsp.REPLY, [good], [bad], [good])
    assert answers[0] == answers[2] == [b"200", b"R"]
    assert answers[1][0].startswith(b"500 not read: ")
    assert desk.ask(tsp.CLOSE, [bad]) == [[b"200"]]


def test_a_fault_of_the_program_is_answered_too(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(self: ReadTransaction, uuid: bytes) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(ReadTransaction, "reply", faulty)
    answers = desk.ask(tsp.REPLY, [b"0" * 32], [b"bad"])
    assert answers[0] == [b"500 not read: KeyError: 'oops'"]
    assert answers[1][0].startswith(b"400 ")
    assert "a fault of this program" in caplog.text


@pytest.mark.parametrize("status", [Status.FAILED, Status.EXPIRED, Status.CANCELLED])
def test_an_end_without_a_reply_says_how(desk: Desk, status: Status) -> None:
    (uuid,) = accept(desk, b"a")
    with desk.store.write() as transaction:
        transaction.finish(
            bytes.fromhex(uuid.decode()), status, [b"why"], attempts=1, dispatched_at=1, finished_at=2, reason="so"
        )
    assert desk.ask(tsp.REPLY, [uuid]) == [[f"500 {status.name.lower()}: so".encode(), b"why"]]


def test_more_than_may_wait_for_the_disk_is_refused_at_once(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", capacity=MIN_CAPACITY) as store:
        desk = Desk(store, most_bytes=10_000)
        first, second, third = Ask(b"a", bytes(20_000)), Ask(b"a", b"x"), Ask(b"a", b"x")
        desk.services.handle(tsp.REQUEST, [first])  # however large: one must be able to get in
        desk.services.handle(tsp.REQUEST, [second])
        assert first not in desk.answers
        assert desk.answers[second][0].startswith(b"500 busy: ")
        desk.writer.start()
        assert desk.ask(tsp.CLOSE, [b"0" * 32]) == [[b"200"]]
        desk.services.handle(tsp.REQUEST, [third])
        desk.writer.stop()
        assert desk.answers[first][0] == desk.answers[third][0] == b"200"
        desk.services.stop()


def test_stats_are_there_with_names_that_are_not_text(desk: Desk) -> None:
    accept(desk, "größe".encode())
    ((status, document),) = desk.ask(tsp.STATS, [b""])
    assert status == b"200"
    assert json.loads(document)["services"] == {"größe": 1}
