"""The options of each message to the services, declared once: types, ranges and defaults.

`read` decodes a frame into its declaration and checks it in the same pass. A description completes the sentence
"NAME must be …" of an error. PROTOCOL.md has the same as tables.
"""

from __future__ import annotations

import re
from functools import cache
from threading import Lock
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from titanic.protocol.submit_options import (
    CONTENT_TYPE,
    DEFAULT_PRIORITY,
    DIGEST,
    KEY_FOR,
    MAX_KEY,
    MAX_PRIORITY,
    MOST_SECONDS,
    MOST_TOGETHER,
    MOST_UUIDS,
    TRACEPARENT,
    UniqueUntil,
)
from titanic.util.text import quoted
from titanic.util.units import MAX_RATE, MAX_SIZE, MIN_RATE

MAX_CONDITION = 4000
"""Characters of a condition of a job: with all of them, and the reason why it ends, it must fit into a fact."""

MOST_BYTES = 1 << 20
"""Bytes of a body, and of a reply, that titanic.list returns of a request."""

_A_KEY = f"a string of 1 to {MAX_KEY} bytes"
_KEYS = f"strings of 1 to {MAX_KEY} bytes"
_TRACE = "a traceparent, as in 00-<32 hex digits>-<16 hex digits>-01"
_TYPE = "a content type: 1 to 127 printable ASCII characters"
_DIGEST = "1 to 128 hexadecimal digits"
_ADDRESS = "an IP address"

Flag = Annotated[bool, Meta(description="true or false")]
Text = Annotated[str, Meta(description="a string")]
Name = Annotated[str, Meta(min_length=1, description="the name of a service")]
Id = Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{32}$(?!\n)", description="32 hexadecimal digits")]
Ids = Annotated[
    list[Id], Meta(max_length=MOST_UUIDS, description=f"a list of at most {MOST_UUIDS} UUIDs of 32 hexadecimal digits")
]
Seconds = Annotated[
    float, Meta(gt=0, le=MOST_SECONDS, description="a number of seconds, more than 0 and at most ten years")
]
Keep = (
    Annotated[
        float,
        Meta(
            gt=0,
            le=MOST_SECONDS,
            description='a number of seconds, more than 0 and at most ten years, or "never"',
        ),
    ]
    | Literal["never"]
)
Delay = Annotated[float, Meta(ge=0, le=MOST_SECONDS, description="a number of seconds from 0 to ten years")]
When = Annotated[float, Meta(ge=-1e12, le=1e12, description="a time in seconds since 1970, at most ten years from now")]
Moment = Annotated[float, Meta(ge=0, le=1e10, description="a time in seconds since 1970")]
Place = Annotated[str, Meta(pattern=r"^([0-9a-f]{2}){1,255}$(?!\n)", description="the next of the page before")]
Age = Annotated[float, Meta(ge=0, lt=1e10, description="a number of seconds from 0 to 10 000 000 000")]
Key = Annotated[str, Meta(min_length=1, max_length=MAX_KEY, description=_A_KEY)]
Keys = Annotated[list[Key], Meta(description=f"a list of {_KEYS}")]
FewKeys = Annotated[
    tuple[Key, ...], Meta(max_length=MOST_TOGETHER, description=f"a list of at most {MOST_TOGETHER} {_KEYS}")
]
SomeTexts = Annotated[list[str], Meta(max_length=MOST_UUIDS, description=f"a list of at most {MOST_UUIDS} strings")]
Priority = Annotated[int, Meta(ge=0, le=MAX_PRIORITY, description=f"a whole number from 0 to {MAX_PRIORITY}")]
Attempts = Annotated[int, Meta(ge=1, le=65535, description="a whole number from 1 to 65535")]
Trace = Annotated[str, Meta(pattern=rf"^{TRACEPARENT.pattern}$(?!\n)", description=_TRACE)]
Traces = Annotated[list[Trace], Meta(description="a list of traceparents, one for each request")]
ContentType = Annotated[str, Meta(pattern=rf"^{CONTENT_TYPE.pattern}$(?!\n)", description=_TYPE)]
Digest = Annotated[str, Meta(pattern=rf"^{DIGEST.pattern}$(?!\n)", description=_DIGEST)]
Address = Annotated[str, Meta(pattern=r"^[0-9a-fA-F:.]{2,45}$(?!\n)", description=_ADDRESS)]
Limit = Annotated[int, Meta(ge=1, le=MOST_UUIDS, description=f"a number from 1 to {MOST_UUIDS}")]
MostBytes = Annotated[
    int, Meta(ge=0, le=MOST_BYTES, description=f"a number from 0 to {MOST_BYTES}, with the uuid of a request")
]
FewBytes = Annotated[int, Meta(ge=1, le=1000, description="a number from 1 to 1000")]
BodyFrames = Annotated[int, Meta(ge=1, description="the number of frames behind this one, which are the new body")]
Whole = Annotated[Flag, Meta(description="true, with the uuid of a request")]
Number = Annotated[int, Meta(ge=0, description="a number, 0 or more")]
OnLimit = Annotated[Literal["leave"], Meta(description="leave")]
AnyState = Literal["waiting", "delayed", "running", "done", "failed", "expired"]
JobChange = Literal["confirm", "pause", "resume", "cancel"]
Rate = Annotated[float, Meta(gt=0, le=1e6, description="a number of requests a second, more than 0, at most 1000000")]
NotRunning = Literal["waiting", "delayed", "done", "failed", "expired"]
Dead = Literal["failed", "expired"]


def _one_of(states: Any) -> Meta:
    return Meta(description=f"one of {', '.join(get_args(states))}")


class Message(Struct, forbid_unknown_fields=True, kw_only=True):
    """The options of a message, a JSON object. Unknown options are refused."""


class Submit(Message):
    """titanic.submit. `SubmitOptions` (submit_options.py) declares for type checkers what clients take of it."""

    key: Key | UnsetType = UNSET
    keys: Keys | UnsetType = UNSET
    traces: Traces | UnsetType = UNSET
    key_for: Seconds = KEY_FOR
    ttl: Seconds | UnsetType = UNSET
    delay: Delay | UnsetType = UNSET
    at: When | UnsetType = UNSET
    priority: Priority = DEFAULT_PRIORITY
    max_attempts: Attempts | UnsetType = UNSET
    limit: Seconds | UnsetType = UNSET
    retry_first: Seconds | UnsetType = UNSET
    retry_most: Seconds | UnsetType = UNSET
    keep: Keep | UnsetType = UNSET
    keep_failed: Seconds | UnsetType = UNSET
    keep_body: Keep | UnsetType = UNSET
    unique: Key | UnsetType = UNSET
    unique_until: Annotated[UniqueUntil, _one_of(UniqueUntil)] | UnsetType = UNSET
    unique_for: Seconds | UnsetType = UNSET
    trace: Trace | UnsetType = UNSET
    tracestate: Text | UnsetType = UNSET
    type: ContentType | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET
    source: Address | UnsetType = UNSET
    on_failed: Name | UnsetType = UNSET
    on_limit: OnLimit | UnsetType = UNSET
    many: Flag = False
    forget: FewKeys = ()

    def __post_init__(self) -> None:
        if self.unique_until is not UNSET and self.unique_for is not UNSET:
            raise ValueError("unique_until and unique_for cannot be combined: give one of them")
        if self.unique is UNSET and (self.unique_until is not UNSET or self.unique_for is not UNSET):
            raise ValueError("unique_until and unique_for need unique: give a key")
        if self.unique is not UNSET and self.many:
            raise ValueError("unique is for one request: submit them one by one, without many")
        for name in ("key", "keys", "forget", "unique"):
            value = getattr(self, name)
            if not isinstance(value, UnsetType):
                for key in [value] if isinstance(value, str) else value:
                    if len(key) > MAX_KEY // 4 and len(key.encode()) > MAX_KEY:
                        raise ValueError(_must_be(Submit, name))


class List(Message):
    """titanic.list. Null stands for an option that is absent."""

    uuid: Id | None = None
    keys: SomeTexts | None = None
    service: Text | None = None
    state: Annotated[AnyState, _one_of(AnyState)] | None = None
    after: Id | None = None
    text: Text | None = None
    owner: Text | None = None
    begin: FewBytes | None = None
    newest: Flag = False
    now: Flag | None = None
    limit: Limit = 100
    most: MostBytes | None = None
    body: Whole | None = None
    why: Whole | None = None
    jobs: Flag | None = None
    schedules: Flag | None = None

    def __post_init__(self) -> None:
        for name in ("most", "body", "why"):
            if getattr(self, name) is not None and self.uuid is None:
                raise ValueError(_must_be(List, name))


class StatsOptions(Struct):
    """titanic.stats. Other versions may ask for more, which is ignored."""

    nodes: bool = False
    services: bool = False
    of: list[str] = []
    """Services that are named in any case."""
    workers: bool = False
    filled_by: bool = False
    facts: float = 0
    """Seconds; then only the facts of these are sent."""
    facts_of: list[str] = []
    failures: bool = False


class AuditOptions(Message):
    """titanic.audit. Null stands for an option that is absent. Times are in seconds since 1970."""

    refusals: Flag = False
    user: Text | None = None
    act: Text | None = None
    address: Text | None = None
    since: Moment | None = None
    until: Moment | None = None
    after: Place | None = None
    limit: Limit = 100


class RetryAction(Message, tag_field="do", tag="retry"):
    """titanic.admin: send failed and expired requests again. Without `uuids`: a page of those that match."""

    uuids: Ids | UnsetType = UNSET
    state: Annotated[Dead, Meta(description="failed or expired: only those can be retried")] | None = None
    service: Text | None = None
    after: Id | None = None
    older_than: Age | None = None
    body: BodyFrames = 0

    def __post_init__(self) -> None:
        if self.body and (self.uuids is UNSET or len(self.uuids) != 1):
            raise ValueError("body is for one request: give its UUID in uuids")


class PurgeAction(Message, tag_field="do", tag="purge"):
    """titanic.admin: close requests. Without `uuids`: a page of those that match."""

    uuids: Ids | UnsetType = UNSET
    state: Annotated[NotRunning, _one_of(NotRunning)] | None = None
    service: Text | None = None
    after: Id | None = None
    older_than: Age | None = None

    def __post_init__(self) -> None:
        if self.uuids is UNSET and self.state is None:
            raise ValueError(_must_be(PurgeAction, "state"))


class JobWhere(Message, omit_defaults=True):
    """Which requests a job retries or closes, as JobConditions."""

    service: Text | None = None
    owner: Text | None = None
    state: Annotated[NotRunning, _one_of(NotRunning)] | None = None
    error: Text | None = None
    key: Key | None = None
    text: Text | None = None
    body: Text | None = None
    since: Moment | None = None
    until: Moment | None = None
    older_than: Age | None = None


class RedriveAction(JobWhere, tag_field="do", tag="redrive", omit_defaults=True):
    """titanic.admin: start a job that retries or closes all requests that match, or those given; or change one."""

    start: Annotated[Literal["retry", "close"], Meta(description="retry or close")] | None = None
    uuids: Ids | None = None
    rate: Rate | None = None
    job: Id | None = None
    change: Annotated[JobChange, _one_of(JobChange)] | None = None
    count: Number | None = None

    def __post_init__(self) -> None:
        conditions = {name for name in JobWhere.__struct_fields__ if getattr(self, name) is not None}
        if (self.start is None) == (self.change is None) or (self.change is not None and self.job is None):
            raise ValueError("a redrive must have start, or job and change")
        if conditions and (self.uuids is not None or self.start is None):
            raise ValueError("conditions are for the start of a job, without uuids")
        for name in conditions:
            if isinstance(value := getattr(self, name), str) and len(value) > MAX_CONDITION:
                raise ValueError(f"{name} must be a string of at most {MAX_CONDITION} characters")
        if self.start == "retry" and self.state not in (None, *get_args(Dead)):
            raise ValueError("state must be failed or expired: only those can be retried")
        if self.start == "close" and self.uuids is None and not conditions & {"owner", "state", "error", "key"}:
            raise ValueError("closing needs an owner, a state, an error or a key")


class ChangeAction(Message, tag_field="do", tag="change"):
    """titanic.admin: change a request that no worker has."""

    uuid: Id
    priority: Priority | UnsetType = UNSET
    delay: Delay | UnsetType = UNSET
    at: When | UnsetType = UNSET
    body: BodyFrames = 0

    def __post_init__(self) -> None:
        if self.priority is UNSET and self.delay is UNSET and self.at is UNSET and not self.body:
            raise ValueError("a change must have priority, delay, at or body")


class ArchiveAction(Message, tag_field="do", tag="archive"):
    """titanic.admin: register an archive of closed requests, and acknowledge what it has."""

    register: Flag | None = None
    upto: Number | None = None
    uuid: (
        Annotated[Id, Meta(description="the UUID of the request with the number upto: 32 hexadecimal digits")] | None
    ) = None
    store: Id | None = None
    archive: Id | None = None
    name: Text = ""

    def __post_init__(self) -> None:
        if self.upto is not None and self.uuid is None:
            raise ValueError(_must_be(ArchiveAction, "uuid"))


class DrainAction(Message, tag_field="do", tag="drain"):
    """titanic.admin: drain a node."""

    node: Annotated[str, Meta(description="a name, or a number as a string")] | None = None


ServiceCount = Annotated[int, Meta(ge=1, le=MAX_SIZE, description=f"a number from 1 to {MAX_SIZE}")]
ServiceRate = Annotated[
    float, Meta(ge=MIN_RATE, le=MAX_RATE, description=f"a number of attempts a second from 0.1/3600 to {MAX_RATE:g}")
]


class SetAction(Message, tag_field="do", tag="set"):
    """titanic.admin: settings of a service. Null restores the default."""

    service: Annotated[str, Meta(description="the name of a service")]
    paused: Annotated[bool, Meta(description="true, false or null")] | UnsetType | None = UNSET
    on_end: Annotated[str, Meta(description="the name of a service")] | UnsetType | None = UNSET
    waiting: ServiceCount | UnsetType | None = UNSET
    bytes: ServiceCount | UnsetType | None = UNSET
    running: ServiceCount | UnsetType | None = UNSET
    rate: ServiceRate | UnsetType | None = UNSET


class SessionsAction(Message, tag_field="do", tag="sessions"):
    """titanic.admin: record that a gateway ends all sessions of a user."""

    user: Annotated[str, Meta(min_length=1, max_length=500, description="the name of a user")]


class RefusedRow(Message):
    """What a gateway refused from an address in a minute, in minutes since 1970."""

    minute: Annotated[int, Meta(ge=0, description="a number of minutes since 1970")]
    address: Annotated[str, Meta(pattern=r"^[ -~]{0,64}$(?!\n)", description="an IP address")]
    count: Annotated[int, Meta(ge=1, le=1 << 32, description="a number from 1 to 4294967296")]
    user: Annotated[str, Meta(max_length=500, description="a string of at most 500 characters")] = ""
    action: Annotated[str, Meta(max_length=500, description="a string of at most 500 characters")] = ""


class RefusedAction(Message, tag_field="do", tag="refused"):
    """titanic.admin: record what a gateway refused."""

    rows: Annotated[list[RefusedRow], Meta(max_length=MOST_UUIDS, description=f"a list of at most {MOST_UUIDS} rows")]


class ScheduleRow(Message):
    """A schedule as its scheduler reports it. Times are in seconds since 1970."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$(?!\n)", description="the name of a schedule")]
    service: Annotated[str, Meta(min_length=1, max_length=255, description="the name of a service")]
    when: Annotated[str, Meta(max_length=200, description="a string of at most 200 characters")]
    next: Moment
    tz: Annotated[str, Meta(max_length=100, description="a time zone")] = "UTC"
    tick: Moment | None = None
    uuid: Id | None = None


class SchedulesAction(Message, tag_field="do", tag="schedules"):
    """titanic.admin: register schedules that a scheduler runs, or refresh them."""

    rows: Annotated[
        list[ScheduleRow], Meta(max_length=MOST_UUIDS, description=f"a list of at most {MOST_UUIDS} schedules")
    ]
    process: Annotated[str, Meta(max_length=200, description="a string of at most 200 characters")] = ""


def _holds(kind: type, hint: Any) -> bool:
    """Whether a declaration is of a type, or of several of them."""
    return hint is kind or any(_holds(kind, one) or type(one) is kind for one in get_args(hint))


OF_ONE_SUBMIT = {
    *("key", "key_for", "keys", "many", "forget", "at", "trace", "traces", "tracestate", "source"),
    *("type", "digest"),  # of a body
}
"""Options that only one message has: not a schedule, nor all messages of a taskiq task."""

SUBMIT_KINDS: dict[str, type] = {
    name: next(kind for kind in (float, int, str) if _holds(kind, hint))
    for name, hint in get_type_hints(Submit).items()
    if name not in OF_ONE_SUBMIT
}
"""The other options, with their types: tables of schedules and labels of taskiq can have them. Times are float."""

Admin = (
    RetryAction
    | PurgeAction
    | RedriveAction
    | ChangeAction
    | ArchiveAction
    | DrainAction
    | SetAction
    | SessionsAction
    | RefusedAction
    | SchedulesAction
)
_ADMIN: dict[str, type[Admin]] = {
    "retry": RetryAction,
    "purge": PurgeAction,
    "redrive": RedriveAction,
    "change": ChangeAction,
    "archive": ArchiveAction,
    "drain": DrainAction,
    "set": SetAction,
    "sessions": SessionsAction,
    "refused": RefusedAction,
    "schedules": SchedulesAction,
}


class _Do(Struct):
    do: str


Declared = TypeVar("Declared", bound=Struct)


def read(declared: type[Declared], frame: bytes) -> Declared:
    """Decode and check the options in a frame. Raises ValueError with what is wrong."""
    try:
        found: Declared = _decoder(declared).decode(frame.removeprefix(b"\xef\xbb\xbf"))
        return found
    except msgspec.ValidationError as error:
        raise ValueError(_fault(declared, error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"options are not JSON: {error}") from None


def read_admin(frame: bytes) -> Admin:
    """Decode and check a titanic.admin. Raises ValueError with what is wrong."""
    try:
        declared = _ADMIN.get(read(_Do, frame).do)
    except ValueError as error:
        if str(error).startswith("options are not JSON:"):
            raise
        declared = None
    if declared is None:
        *all_but_last, last = (f'"{do}"' for do in _ADMIN)
        raise ValueError(f'options must be a JSON object with "do": {", ".join(all_but_last)} or {last}')
    return read(declared, frame)


def read_stats(frame: bytes) -> StatsOptions:
    """What a titanic.stats asks for besides; nothing if that cannot be read."""
    try:
        return read(StatsOptions, frame)
    except ValueError:
        return StatsOptions()


_preparing = Lock()
"""Two threads that have msgspec prepare the same type, at its first use, can crash the process."""


@cache
def _decoder(declared: type[Struct]) -> msgspec.json.Decoder[Any]:
    with _preparing:
        return msgspec.json.Decoder(declared)


_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.(\w+)`)?", re.DOTALL)
_AT = re.compile(r"- at `\$\.([\w.]+)|missing required field `(\w+)`")


def _fault(declared: type[Struct], error: msgspec.ValidationError) -> str:
    if isinstance(error.__cause__, ValueError):
        return str(error.__cause__)
    text = str(error)
    if unknown := _UNKNOWN.fullmatch(text):
        declared = _inner(declared, unknown[2]) if unknown[2] else declared
        known = [*declared.__struct_fields__, declared.__struct_config__.tag_field]
        return f"unknown option {quoted(unknown[1])}; known: {', '.join(sorted(filter(None, known)))}"
    if at := _AT.search(text):
        return _must_be(declared, at[1] or at[2])
    return "options are not a JSON object"


@cache
def _must_be(declared: type[Struct], name: str) -> str:
    name, _, inner = name.partition(".")
    if inner:
        return _must_be(_inner(declared, name), inner)
    return f"{name} must be {_description(get_type_hints(declared, include_extras=True).get(name))}"


def _inner(declared: type[Struct], name: str) -> type[Struct]:
    """The object that a field holds."""
    found: type[Struct] = next(one for one in get_args(get_type_hints(declared)[name]) if issubclass(one, Struct))
    return found


def _description(hint: Any) -> str:
    metas = [one.description for one in getattr(hint, "__metadata__", ()) if isinstance(one, Meta) and one.description]
    if metas:
        return metas[-1]
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    if hasattr(hint, "__struct_fields__"):
        return f"an object with some of {', '.join(hint.__struct_fields__)}"
    return next(filter(None, map(_description, get_args(hint))), "")
