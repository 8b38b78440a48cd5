"""How long requests wait and run."""

from __future__ import annotations

import asyncio

import pytest

from broker import Worker
from titanic import Client, Server
from titanic.aio import Client as AioClient
from titanic.protocol.answers import RequestInfo
from titanic.web.figures import latency
from titanic.web.figures.latency import Latencies, Percentiles, Times, percentiles, recently_done, times_of


def test_percentiles_are_values_that_were_there() -> None:
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


def test_a_delay_is_no_waiting_and_a_second_attempt_does_not_tell_it() -> None:
    same = [Percentiles(*[seconds] * 4) for seconds in (2, 3, 5)]
    assert times_of([row(100, 102, 105)]) == Times(1, *same)
    assert times_of([row(50, 102, 105, not_before=100)]) == Times(1, *same)
    assert times_of([row(100, 104, 105, attempts=2)]) == Times(1, None, Percentiles(1, 1, 1, 1), same[2])
    assert times_of([row(100, 0, 105), row(100, 0, 0)]) == Times(0, None, None, None)
    assert times_of([row(100, 90, 80)]).ran == Percentiles(0, 0, 0, 0)  # the clock was set back


def test_an_hour_is_kept_for_each_user(
    server: Server, client: Client, echo: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.wait(client.submit("echo", b"x"), 30)
    monkeypatch.setattr(latency, "USERS", 2)

    async def look() -> None:
        async with AioClient(server.endpoints[0], timeout=30) as asked:
            assert len(await recently_done(asked, "echo")) == 1
            assert await recently_done(asked, "other") == []
            latencies = Latencies()
            hours = [await latencies.look(user, asked) for user in ("a", "b", "c", "c")]
            assert [len(hour) for hour in hours] == [1, 1, 1, 1]
            assert 0 <= hours[0][0].waited <= hours[0][0].took < 60
            monkeypatch.setattr(latency, "EVERY", 1e-9)
            assert [len(await latencies.look(user, asked)) for user in ("c", "a")] == [2, 1]

    asyncio.run(look())
