"""Webhooks: which ends are reported to which URL. The queue stores them: each is a request for `web.hook`, a service
without workers, delayed for ten years. There is no second store: backups, moves and restores include the hooks, and all
gateways see the same ones.

A service has places for hooks, and each place is an idempotency key. The hooks of a service are found by these keys,
whatever else is stored. Everything is done as the user that delivers hooks. Keys are separate for each user, so
requests for `web.hook` by other users are not hooks.

Gateways do not know of each other. When two of them put a hook at an unused place, the server assigns it to the first,
and the other one takes another place. At a used place, the server must forget the key, whatever request has it at that
moment. So a put can displace a hook that another gateway has put since this one read the places. A gateway checks its
hook after the put, and puts it again if it was displaced. If it was displaced after this check, the displacing gateway
puts it again: it finds the request without its key in the list of delayed ones. So two gateways lose a hook only if
the displacing one dies at that moment, or stalls for longer than RECENT. (Three that put at the same moment, with room
for two, have lost one in a hundred. With room for one, both may get the answer that there is none.)

The secret is the second frame of such a request. Users that may read all requests may read it; pages do not show it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import random
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from broker import read_json
from titanic.aio import Client
from titanic.errors import InvalidRequest, UnknownRequest
from titanic.protocol.documents import RequestInfo
from titanic.protocol.submit_options import MOST_SECONDS, MOST_UUIDS
from titanic.protocol.tsp import Frames, request_fault
from titanic.util.text import quoted

MAX_HOOKS = 10
"""Maximum number of hooks of one service."""

MAX_SERVICES = 200
"""Maximum number of services with hooks."""

PAGES = 100
"""Maximum number of pages when listing stored hooks; each takes the server up to 20 ms."""

PAGES_BACK = 3
"""Maximum number of pages when listing the newest ones. Hooks that were put at the same moment are on the first page,
unless there are 10,000 newer delayed requests."""

FINDS = 3
"""Maximum number of times that places are read because a hook was gone before it was read."""

RECENT = 60.0
"""Seconds for which a gateway may stall between reading the places and its put."""

AT_ONCE = 20
"""Requests that are read concurrently."""

MAX_HOOK_BYTES = 16 << 10
"""Maximum bytes of a hook."""

_PLACE = re.compile(r"web:hook:([0-9a-f]{8}):[0-9]+")


class NoPlace(Exception):
    """The maximum number of hooks is reached."""


class Registry:
    """All hooks, as one user."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, Hook | None] = {}
        """Hooks by the UUID of the request that stores them; None: it stores none. Requests do not change."""
        self._putting = asyncio.Lock()

    async def find(self, id_: str) -> Hook | None:
        """Find a hook by its id."""
        if not is_id(id_):
            return None
        return next((hook for hook in (await self._held([mark_of(id_)])).values() if hook.id == id_), None)

    async def of_service(self, service: str) -> list[Hook]:
        """The hooks of a service."""
        return [hook for hook in (await self._held([mark_of_service(service)])).values() if hook.service == service]

    async def all(self) -> list[Hook]:
        """The hooks of all services. Those of services that report their ends elsewhere are found by listing stored
        hooks, up to PAGES pages."""
        marks = {*map(mark_of_service, await self._services()), *await self._listed()}
        return [*(await self._held(marks)).values()]

    async def settings(self) -> dict[str, Any]:
        """The settings of services."""
        return dict((await self._client.stats()).get("settings") or {})

    async def check_room(self, service: str) -> None:
        """Raise NoPlace when this service may have no hooks, because too many others have some."""
        services = await self._services()
        if service not in services and len(services) >= MAX_SERVICES:
            raise NoPlace(f"{len(services)} services have hooks, the maximum; delete the hooks of one")

    async def put(self, hook: Hook) -> None:
        """Store a hook, replacing the one with the same id. Raises NoPlace."""
        async with self._putting:
            while not await self._put(hook):
                pass

    async def _put(self, hook: Hook, *, again: bool = False) -> bool:
        """Try to store a hook; False: another gateway interfered, try again. `again`: do nothing if there is one with
        the same id. Raises NoPlace."""
        mark = mark_of(hook.id)
        held = await self._held([mark])
        if again and any(one.id == hook.id for one in held.values()):
            return True
        uuids, states = await self._client.find(places(mark))
        key = next((key for key, one in held.items() if one.id == hook.id), "") or _free(mark, held, uuids)
        if not key:
            doubles = _doubles(held)
            if not doubles:
                raise NoPlace(f"'{hook.service}' has {len(held)} hooks, the maximum; delete some of them")
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
        if all(one.uuid != uuid for one in now.values()):  # another gateway displaced it: it cannot be found
            await self._client.close(uuid)
        await self._client.close(*_doubles(now))
        known = {one.uuid for one in now.values()}
        for displaced in beside:
            if displaced not in known:
                await self._put_again(displaced, uuid)
        # If the key was in use, the UUID is that of another hook, and this one is not stored.
        return any(one.id == hook.id for one in now.values())

    async def _beside(self, key: str, uuid: str) -> list[str]:
        """The requests that had a place shortly before this one, or since; the newest first."""
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
        """Put a displaced hook again. If there is room for only one, it replaces the hook of request `uuid`, which came
        later. Raises NoPlace."""
        hook = await self._load(displaced)
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
        """The services whose ends are reported to hooks."""
        return [name for name, one in (await self.settings()).items() if one["on_end"] == ENDED]

    async def _listed(self) -> set[str]:
        """The marks in the keys of stored hooks. Requests of other users may have such keys as well."""
        found: set[str] = set()
        after: str | None = None
        for _ in range(PAGES):
            rows, after = await self._client.list(service=KEPT, state="delayed", limit=MOST_UUIDS, after=after)
            found.update(place[1] for row in rows if (place := _PLACE.fullmatch(row["key"])))
            if after is None:
                break
        return found

    async def _held(self, marks: Iterable[str]) -> dict[str, Hook]:
        """The hooks by place, at all places with these marks."""
        if len(self._known) > 2 * MAX_HOOKS * MAX_SERVICES:
            self._known.clear()
        keys = [key for mark in marks for key in places(mark)]
        for _ in range(FINDS):
            uuids, states = await self._client.find(keys)
            kept = {key: uuid for key, uuid in uuids.items() if uuid in states}
            known = {uuid: self._known[uuid] for uuid in kept.values() if uuid in self._known}
            new = [uuid for uuid in kept.values() if uuid not in known]
            for at in range(0, len(new), AT_ONCE):
                some = new[at : at + AT_ONCE]
                known.update(zip(some, await asyncio.gather(*map(self._load, some)), strict=True))
            self._known.update(known)
            if all(known[uuid] for uuid in new):
                break  # otherwise a hook may have been put again meanwhile: it is in another request then
        return {key: hook for key, uuid in kept.items() if (hook := known[uuid]) is not None}

    async def _load(self, uuid: str) -> Hook | None:
        try:
            look = await self._client.look(uuid, MAX_HOOK_BYTES)
        except UnknownRequest:
            return None
        return read_hook(look.body, uuid)


def _free(mark: str, held: Mapping[str, Hook], uuids: Mapping[str, str]) -> str:
    """A place without a hook, preferably one that was never used; empty: there is none. `uuids`: see `Client.find`."""
    free = [key for key in places(mark) if key not in held]
    new = [key for key in free if key not in uuids]  # no key must be forgotten there: no hook is displaced
    return random.choice(new or free or [""])  # two gateways rarely choose the same at the same moment


def _doubles(held: Mapping[str, Hook]) -> list[str]:
    """The requests whose hook a later request stores, too: two gateways put it at the same moment."""
    last: dict[str, str] = {}
    for one in held.values():
        last[one.id] = max(one.uuid, last.get(one.id, ""))
    return [one.uuid for one in held.values() if one.uuid != last[one.id]]


def places(mark: str) -> list[str]:
    """The keys of a service's places, which match `_PLACE`."""
    return [f"web:hook:{mark}:{place}" for place in range(MAX_HOOKS)]


KEPT = "web.hook"
"""The service of the requests that store hooks."""

ENDED = "web.ended"
"""The service of the requests that report an end."""

DELIVERY = "web.delivery"
"""The service of the requests that report an end to one hook."""

STATES = ("done", "failed", "expired")
"""The ends of requests that hooks can select."""

OWN = "web."
"""The prefix of the services that implement hooks, which cannot have hooks themselves."""

_PORT = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_NAME = "[A-Za-z0-9_-]{1,63}"

URL = rf"^https?://{_NAME}(\.{_NAME}){{0,20}}(:({_PORT}))?([/?][!$-\[\]-~]{{0,1500}})?$"
"""Without user name, password, fragment and backslash; ports are decimal."""

SECRET = "^[!-~]{16,256}$"
PREFIX = "whsec_"
_ID = re.compile(r"[0-9a-f]{20}")

MARK = 8
"""Digits of an id that identify its service."""


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook. `id` is the same for the same service and URL."""

    id: str
    service: str
    url: str
    states: tuple[str, ...]
    secret: str = field(repr=False)
    uuid: str = ""
    """The request that stores it."""

    @property
    def host(self) -> str:
        """The host and port of the URL. Some services have secrets in the rest."""
        return urlsplit(self.url).netloc

    def public(self) -> dict[str, Any]:
        """Its document without the secret."""
        return {"id": self.id, "service": self.service, "url": self.url, "states": list(self.states)}

    def frames(self) -> list[bytes]:
        """The body of the request that stores it."""
        return [json.dumps(self.public()).encode(), self.secret.encode()]

    def signature(self, body: bytes, at: int) -> str:
        """The value of `Titanic-Signature` for a body, at a time in seconds since 1970."""
        signed = hmac.new(self.secret.encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
        return f"t={at},v1={signed}"

    def standard(self, id_: str, body: bytes, at: int) -> dict[str, str]:
        """The headers of Standard Webhooks (https://www.standardwebhooks.com)."""
        signed = hmac.digest(_standard_key(self.secret), f"{id_}.{at}.".encode() + body, "sha256")
        signature = f"v1,{base64.b64encode(signed).decode()}"
        return {"webhook-id": id_, "webhook-timestamp": str(at), "webhook-signature": signature}


def _standard_key(secret: str) -> bytes:
    """The key of a secret: base64 after a prefix in Standard Webhooks; others are used as they are."""
    if secret.startswith(PREFIX):
        with suppress(ValueError):
            return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    return secret.encode()


def new_secret() -> str:
    """Generate a secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def id_of(service: str, url: str) -> str:
    """The id of a hook, which starts with the mark of its service."""
    return mark_of_service(service) + hashlib.sha256(f"{service}\0{url}".encode()).hexdigest()[: 20 - MARK]


def is_id(text: str) -> bool:
    """Whether this is a valid id of a hook."""
    return _ID.fullmatch(text) is not None


def mark_of_service(service: str) -> str:
    """The prefix of the ids of a service's hooks; another service may have the same."""
    return hashlib.sha256(service.encode()).hexdigest()[:MARK]


def mark_of(id_: str) -> str:
    """The mark in the id of a hook."""
    return id_[:MARK]


def read_hook(frames: Frames, uuid: str) -> Hook | None:
    """Read a stored hook; None: the request does not store one."""
    try:
        said, secret = read_json(frames[0]), frames[1].decode()
        hook = Hook(said["id"], said["service"], said["url"], tuple(said["states"]), secret, uuid)
        check_hook(hook)
    except (ValueError, LookupError, TypeError, AttributeError, InvalidRequest):
        return None
    return hook


def check_hook(hook: Hook) -> None:
    """Raise InvalidRequest for an invalid hook."""
    if not is_id(hook.id):
        raise InvalidRequest("the id is not valid")
    if fault := request_fault([hook.service.encode(), b""]):
        raise InvalidRequest(fault)
    if hook.service.startswith(OWN):
        what, fact = f"service is {quoted(hook.service)}", f"names that start with {OWN} are reserved for webhooks"
        raise InvalidRequest(what, fact, "choose another service")
    if not hook.states or not set(hook.states) <= set(STATES) or len(set(hook.states)) < len(hook.states):
        fact = f"it may contain each of these once: {', '.join(STATES)}"
        raise InvalidRequest(f"states is {quoted(str(list(hook.states)))}", fact, "leave it out for all")
    if not re.fullmatch(SECRET, hook.secret):  # which the error does not contain
        raise InvalidRequest(
            "the secret is not valid",
            "it must be 16 to 256 printable ASCII characters without spaces",
            "leave it out to have one generated",
        )
    if not re.fullmatch(URL, hook.url):
        fact = "it must be like https://example.com/hook: a name or an IPv4 address, printable ASCII, no user, no #"
        raise InvalidRequest(f"the url is {quoted(hook.url)}", fact, "use another one")


EVENT_TYPE = "titanic.request."
"""The prefix of the types of events; the state follows."""

TIMES = ("submitted_at", "finished_at")


def cloud_event(id_: str, end: Mapping[str, Any]) -> dict[str, Any]:
    """Make the CloudEvent for the end of a request, as the server reports it. `id_`: a unique id of the event."""
    data = {name: _timestamp(value) if name in TIMES else value for name, value in end.items()}
    event = {
        "specversion": "1.0",
        "id": id_,
        "type": EVENT_TYPE + end["state"],
        "source": f"/v1/services/{quote(end['service'], safe='')}",
        "subject": end["uuid"],
        "datacontenttype": "application/json",
        "data": data,
    }
    if data.get("finished_at"):
        event["time"] = data["finished_at"]
    return event


def _timestamp(value: Any) -> str | None:
    """Format microseconds since 1970 as RFC 3339; None if there is no time."""
    if not isinstance(value, int) or value <= 0:
        return None
    return datetime.fromtimestamp(value / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


ServiceSettings = Mapping[str, Mapping[str, Any]]
"""The settings of services, as `titanic.stats` reports them."""


def sources(settings: ServiceSettings, service: str) -> list[str]:
    """The services that report their ends to this one. If there are any, its own ends are not reported, whatever is
    set, so that there are no loops."""
    return sorted(name for name, one in settings.items() if one["on_end"] == service)


def hook_status(settings: ServiceSettings, service: str) -> str:
    """Why the hooks of a service get no events, and what to do; empty: they get them."""
    on_end = settings[service]["on_end"] if service in settings else None
    if on_end is None:
        what, fact = f"service '{service}' sends no notifications", f"its on_end is unset; hooks need {ENDED}"
        return f"{what}; {fact}; register one of its hooks again"
    if on_end != ENDED:
        what, fact = f"service '{service}' notifies another service, '{on_end}'", f"hooks need {ENDED}"
        advice = f"have '{on_end}' pass them on, or unset on_end and register one of the hooks again"
        return f"{what}; {fact}; {advice}"
    if others := sources(settings, service):
        what, fact = f"service '{service}' sends no notifications", f"it receives those of '{others[0]}'"
        return f"{what}; {fact}, and no service does both; have '{others[0]}' notify another service"
    return ""
