"""What the services tell a store on another machine beforehand, so that it need not be asked for each request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.desk import Ask, Desk
from support.store_remote import RemoteStore

from titanic.protocol import tsp
from titanic.services import reader as reader_module
from titanic.services.reader import ReadService, Turns, prefetched


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk(RemoteStore())
    desk.writer.start()
    desk.reader.start()
    yield desk
    desk.reader.stop()
    desk.writer.stop()


def accept(desk: Desk, count: int) -> list[bytes]:
    uuids = [answer[1] for answer in desk.ask(tsp.REQUEST, *[[b"a", b"x"]] * count)]
    desk.store.prefetched.clear()
    return uuids


def raw(*uuids: bytes) -> list[bytes]:
    return [bytes.fromhex(uuid.decode()) for uuid in uuids]


def test_replies_of_a_round_are_foreseen_together_and_none_twice(desk: Desk) -> None:
    one, two, three = accept(desk, 3)
    answers = desk.ask(tsp.REPLY, [one], [two + b"\n" + one], [b"nonsense"], [three])
    assert [answer[0][:3] for answer in answers] == [b"300", b"200", b"400", b"300"]
    assert (raw(one, two, three), True) in desk.store.prefetched


def test_those_who_wait_are_foreseen_by_what_they_wait_for(desk: Desk) -> None:
    one, two = accept(desk, 2)
    assert desk.wait(Ask(b"5", one), Ask(b"5", two)) == [[tsp.PENDING]] * 2
    assert (raw(one, two), True) in desk.store.prefetched


def test_closes_are_foreseen_together(desk: Desk) -> None:
    uuids = accept(desk, 3)
    desk.ask(tsp.CLOSE, [uuids[0]], [b"\n".join(uuids[1:])], [b"nonsense"])
    assert (raw(*uuids), False) in desk.store.prefetched


@pytest.mark.parametrize("do", [b"purge", b"retry"])
def test_named_requests_of_an_operator_are_foreseen(desk: Desk, do: bytes) -> None:
    uuids = accept(desk, 2)
    desk.ask(tsp.ADMIN, [b'{"do": "%b", "uuids": ["%b", "%b"]}' % (do, *uuids)])
    assert (raw(*uuids), False) in desk.store.prefetched


def test_requests_that_are_listed_by_their_keys_are_foreseen(desk: Desk) -> None:
    (answer,) = desk.ask(tsp.SUBMIT, [b'{"key": "k"}', b"a", b"x"])
    desk.ask(tsp.LIST, [b'{"keys": ["k"]}'])
    assert (raw(answer[1]), False) in desk.store.prefetched


def test_running_requests_are_those_that_nodes_have_claimed(desk: Desk) -> None:
    one, two = accept(desk, 2)
    desk.work_on(*raw(two))
    desk.at_work.clear()
    for state, uuid in (("running", two), ("waiting", one)):
        ((_, document),) = desk.ask(tsp.LIST, [json.dumps({"state": state}).encode()])
        assert [row["uuid"].encode() for row in json.loads(document)["requests"]] == [uuid]
    assert json.loads(desk.ask(tsp.ADMIN, [b'{"do": "purge", "state": "waiting"}'])[0][1])["done"] == 1


class Unread:
    """The peer of one ask does not read."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def congested(self, ask: Any) -> bool:
        return ask is self._ask


def test_what_will_not_be_read_is_not_foreseen_nor_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "FORESEEN", 3)
    service = ReadService(tsp.REPLY, lambda transaction, ask: [], lambda answers: None, replies=True)
    figures = ReadService(tsp.STATS, lambda transaction, ask: [], lambda answers: None)
    asks = [Ask(bytes([n]).hex().encode() * 16) for n in range(6)]
    turns = Turns(Unread(asks[0]))
    asks[0].peer = "who does not read"
    list(turns.next([(service, asks[:1])]))
    assert len(turns) == 1
    batches = [(figures, [Ask(b"0" * 32)]), (service, asks[1:])]
    assert prefetched(turns.upcoming(batches)) == [bytes([n]) * 16 for n in (1, 2, 3)]
