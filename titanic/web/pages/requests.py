"""The list of requests, fifty on a page. The page of a request: its timeline, its options, previews of its body and
reply, and what can be done with it.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from titanic.client.batching import KEY_PREFIX
from titanic.client.flows import FlowTree, flow_tree
from titanic.errors import InvalidRequest, TitanicError, UnknownRequest
from titanic.facts.service_health import POISON
from titanic.protocol.answers import BODY_GONE, Look, lacks_body
from titanic.protocol.documents import SUBMITTER_FIELDS, RequestInfo
from titanic.protocol.submit_options import DEFAULT_PRIORITY, Policy
from titanic.protocol.tsp import FLOW_SUFFIX, Frames
from titanic.util import ids
from titanic.util.text import counted, printable
from titanic.web.api.requests import described
from titanic.web.api.resource import unknown_request
from titanic.web.app_state import app_state, visitor_of
from titanic.web.auth.clients import call_sync
from titanic.web.hooks.registry import KEPT
from titanic.web.pages import forms
from titanic.web.pages.forms import NotPermitted, unless_forbidden
from titanic.web.pages.services import is_internal
from titanic.web.problems import HTTPProblem
from titanic.web.request_filter import (
    AGE_LABELS,
    STATES,
    FoundRequests,
    RequestFilter,
    find_page,
    parse_filter,
)
from titanic.web.template_filters import size, span

PAGE = 50
"""Requests on a page."""

BEGIN = 200
"""Bytes of each body that are fetched for a list."""

FOUND = 20
"""Requests of each kind that a search shows."""

SUGGESTED = 200
"""Service names that are suggested."""


async def requests(request: Request) -> Response:
    """Show the list."""
    state, visitor = app_state(request), visitor_of(request)
    wanted = parse_filter(request.query_params)
    after = request.query_params.get("after")
    asked = request.query_params.get("bodies") == "shown"
    wanted = replace(wanted, begin=BEGIN if asked else _begin(request))
    page = state.cache.get(request, "requests", find_page, visitor.client, wanted, after, PAGE)
    found = await unless_forbidden("requests", page)
    missing = found if isinstance(found, NotPermitted) else None
    rows, following = ([], None) if isinstance(found, NotPermitted) else found
    return state.page(
        request,
        "requests.html",
        missing=missing,
        filter=wanted,
        states=STATES,
        ages=AGE_LABELS,
        names=await _service_names(request),
        suggested=SUGGESTED,
        rows=rows,
        begins=_begins(rows),
        bodies="shown" if asked else "",
        hidden=wanted.begin is None,
        generated=KEY_PREFIX,
        next=wanted.url(after=following, **({"bodies": "shown"} if asked else {})) if following else "",
        start=wanted.url(**({"bodies": "shown"} if asked else {})) if after else "",
        searched=bool(following) and len(rows) < PAGE,
    )


def _begin(request: Request) -> int | None:
    """Bytes of bodies that lists show; None: the audit would record that, so only when it is asked for."""
    identity = app_state(request).identity
    return BEGIN if identity.is_open or not identity.reads_all(visitor_of(request).user) else None


def _begins(rows: Sequence[RequestInfo]) -> dict[str, str]:
    """The beginnings of bodies, by UUID, and arguments of tasks as in a call."""
    found = {}
    for row in rows:
        text = row.get("begin", "") if row["service"] != KEPT else ""
        known = task_arguments(text.encode()) if len(text.encode()) == row["body_bytes"] else None
        for at, (name, value) in enumerate(known or (), 1):
            text = f"{text}, " if at > 1 else ""
            text += value if name == str(at) else f"{name}={value}"
        found[row["uuid"]] = text
    return found


async def _service_names(request: Request) -> list[str]:
    """The service names; none for visitors that may not see them."""
    try:
        sample = await app_state(request).stats_poller.sample(visitor_of(request))
    except TitanicError:
        return []
    names = {*sample.stats["services"], *(sample.workers or ())}
    return sorted(name for name in names if not is_internal(name))


ERROR = "titanic:error="
"""The prefix of the frame in which the worker of a task names the exception (titanic/tasks/task_errors.py)."""

HIDDEN_SECRET = b"(the secret of the webhook is not shown)"


def _uuid(request: Request) -> str:
    uuid = ids.plain(request.path_params["uuid"]).lower()
    if ids.parse(uuid.encode(errors="replace")) is None:
        raise HTTPProblem(404, "this is not the UUID of a request; a UUID has 32 hexadecimal digits")
    return uuid


async def request_page(request: Request) -> Response:
    """Show a request."""
    uuid, state, visitor = _uuid(request), app_state(request), visitor_of(request)
    try:
        look = await visitor.client.look(uuid, MAX_BYTES, why=True)
    except UnknownRequest:
        return state.page(request, "request_unknown.html", unknown_request(uuid).status, uuid=uuid)
    row = look.info
    why, document = row.pop("why", None), described(row)
    details: list[FramePreview] = []
    raw = request.query_params.get("view") == "raw"
    frames = look.body[:1] + [HIDDEN_SECRET] * len(look.body[1:]) if row["service"] == KEPT else look.body
    body = preview_body(frames, row["body_frames"], row["body_bytes"], raw=raw)
    reply = preview_body(look.reply, row["reply_frames"], row["reply_bytes"], raw=raw)
    if row["state"] == "failed":
        details, reply = reply.frames, reply._replace(frames=[])
    return state.page(
        request,
        "request.html",
        row=row,
        why=why,
        key=document["key"],
        origin={name: row[name] for name in SUBMITTER_FIELDS if name in row},  # type: ignore[literal-required]
        timeline=timeline(row),
        body=body,
        arguments=task_arguments(frames[0]) if len(frames) == 1 and is_whole(look) and not raw else None,
        raw=raw,
        runs=not is_internal(row["service"]),
        poison=POISON,
        default_priority=DEFAULT_PRIORITY,
        reply=reply,
        errors=[_error(detail) for detail in details],
        tree=await _tree(request, row),
        commands=_commands(request, row),
        document=json.dumps(document, indent=2, ensure_ascii=False),
    )


def _error(detail: FramePreview) -> FramePreview:
    """Show the type and arguments of a task's exception; any other detail as it is."""
    if detail.kind != "text" or not detail.text.startswith(ERROR):
        return detail
    try:
        error = json.loads(detail.text.removeprefix(ERROR))
        arguments = ", ".join(json.dumps(one, ensure_ascii=False) for one in error["args"])
        return detail._replace(kind="error", text=f"{error['type']}({arguments})")
    except (ValueError, KeyError, TypeError, RecursionError):
        return detail


async def _tree(request: Request, row: RequestInfo) -> FlowTree | str | None:
    """The steps of a workflow, or why they cannot be shown; None: it is no workflow."""
    if not _is_flow(row):
        return None
    try:
        return await call_sync(visitor_of(request).client, flow_tree, row["uuid"], row.get("closed_steps", ()))
    except TitanicError as error:
        return str(error)


def _commands(request: Request, row: RequestInfo) -> list[tuple[str, str]]:
    """Commands that show the same, each with a description."""
    uuid, base = row["uuid"], str(request.base_url).rstrip("/")
    at = "".join(f" --endpoint {shlex.quote(one)}" for one in app_state(request).settings.endpoint)
    token = ' -H "Authorization: Bearer $TOKEN"' if visitor_of(request).user else ""
    found = [
        (f"titanic show {uuid}{at}", "the request"),
        (f"curl{token} {base}/v1/requests/{uuid}", "the request as JSON"),
    ]
    if row["state"] == "done":
        found.append((f"curl{token} {base}/v1/requests/{uuid}/reply", "its reply"))
    if row["state"] in ("failed", "expired"):
        kills = "; it may kill its workers again" if row["reason"].startswith(POISON) else ""
        found.append((f"titanic retry {uuid}{at}", f"retry it{kills}"))
    return found


async def confirm(request: Request) -> Response:
    """Ask for confirmation: closing cannot be undone, and a retry of poison may kill workers again."""
    row, action = await visitor_of(request).client.show(_uuid(request)), request.url.path.rpartition("/")[2]
    return app_state(request).page(request, "request_confirm.html", row=row, action=action, poison=POISON)


async def retry(request: Request) -> Response:
    """Retry a failed or expired request, perhaps with another body."""
    form = await forms.read(request)
    uuid, client = _uuid(request), visitor_of(request).client
    body = _edited(form, (await _look_again(request)).body) if "body" in form else None
    done = await client.retry(uuid, body=body)
    if not done:
        row = await client.show(uuid)  # raises when the visitor may not see it
        if lacks_body(row):
            raise HTTPProblem(410, f"the request cannot be retried: {BODY_GONE}")
        if row["state"] in ("failed", "expired"):
            fact = f"you lack the submit permission for {row['service']}"
            raise HTTPProblem(403, f"the request was not retried: {fact}; ask the administrator")
    message = "Queued again with its attempts reset." if done else "Not retried: it has not failed or expired."
    return app_state(request).to(request, f"/requests/{uuid}", message)


async def start(request: Request) -> Response:
    """Let a delayed request start at once."""
    await forms.read(request)
    uuid = _uuid(request)
    await visitor_of(request).client.change(uuid, delay=0)
    return app_state(request).to(request, f"/requests/{uuid}", "The delay was removed.")


async def close(request: Request) -> Response:
    """Close a request."""
    kill = "kill" in await forms.read(request)
    uuid = _uuid(request)
    alive = await visitor_of(request).client.close(uuid, kill=kill)
    more = " Its worker was notified, but cannot be killed." if alive else ""
    return app_state(request).to(request, f"/requests/{uuid}", f"The request and its reply were deleted.{more}")


# -- running it again -----------------------------------------------------------------------------------------------

OWN = {"unique", "unique_until", "unique_for", "trace", "tracestate", "digest"}
"""Fields of Policy that a copy of a request does not have: they are to tell requests apart."""

MAX_AGAIN = 1 << 20
"""Bytes of a body that can be submitted again from a page."""


def is_whole(found: Look) -> bool:
    """Whether all of the body was fetched, and there is one (`keep_body`)."""
    return (
        found.info["body_frames"] > 0
        and len(found.body) == found.info["body_frames"]
        and sum(map(len, found.body)) == found.info["body_bytes"]
    )


async def again_page(request: Request) -> Response:
    """Ask for confirmation to run a request again, with this body or another."""
    found = await _look_again(request)
    return app_state(request).page(
        request, "request_again.html", row=found.info, text=_editable(found.body), poison=POISON
    )


async def again(request: Request) -> Response:
    """Submit a request with the service, the options and the body of another one; it may start at once."""
    form = await forms.read(request)
    found = await _look_again(request)
    return await submit_again(request, found.info, _edited(form, found.body) or found.body, delay=0)


def _edited(form: forms.Form, body: Frames) -> Frames | None:
    """The body in a form; None: it is the same."""
    text = form.get("body", "").replace("\r\n", "\n")  # browsers send \r\n for \n
    return [text.encode()] if "body" in form and _editable(body) not in (None, text) else None


async def _look_again(request: Request) -> Look:
    found = await visitor_of(request).client.look(_uuid(request), MAX_AGAIN)
    row = found.info
    if is_internal(row["service"]):
        raise HTTPProblem(400, f"requests of {row['service']} only record a state; there is nothing to run")
    if not row["body_frames"]:
        raise HTTPProblem(410, f"the request cannot be run again: {BODY_GONE}")
    if not is_whole(found):
        fact = f"its body is {size(row['body_bytes'])}; the limit here is {size(MAX_AGAIN)}"
        raise HTTPProblem(413, f"the request cannot be run again from here: {fact}; download the body and submit it")
    return found


def _editable(body: Frames) -> str | None:
    """The body as a form can change it and otherwise leaves it as it is, byte for byte; None: it cannot."""
    if len(body) != 1 or len(body[0]) > MAX_BYTES:
        return None
    with suppress(UnicodeDecodeError):
        text = body[0].decode()
        if all(one.isprintable() or one in "\n\t" for one in text):
            return text
    return None


async def submit_again(request: Request, row: RequestInfo, body: Frames, **more: Any) -> Response:
    """Submit a request with the options of another one, as the visitor; redirect to it."""
    visitor = visitor_of(request)
    options = options_of(row) | more
    if visitor.source:
        options["source"] = visitor.source
    uuid = await visitor.client.submit(row["service"], *body, **options)
    return RedirectResponse(f"/requests/{uuid}", 303)


def options_of(row: RequestInfo) -> dict[str, Any]:
    """The options that a request was submitted with, without its OWN."""
    known: dict[str, Any] = {**row, **row["options"]}
    names = {"max_attempts", *Policy._fields} - OWN
    options = {"priority": row["priority"], **{name: known[name] for name in names if known.get(name)}}
    if row["expires_at"]:
        options["ttl"] = max(0.001, (row["expires_at"] - row["submitted_at"]) / 1e6)
    if row["not_before"] > row["submitted_at"]:
        options["delay"] = (row["not_before"] - row["submitted_at"]) / 1e6
    return options


async def find(request: Request) -> Response:
    """Redirect to the request with this UUID or key; else show services, the newest requests of a user, and those whose
    error or key contains the text."""
    text = request.query_params.get("q", "").strip()
    uuid = ids.plain(text).lower()
    if ids.parse(uuid.encode(errors="replace")) is not None:
        return RedirectResponse(f"/requests/{uuid}", 303)
    names, owned, matched = list[str](), FoundRequests([], None), FoundRequests([], None)
    if text:
        client = visitor_of(request).client
        uuids, _ = await client.find([text[:255]])
        if text in uuids:
            return RedirectResponse(f"/requests/{uuids[text]}", 303)
        wanted = RequestFilter(begin=_begin(request))
        with suppress(InvalidRequest):  # the server is of an older version
            owned = await find_page(client, replace(wanted, owner=text[:255]), None, FOUND)
        matched = await find_page(client, replace(wanted, text=text[:255]), None, FOUND)
        names = [name for name in await _service_names(request) if text.casefold() in name.casefold()]
    status = 200 if names or owned.rows or matched.rows or not text else 404
    return app_state(request).page(
        request,
        "request_find.html",
        status,
        text=text,
        services=names[:FOUND],
        owned=owned,
        matched=matched,
        begins=_begins([*owned.rows, *matched.rows]),
        generated=KEY_PREFIX,
    )


# -- timeline -----------------------------------------------------------------------------------------------------

DONE, NOW, AHEAD, UNKNOWN = "done", "now", "ahead", "unknown"

ENDS = {"done": "Done", "failed": "Failed permanently", "expired": "Expired", "cancelled": "Cancelled"}


class TimelineEntry(NamedTuple):
    """Something that happened, is happening, is to come, or happened at an unknown time."""

    stage: str
    what: str
    at: int = 0
    """Microseconds since 1970; 0: unknown."""
    more: str = ""
    error: str = ""
    """With the traceback."""
    label: str = ""
    """Of the error; empty: its own."""


FAILURES = {"failed": "Attempt failed", "died": "Worker died", "lost": "Worker lost; not counted as an attempt"}


def timeline(row: RequestInfo) -> list[TimelineEntry]:
    """What is known of a request, in order. What the store does not keep is shown as unknown."""
    owner = row.get("owner")
    found = [TimelineEntry(DONE, "Submitted", row["submitted_at"], f"by {owner}" if owner else "")]
    ended = row["state"] in ENDS
    if row["not_before"] > row["submitted_at"]:
        is_delayed = row["state"] == "delayed" and not (row["attempts"] or row.get("deliveries"))
        found.append(TimelineEntry(NOW if is_delayed else DONE, "Delayed until", row["not_before"]))
    found += _attempts(row)
    failed = sum(row["history"]["counts"].values()) if "history" in row else row["attempts"]
    polls = max(0, row.get("deliveries", 0) - failed)
    if polls:
        what = "Polled its steps" if _is_flow(row) else "Dispatched without a result"
        found.append(TimelineEntry(DONE, f"{what} {counted(polls, 'time')}"))
    if row["state"] == "waiting":
        text = "dispatched again as soon as a worker is free" if polls or row["attempts"] else "not dispatched yet"
        found.append(TimelineEntry(NOW, "Waiting for a worker", 0, text))
    elif row["state"] == "running":
        at = f"on {row['worker']}" if "worker" in row else "with a worker, or queued for the next free one"
        since = row.get("running_since", 0)
        found.append(TimelineEntry(NOW, "Running since" if since else "Running", since, at))
    elif row["state"] == "delayed" and (polls or row["attempts"]):
        what = "Next poll of its steps" if _is_flow(row) else f"Next attempt ({row['attempts'] + 1})"
        found.append(TimelineEntry(NOW, what, row["due"], "" if polls else "after the retry delay"))
    if ended:
        found.append(_end(row))
    elif row["expires_at"]:
        found.append(TimelineEntry(AHEAD, "Expires unless started", row["expires_at"]))
    return found


def _attempts(row: RequestInfo) -> list[TimelineEntry]:
    """The attempts that are over. Without a history, of all but the last only the number is known."""
    attempts, state = row["attempts"], row["state"]
    found = _failed_attempts(row)
    if not attempts or (found and state != "done"):
        return found
    earlier = attempts - 1
    if earlier and not found:
        found.append(TimelineEntry(UNKNOWN, f"{counted(earlier, 'earlier attempt')} failed", 0, "times not stored"))
    last, waited = "Dispatched" if attempts == 1 else f"Attempt {attempts} dispatched", ""
    if _is_flow(row):
        last = "Last poll of its steps"
    elif attempts == 1 and row["dispatched_at"]:
        waited = f"after {span(max(0, row['dispatched_at'] - row['submitted_at']) / 1e6)}"
    found.append(TimelineEntry(DONE, last, row["dispatched_at"], waited))
    if state not in ENDS or state == "expired":
        found.append(TimelineEntry(DONE, f"Attempt {attempts} failed", 0, "see the error"))
    return found


def _failed_attempts(row: RequestInfo) -> list[TimelineEntry]:
    """The attempts in the history."""
    found: list[TimelineEntry] = []
    if (history := row.get("history")) is None:
        return found
    for one in history["attempts"]:
        worker = f" on {one['worker']}" + (f" ({one['user']})" if one["user"] else "") if one["worker"] else ""
        more = f"delivery {one['delivery']}{worker}, after {span(max(0, one['ended_at'] - one['started_at']) / 1e6)}"
        found.append(TimelineEntry(DONE, FAILURES[one["outcome"]], one["ended_at"], more, one["error"]))
    omitted = sum(history["counts"].values()) - len(found)
    for old in history.get("replaced", ()):
        text = "".join(old["frames"]) + " (base64)" * old["base64"]
        found.append(TimelineEntry(DONE, "Body replaced", old["replaced_at"], size(old["bytes"]), text, "Old body"))
    found.sort(key=lambda one: one.at)
    if omitted:
        found.insert(1, TimelineEntry(UNKNOWN, f"{counted(omitted, 'more attempt')} failed", 0, "details not kept"))
    return found


def _is_flow(row: RequestInfo) -> bool:
    """Whether its worker only polls its steps, again and again."""
    return row["service"].endswith(FLOW_SUFFIX)


def _end(row: RequestInfo) -> TimelineEntry:
    ran = row["dispatched_at"] and row["state"] in ("done", "failed") and not _is_flow(row)
    since = row["dispatched_at"] if ran else row["submitted_at"]
    took = span(max(0, row["finished_at"] - since) / 1e6)
    return TimelineEntry(DONE, ENDS[row["state"]], row["finished_at"], f"{'ran for' if ran else 'after'} {took}")


# -- previews of bodies and replies ---------------------------------------------------------------------------------
# Content never becomes part of the page: text is escaped, and only pixel images are embedded as images.

MAX_BYTES = 65536
"""Bytes of a body and of a reply that are fetched."""

MAX_FRAMES = 20
"""Frames of each that are shown."""

MAX_DEPTH = 20
"""Nesting of JSON that is formatted: what is deeper would be mostly indentation."""

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
"""A token of JSON."""

DUMP_WIDTH = 16
"""Bytes in a line of a hex dump."""

IMAGES = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF87a", 0, "image/gif"),
    (b"GIF89a", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
)
"""Image formats that cannot contain a script: magic bytes, their offset, and the media type."""


class FramePreview(NamedTuple):
    """A frame. `kind`: json, text, image, hex or empty. `text` is shown; for an image it is a data: URI."""

    kind: str
    text: str
    size: int
    cut: bool = False
    """Whether the frame is longer than what is shown."""


class BodyPreview(NamedTuple):
    """A body or a reply. `more`: frames that are not shown."""

    frames: list[FramePreview]
    size: int
    more: int


def preview_body(frames: Sequence[bytes], count: int, size: int, *, raw: bool = False) -> BodyPreview:
    """Preview a body of `count` frames with `size` bytes in all, of which only `frames` were fetched; the last of
    these may be cut."""
    got = sum(map(len, frames))
    shown = [
        preview(frame, cut=got < size and at == len(frames) - 1, raw=raw)
        for at, frame in enumerate(frames[:MAX_FRAMES])
    ]
    return BodyPreview(shown, size, count - len(shown))


def preview(frame: bytes, *, cut: bool = False, raw: bool = False) -> FramePreview:
    """Preview a frame as what it is; `raw`: as text or a hex dump."""
    if not frame:
        return FramePreview("empty", "", 0, cut)
    kind = next((kind for magic, at, kind in IMAGES if frame[at : at + len(magic)] == magic), None)
    if kind is not None and not cut and not raw:
        return FramePreview("image", f"data:{kind};base64,{base64.b64encode(frame).decode()}", len(frame))
    text = _text(frame, cut)
    if text is None:
        return FramePreview("hex", dump(frame), len(frame), cut)
    formatted = None if cut or raw else _format_json(text)
    if formatted is not None:
        return FramePreview("json", formatted, len(frame))
    return FramePreview("text", printable(text), len(frame), cut)


def dump(frame: bytes) -> str:
    """A hex dump: offset, hexadecimal digits and ASCII."""
    lines = []
    for at in range(0, len(frame), DUMP_WIDTH):
        part = frame[at : at + DUMP_WIDTH]
        ascii_ = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:06x}  {part.hex(' '):<{3 * DUMP_WIDTH}} {ascii_}")
    return "\n".join(lines)


def _text(frame: bytes, cut: bool) -> str | None:
    """Decode a frame; None when it is not text."""
    try:
        text = frame.decode()
    except UnicodeDecodeError as error:
        if not (cut and error.start >= len(frame) - 3):  # the cut went through a character
            return None
        text = frame[: error.start].decode()
    strange = sum(not one.isprintable() and one not in "\n\r\t\x1b" for one in text)
    return text.replace("\r\n", "\n") if strange * 20 <= len(text) else None


def _format_json(text: str) -> str | None:
    """Indent a JSON object or array; None when it is none or nested too deep. Values stay as they were written:
    parsed and serialized, 1.10 would become 1.1, and of two members with one name only the last would remain."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        json.loads(text, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    depth, before = 0, ""
    for token in TOKEN.findall(text):
        closes, opened = token in ("]", "}"), before in ("[", "{")
        depth -= closes
        if (closes and not opened) or (not closes and (opened or before == ",")):
            parts.append("\n" + "  " * depth)
        depth += token in ("[", "{")
        if depth > MAX_DEPTH:
            return None
        parts.append(": " if token == ":" else token)
        before = token
    return printable("".join(parts))


class TaskArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for a task, in JSON or msgpack."""

    args: list[msgspec.Raw]
    kwargs: dict[str, msgspec.Raw]


def task_arguments(frame: bytes) -> list[tuple[str, str]] | None:
    """The arguments of a task, with their positions or names, as JSON; None: it is no body of a task."""
    for formats, text_of in ((msgspec.json, bytes), (msgspec.msgpack, _as_json)):
        with suppress(ValueError, RecursionError):
            found = formats.decode(frame, type=TaskArguments)
            values = [*((str(at), one) for at, one in enumerate(found.args, 1)), *found.kwargs.items()]
            texts = [(name, text_of(value).decode()) for name, value in values]
            return [(name, _format_json(text) or printable(text)) for name, text in texts]
    return None


def _as_json(value: msgspec.Raw) -> bytes:
    return msgspec.json.encode(msgspec.msgpack.decode(value))


ONE_ROUTES = [
    Route("/find", find),
    Route("/requests/{uuid}", request_page),
    Route("/requests/{uuid}/again", again_page),
    Route("/actions/requests/{uuid}/again", again, methods=["POST"]),
    Route("/requests/{uuid}/close", confirm),
    Route("/requests/{uuid}/retry", confirm),
    Route("/actions/requests/{uuid}/retry", retry, methods=["POST"]),
    Route("/actions/requests/{uuid}/start", start, methods=["POST"]),
    Route("/actions/requests/{uuid}/close", close, methods=["POST"]),
]

ROUTES = [Route("/requests", requests)]
