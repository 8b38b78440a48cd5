"""Web hooks: which URL is told when requests of a service end. See ../hooks/."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from broker import read_json
from titanic.aio import Client
from titanic.errors import Forbidden, UnknownRequest
from titanic.util.text import quoted
from titanic.web.api.resource import ApiRoute, read_body
from titanic.web.api.responses import json_response
from titanic.web.api.schemas import PATH, SERVICE, TEXT, answer, header, listed, parameter, record, wrong
from titanic.web.app_state import app_state, visitor_of
from titanic.web.hooks.hook import (
    ENDED,
    SECRET,
    STATES,
    URL,
    Hook,
    ServiceSettings,
    check_hook,
    hook_status,
    id_of,
    new_secret,
)
from titanic.web.hooks.post import literal_address, may_reach, not_reached
from titanic.web.hooks.registry import MAX_HOOKS, MAX_SERVICES, NoPlace, Registry
from titanic.web.problems import Problem
from titanic.web.request_headers import read_query

T = TypeVar("T")

MAX_DOCUMENT = 8 << 10
"""Bytes of a document."""

SEEN = 3
"""Hooks of which one must be seen by who is to see all, for they are all of one user. Some may just have gone."""

NO_UUID = "0" * 32
"""That of no request."""

MEMBERS = ("service", "url", "states", "secret")


async def put_hook(request: Request) -> Response:
    """Keep a hook, in place of the one for the same service and URL. A secret is made when none is given, and told
    this once."""
    read_query(request, ())
    hooks, client = _registry(request), visitor_of(request).client
    said = _read(await read_body(request, MAX_DOCUMENT))
    service, url, states = said["service"], said["url"], tuple(said.get("states", STATES))
    hook = Hook(id_of(service, url), service, url, states, said["secret"] if "secret" in said else new_secret())
    check_hook(hook)
    before = await _ask(hooks.find(hook.id))  # first: when the server is away, only looks are given up soon
    on_end = (await client.set_service(service))["on_end"]  # changes nothing, and tells who may not change it
    host = urlsplit(url).hostname or ""
    if (address := literal_address(host)) and not may_reach(address, app_state(request).settings.hooks_allow):
        raise Problem(409, not_reached(host))
    settings = await _ask(hooks.settings()) | {service: {"on_end": on_end or ENDED}}
    if silent := hook_status(settings, service):
        raise Problem(409, silent)
    if before is not None and "secret" not in said:
        hook = replace(hook, secret=before.secret)
    try:
        await _ask(hooks.check_room(service))
        await client.set_service(service, on_end=ENDED)
        await _ask(hooks.put(hook))
    except NoPlace as error:
        raise Problem(409, str(error)) from error
    await client.set_service(service, on_end=ENDED)  # the last hook may have been deleted at the same moment
    told = _told(hook, settings) | ({"secret": hook.secret} if before is None and "secret" not in said else {})
    return json_response(told, 201 if before is None else 200, {"Location": f"/v1/hooks/{hook.id}"})


def _read(body: bytes) -> dict[str, Any]:
    """What is said of a hook: members of the right types. Raises Problem."""
    try:
        said = read_json(body)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise Problem(400, 'the body is no JSON object; give {"service": "mail", "url": "https://example.com/hook"}')
    if unknown := [name for name in said if name not in MEMBERS]:
        raise Problem(400, f"the member {quoted(unknown[0])} is unknown; there are {', '.join(MEMBERS)}")
    for name in ("service", "url"):
        if not isinstance(said.get(name), str) or not _is_text(said[name]):
            raise Problem(400, f"{name} is missing, or no text; every hook has one")
    if "secret" in said and not isinstance(said["secret"], str):
        raise Problem(400, "secret is no text; leave it out to be given one")
    states = said.get("states", [])
    if not isinstance(states, list) or not all(isinstance(state, str) and _is_text(state) for state in states):
        raise Problem(400, f"states is no list of texts; there are {', '.join(STATES)}; leave it out for all")
    return said


def _is_text(text: str) -> bool:
    """Whether it is UTF-8: JSON can have half of a character."""
    return text.isascii() or text.encode(errors="replace").decode() == text


async def get_hooks(request: Request) -> Response:
    """All hooks, without their secrets; none for who may not see what others have submitted."""
    read_query(request, ())
    hooks = _registry(request)
    known, settings = await _ask(hooks.all()), await _ask(hooks.settings())
    if not await _may_see(request, [hook.uuid for hook in known[:SEEN]]):
        known = []
    return json_response({"hooks": [_told(hook, settings) for hook in sorted(known, key=_order)]})


async def get_hook(request: Request) -> Response:
    """One hook."""
    read_query(request, ())
    hook = await _find(request)
    return json_response(_told(hook, await _ask(_registry(request).settings())))


async def delete_hook(request: Request) -> Response:
    """Have a hook told nothing more."""
    read_query(request, ())
    hooks, client = _registry(request), visitor_of(request).client
    hook = await _find(request)
    await client.close(hook.uuid)
    with suppress(Forbidden):  # then ends are told, and nobody wants to know
        if not await _ask(hooks.of_service(hook.service)) and await _is_told(client, hook.service):
            await client.set_service(hook.service, on_end="")
            if await _ask(hooks.of_service(hook.service)):  # one was put at the same moment
                await client.set_service(hook.service, on_end=ENDED)
    return Response(status_code=204)


async def _is_told(client: Client, service: str) -> bool:
    return bool((await client.set_service(service))["on_end"] == ENDED)


async def _find(request: Request) -> Hook:
    id_ = request.path_params["hook"]
    hook = await _ask(_registry(request).find(id_))
    if hook is None or not await _may_see(request, [hook.uuid]):
        raise Problem(404, f"no hook is {quoted(id_)}; GET /v1/hooks lists those that you may see")
    return hook


async def _may_see(request: Request, uuids: Sequence[str]) -> bool:
    """Whether the server shows one of these requests to who asks. Raises Forbidden when it shows him nothing."""
    client = visitor_of(request).client
    for uuid in uuids or (NO_UUID,):
        with suppress(UnknownRequest):
            await client.show(uuid)
            return True
    return False


def _registry(request: Request) -> Registry:
    hooks = app_state(request).hooks
    if hooks is None:
        raise Problem(403, "web hooks are off; start titanic web with --hooks to have them delivered")
    return hooks


async def _ask(asking: Coroutine[Any, Any, T]) -> T:
    """What the server answers to the user who delivers hooks: what he may not do is no fault of who asks."""
    try:
        return await asking
    except Forbidden as error:
        fact = str(error).removeprefix("forbidden: ")
        what = f"web hooks do not work: the one who delivers them lacks a permission: {fact}"
        raise Problem(
            503, f"{what}; have who runs titanic web look at --hooks-user", headers={"Retry-After": "5"}
        ) from error


def _told(hook: Hook, settings: ServiceSettings) -> dict[str, Any]:
    problem = hook_status(settings, hook.service) or None
    return {**hook.public(), "problem": problem, "links": {"self": f"/v1/hooks/{hook.id}"}}


def _order(hook: Hook) -> tuple[str, str]:
    return hook.service, hook.url


_HOOK = {
    "id": TEXT,
    "service": TEXT,
    "url": TEXT,
    "states": listed({"enum": [*STATES]}),
    "problem": {
        "type": ["string", "null"],
        "description": "Why it is told nothing, and what to do: ends of its service go elsewhere. null: it is told.",
    },
    "links": record({"self": PATH}),
}
_ONE = parameter("path", "hook", "The id of a hook.", {"type": "string", "pattern": "^[0-9a-f]{20}$"})
_SECRET = {"secret": {"type": "string", "description": "Of the signatures; told this once."}}
_WHERE = {"Location": header("The hook.", PATH)}

PATHS: dict[str, dict[str, Any]] = {
    "/v1/hooks": {
        "get": {
            "operationId": "hooks",
            "summary": "The web hooks that you may see",
            "responses": {"200": answer("All of them.", record({"hooks": listed(record(_HOOK))})), **wrong()},
        },
        "put": {
            "operationId": "hook",
            "summary": "Have a URL told when requests of a service end",
            "description": f"A service may have {MAX_HOOKS} hooks, and {MAX_SERVICES} services may have some: "
            "more is 409.",
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {
                            **record(
                                {"service": SERVICE["schema"], "url": {"type": "string", "pattern": URL}},
                                {
                                    "states": {**listed({"enum": [*STATES]}), "minItems": 1, "uniqueItems": True},
                                    "secret": {"type": "string", "pattern": SECRET},
                                },
                            ),
                            "additionalProperties": False,
                        }
                    }
                },
            },
            "responses": {
                "200": answer("It was there, and is so now.", record(_HOOK), _WHERE),
                "201": answer("It is there now.", record(_HOOK, _SECRET), _WHERE),
                **wrong(409, 413),
            },
        },
    },
    "/v1/hooks/{hook}": {
        "parameters": [_ONE],
        "get": {
            "operationId": "one_hook",
            "summary": "A web hook",
            "responses": {"200": answer("The hook, without its secret.", record(_HOOK)), **wrong(404)},
        },
        "delete": {
            "operationId": "delete_hook",
            "summary": "Have a URL told nothing more",
            "responses": {"204": answer("It is gone."), **wrong(404)},
        },
    },
}

ROUTES = [
    ApiRoute("/v1/hooks", GET=get_hooks, PUT=put_hook),
    ApiRoute("/v1/hooks/{hook}", GET=get_hook, DELETE=delete_hook),
]
