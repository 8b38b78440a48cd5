"""Concurrent submissions share a message and stay independent of each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from titanic import Client, Server, aio
from titanic.errors import Refused, TitanicError
from titanic.settings import ServiceLimits
from titanic.web.auth.clients import SMALL_BODY, Submissions

Submit = Callable[..., Awaitable[str]]


def together(server: Server, play: Callable[[Submit], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        submissions = Submissions()
        async with aio.Client(server.endpoints[0], timeout=30) as client:

            async def submit(body: bytes, service: str = "absent", **options: Any) -> str:
                return await submissions.submit(client, service, body, options)

            found = await play(submit)
            assert not submissions._groups
            return found

    return asyncio.run(run())


def test_many_share_a_message(server: Server, client: Client) -> None:
    async def play(submit: Submit) -> list[str]:
        others = submit(b"other", service="b"), submit(b"other", priority=7), submit(bytes(SMALL_BODY + 1))
        return await asyncio.gather(*(submit(b"%d" % number) for number in range(250)), *others)

    uuids = together(server, play)
    assert len(set(uuids)) == 253
    sizes = [client.show(uuid)["body_bytes"] for uuid in uuids]
    assert sizes == [*(len(str(number)) for number in range(250)), 5, 5, SMALL_BODY + 1]
    assert (client.show(uuids[250])["service"], client.show(uuids[251])["priority"]) == ("b", 7)
    keyed = [row for row in client.list(limit=1000)[0] if row["key"]]
    assert len(keyed) <= 10  # a message of ours has one


@pytest.mark.settings(limits={b"absent": ServiceLimits(waiting=5)})
def test_a_rejected_submission_does_not_affect_others(server: Server, client: Client) -> None:
    async def play(submit: Submit) -> list[str | BaseException]:
        return await asyncio.gather(*(submit(b"x") for _ in range(8)), return_exceptions=True)

    found = together(server, play)
    assert sum(isinstance(one, str) for one in found) == 5
    assert sum(isinstance(one, Refused) for one in found) == 3
    assert client.stats()["store"]["requests"] == 5


def test_an_invalid_submission_raises(server: Server) -> None:
    async def play(submit: Submit) -> list[str | BaseException]:
        wrong = [submit(b"x", limit=-1) for _ in range(2)]
        return await asyncio.gather(*wrong, submit(b"x"), return_exceptions=True)

    first, second, third = together(server, play)
    assert isinstance(first, TitanicError)
    assert isinstance(second, TitanicError)
    assert isinstance(third, str)


def test_a_cancelled_submission_does_not_cancel_others(server: Server, client: Client) -> None:
    async def play(submit: Submit) -> list[str | BaseException]:
        tasks = [asyncio.ensure_future(submit(b"x")) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, third = together(server, play)
    assert isinstance(second, asyncio.CancelledError)
    assert {first, third} < {row["uuid"] for row in client.list()[0]}
