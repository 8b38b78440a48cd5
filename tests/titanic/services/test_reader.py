"""Who is read for next."""

from __future__ import annotations

from collections.abc import Sequence

from titanic.services import reader as reader_module
from titanic.services.reader import PORTION, ReadService, Turns

REPLY = ReadService(b"titanic.reply", lambda transaction, body: [], lambda answers: None)


class Asked:
    def __init__(self, peer: str, name: str) -> None:
        self.peer = peer
        self.body = [name.encode()]


class Reader:
    """Reads replies of half a portion each."""

    def __init__(self) -> None:
        self.deaf: set[str] = set()
        self.turns = Turns(self)

    def congested(self, ask: Asked) -> bool:
        return ask.peer in self.deaf

    def round(self, *asks: Asked, size: int = PORTION // 2) -> list[bytes]:
        read = []
        batches: Sequence[tuple[ReadService, Sequence[Asked]]] = [(REPLY, asks)] if asks else []
        for _, ask in self.turns.next(batches):
            self.turns.spend(ask, size)
            read.append(ask.body[0])
        return read


def asks(peer: str, count: int) -> list[Asked]:
    return [Asked(peer, f"{peer}{number}") for number in range(count)]


def test_small_replies_are_read_at_once() -> None:
    reader = Reader()
    assert len(reader.round(*asks("a", 1000), size=10)) == 1000
    assert len(reader.turns) == 0


def test_a_portion_at_a_time_and_everybody_in_each_round() -> None:
    reader = Reader()
    assert reader.round(*asks("a", 5), *asks("b", 1)) == [b"a0", b"a1", b"b0"]
    assert reader.round(*asks("c", 1)) == [b"a2", b"a3", b"c0"]
    assert reader.round(Asked("a", "last")) == [b"a4", b"last"]
    assert len(reader.turns) == 0


def test_nothing_is_read_for_who_does_not_read() -> None:
    reader = Reader()
    reader.deaf = {"a"}
    assert reader.round(*asks("a", 2), *asks("b", 1)) == [b"b0"]
    assert reader.round() == []
    reader.deaf = set()
    assert reader.round() == [b"a0", b"a1"]


def test_there_is_an_end_to_what_is_put_off() -> None:
    reader = Reader()
    reader.deaf = {"a"}
    reader.round(*asks("a", reader_module.MOST + 3))
    assert [ask.body for _, ask in reader.turns.take_refused()] == [
        [b"a%d" % (reader_module.MOST + n)] for n in range(3)
    ]
    assert reader.turns.take_refused() == []
