"""Statistics: polled once for all visitors, cached, and kept for an hour."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request
from support.coroutines import in_loop

from broker import Worker
from titanic import Client, Server
from titanic.aio import Client as AioClient
from titanic.errors import Forbidden, TimedOut
from titanic.protocol.answers import RequestInfo
from titanic.web import stats
from titanic.web.auth.identity import Visitor
from titanic.web.stats import (
    HOUR,
    UNKNOWN,
    History,
    Latencies,
    Latency,
    Percentiles,
    RequestRates,
    ServiceCounters,
    StatsPoller,
    StatsSample,
    TtlCache,
    latency_of,
    percentiles,
    recently_done,
)

ROW = {"waiting": 3, "done": 5, "failed": 1, "workers": 2}

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
    assert first.services() == {"mail": ServiceCounters(3, 5, 1)}


def test_a_user_without_permission_does_not_get_the_sample_of_another() -> None:
    allowed, refused = poll(visitor("a", Fake()), visitor("eve", Fake(permitted=False)))
    assert isinstance(refused, Forbidden)
    assert not isinstance(allowed, Forbidden)


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


# -- the last hour ------------------------------------------------------------------------------------------------


def sample(at: float, done: int, *, failed: int = 0, source: str = "", waiting: int = 0) -> StatsSample:
    answer = {
        "queue": source,
        "store": {"waiting": waiting},
        "running": 0,
        "since_start": {"accepted": done},
        "dispatch": {"succeeded": done, "failed": failed},
        "by_service": {"a": {"waiting": waiting, "done": done, "failed": failed}},
    }
    return StatsSample(at, answer, None, 0.0)


def history(*samples: StatsSample) -> History:
    found = History()
    for one in samples:
        found.add(one)
    return found


def test_rates_are_differences_of_counters() -> None:
    assert history().now() == history(sample(0, 5)).now() == UNKNOWN
    assert history(sample(0, 5), sample(2, 9), sample(4, 25, failed=2)).now() == RequestRates(5, 5, 0.5)


def test_current_rates_are_those_of_the_last_seconds() -> None:
    assert history(sample(0, 0), sample(100, 1000), sample(110, 1010)).now().done == 1


def test_a_restarted_server_counts_from_0() -> None:
    assert history(sample(0, 1000), sample(10, 20)).now().done == 2


def test_counters_of_different_processes_are_not_compared() -> None:
    assert history(sample(0, 10, source="a"), sample(10, 30, source="b")).now() == UNKNOWN


def test_a_clock_that_is_set_back_clears_the_history() -> None:
    found = history(sample(5000, 10), sample(100, 30), sample(110, 40))
    assert found.now().done == 1
    assert found.began == 100


def test_rates_in_parts_of_an_hour() -> None:
    found = history(sample(10_000 - HOUR, 0), sample(10_000 - HOUR / 2, 1800), sample(10_000, 1800 + 3600))
    assert [rates.done for rates in found.rates(10_000, 4)] == [1, 1, 2, 2]
    assert [rates.done for rates in history(sample(9000, 0), sample(9900, 900)).rates(9900, 4)] == [None, None, None, 1]
    assert found.rates(10_000 + 2 * HOUR, 4) == [UNKNOWN] * 4


def test_levels_are_those_at_the_end_of_each_part() -> None:
    found = history(*(sample(at, 0, waiting=at) for at in range(0, 3601, 10)))
    assert found.levels(3600, 4) == [(890, 0), (1790, 0), (2690, 0), (3600, 0)]


def test_the_history_is_bounded() -> None:
    found = history(*(sample(at, at, waiting=at) for at in range(0, 20_000, 2)))
    assert len(found.rates(20_000, 10)) == 10
    assert found.began is not None
    assert 20_000 - HOUR - 30 <= found.began <= 20_000 - HOUR
    trend = found.trend("a")
    assert 30 <= len(trend) <= 32
    assert all(at == counters.waiting for at, counters in trend)
    assert {counters for _, counters in found.trend("unknown")} == {ServiceCounters(0, 0, 0)}


# -- latency ------------------------------------------------------------------------------------------------------


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles([]) is None
    assert percentiles([3]) == Percentiles(3, 3, 3, 3)
    assert percentiles(range(1000, 0, -1)) == Percentiles(500, 900, 990, 1000)


def row(submitted: int, dispatched: int, finished: int, attempts: int = 1, not_before: int = 0) -> RequestInfo:
    moments = {
        "submitted_at": submitted,
        "dispatched_at": dispatched,
        "finished_at": finished,
        "not_before": not_before,
    }
    return {"attempts": attempts} | {name: at * 1_000_000 for name, at in moments.items()}  # type: ignore[return-value]


def test_the_wait_excludes_delays_and_retried_requests() -> None:
    same = [Percentiles(*[seconds] * 4) for seconds in (2, 3, 5)]
    assert latency_of([row(100, 102, 105)]) == Latency(1, *same)
    assert latency_of([row(50, 102, 105, not_before=100)]) == Latency(1, *same)
    assert latency_of([row(100, 104, 105, attempts=2)]) == Latency(1, None, Percentiles(1, 1, 1, 1), same[2])
    assert latency_of([row(100, 0, 105), row(100, 0, 0)]) == Latency(0, None, None, None)
    assert latency_of([row(100, 90, 80)]).run == Percentiles(0, 0, 0, 0)  # the clock was set back


def test_an_hour_of_latency_is_kept_for_each_user(
    server: Server, client: Client, echo: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.wait(client.submit("echo", b"x"), 30)
    monkeypatch.setattr(stats, "MAX_USERS", 2)

    async def measure() -> None:
        async with AioClient(server.endpoints[0], timeout=30) as asked:
            assert len(await recently_done(asked, "echo")) == 1
            assert await recently_done(asked, "other") == []
            latencies = Latencies()
            hours = [await latencies.measure(user, asked) for user in ("a", "b", "c", "c")]
            assert [len(hour) for hour in hours] == [1, 1, 1, 1]
            assert 0 <= hours[0][0].wait_p50 <= hours[0][0].total_p90 < 60
            monkeypatch.setattr(stats, "LATENCY_INTERVAL", 1e-9)
            assert [len(await latencies.measure(user, asked)) for user in ("c", "a")] == [2, 1]

    asyncio.run(measure())


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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its `now` is the time."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(stats, "time", clock)
    return clock


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
