"""A request: its life, what it was submitted with, its body and reply, and what can be done with it."""

from __future__ import annotations

import json
import shlex

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from titanic.errors import TitanicError, UnknownRequest
from titanic.protocol.answers import RequestInfo
from titanic.util import ids
from titanic.web.api.answers import unknown
from titanic.web.api.requests import described
from titanic.web.gateway import gateway_of, visitor_of
from titanic.web.hooks.registry import KEPT
from titanic.web.pages import forms
from titanic.web.pages.beside import beside
from titanic.web.pages.contents import MOST, Content, contents
from titanic.web.pages.life import life
from titanic.web.problems import Problem
from titanic.workflows.tree import SUFFIX, FlowTree, flow_tree

ERROR = "titanic:error="
"""How the frame begins in which the worker of a task says which exception it was (titanic/tasks/failures.py)."""

SECRET_KEPT = b"(the secret of the web hook is not shown)"


def _uuid(request: Request) -> str:
    uuid = ids.plain(request.path_params["uuid"]).lower()
    if ids.parse(uuid.encode(errors="replace")) is None:
        raise Problem(404, "this is not the UUID of a request; a UUID has 32 hexadecimal digits, so copy it again")
    return uuid


async def request_page(request: Request) -> Response:
    """The page of a request."""
    uuid, gateway, visitor = _uuid(request), gateway_of(request), visitor_of(request)
    try:
        look = await visitor.client.look(uuid, MOST)
    except UnknownRequest:
        return gateway.page(request, "request_unknown.html", unknown(uuid).status, uuid=uuid)
    row, document = look.info, described(look.info)
    words: list[Content] = []
    told = look.body[:1] + [SECRET_KEPT] * len(look.body[1:]) if row["service"] == KEPT else look.body
    body = contents(told, row["body_frames"], row["body_bytes"])
    reply = contents(look.reply, row["reply_frames"], row["reply_bytes"])
    if row["state"] == "failed":
        words, reply = reply.frames, reply._replace(frames=[])
    return gateway.page(
        request,
        "request.html",
        row=row,
        key=document["key"],
        life=life(row),
        body=body,
        reply=reply,
        errors=[_error(said) for said in words],
        tree=await _tree(request, row),
        commands=_commands(request, row),
        document=json.dumps(document, indent=2, ensure_ascii=False),
    )


def _error(said: Content) -> Content:
    """What a worker said of its failure: of the exception of a task its type and arguments."""
    if said.kind != "text" or not said.text.startswith(ERROR):
        return said
    try:
        error = json.loads(said.text.removeprefix(ERROR))
        arguments = ", ".join(json.dumps(one, ensure_ascii=False) for one in error["args"])
        return said._replace(kind="error", text=f"{error['type']}({arguments})")
    except (ValueError, KeyError, TypeError, RecursionError):
        return said


async def _tree(request: Request, row: RequestInfo) -> FlowTree | str | None:
    """The steps of a flow; why they are not shown; None: it is no flow."""
    if not row["service"].endswith(SUFFIX):
        return None
    try:
        return await beside(visitor_of(request).client, flow_tree, row["uuid"])
    except TitanicError as error:
        return str(error)


def _commands(request: Request, row: RequestInfo) -> list[tuple[str, str]]:
    """What to type to see the same: the command, and what it does."""
    uuid, base = row["uuid"], str(request.base_url).rstrip("/")
    at = "".join(f" --endpoint {shlex.quote(one)}" for one in gateway_of(request).settings.endpoint)
    token = ' -H "Authorization: Bearer $TOKEN"' if visitor_of(request).user else ""
    found = [(f"titanic show {uuid}{at}", "all of it"), (f"curl{token} {base}/v1/requests/{uuid}", "the same as JSON")]
    if row["state"] == "done":
        found.append((f"curl{token} {base}/v1/requests/{uuid}/reply", "its reply"))
    if row["state"] in ("failed", "expired"):
        found.append((f"titanic retry {uuid}{at}", "try it again"))
    return found


async def close_page(request: Request) -> Response:
    """Asks whether a request is to be closed: that cannot be taken back."""
    row = await visitor_of(request).client.show(_uuid(request))
    return gateway_of(request).page(request, "request_close.html", row=row)


async def retry(request: Request) -> Response:
    """Requeue a request that failed or expired."""
    await forms.read(request)
    uuid, client = _uuid(request), visitor_of(request).client
    done = await client.retry(uuid)
    if not done:
        row = await client.show(uuid)  # who may not see it hears so
        if row["state"] in ("failed", "expired"):
            fact = f"you lack the permission submit for {row['service']}"
            raise Problem(403, f"it was not requeued: {fact}; ask who runs this Titanic")
    told = "It waits again, as if it had never been tried." if done else "It was not requeued: it has not failed."
    return gateway_of(request).to(request, f"/requests/{uuid}", told)


async def close(request: Request) -> Response:
    """Close a request."""
    await forms.read(request)
    uuid = _uuid(request)
    await visitor_of(request).client.close(uuid)
    return gateway_of(request).to(request, f"/requests/{uuid}", "The request and its reply are deleted.")


async def find(request: Request) -> Response:
    """To the request with this UUID or this key."""
    words = request.query_params.get("q", "").strip()
    uuid = ids.plain(words).lower()
    if ids.parse(uuid.encode(errors="replace")) is not None:
        return _back(f"/requests/{uuid}")
    if words:
        uuids, _ = await visitor_of(request).client.find([words[:255]])
        if words in uuids:
            return _back(f"/requests/{uuids[words]}")
    return gateway_of(request).page(request, "request_find.html", 404 if words else 200, words=words)


def _back(where: str) -> Response:
    return RedirectResponse(where, 303)


ROUTES = [
    Route("/find", find),
    Route("/requests/{uuid}", request_page),
    Route("/requests/{uuid}/close", close_page),
    Route("/actions/requests/{uuid}/retry", retry, methods=["POST"]),
    Route("/actions/requests/{uuid}/close", close, methods=["POST"]),
]
