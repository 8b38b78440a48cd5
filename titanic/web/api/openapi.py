"""The documents of the API, and how operations refer to them in the OpenAPI document. Those of the protocol
(titanic/protocol/documents.py) are declared there.

msgspec derives the schemas: of these documents, and of the options of `messages.Submit` that are headers here.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from datetime import datetime
from functools import reduce
from operator import or_
from types import GenericAlias, UnionType
from typing import Annotated, Any, Literal, NotRequired, TypedDict, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from titanic.protocol.documents import (
    AttemptHistory,
    AuditAct,
    AuditPage,
    AuditRefusal,
    ClosedStep,
    FactsInfo,
    FailedAttempt,
    FailureGroupInfo,
    OtherServices,
    RedriveInfo,
    ReplacedBody,
    RequestInfo,
    RequestInHand,
    ScheduleInfo,
    ServiceFacts,
    ServiceStats,
    TickInfo,
    UsualTimes,
    WhyInfo,
    WorkerInfo,
    WorkersInfo,
)
from titanic.protocol.messages import (
    Delay,
    Ids,
    JobChange,
    JobWhere,
    Message,
    Number,
    Priority,
    Rate,
    ServiceCount,
    ServiceRate,
    Submit,
)
from titanic.protocol.submit_options import MOST_UUIDS
from titanic.protocol.tsp import Progress
from titanic.web.api.resource import PAGE, Endpoint, Handler
from titanic.web.hooks.registry import SECRET, URL
from titanic.web.problems import PROBLEM_JSON, TITLES
from titanic.web.request_headers import MAX_KEY, MIN_SPAN, OPTIONS, header_title

Part = dict[str, Any]
"""A part of an OpenAPI document."""

Uuid = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Path = Annotated[str, Meta(extra_json_schema={"format": "uri-reference"})]
Time = Annotated[str, Meta(description="RFC 3339, in UTC.", extra_json_schema={"format": "date-time"})]
Count = Annotated[int, Meta(ge=0)]
Next = Annotated[str | None, Meta(description="The next page; null: this is the last.")]
Ends = Annotated[
    tuple[Literal["done", "failed", "expired"], ...], Meta(min_length=1, extra_json_schema={"uniqueItems": True})
]
ServiceName = Annotated[str, Meta(min_length=1, max_length=255, extra_json_schema={"format": "service-name"})]


_SECRET = "16 to 256 printable ASCII characters without spaces"


class Links(TypedDict):
    """Where a request and its reply are."""

    self: Path
    reply: Path


class Accepted(TypedDict):
    """A stored request."""

    uuid: Uuid
    links: Links
    found: NotRequired[Annotated[bool, Meta(description="An earlier request that `Titanic-Unique` found.")]]


_AT = "a time with its zone, at most ten years from now: 2026-12-01T08:00:00Z"


class ChangeRequest(Message):
    """What to change of a waiting or delayed request. `delay` and `at` cannot be combined."""

    priority: Priority | msgspec.UnsetType = msgspec.UNSET
    delay: Delay | msgspec.UnsetType = msgspec.UNSET
    at: Annotated[str, Meta(description=_AT, extra_json_schema={"format": "date-time"})] | msgspec.UnsetType = (
        msgspec.UNSET
    )

    def __post_init__(self) -> None:
        if self.priority is self.delay is self.at is msgspec.UNSET:
            raise ValueError("a change must have priority, delay or at")
        if self.delay is not msgspec.UNSET and self.at is not msgspec.UNSET:
            raise ValueError("delay and at cannot be combined")


class AcceptedBatch(TypedDict):
    """Stored requests, in the order of the items."""

    uuids: list[Uuid]


class WorkerProgress(TypedDict):
    """`done` of `of`, in the worker's own unit; `of` is null when it is not known how much there is."""

    done: float
    of: float | None
    text: str


class AttemptOptions(TypedDict):
    """Options of a request, as far as given, in seconds."""

    limit: NotRequired[float]
    retry_first: NotRequired[float]
    retry_most: NotRequired[float]
    keep: NotRequired[float]
    keep_failed: NotRequired[float]
    keep_body: NotRequired[float]
    unique_for: NotRequired[float]


class ServiceLinks(TypedDict):
    """Where the requests of a service are listed and submitted."""

    requests: Path
    submit: Path


class ServiceBounds(TypedDict):
    """The limits of a service; null: none."""

    waiting: float | None
    bytes: float | None
    running: float | None
    rate: float | None


class ChangedBounds(ServiceBounds):
    """The limits that an admin has set; null: the configured one holds. `by` is empty for users without `audit`, and
    except in the answer to the change."""

    configured: ServiceBounds
    at: Time
    by: str


class BoundsInForce(TypedDict):
    """The limits of a service. `limits_set` is absent if none is set."""

    limits: ServiceBounds
    limits_set: NotRequired[ChangedBounds]


class PutLimits(Message):
    """The limits to set, instead of all that were. Absent or null: the configured one holds. `rate` is per second."""

    waiting: ServiceCount | None = None
    bytes: ServiceCount | None = None
    running: ServiceCount | None = None
    rate: ServiceRate | None = None


class StartJob(Message):
    """A job over the requests that meet all conditions of `where`, or `uuids`."""

    action: Literal["retry", "close"]
    where: JobWhere | msgspec.UnsetType = msgspec.UNSET
    uuids: Ids | msgspec.UnsetType = msgspec.UNSET
    rate: Rate | None = None


class ChangeJob(Message):
    """`confirm` needs the `count` of the job."""

    change: JobChange
    count: Number | None = None


class ExtendedLease(TypedDict):
    """An extended lease."""

    lease: str
    request: Annotated[str, Meta(description="The UUID; empty for a plain call.")]
    deadline: Time


class HookLinks(TypedDict):
    """Where a hook is."""

    self: Path


class WebHook(TypedDict):
    """A webhook."""

    id: str
    service: str
    url: str
    states: Ends
    problem: Annotated[
        str | None,
        Meta(
            description="Why the hook gets no events (its service notifies another service), and what to do; null: it "
            "gets events."
        ),
    ]
    links: HookLinks


class NewWebHook(WebHook):
    """A registered webhook."""

    secret: NotRequired[Annotated[str, Meta(description="The key of the signatures; returned only once.")]]


class WebHooks(TypedDict):
    """The webhooks that you may see."""

    hooks: list[WebHook]


class PutHook(Message):
    """A webhook to register. Without a secret one is generated."""

    service: Annotated[ServiceName, Meta(description="the name of a service")]
    url: Annotated[str, Meta(pattern=URL, description="like https://example.com/hook, in printable ASCII, without #")]
    states: Annotated[Ends, Meta(description="a list of done, failed and expired")] = ("done", "failed", "expired")
    secret: Annotated[str, Meta(pattern=SECRET, description=_SECRET)] | msgspec.UnsetType = msgspec.UNSET


class Session(TypedDict):
    """The signed-in user."""

    user: str
    csrf: Annotated[
        str | None,
        Meta(
            description="The value of the header `X-CSRF-Token` for calls with a session cookie that change something; "
            "null: not needed."
        ),
    ]


class Problem(TypedDict):
    """RFC 9457."""

    type: Annotated[str, Meta(description="For programs: `urn:titanic:problem:` and a name.")]
    title: str
    status: int
    detail: Annotated[str, Meta(description="For people: what is wrong, why, and what to do.")]
    uuid: NotRequired[Uuid]
    state: NotRequired[str]
    worker: NotRequired[Annotated[list[str], Meta(description="The worker's description of the failure.")]]
    stored: NotRequired[
        Annotated[int, Meta(ge=0, description="For a batch: how many requests were stored before it failed.")]
    ]
    uuids: NotRequired[list[Uuid]]


class HourCount(TypedDict):
    """The failures of an hour."""

    hour: Time
    count: Count


class LostSpan(TypedDict):
    """A span of time in which a server was killed, so that counts were lost."""

    since: Time
    until: Time


_FORMS: dict[str, Any] = {"time": Time, "time or 0": Time | None, "count": Count, "priority": Priority, "uuid": Uuid}
"""The types of the API for those that the protocol has notes about; other notes are descriptions."""

_DERIVED: dict[Any, Any] = {Progress: WorkerProgress}
"""The documents of the API by those of the protocol."""


def derived(name: str, source: Any, required: Container[str] | None = None, **other: Any) -> Any:
    """The document of the API for one of the protocol. `other`: its members that differ, and further ones. `required`:
    those that all users see; None: as in the protocol."""
    hints = get_type_hints(source, include_extras=True)
    members = {one: _of_api(hints[one]) for one in hints} | other
    if required is not None:
        others = {one: hint for one, hint in members.items() if one not in required}
        members |= {one: NotRequired[hint] for one, hint in others.items() if get_origin(hint) is not NotRequired}
    made = _DERIVED[source] = document(name, source.__doc__, members)
    return made


def document(name: str, about: str, members: dict[str, Any]) -> Any:
    """A document with these members; `about`: its description."""
    made: Any = TypedDict(name, members)  # type: ignore[misc]
    made.__doc__ = about
    return made


def _of_api(hint: Any) -> Any:
    """A type of the protocol as the API has it."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is None or origin is Literal:
        return _DERIVED.get(hint, hint)
    if origin is Annotated:
        base, *notes = parts
        base = _FORMS[notes.pop(0)] if notes[0] in _FORMS else _of_api(base)
        return reduce(lambda made, note: Annotated[made, Meta(description=note)], notes, base)
    made = tuple(map(_of_api, parts))
    return reduce(or_, made) if origin in (Union, UnionType) else origin[made if len(made) > 1 else made[0]]


RequestReason = derived("RequestReason", WhyInfo)
derived("PastAttempt", FailedAttempt)
derived("EarlierBody", ReplacedBody)
derived("ClosedFlowStep", ClosedStep)
derived("PastAttempts", AttemptHistory)
_UNTIL = NotRequired[Literal["started", "done"]]
Request = derived("Request", RequestInfo, options=AttemptOptions, unique_until=_UNTIL, links=Links)
RequestPage = document("RequestPage", "A page of requests.", {"requests": GenericAlias(list, Request), "next": Next})
derived("WorkerRequest", RequestInHand)
derived("ListedWorker", WorkerInfo)
WorkerList = derived("WorkerList", WorkersInfo)
ServiceNumbers = derived(
    "ServiceNumbers", ServiceStats, required=("waiting",), limits=ServiceBounds, limits_set=ChangedBounds
)
_SERVICE_MEMBERS = get_type_hints(ServiceNumbers, include_extras=True) | {"name": str, "links": ServiceLinks}
Service = document("Service", "A service with stored requests or workers.", _SERVICE_MEMBERS)
ServicePage = document(
    "ServicePage",
    "A page of services. `other` is absent if all are listed.",
    {"services": GenericAlias(list, Service), "other": NotRequired[OtherServices], "next": Next},
)
Stats = document(
    "Stats",
    "The document of `titanic.stats`; it has more members than these.",
    {
        "services": Annotated[dict[str, Count], Meta(description="How many requests wait, by service.")],
        "by_service": GenericAlias(dict, (str, ServiceNumbers)),
        "other": NotRequired[OtherServices],
        "accepting": Annotated[bool, Meta(description="Whether new requests are accepted.")],
    },
)
derived("UsualTimes", UsualTimes)
derived("ServiceHistory", ServiceFacts)
derived("ErrorGroup", FailureGroupInfo, state=Literal["failed", "expired"], hours=list[HourCount])
History = derived("History", FactsInfo, incomplete=list[LostSpan])
derived("Act", AuditAct)
derived("RefusedAccess", AuditRefusal)
AuditRows = derived("AuditRows", AuditPage)
BulkJob = derived(
    "BulkJob", RedriveInfo, where=Annotated[JobWhere, Meta(description="Empty: the requests were given.")]
)
BulkJobList = document("BulkJobList", "The jobs that you may see, newest first.", {"jobs": GenericAlias(list, BulkJob)})
derived("LastTick", TickInfo)
ListedSchedule = derived("ListedSchedule", ScheduleInfo)
_ALL = "The schedules that you may see, by owner and name."
ScheduleList = document("ScheduleList", _ALL, {"schedules": GenericAlias(list, ListedSchedule)})

DOCUMENTS = (
    Accepted,
    AcceptedBatch,
    Request,
    RequestReason,
    RequestPage,
    ServicePage,
    BoundsInForce,
    PutLimits,
    WorkerList,
    Stats,
    History,
    BulkJob,
    BulkJobList,
    ScheduleList,
    StartJob,
    ChangeJob,
    AuditRows,
    ExtendedLease,
    WebHook,
    NewWebHook,
    WebHooks,
    ChangeRequest,
    PutHook,
    Session,
    Problem,
)
"""The documents of operations."""

_BINARY: Part = {"schema": {"type": "string", "format": "binary"}}

ANY_BODY: Part = {"application/octet-stream": _BINARY, "*/*": _BINARY}
"""A request body of any type. Clients that are generated for one type send bytes."""

ANY_ANSWER: Part = {"application/octet-stream": _BINARY, "application/json": {"schema": {}}, "*/*": _BINARY}
"""A response body of any type. The first is for generated clients that read one: it fits all."""


def ref(kind: str, name: str) -> Part:
    """A reference to a component."""
    return {"$ref": f"#/components/{kind}/{name}"}


def schema(type: Any) -> Part:
    """The schema of a type; for documents, a reference to their component."""
    return ref("schemas", type.__name__) if type in DOCUMENTS else msgspec.json.schema(type)


def json_content(document: Any) -> Part:
    """The content of a message that is a JSON document."""
    return {"application/json": {"schema": schema(document)}}


def answer(
    text: str, document: Any = None, headers: Mapping[str, Part] | None = None, content: Part | None = None
) -> Part:
    """A response, with a JSON document or other content if one is given."""
    found: Part = {"description": text}
    if document is not None or content is not None:
        found["content"] = content or json_content(document)
    if headers:
        found["headers"] = dict(headers)
    return found


def endpoint(
    handler: Handler, name: str, summary: str, responses: Mapping[str, Part], *, body: Any = None, **more: Any
) -> Endpoint:
    """A handler with the name, the summary and the responses of its operation, and `more` members of that. `body`: the
    JSON document that it requires."""
    if body is not None:
        more["requestBody"] = {"required": True, "content": json_content(body)}
    query = [one for one in more.get("parameters", ()) if one["in"] == "query"]
    names = None if any(one["schema"].get("type") == "array" for one in query) else tuple(one["name"] for one in query)
    return Endpoint(handler, {"operationId": name, "summary": summary, "responses": responses, **more}, names)


def header(text: str, type: Any = str, *, required: bool = True) -> Part:
    """A header of a response."""
    return {"description": text, "schema": schema(type), "required": required}


def parameter(where: str, name: str, text: str, type: Any) -> Part:
    """A parameter in the `query`, the `header` or the `path`."""
    return {"in": where, "name": name, "description": text, "schema": schema(type), "required": where == "path"}


def wrong(*more: int) -> dict[str, Part]:
    """Error responses: those that every call may return, and these."""
    return {str(status): ref("responses", str(status)) for status in sorted({*EVERYWHERE, *more})}


FLAG = Annotated[bool, Meta(extra_json_schema={"default": False})]
AFTER = "Where the page starts: taken from `next`."
LIMIT = parameter(
    "query",
    "limit",
    "Rows on a page.",
    Annotated[int, Meta(ge=1, le=MOST_UUIDS, extra_json_schema={"default": PAGE})],
)
"""The query of a list; `resource.page` makes its pages."""

_LINK = {"Link": header("The next page, as `next` (RFC 8288).", required=False)}


def paged(document: Any) -> dict[str, Part]:
    """The responses of a list."""
    return {"200": answer("A page.", document, _LINK), **wrong()}


EVERYWHERE = (400, 401, 403, 429, 503, 504)


def _option_header(name: str) -> Part:
    """The header that sets an option of a submission."""
    option, _, text, pattern = OPTIONS[name]
    found = msgspec.json.schema(datetime if option == "at" else _SUBMIT_TYPES[option])
    for one in found.get("anyOf", [found]):
        one.pop("description", None)
        if one.pop("exclusiveMinimum", None) is not None:  # headers have at most three decimals
            one["minimum"] = MIN_SPAN
    if pattern:
        found["pattern"] = pattern
    default = _SUBMIT_DEFAULTS[option]
    if default is not msgspec.UNSET:
        found["default"] = default
    return {"in": "header", "name": header_title(name), "description": text, "schema": found, "required": False}


_SUBMIT_TYPES = {
    name: reduce(or_, (one for one in get_args(hint | msgspec.UnsetType) if one is not msgspec.UnsetType))
    for name, hint in get_type_hints(Submit, include_extras=True).items()
}
_SUBMIT_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Submit)}

SUBMIT_HEADERS = [
    parameter("header", "traceparent", "The trace of the request (W3C). It is passed to the worker.", str),
    parameter("header", "tracestate", "What tracing systems note beside it, up to 512 characters.", str),
    *(_option_header(name) for name in OPTIONS),
    parameter(
        "header",
        "Idempotency-Key",
        "Submitting again with the same key returns the same request. Plain text, or a quoted string in the syntax of "
        "structured fields.",
        Annotated[
            str,
            Meta(
                max_length=MAX_KEY,
                pattern=r'^([!#-}]([ -~]*[!-~])?|"([!#-\[\]-}]|\\["\\])([ !#-\[\]-~]|\\["\\])*")$',
            ),
        ],
    ),
]

_SERVICE = (
    "The name of a service: printable UTF-8 of 1 to 255 bytes, percent-encoded, also a slash. "
    "Names that begin with `mmi.` or `titanic.` are not for requests."
)
_UUID = "^[0-9a-fA-F]{8}(-?)[0-9a-fA-F]{4}\\1[0-9a-fA-F]{4}\\1[0-9a-fA-F]{4}\\1[0-9a-fA-F]{12}$"

IN_PATH: dict[str, tuple[str, Any]] = {
    "service": (_SERVICE, ServiceName),
    "uuid": (
        "The UUID of a request: 32 hexadecimal digits, with or without dashes.",
        Annotated[str, Meta(pattern=_UUID)],
    ),
    "lease": ("The value of `Titanic-Lease`.", Annotated[str, Meta(min_length=1)]),
    "job": ("The id of a job.", Uuid),
    "hook": ("The id of a hook.", Annotated[str, Meta(pattern="^[0-9a-f]{20}$")]),
}
"""The parameters of paths: what they mean, and their types."""

WHAT_NOW = {
    400: "The request is invalid: do not retry it unchanged.",
    401: "Send a bearer token, or sign in.",
    403: "You lack a permission, or the request is cross-origin.",
    429: "You have too many of these open at the same time.",
    503: "Temporarily unavailable: the store is full, or the server is unavailable or shutting down. Retry later.",
    504: "The server did not answer. With an idempotency key, retry.",
    404: "The resource in the path does not exist.",
    409: "The state of the request does not permit this.",
    410: "The request no longer exists: closed, deleted after its retention time, or never accepted.",
    413: "The body is too large.",
    415: "The content type is not supported.",
    422: "The key was used with another body.",
    424: "The request has ended without a reply: it failed or expired.",
}

RETRY_AFTER = {"Retry-After": header("Seconds to wait.", int)}


def _problem(status: int) -> Part:
    response: Part = {
        "description": f"{TITLES[status]}. {WHAT_NOW[status]}",
        "content": {PROBLEM_JSON: {"schema": schema(Problem)}},
    }
    return response | ({"headers": RETRY_AFTER} if status in (503, 504) else {})


def components() -> Part:
    """The components of the OpenAPI document."""
    _, found = msgspec.json.schema_components(DOCUMENTS, ref_template="#/components/schemas/{name}")
    return {
        "schemas": found,
        "responses": {str(status): _problem(status) for status in WHAT_NOW},
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
