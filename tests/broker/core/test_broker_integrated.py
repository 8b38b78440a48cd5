"""Services that the broker's own process answers."""

from __future__ import annotations

import pytest
from support.transcript import Transcript

from broker.errors import UsageError


@pytest.fixture
def broker() -> Transcript:
    broker = Transcript()
    broker.core.integrate(b"in")
    return broker


def test_requests_come_as_batches_in_order(broker: Transcript) -> None:
    broker.core.integrate(b"two")
    broker.request("a", b"1", service=b"in")
    broker.said("b", b"", b"MDPC01", b"in", b"2")
    broker.request("a", b"3", service=b"two")
    batches = broker.core.take_batches()
    assert [(name, [request.body for request in batch]) for name, batch in batches] == [
        (b"in", [[b"1"], [b"2"]]),
        (b"two", [[b"3"]]),
    ]
    assert broker.core.take_batches() == []
    broker.told_nothing()


def test_answers_at_any_time_and_in_any_order(broker: Transcript) -> None:
    broker.request("a", b"1", service=b"in")
    broker.said("b", b"x", b"", b"MDPC01", b"in", b"2")
    ((_, (first, second)),) = broker.core.take_batches()
    broker.later(1e6)
    broker.core.reply(second, [b"two"])
    broker.core.reply(first, [b"one"])
    broker.collect()
    broker.told("b", b"x", b"", b"MDPC01", b"in", b"two")
    broker.told("a", b"MDPC02", b"\3", b"in", b"one")


def test_one_answer_only(broker: Transcript) -> None:
    broker.request("a", b"1", service=b"in")
    ((_, (request,)),) = broker.core.take_batches()
    broker.core.reply(request, [b"one"])
    broker.core.reply(request, [b"two"])
    broker.collect()
    broker.told("a", b"MDPC02", b"\3", b"in", b"one")
    broker.told_nothing()


def test_an_answer_without_a_frame_is_an_empty_one(broker: Transcript) -> None:
    broker.request("a", b"1", service=b"in")
    ((_, (request,)),) = broker.core.take_batches()
    broker.core.reply(request, [])
    broker.collect()
    broker.answered("a", b"", service=b"in")


def test_they_have_no_expiry_and_no_queue(broker: Transcript) -> None:
    broker.request("a", b"1", service=b"in")
    broker.later(1e6)
    broker.told_nothing()
    assert broker.core.waiting.count == 0


def test_an_empty_request_is_refused(broker: Transcript) -> None:
    broker.request("a", service=b"in")
    broker.failed("a", b"400", service=b"in")
    assert broker.core.take_batches() == []


def test_a_name_can_be_taken_once(broker: Transcript) -> None:
    with pytest.raises(UsageError, match="in use"):
        broker.core.integrate(b"in")
    broker.request("a", b"1")
    with pytest.raises(UsageError, match="in use"):
        broker.core.integrate(b"echo")
    with pytest.raises(UsageError, match="unprintable"):
        broker.core.integrate(b"a\nb")
