"""How hooks are kept and found in the queue: in few questions, whatever else is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from support.web_hooks import new_hook

from titanic import Server
from titanic.aio import Client
from titanic.protocol.answers import Look
from titanic.protocol.submit_options import MOST_SECONDS
from titanic.web.hooks import registry
from titanic.web.hooks.registry import ENDED, KEPT, Hook, NoPlace, Registry, places


class Counting(Client):
    """A client that counts what it reads."""

    looks = lists = 0
    meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None
    """What happens before its next request is submitted."""
    unread: Callable[[], Coroutine[Any, Any, None]] | None = None
    """What happens before it next reads a request."""

    async def submit(self, service: Any, *body: Any, **more: Any) -> str:
        if (happens := self.meanwhile) is not None:
            self.meanwhile = None
            await happens()
        return await super().submit(service, *body, **more)

    async def look(self, uuid: str, most: int = 65536) -> Look:
        self.looks += 1
        if (happens := self.unread) is not None:
            self.unread = None
            await happens()
        return await super().look(uuid, most)

    async def list(self, **more: Any) -> Any:
        self.lists += 1
        return await super().list(**more)


@asynccontextmanager
async def looking(server: Server) -> AsyncIterator[tuple[Registry, Counting]]:
    async with Counting(server.endpoints[0], timeout=30) as client:
        yield Registry(client), client


def run(of: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(of())


def test_one_hook_is_found_without_reading_the_others(server: Server) -> None:
    async def check() -> None:
        async with looking(server) as (hooks, client):
            for n in range(30):
                await hooks.put(new_hook(f"mail.{n}"))
            await client.submit_batch("later", [b""] * 1000, delay=3600)
        async with looking(server) as (hooks, client):
            hook = new_hook("mail.7")
            assert await hooks.find(hook.id) == (await hooks.of_service("mail.7"))[0]
            assert client.lists == 0
            await hooks.put(hook)
            assert client.looks <= 2  # the one before, and the new one
            assert client.lists <= 1  # whether another gateway's was displaced

    run(check)


def test_all_are_found_wherever_ends_are_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with looking(server) as (hooks, client):
            for n in range(3):
                await client.submit_batch("later", [b""] * 1000, delay=3600)
                await hooks.put(new_hook(f"mail.{n}"))
            assert {one.service for one in await hooks.all()} == {"mail.0", "mail.1", "mail.2"}
            await client.set_service("mail.2", on_end=ENDED)
            monkeypatch.setattr(registry, "PAGES", 0)  # it has ended before: those that are told are found all the same
            assert [one.service for one in await hooks.all()] == ["mail.2"]

    run(check)


def test_a_service_has_so_many(server: Server) -> None:
    async def check() -> None:
        async with looking(server) as (hooks, client):
            every = [new_hook("mail", f"https://a.example/{n}") for n in range(registry.MAX_HOOKS + 1)]
            for hook in every[:-1]:
                await hooks.put(hook)
            with pytest.raises(NoPlace, match="'mail' has 10 hooks, the maximum"):
                await hooks.put(every[-1])
            await hooks.put(every[3])  # which is there
            first = await hooks.find(every[0].id)
            assert first is not None
            await client.close(first.uuid)
            await hooks.put(every[-1])
            found = {hook.id for hook in await hooks.of_service("mail")}
            assert found == {hook.id for hook in every[1:]}
            assert len((await client.list(service=KEPT))[0]) == registry.MAX_HOOKS

    run(check)


def test_those_that_come_at_the_same_moment_all_stay(server: Server) -> None:
    async def check() -> None:
        async with looking(server) as (one, _), looking(server) as (other, client):
            every = [new_hook("mail", f"https://a.example/{n}") for n in range(registry.MAX_HOOKS)]
            for first, second in ((one, other), (one, one), (other, other)):
                halves = (first, every[:5]), (second, every[5:])
                await asyncio.gather(*(hooks.put(hook) for hooks, some in halves for hook in some))
                assert {hook.id for hook in await one.of_service("mail")} == {hook.id for hook in every}
                assert len((await client.list(service=KEPT))[0]) == registry.MAX_HOOKS

    run(check)


def test_what_is_at_a_place_and_is_no_hook_is_passed_over(server: Server) -> None:
    async def check() -> None:
        async with looking(server) as (hooks, client):
            hook: Hook = new_hook("mail")
            for key in places(hook.id[:8])[:9]:
                await client.submit(KEPT, b"{}", key=key, key_for=MOST_SECONDS, delay=3600)
            assert await hooks.of_service("mail") == []
            await hooks.put(hook)
            assert [one.id for one in await hooks.of_service("mail")] == [hook.id]

    run(check)


def test_who_comes_second_to_a_place_takes_another(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_HOOKS", 2)

    async def check() -> None:
        async with looking(server) as (one, _), looking(server) as (other, _):
            for n in range(20):
                every = [new_hook(f"mail.{n}", url) for url in ("https://a.example/", "https://b.example/")]
                await asyncio.gather(one.put(every[0]), other.put(every[1]))
                assert {hook.id for hook in await one.of_service(f"mail.{n}")} == {hook.id for hook in every}

    run(check)


async def use_all_places(hooks: Registry, client: Client, service: str) -> None:
    """So that keys have to be forgotten."""
    for n in range(registry.MAX_HOOKS):
        await hooks.put(new_hook(service, f"https://used.example/{n}"))
    await client.close(*(hook.uuid for hook in await hooks.of_service(service)))


async def kept(client: Client) -> list[str]:
    return [row["uuid"] for row in (await client.list(service=KEPT))[0]]


def test_whoever_displaces_a_hook_puts_it_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway looks, another puts a hook, and then the first one puts its own at the same place."""
    monkeypatch.setattr(registry, "MAX_HOOKS", 2)

    async def check() -> None:
        async with looking(server) as (one, _), looking(server) as (other, client):
            for n in range(10):  # each takes one of two places at random
                every = [new_hook(f"mail.{n}", url) for url in ("https://a.example/", "https://b.example/")]
                await use_all_places(one, client, f"mail.{n}")
                client.meanwhile = partial(one.put, every[0])
                await other.put(every[1])
                found = await one.of_service(f"mail.{n}")
                assert {hook.id for hook in found} == {hook.id for hook in every}
                assert sorted(await kept(client))[-2:] == sorted(hook.uuid for hook in found)
            assert len(await kept(client)) == 20

    run(check)


def test_the_last_place_is_for_who_was_first(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_HOOKS", 1)

    async def check() -> None:
        async with looking(server) as (one, _), looking(server) as (other, client):
            first, second = (new_hook("mail", url) for url in ("https://a.example/", "https://b.example/"))
            await use_all_places(one, client, "mail")
            client.meanwhile = partial(one.put, first)
            with pytest.raises(NoPlace, match="'mail' has 1 hooks"):
                await other.put(second)
            (left,) = await one.of_service("mail")
            assert left.id == first.id
            assert await kept(client) == [left.uuid]

    run(check)


def test_a_hook_that_two_change_is_there_once(server: Server) -> None:
    async def check() -> None:
        async with looking(server) as (one, _), looking(server) as (other, client):
            await one.put(new_hook("mail"))
            client.meanwhile = partial(one.put, new_hook("mail", states=("done",)))
            await other.put(new_hook("mail", states=("failed",)))
            (left,) = await one.of_service("mail")
            assert left.states == ("failed",)
            assert await kept(client) == [left.uuid]

    run(check)


def test_a_hook_that_is_put_again_while_it_is_read_is_there(server: Server) -> None:
    async def check() -> None:
        async with looking(server) as (one, _), looking(server) as (other, client):
            hook = new_hook("mail")
            await one.put(hook)
            client.unread = partial(one.put, hook)
            assert [found.id for found in await other.of_service("mail")] == [hook.id]

    run(check)


def test_a_place_that_nobody_had_goes_first(server: Server) -> None:
    """There nobody is displaced by who comes at the same moment."""

    async def check() -> None:
        async with looking(server) as (hooks, client):
            for n in range(1, registry.MAX_HOOKS + 3):
                hook = new_hook("mail", f"https://a.example/{n}")
                await hooks.put(hook)
                (kept,) = await hooks.of_service("mail")
                assert kept.id == hook.id
                await client.close(kept.uuid)
                assert len((await client.find(places(hook.id[:8])))[0]) == min(n, registry.MAX_HOOKS)

    run(check)


def test_a_hook_at_two_places_leaves_room_for_another(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two gateways that put the same hook have it at two places for a moment."""
    monkeypatch.setattr(registry, "MAX_HOOKS", 2)

    async def check() -> None:
        async with looking(server) as (hooks, client):
            one, other = (new_hook("mail", url) for url in ("https://a.example/", "https://b.example/"))
            for key in places(one.id[:8]):
                await client.submit(KEPT, *one.frames(), key=key, key_for=MOST_SECONDS, delay=3600)
            await hooks.put(other)
            assert {hook.id for hook in await hooks.of_service("mail")} == {one.id, other.id}
            assert len((await client.list(service=KEPT))[0]) == 2

    run(check)
