"""Statistics: polled once for all visitors and cached; history."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request
from support.coroutines import in_loop

from titanic.errors import Forbidden, TimedOut
from titanic.facts.counts import COUNTS
from titanic.protocol.documents import FactSeries
from titanic.web import stats
from titanic.web.auth.identity import Visitor
from titanic.web.stats import StatsPoller, TtlCache, current, latency_charts, per_second, unfinished

ROW = {"waiting": 3, "done": 5, "failed": 1, "workers": 2}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its `now` is the time."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, time=lambda: clock.now)
    monkeypatch.setattr(stats, "time", clock)
    return clock


# -- polling ------------------------------------------------------------------------------------------------------


class Fake:
    """A client that answers `stats` and counts the calls."""

    def __init__(self, *, permitted: bool = True, **more: Any) -> None:
        self.calls = 0
        self._permitted = permitted
        self._more = more

    async def stats(self, *, services: bool) -> dict[str, Any]:
        self.calls += 1
        if not self._permitted:
            raise Forbidden("may not see statistics; it needs metrics = true")
        return {
            "store": {"waiting": 3},
            "running": 0,
            "since_start": {"accepted": 9},
            "dispatch": {"succeeded": 5, "failed": 1},
            "by_service": {"mail": dict(ROW)},
            "refusals": [{"user": "eve"}],
            "refused": {"key": 1},
        } | self._more

    async def facts(self, seconds: float, *, of: Any) -> dict[str, Any]:
        return await self.stats(services=True) | {"seconds": seconds, "of": of}

    async def list(self, **_: Any) -> tuple[list[Any], None]:
        return [], None


def visitor(user: str, client: Fake) -> Visitor:
    return cast("Visitor", SimpleNamespace(user=user, client=client))


def poll(*visitors: Visitor) -> list[Any]:
    async def all_of_them() -> list[Any]:
        poller = StatsPoller()
        found: list[Any] = []
        for one in visitors:
            try:
                found.append(await poller.sample(one))
            except Forbidden as error:
                found.append(error)
        poller.close()
        return found

    return asyncio.run(all_of_them())


def test_visitors_at_the_same_time_share_a_poll() -> None:
    client = Fake()
    first, second = poll(visitor("a", client), visitor("a", client))
    assert first is second
    assert client.calls == 1


def test_a_user_without_permission_does_not_get_the_sample_of_another() -> None:
    allowed, refused = poll(visitor("a", Fake()), visitor("eve", Fake(permitted=False)))
    assert isinstance(refused, Forbidden)
    assert not isinstance(allowed, Forbidden)


@in_loop
async def test_visitors_share_counts_but_no_error() -> None:
    poller, ann, bob, eve = StatsPoller(), Fake(), Fake(), Fake(permitted=False)
    visitors = [visitor("ann", ann), visitor("bob", bob)]
    found = await asyncio.gather(*(poller.facts(one, 300.0) for one in visitors))
    assert found[0] is found[1]
    assert ann.calls + bob.calls == 1
    await poller.facts(visitors[1], 300.0, ("mail",))
    assert ann.calls + bob.calls == 2, "of other services"
    poller.invalidate()
    lost, right = poller.facts(visitor("eve", eve), 300.0), poller.facts(visitors[1], 300.0)
    refused, served = await asyncio.gather(lost, right, return_exceptions=True)
    assert isinstance(refused, Forbidden)
    assert served == found[0]


def test_fields_for_admins_are_not_shared() -> None:
    (sample,) = poll(visitor("admin", Fake()))
    assert "refusals" not in sample.stats
    assert "refused" not in sample.stats


@pytest.mark.parametrize(
    ("more", "workers"),
    [
        ({}, {"mail": 2}),
        ({"workers_elsewhere": {"mail": 1, "resize": 4}}, {"mail": 3, "resize": 4}),
        ({"by_service": {"mail": ROW | {"workers": None}}}, None),
    ],
)
def test_workers_of_all_nodes_are_counted(more: dict[str, Any], workers: dict[str, int] | None) -> None:
    (sample,) = poll(visitor("a", Fake(**more)))
    assert sample.workers == workers


# -- history ------------------------------------------------------------------------------------------------------


SERIES: FactSeries = {
    "counts": {name: [0, 0, 0] for name in COUNTS} | {"accepted": [60, 120, 30], "succeeded": [30, 100, 10]},
    "wait": [None, {"p50": 0.1, "p90": 0.2, "p99": 0.3}, None],
    "run": [None, None, None],
}
FACTS: Any = {"since": 0, "step": 60, "total": {"series": SERIES}}


def test_the_last_minute_counts_as_far_as_it_has_gone() -> None:
    assert per_second(FACTS, SERIES, "accepted", 135.0) == [1, 2, 2]
    assert per_second(FACTS, SERIES, "accepted", 122.0) == [1, 2, None]
    assert current(FACTS, FACTS["total"], "accepted", 135.0) == 2
    assert current(FACTS, FACTS["total"], "succeeded", 122.0) == 100 / 60, "where the charts end"


def test_what_was_unfinished_follows_from_what_is() -> None:
    assert unfinished(SERIES, 70) == [30, 50, 70]
    assert unfinished(SERIES, 0) == [0, 0, 0], "counts may be incomplete"


def test_unknown_times_are_gaps() -> None:
    series: FactSeries = {**SERIES, "wait": [SERIES["wait"][1], None, SERIES["wait"][1]]}
    (wait, svg), run = latency_charts(series)
    assert wait == "Wait"
    assert "p50: 100 ms, maximum 100 ms; p90: 200 ms, maximum 200 ms; p99: 300 ms, maximum 300 ms" in svg
    assert svg.count("h8") == 6, "two short bars for each line"
    assert run == ("Run", "")


# -- the cache ----------------------------------------------------------------------------------------------------


def request(user: str = "ann", *, live: bool = True, query: str = "") -> Request:
    headers = [(b"x-live", b"1")] if live else []
    scope = {"type": "http", "path": "/failures", "query_string": query.encode(), "headers": headers}
    return Request(scope | {"state": {"visitor": SimpleNamespace(user=user)}, "server": ("127.0.0.1", 80)})


class Load:
    """Returns the number of calls, once it may."""

    def __init__(self) -> None:
        self.calls = 0
        self.may = asyncio.Event()

    async def __call__(self) -> int:
        self.calls += 1
        await self.may.wait()
        return self.calls


@in_loop
async def test_pages_that_refresh_themselves_share_a_result() -> None:
    load, cache = Load(), TtlCache()
    both = [asyncio.create_task(cache.get(request(), "it", load)) for _ in range(2)]
    await asyncio.sleep(0)
    both[0].cancel()  # which does not cancel the load for the other
    load.may.set()
    assert await both[1] == 1
    assert await cache.get(request(), "it", load) == 1
    assert await cache.get(request(), "other", load) == 2
    assert await cache.get(request(query="service=a"), "it", load) == 3
    assert await cache.get(request("bob"), "it", load) == 4


@in_loop
async def test_opening_a_page_bypasses_the_cache() -> None:
    load, cache = Load(), TtlCache()
    load.may.set()
    assert await cache.get(request(), "it", load) == 1
    assert await cache.get(request(live=False), "it", load) == 2
    assert await cache.get(request(), "it", load) == 2


@in_loop
async def test_a_search_serves_opened_pages_too() -> None:
    cache, calls = TtlCache(), list[int]()

    async def load() -> int:
        calls.append(1)
        return len(calls)

    for live in (False, False, True):
        assert await cache.get(request(live=live), "poison", load, opened=True) == 1
    assert await cache.get(request("bob"), "poison", load, opened=True) == 2


@in_loop
async def test_a_result_expires(clock: SimpleNamespace) -> None:
    load, cache = Load(), TtlCache()
    load.may.set()
    for now, result in ((0, 1), (stats.CACHE_TTL - 0.1, 1), (stats.CACHE_TTL + 0.1, 2)):
        clock.now = now
        assert await cache.get(request(), "it", load) == result


@pytest.mark.parametrize(("took", "ttl"), [(0.1, 0.1 / stats.LOAD_SHARE), (5.0, stats.MAX_CACHE_TTL)])
@in_loop
async def test_a_slow_result_is_cached_longer_up_to_a_limit(clock: SimpleNamespace, took: float, ttl: float) -> None:
    load, cache = Load(), TtlCache()
    first = asyncio.create_task(cache.get(request(), "it", load))
    await asyncio.sleep(0)
    clock.now = took
    load.may.set()
    assert await first == 1
    for now, result in ((ttl - 0.1, 1), (ttl + 0.1, 2)):
        clock.now = now
        assert await cache.get(request(), "it", load) == result


@in_loop
async def test_a_slow_error_is_not_cached_longer(clock: SimpleNamespace) -> None:
    cache, load = TtlCache(), Load()
    load.may.set()

    async def too_late() -> int:
        clock.now = 5.0
        raise TimedOut("no answer", "waited 5 s", "try again")

    with pytest.raises(TimedOut):
        await cache.get(request(), "it", too_late)
    assert await cache.get(request(), "it", load) == 1, "the server is back"


@in_loop
async def test_expired_results_are_removed(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    monkeypatch.setattr(stats, "MAX_CACHED", 3)
    load, cache = Load(), TtlCache()
    load.may.set()
    for number in range(10):
        clock.now += stats.CACHE_TTL + 1
        await cache.get(request(query=f"service={number}"), "it", load)
    assert len(cache._entries) <= 3
