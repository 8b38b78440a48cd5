"""What a handler knows and says, without a worker around it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime, timedelta

import pytest
from support.each import each

import titanic
from broker import DELIVERY, Delivery, RemoteError, UsageError
from titanic import Cancelled, Failed, Retry, current, current_or_none
from titanic.errors import NoRequest

UUID = "01a1ff29e82d7a2da099783c4f481113"
CONTEXT = {
    "uuid": UUID,
    "attempt": 2,
    "of": 5,
    "deadline": 1795282299.5,
    "priority": 4,
    "key": "k",
    "trace": "t",
    "type": "a/b",
}


class Told:
    """Keeps what would go to a broker."""

    def __init__(self) -> None:
        self.calls = 0

    def progress(self, delivery: Delivery) -> None:
        self.calls += 1


@contextmanager
def handling(delivery: Delivery) -> Iterator[None]:
    token = DELIVERY.set(delivery)
    try:
        yield
    finally:
        DELIVERY.reset(token)


def test_outside_of_a_handler_there_is_no_request() -> None:
    assert current_or_none() is None
    with pytest.raises(NoRequest, match="no handler is running"):
        current()


def test_a_request_that_is_not_stored_has_no_key() -> None:
    with handling(Delivery(b"")):
        here = current()
        assert not here
        assert (here.cancelled, here.deadline, here.trace, here.type) == (False, None, "", "")
        here.progress(1, 2, "sent to nobody")
        here.check()
        for name in ("uuid", "key", "attempt"):
            with pytest.raises(NoRequest, match=f"no {name}; it was not stored"):
                getattr(here, name)
        assert current_or_none() is here in {here: 1}
        assert repr(here)


def test_a_thread_of_a_handler_has_its_request_with_the_context() -> None:
    with handling(Delivery(json.dumps(CONTEXT).encode())), ThreadPoolExecutor(1) as pool:
        with pytest.raises(NoRequest, match="copy_context"):
            pool.submit(current).result()
        assert pool.submit(copy_context().run, current).result() is current()


def test_a_handler_knows_its_request() -> None:
    with handling(Delivery(json.dumps(CONTEXT).encode())):
        here = current()
        assert here
        assert current() is here
        assert (here.uuid, here.attempt, here.attempts, here.priority) == (UUID, 2, 5, 4)
        assert (here.key, here.trace, here.type, here.deadline) == ("k", "t", "a/b", 1795282299.5)
        assert here.submitted == datetime(2026, 11, 21, 17, 31, 38, 925000, tzinfo=UTC)
    assert current_or_none() is None


@each("context", [b"", b"{", b"[]", b'{"attempt": "x"}', b'{"uuid": 7}', b'{"deadline": []}', b"\xff{"])
def test_a_context_that_makes_no_sense_is_none(context: bytes) -> None:
    with handling(Delivery(context)):
        assert not current().submitted
        with pytest.raises(NoRequest):
            assert current().attempt


def test_a_handler_learns_that_nobody_wants_its_reply() -> None:
    delivery, told = Delivery(b""), []
    with handling(delivery):
        delivery.on_cancel(lambda: told.append("before"))
        current().check()
        delivery.cancel()
        delivery.on_cancel(lambda: told.append("after"))
        delivery.cancel()
        assert told == ["before", "after"]
        assert current().cancelled
        with pytest.raises(Cancelled):
            current().check()


def test_who_asks_for_it_learns_of_each_cancellation() -> None:
    delivery, told = Delivery(b""), []
    delivery.on_cancel(lambda: told.append("once"))
    delivery.on_cancel(lambda: told.append("each time"), again=True)
    for _ in range(2):
        delivery.cancel()
    assert told == ["each time", "once", "each time"]


def test_of_what_is_said_too_fast_the_last_counts() -> None:
    told = Told()
    delivery = Delivery(b"", told)
    with handling(delivery):
        for done in range(5):
            current().progress(done, 10, "pages")
        assert told.calls == 1
        assert json.loads(delivery.take_progress() or b"") == {"done": 4, "of": 10, "text": "pages"}
        assert delivery.take_progress() is None
        current().progress(5)
        assert told.calls == 2


@each("text", ["ä" * 2000, "\0" * 1000, '"' * 1024, "\ud800" * 3000])
def test_of_a_long_text_the_beginning_is_sent(text: str) -> None:
    delivery = Delivery(b"", Told())
    with handling(delivery):
        current().progress(1, 2, text)
    said = delivery.take_progress() or b""
    assert 500 < len(said) <= 1024
    assert json.loads(said)["done"] == 1


@pytest.mark.parametrize("done", [float("nan"), float("inf"), object()])
def test_a_progress_is_a_number(done: float) -> None:
    with handling(Delivery(b"", Told())), pytest.raises(UsageError):
        current().progress(done)


def test_what_an_ending_says_on_the_wire() -> None:
    said: list[tuple[Callable[[], RemoteError], list[bytes]]] = [
        (lambda: Failed("no such user", b"detail"), [b"titanic:fatal", b"detail"]),
        (lambda: Retry("busy", after=90), [b"titanic:retry=90.000"]),
        (lambda: Retry(after=timedelta(minutes=2), count=False), [b"titanic:again=120.000"]),
        (lambda: Retry("busy", "text"), [b"text"]),
    ]
    for make, detail in said:
        assert make().detail == detail
        assert make().status == 500


@each("after", [-1, float("nan"), float("inf"), 4e8])
def test_an_ending_that_makes_no_sense_is_refused(after: float) -> None:
    with pytest.raises(UsageError):
        Retry(after=after)
    with pytest.raises(UsageError):
        Retry(count=False)


def test_the_front_door_has_them() -> None:
    assert {"current", "current_or_none", "Failed", "Retry", "Cancelled", "RequestContext"} <= set(titanic.__all__)
