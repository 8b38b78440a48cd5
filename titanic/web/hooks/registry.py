"""The hooks, kept in the queue itself: each is a request for `web.hook`, which nobody serves, delayed for ten years.
There is no second store: what is backed up, moved or restored takes the hooks along, and all gateways see the same.

A service has places for hooks, each of them an idempotency key. So the hooks of a service are found by these keys,
whatever else is stored. All is done as the user who delivers hooks: keys belong to the user who gave them, and what
others submit for `web.hook` is no hook.

Gateways know nothing of each other. When two put a hook at a place that none has had yet, the server gives it to the
first, and the other takes another place. At a place that had one, the key must be forgotten, and the server forgets it
whoever has it at that moment. So a put can displace one that another gateway has made since this one looked. Who is
displaced notices when it looks after its put, and puts again. If it looked before that happened, the one who displaced
it puts its hook again: it finds the request that has lost its key in the list of what is kept. So two gateways lose a
hook only if that one dies right then, or has stood still for longer than RECENT. (Three that put at the same moment,
where there is room for two, have lost one in a hundred. With room for one, both may hear that there is none.)

The secret is the second frame of such a request: whoever may read all requests may read it, and pages do not show it.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable, Mapping
from typing import Any

from titanic.aio import Client
from titanic.errors import UnknownRequest
from titanic.protocol.answers import RequestInfo
from titanic.protocol.submit_options import MOST_SECONDS, MOST_UUIDS
from titanic.web.hooks.hook import ENDED, KEPT, Hook, is_id, mark_of, mark_of_service, read_hook

MAX_HOOKS = 10
"""Hooks of one service."""

MAX_SERVICES = 200
"""Services that have hooks."""

PAGES = 100
"""Pages of a list of what is kept, each of which takes the server up to 20 ms."""

PAGES_BACK = 3
"""Pages of the newest of these: what was put at the same moment is on the first one, unless there are 10,000 newer
delayed requests."""

RECENT = 60.0
"""Seconds for which a gateway may stand still between its look and its put."""

AT_ONCE = 20
"""Requests that are looked at at once."""

MAX_HOOK_BYTES = 16 << 10
"""Bytes of a hook, at most."""

_PLACE = re.compile(r"web:hook:([0-9a-f]{8}):[0-9]+")


class NoPlace(Exception):
    """There are as many hooks as there may be."""


class Registry:
    """All hooks, as one user."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, Hook | None] = {}
        """Hooks by the UUID of the request that keeps them; None: it is none. What a request is does not change."""
        self._putting = asyncio.Lock()

    async def find(self, id_: str) -> Hook | None:
        """A hook by its id."""
        if not is_id(id_):
            return None
        return next((hook for hook in (await self._held([mark_of(id_)])).values() if hook.id == id_), None)

    async def of_service(self, service: str) -> list[Hook]:
        """The hooks of a service."""
        return [hook for hook in (await self._held([mark_of_service(service)])).values() if hook.service == service]

    async def all(self) -> list[Hook]:
        """The hooks of all services. Those of services whose ends are told elsewhere are found in a list of what is
        kept; it ends after PAGES pages."""
        marks = {*map(mark_of_service, await self._services()), *await self._listed()}
        return [*(await self._held(marks)).values()]

    async def settings(self) -> dict[str, Any]:
        """What is set for services."""
        return dict((await self._client.stats()).get("settings") or {})

    async def check_room(self, service: str) -> None:
        """Raises NoPlace when this service may have no hooks, because so many others have some."""
        services = await self._services()
        if service not in services and len(services) >= MAX_SERVICES:
            raise NoPlace(f"{len(services)} services have hooks, which is the most; delete those of one")

    async def put(self, hook: Hook) -> None:
        """Keep a hook, in place of the one with the same id. Raises NoPlace."""
        async with self._putting:
            while not await self._put(hook):
                pass

    async def _put(self, hook: Hook, *, again: bool = False) -> bool:
        """False: something else was there at the same moment; try again. `again`: unless there is one with the same id.
        Raises NoPlace."""
        mark = mark_of(hook.id)
        held = await self._held([mark])
        if again and any(one.id == hook.id for one in held.values()):
            return True
        uuids, states = await self._client.find(places(mark))
        key = next((key for key, one in held.items() if one.id == hook.id), "") or _free(mark, held, uuids)
        if not key:
            doubles = _doubles(held)
            if not doubles:
                raise NoPlace(f"'{hook.service}' has {len(held)} hooks, which is the most; delete some of them")
            await self._client.close(*doubles)
            return False
        there, before = uuids.get(key), held[key].uuid if key in held else ""
        if there in states and there != before and self._known.get(there, hook) is not None:
            return False
        options: Any = {"key": key, "key_for": MOST_SECONDS, "delay": MOST_SECONDS}
        if there is not None:
            options["forget"] = [key]
        uuid = await self._client.submit(KEPT, *hook.frames(), **options)
        if before:
            await self._client.close(before)
        beside = [] if there is None else await self._beside(key, uuid)
        now = await self._held([mark])
        if all(one.uuid != uuid for one in now.values()):  # another gateway displaced it: nobody would find it
            await self._client.close(uuid)
        await self._client.close(*_doubles(now))
        known = {one.uuid for one in now.values()}
        for displaced in beside:
            if displaced not in known:
                await self._put_again(displaced, uuid)
        # If the key was taken, the UUID is that of another hook, and this one is nowhere.
        return any(one.id == hook.id for one in now.values())

    async def _beside(self, key: str, uuid: str) -> list[str]:
        """What was kept at a place a moment before this request, or since; the newest first."""
        rows: list[RequestInfo] = []
        after: str | None = None
        for _ in range(PAGES_BACK):
            options: Any = {"service": KEPT, "state": "delayed", "text": key, "limit": MOST_UUIDS, "newest": True}
            page, after = await self._client.list(**options, after=after)
            rows += [row for row in page if row["key"] == key]
            if after is None:
                break
        for own in rows:
            if own["uuid"] == uuid:
                since, owner = own["submitted_at"] - RECENT * 1e6, own.get("owner")
                others = [row for row in rows if row is not own and row.get("owner") == owner]
                return [row["uuid"] for row in others if row["submitted_at"] > since]
        return []

    async def _put_again(self, displaced: str, uuid: str) -> None:
        """Put the hook again that was displaced by the one that this request keeps. If there is room for one of them
        only, it is for that one, which was first. Raises NoPlace."""
        hook = await self._look(displaced)
        if hook is None:  # it was deleted, or its gateway has noticed
            return
        full: NoPlace | None = None
        while True:
            try:
                if await self._put(hook, again=True):
                    break
            except NoPlace as error:
                if full is not None:
                    raise
                full = error
                await self._client.close(uuid)
        await self._client.close(displaced)
        if full is not None:
            raise full

    async def _services(self) -> list[str]:
        """The services whose ends are told to hooks."""
        return [name for name, one in (await self.settings()).items() if one["on_end"] == ENDED]

    async def _listed(self) -> set[str]:
        """The marks in the keys of what is kept. What others have submitted may have such keys as well."""
        found: set[str] = set()
        after: str | None = None
        for _ in range(PAGES):
            rows, after = await self._client.list(service=KEPT, state="delayed", limit=MOST_UUIDS, after=after)
            found.update(place[1] for row in rows if (place := _PLACE.fullmatch(row["key"])))
            if after is None:
                break
        return found

    async def _held(self, marks: Iterable[str]) -> dict[str, Hook]:
        """The hooks by their places, at all places with these marks."""
        uuids, states = await self._client.find([key for mark in marks for key in places(mark)])
        kept = {key: uuid for key, uuid in uuids.items() if uuid in states}
        known = {uuid: self._known[uuid] for uuid in kept.values() if uuid in self._known}
        new = [uuid for uuid in kept.values() if uuid not in known]
        for at in range(0, len(new), AT_ONCE):
            some = new[at : at + AT_ONCE]
            known.update(zip(some, await asyncio.gather(*map(self._look, some)), strict=True))
        if len(self._known) > 2 * MAX_HOOKS * MAX_SERVICES:
            self._known.clear()
        self._known.update(known)
        return {key: hook for key, uuid in kept.items() if (hook := known[uuid]) is not None}

    async def _look(self, uuid: str) -> Hook | None:
        try:
            look = await self._client.look(uuid, MAX_HOOK_BYTES)
        except UnknownRequest:
            return None
        return read_hook(look.body, uuid)


def _free(mark: str, held: Mapping[str, Hook], uuids: Mapping[str, str]) -> str:
    """A place that no hook has, if possible one that none has had; empty: there is none. `uuids`: see `Client.find`."""
    free = [key for key in places(mark) if key not in held]
    new = [key for key in free if key not in uuids]  # no key need be forgotten there: nobody is displaced
    return random.choice(new or free or [""])  # two gateways hardly take the same at the same moment


def _doubles(held: Mapping[str, Hook]) -> list[str]:
    """The requests that keep a hook which a later one keeps, too: two gateways have put it at the same moment."""
    last: dict[str, str] = {}
    for one in held.values():
        last[one.id] = max(one.uuid, last.get(one.id, ""))
    return [one.uuid for one in held.values() if one.uuid != last[one.id]]


def places(mark: str) -> list[str]:
    """The keys of the places of a service: `_PLACE` reads them."""
    return [f"web:hook:{mark}:{place}" for place in range(MAX_HOOKS)]
