"""Schedules: what the queue tells of them, pauses, and a request beside the ticks."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from titanic.protocol.answers import RequestInfo
from titanic.schedules import queue_state
from titanic.schedules.schedule import check_name
from titanic.web.gateway import gateway_of, visitor_of
from titanic.web.pages import forms
from titanic.web.pages.beside import beside
from titanic.web.pages.scheduled import look, read_key
from titanic.web.problems import Problem
from titanic.web.words import size

MOST_BODY = 1 << 20
"""Bytes of a body that is submitted once more."""


async def schedules(request: Request) -> Response:
    """The page."""
    ask = partial(look, visitor_of(request).client)
    found = await gateway_of(request).looks.share(request, "schedules", ask)
    return gateway_of(request).page(request, "schedules.html", found=found)


async def pause(request: Request) -> Response:
    """Pause a schedule, whether or not the queue has seen it."""
    return await _set(request, "pause")


async def resume(request: Request) -> Response:
    """Resume a schedule."""
    return await _set(request, "resume")


async def _set(request: Request, verb: str) -> Response:
    name = (await forms.read(request)).get("name", "").strip()
    check_name(name)
    client = visitor_of(request).client
    if verb == "pause":
        await beside(client, queue_state.pause, name)
        told = "is paused."
    elif await beside(client, queue_state.resume, name):
        told = "goes on with the ticks that come from now on."
    else:
        told = "was not paused."
    return gateway_of(request).to(request, "/schedules", f"{name} {told}")


async def run(request: Request) -> Response:
    """Submit the newest request of a schedule once more, beside its ticks."""
    uuid = (await forms.read(request)).get("uuid", "")
    client = visitor_of(request).client
    found = await client.look(uuid, MOST_BODY)
    row = found.info
    said = read_key(row["key"])
    if said is None or said[1] == "paused":
        raise Problem(400, "this is not the request of a schedule; go to the schedules, and run one from there")
    name = said[0]
    if len(found.body) < row["body_frames"] or sum(map(len, found.body)) < row["body_bytes"]:
        fact = f"its body has {size(row['body_bytes'])}, and {size(MOST_BODY)} can be copied here"
        raise Problem(413, f"{name} cannot be run from here: {fact}; use `titanic cron run FILE {name}`")
    key = f"cron:{name}:run:{os.urandom(8).hex()}"
    again = await client.submit(row["service"], *found.body, key=key, **options_of(row))
    return RedirectResponse(f"/requests/{again}", 303)


def options_of(row: RequestInfo) -> dict[str, Any]:
    """The options with which a request was submitted, but for its keys and trace."""
    known: dict[str, Any] = {**row}
    options: dict[str, Any] = {"priority": row["priority"], **row["options"]}
    if row["max_attempts"]:
        options["max_attempts"] = row["max_attempts"]
    if row["expires_at"]:
        options["ttl"] = max(0.001, (row["expires_at"] - row["submitted_at"]) / 1e6)
    if row["not_before"] > row["submitted_at"]:
        options["delay"] = (row["not_before"] - row["submitted_at"]) / 1e6
    return options | {name: known[name] for name in ("type",) if known.get(name)}


ROUTES = [
    Route("/schedules", schedules),
    Route("/actions/schedules/pause", pause, methods=["POST"]),
    Route("/actions/schedules/resume", resume, methods=["POST"]),
    Route("/actions/schedules/run", run, methods=["POST"]),
]
