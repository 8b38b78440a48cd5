"""What open pages ask when they refresh themselves: once for all of a user's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from starlette.requests import Request
from support.coroutines import in_loop

from titanic.errors import TimedOut
from titanic.web.figures import looks
from titanic.web.figures.looks import Looks


def request(user: str = "ann", *, live: bool = True, query: str = "") -> Request:
    headers = [(b"x-live", b"1")] if live else []
    scope = {"type": "http", "path": "/failures", "query_string": query.encode(), "headers": headers}
    return Request(scope | {"state": {"visitor": SimpleNamespace(user=user)}, "server": ("127.0.0.1", 80)})


class Asked:
    """Answers when it may, and counts."""

    def __init__(self) -> None:
        self.times = 0
        self.may = asyncio.Event()

    async def __call__(self) -> int:
        self.times += 1
        await self.may.wait()
        return self.times


@in_loop
async def test_pages_that_refresh_themselves_share_an_answer() -> None:
    ask, shared = Asked(), Looks()
    both = [asyncio.create_task(shared.share(request(), "it", ask)) for _ in range(2)]
    await asyncio.sleep(0)
    both[0].cancel()  # who leaves takes it from nobody
    ask.may.set()
    assert await both[1] == 1
    assert await shared.share(request(), "it", ask) == 1
    assert await shared.share(request(), "other", ask) == 2
    assert await shared.share(request(query="service=a"), "it", ask) == 3
    assert await shared.share(request("bob"), "it", ask) == 4


@in_loop
async def test_a_page_that_is_opened_is_asked_for_anew() -> None:
    ask, shared = Asked(), Looks()
    ask.may.set()
    assert await shared.share(request(), "it", ask) == 1
    assert await shared.share(request(live=False), "it", ask) == 2
    assert await shared.share(request(), "it", ask) == 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its `now` is the time."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(looks, "time", clock)
    return clock


@in_loop
async def test_an_answer_is_old_after_a_while(clock: SimpleNamespace) -> None:
    ask, shared = Asked(), Looks()
    ask.may.set()
    for now, answer in ((0, 1), (looks.FRESH - 0.1, 1), (looks.FRESH + 0.1, 2)):
        clock.now = now
        assert await shared.share(request(), "it", ask) == answer


@in_loop
async def test_what_took_long_is_shown_for_longer(clock: SimpleNamespace) -> None:
    ask, shared = Asked(), Looks()
    first = asyncio.create_task(shared.share(request(), "it", ask))
    await asyncio.sleep(0)
    clock.now = 0.1  # seconds, which it took
    ask.may.set()
    assert await first == 1
    for now, answer in ((0.1 / looks.SHARE - 0.1, 1), (0.1 / looks.SHARE + 0.1, 2)):
        clock.now = now
        assert await shared.share(request(), "it", ask) == answer


@in_loop
async def test_what_took_very_long_is_not_shown_for_ever(clock: SimpleNamespace) -> None:
    ask, shared = Asked(), Looks()
    first = asyncio.create_task(shared.share(request(), "it", ask))
    await asyncio.sleep(0)
    clock.now = 5.0
    ask.may.set()
    assert await first == 1
    for now, answer in ((looks.LONGEST - 0.1, 1), (looks.LONGEST + 0.1, 2)):
        clock.now = now
        assert await shared.share(request(), "it", ask) == answer


@in_loop
async def test_an_error_that_took_long_is_not_shown_any_more(clock: SimpleNamespace) -> None:
    shared, ask = Looks(), Asked()
    ask.may.set()

    async def too_late() -> int:
        clock.now = 5.0
        raise TimedOut("no answer", "waited 5 s", "try again")

    with pytest.raises(TimedOut):
        await shared.share(request(), "it", too_late)
    assert await shared.share(request(), "it", ask) == 1, "the server is there again"


@in_loop
async def test_no_more_are_kept_than_are_fresh(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    monkeypatch.setattr(looks, "MOST", 3)
    ask, shared = Asked(), Looks()
    ask.may.set()
    for number in range(10):
        clock.now += looks.FRESH + 1
        await shared.share(request(query=f"service={number}"), "it", ask)
    assert len(shared._known) <= 3
