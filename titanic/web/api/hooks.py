"""Webhooks: URLs that are notified when requests of a service end. See ../hooks/."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar
from urllib.parse import urlsplit

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from titanic.errors import Forbidden, UnknownRequest
from titanic.util.text import quoted
from titanic.web.api.openapi import (
    NewWebHook,
    Path,
    PutHook,
    WebHook,
    WebHooks,
    answer,
    endpoint,
    header,
    wrong,
)
from titanic.web.api.resource import ApiRoute, json_response, read_document
from titanic.web.app_state import app_state, visitor_of
from titanic.web.hooks.delivery import literal_address, may_reach, not_reached
from titanic.web.hooks.registry import (
    ENDED,
    MAX_HOOKS,
    MAX_SERVICES,
    Hook,
    NoPlace,
    Registry,
    ServiceSettings,
    check_hook,
    hook_status,
    id_of,
    new_secret,
)
from titanic.web.problems import HTTPProblem
from titanic.web.request_headers import ROOT

T = TypeVar("T")

MAX_DOCUMENT = 8 << 10
"""Maximum bytes of a document."""

SEEN = 3
"""Hooks that are checked: a user that may see one may see all, because all belong to one user. Some may just have been
deleted."""

NO_UUID = "0" * 32
"""The UUID of no request."""


async def put_hook(request: Request) -> Response:
    """Register a hook, replacing the one for the same service and URL. Without a secret, one is generated and returned
    this once."""
    hooks, client = _registry(request), visitor_of(request).client
    example = '{"service": "mail", "url": "https://example.com/hook"}'
    given = await read_document(request, PutHook, MAX_DOCUMENT, example)
    service, url, secret = given.service, given.url, given.secret
    hook = Hook(id_of(service, url), service, url, given.states, new_secret() if secret is UNSET else secret)
    check_hook(hook)
    before = await _ask(hooks.find(hook.id))  # first: while the server is away, only reads fail quickly
    on_end = (await client.set_service(service))["on_end"]  # changes nothing; raises Forbidden without the permission
    host = urlsplit(url).hostname or ""
    if (address := literal_address(host)) and not may_reach(address, app_state(request).settings.hooks_allow):
        raise HTTPProblem(409, not_reached(host))
    settings = await _ask(hooks.settings()) | {service: {"on_end": on_end or ENDED}}
    if status := hook_status(settings, service):
        raise HTTPProblem(409, status)
    if before is not None and secret is UNSET:
        hook = replace(hook, secret=before.secret)
    try:
        await _ask(hooks.check_room(service))
        await client.set_service(service, on_end=ENDED)
        await _ask(hooks.put(hook))
    except NoPlace as error:
        raise HTTPProblem(409, str(error)) from error
    await client.set_service(service, on_end=ENDED)  # the last hook may have been deleted at the same moment
    document = _as_json(hook, settings) | ({"secret": hook.secret} if before is None and secret is UNSET else {})
    return json_response(document, 201 if before is None else 200, {"Location": f"/v1/hooks/{hook.id}"})


async def get_hooks(request: Request) -> Response:
    """List all hooks, without their secrets; none for users that may not see other users' requests."""
    hooks = _registry(request)
    known, settings = await _ask(hooks.all()), await _ask(hooks.settings())
    if not await _may_see(request, [hook.uuid for hook in known[:SEEN]]):
        known = []
    known = sorted(known, key=attrgetter("service", "url"))
    return json_response({"hooks": [_as_json(hook, settings) for hook in known]})


async def get_hook(request: Request) -> Response:
    """Get one hook."""
    hook = await _find(request)
    return json_response(_as_json(hook, await _ask(_registry(request).settings())))


async def delete_hook(request: Request) -> Response:
    """Delete a hook."""
    hooks, client = _registry(request), visitor_of(request).client
    hook = await _find(request)
    await client.close(hook.uuid)
    with suppress(Forbidden):  # then ends are still reported, to no hook
        rest = await _ask(hooks.of_service(hook.service))
        if not rest and (await client.set_service(hook.service))["on_end"] == ENDED:
            await client.set_service(hook.service, on_end="")
            if await _ask(hooks.of_service(hook.service)):  # another was registered at the same moment
                await client.set_service(hook.service, on_end=ENDED)
    return Response(status_code=204)


async def _find(request: Request) -> Hook:
    id_ = request.path_params["hook"]
    hook = await _ask(_registry(request).find(id_))
    if hook is None or not await _may_see(request, [hook.uuid]):
        raise HTTPProblem(404, f"no hook has the id {quoted(id_)}; GET /v1/hooks lists those that you may see")
    return hook


async def _may_see(request: Request, uuids: Sequence[str]) -> bool:
    """Whether the user may see one of these requests. Raises Forbidden when the user may see none at all."""
    client = visitor_of(request).client
    for uuid in uuids or (NO_UUID,):
        with suppress(UnknownRequest):
            await client.show(uuid)
            return True
    return False


def _registry(request: Request) -> Registry:
    hooks = app_state(request).hooks
    if hooks is None:
        raise HTTPProblem(403, "webhooks are off; start titanic web with --hooks to deliver them")
    return hooks


async def _ask(asking: Coroutine[Any, Any, T]) -> T:
    """Await a call made as the hooks user: a missing permission of that user is not the caller's."""
    try:
        return await asking
    except Forbidden as error:
        fact = str(error).removeprefix("forbidden: ")
        what = f"webhooks do not work: the user that delivers them lacks a permission: {fact}"
        raise HTTPProblem(
            503, f"{what}; the administrator should check --hooks-user", headers={"Retry-After": "5"}
        ) from error


def _as_json(hook: Hook, settings: ServiceSettings) -> dict[str, Any]:
    problem = hook_status(settings, hook.service) or None
    return {**hook.public(), "problem": problem, "links": {"self": f"{ROOT.get()}/v1/hooks/{hook.id}"}}


_WHERE = {"Location": header("The hook.", Path)}

_PUT = f"A service may have {MAX_HOOKS} hooks, and {MAX_SERVICES} services may have hooks; beyond that, 409."

ROUTES = [
    ApiRoute(
        "/v1/hooks",
        GET=endpoint(
            get_hooks,
            "hooks",
            "The webhooks that you may see",
            {"200": answer("All of them.", WebHooks), **wrong()},
        ),
        PUT=endpoint(
            put_hook,
            "hook",
            "Notify a URL when requests of a service end",
            {
                "200": answer("The hook existed and was updated.", WebHook, _WHERE),
                "201": answer("The hook was created.", NewWebHook, _WHERE),
                **wrong(409, 413),
            },
            description=_PUT,
            body=PutHook,
        ),
    ),
    ApiRoute(
        "/v1/hooks/{hook}",
        GET=endpoint(
            get_hook,
            "one_hook",
            "A webhook",
            {"200": answer("The hook, without its secret.", WebHook), **wrong(404)},
        ),
        DELETE=endpoint(
            delete_hook,
            "delete_hook",
            "Delete a webhook",
            {"204": answer("The hook was deleted."), **wrong(404)},
        ),
    ),
]
