"""What Titanic reports, each document declared once: about requests and about itself. The HTTP API derives most of its
own from these (titanic/web/api/openapi.py), with the descriptions of the members. A later version may report more.

It is not compiled: compiled types do not say which members may be absent.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from titanic.protocol.tsp import Progress

# The HTTP API makes of a text in Annotated the description of a member, and gives these types a form of their own:
Time = Annotated[int, "time"]
"""Microseconds since 1970."""
MaybeTime = Annotated[int, "time or 0"]
"""The same; 0: there is none."""
Count = Annotated[int, "count"]
Priority = Annotated[int, "priority"]
Uuid = Annotated[str, "uuid"]


class WhyInfo(TypedDict):
    """Why a request is in its state, and what to do; later versions have more kinds."""

    kind: Annotated[str, "A word such as `no-worker`, `busy`, `behind`, `paused` or `retry`."]
    """Also `limit`, `rate`, `delayed`, `running`, `storing`, `return` (its worker is awaited), `lease` (its node is
    silent), `draining`, `refused`, `store`, `no-server`, `done`, `failed`, `poison`, `expired` and `cancelled`."""
    text: str
    next: Annotated[str, "What to do; empty: nothing."]
    until: NotRequired[Time]
    """When it changes by itself, at the latest; of a request that has ended: when it ended."""
    seconds: NotRequired[Annotated[float, "About how long until then."]]
    ahead: NotRequired[Annotated[int, "Requests of its service before it, at most 10,000."]]
    workers: NotRequired[Count]
    """How many requests the workers of its service take at a time."""
    running: NotRequired[Count]
    limit: NotRequired[float]
    """The rate or the limit that is reached."""
    requests: NotRequired[list[Uuid]]
    """Running ones that reach it, those that the client may read."""


class FailedAttempt(TypedDict):
    """An attempt that failed, with what is known of its worker; what is not known is empty or null."""

    delivery: Annotated[int, "The number of the delivery to a worker."]
    outcome: Annotated[
        Literal["failed", "died", "lost"],
        "`died`: its worker died and had no other request; `lost`: the worker died or left with other requests, too, "
        "which does not count as an attempt.",
    ]
    started_at: MaybeTime
    ended_at: MaybeTime
    worker: Annotated[str, "The worker's process, as HOST:PID."]
    host: str
    pid: int | None
    version: str
    user: str
    error: Annotated[str, "Why, with the end of the traceback."]


class ReplacedBody(TypedDict):
    """A body that the request had before it was retried with another one."""

    replaced_at: MaybeTime
    bytes: Annotated[Count, "Of the whole body."]
    frames: Annotated[list[str], "Its first 16 KiB, at most."]
    """None if its body was not to be kept."""
    base64: Annotated[bool, "Whether the frames are in base64: not all are UTF-8."]


class AttemptHistory(TypedDict):
    """The attempts of a request that failed, those before a retry included."""

    counts: Annotated[dict[str, Count], "How many there were, by outcome."]
    deaths: Annotated[int, "Those since the last retry at which a worker died."]
    attempts: Annotated[list[FailedAttempt], "The first one and the last four."]
    replaced: NotRequired[Annotated[list[ReplacedBody], "The first and the last."]]


class ClosedStep(TypedDict):
    """A closed step of a flow: the state in which it was closed, and how many seconds its last attempt took."""

    uuid: Uuid
    service: str
    state: str
    took: float | None


SUBMITTER_FIELDS = {
    "owner": "The user that submitted it, with access control.",
    "source": "The IP address that it was submitted from: that stated by a user with gateway = true, or else that of "
    "the connection; not over ipc://, through a separate broker, or if the server submitted it.",
}
"""Texts from the submitter or about it, by their names in RequestInfo, with descriptions, which the help of `titanic
show` prints, too. Each is absent when it is empty."""


class RequestInfo(TypedDict):
    """All that is known of a request but its body and reply."""

    uuid: Uuid
    service: str
    state: Literal["waiting", "delayed", "running", "done", "failed", "expired", "cancelled"]
    key: Annotated[str, "Its idempotency key; empty: it has none."]
    priority: Priority
    max_attempts: Annotated[Count, "0: the server's default."]
    options: dict[str, float]
    """`limit`, `retry_first`, `retry_most`, `keep`, `keep_failed`, `keep_body` (unless it is `never`) and `unique_for`
    as far as given, in seconds."""
    submitted_at: MaybeTime
    not_before: MaybeTime
    expires_at: MaybeTime
    body_frames: Count
    body_bytes: Count
    attempts: Count
    dispatched_at: MaybeTime
    """When it was sent to a worker, the last time."""
    due: MaybeTime
    """When it is tried next."""
    finished_at: MaybeTime
    reason: Annotated[str, "Why it failed, the last time or for good."]
    reply_frames: Count
    reply_bytes: Count
    worker: NotRequired[Annotated[str, "HOST:PID of the worker that has it, if known."]]
    progress: NotRequired[Progress]
    """How far its worker is, while it is running and has said so."""
    running_since: NotRequired[MaybeTime]
    """When it was sent to a worker, while it is running; absent where that is not known: another node has it."""
    deliveries: NotRequired[Annotated[int, "How often it was sent to workers, if that is more than `attempts`."]]
    trace: NotRequired[str]
    """The `traceparent` that it was submitted with. This and what follows is absent when it was not given."""
    tracestate: NotRequired[str]
    owner: NotRequired[Annotated[str, SUBMITTER_FIELDS["owner"]]]
    source: NotRequired[Annotated[str, SUBMITTER_FIELDS["source"]]]
    type: NotRequired[Annotated[str, "The content type of its body."]]
    digest: NotRequired[str]
    """A hash by which its submitter recognizes it."""
    on_failed: NotRequired[Annotated[str, "The service to notify if it fails."]]
    keep_body: NotRequired[Annotated[str, "`never`: its body goes when it succeeds; a time is in `options`."]]
    on_limit: NotRequired[Annotated[str, "`leave`: an attempt may exceed its limit."]]
    unique: NotRequired[str]
    """Its unique key, with `unique_until` or the `unique_for` in `options`."""
    unique_until: NotRequired[str]
    why: NotRequired[WhyInfo]
    begin: NotRequired[Annotated[str, "The beginning of its body, if asked for in a list."]]
    paused: NotRequired[Annotated[bool, "Its service is paused, and the request has not started."]]
    history: NotRequired[Annotated[AttemptHistory, "Absent in lists, and if no attempt has failed."]]
    closed_steps: NotRequired[Annotated[list[ClosedStep], "Those of a flow."]]
    """Those of flows within it included; absent in lists, and when there are none."""


class StoreStats(TypedDict):
    """What is stored. `requests` = `waiting` + `delayed` + `replies`, those that have ended."""

    path: str
    requests: int
    waiting: int
    delayed: int
    replies: int
    used: int
    """Bytes, as `capacity`."""
    capacity: int
    closed: int
    """Closed requests that are remembered."""
    lost: int
    """Those that were forgotten before the archive had them."""


class FactsRoom(TypedDict):
    """Bytes of what the server remembers of its work, and how many there may be."""

    used: int
    room: int


class SinceStart(TypedDict):
    """What this server was asked for since its start."""

    accepted: int
    refused: int
    repeated: int
    replies_given: int
    closed: int
    commits: int
    ends_missed: NotRequired[int]
    """Ends that the service set for that was not notified of; absent when there were none."""


class DispatchStats(TypedDict):
    """What became of attempts since the start of this server."""

    dispatched: int
    succeeded: int
    failed: int
    expired: int
    retried: int
    returned: int
    poisoned: int
    """Requests that failed as poison: too many workers died while running nothing else; they are among the `failed`."""


class AskedNode(TypedDict):
    """The node that was asked, of several."""

    name: str
    draining: bool
    access: str
    """As of NodeInfo."""
    shard: int
    incarnation: int
    running: int


class OtherNode(TypedDict):
    """Another one."""

    name: str
    draining: bool
    access: str
    """As of NodeInfo."""
    workers: int
    running: int
    incarnation: int


class ServiceSettingInfo(TypedDict):
    """What is set for a service."""

    paused: bool
    on_end: Annotated[str | None, "The service that is notified when requests end."]


class LimitValues(TypedDict, total=False):
    """Limits of a service; None: there is none. In a change, None means the configured one, and an absent one stays."""

    waiting: int | None
    bytes: int | None
    running: int | None
    rate: float | None


class LimitsSet(LimitValues):
    """The limits that an admin has set; None: the configured one holds."""

    configured: LimitValues
    at: Time
    """When they were set."""
    by: str
    """By which user; empty without access control, and for users who may not read the audit."""


class ServiceStats(ServiceSettingInfo):
    """Statistics of a service. If servers share a store, `running` and ended requests are the answering server's."""

    waiting: Count
    delayed: Count
    running: Count
    bytes: Annotated[Count, "Of its requests that have not ended."]
    workers: Annotated[int | None, "null: at least one; the number is unknown."]
    oldest: Annotated[Time | None, "When the longest-waiting request was submitted."]
    done: Annotated[Count, "Since the server's start."]
    failed: Count
    expired: Count
    limits: LimitValues
    """Those in force."""
    limits_set: NotRequired[LimitsSet]
    resumed_at: NotRequired[Annotated[Time, "When it was resumed; absent if not since the start."]]


class Percentiles(TypedDict):
    """Seconds that half, 90 % and 99 % do not exceed, about."""

    p50: float
    p90: float
    p99: float


class UsualTimes(TypedDict):
    """How long requests of a service waited, and its attempts ran, and how many there were."""

    attempts: Count
    wait: Percentiles | None
    run: Percentiles | None


class FactSeries(TypedDict):
    """The figures of each minute or hour, the first first. `counts` has a list for each count of ServiceFacts."""

    counts: dict[str, list[int]]
    wait: list[Percentiles | None]
    run: list[Percentiles | None]


class ServiceFacts(TypedDict):
    """What a service did. `retried`: attempts that failed and were followed by another; `closed` contains `cancelled`,
    those that had not ended; `requeued`: sent again by users."""

    accepted: Count
    dispatched: Count
    succeeded: Count
    failed: Count
    retried: Count
    expired: Count
    closed: Count
    cancelled: Count
    requeued: Count
    wait: Annotated[Percentiles | None, "Until the first attempt; null: there was none."]
    run: Annotated[Percentiles | None, "Of attempts."]
    usual: NotRequired[Annotated[UsualTimes, "Of the day before; absent: there were none, or a period is an hour."]]
    series: NotRequired[FactSeries]


class FailureGroupInfo(TypedDict):
    """Failures of a service with the same error, apart from numbers, ids, paths and quoted texts."""

    service: Annotated[str | None, "null: services that are not counted by name."]
    state: str
    text: str
    example: str
    sample: Annotated[str, "The UUID of the last one."]
    first: Time
    last: Time
    failed: Count
    """Requests that have ended so."""
    retried: Count
    """Attempts that failed so and were followed by another."""
    hours: list[tuple[int, int]]
    """The beginning of an hour, and its failures."""


class FactsInfo(TypedDict):
    """What services did since `since`, over restarts and on all servers that share the store."""

    since: Time
    step: Annotated[int, "Seconds of a period."]
    incomplete: list[tuple[int, int]]
    """Spans for which counts are missing, because a server was killed."""
    total: ServiceFacts
    services: dict[str, ServiceFacts]
    other: Annotated[ServiceFacts | None, "The least active services, if there are over 1000."]
    bytes: Annotated[Count, "What all facts take in the store."]
    failures: NotRequired[Annotated[list[FailureGroupInfo], 'Needs `read = "all"`.']]
    """The largest first."""
    failures_omitted: NotRequired[Count]


class Refusal(TypedDict):
    """How often a user lacked a permission, and for what."""

    user: str
    action: str
    count: int


class Filling(TypedDict):
    """What a service has in the store: requests that are live, have ended, and are closed, and their bytes. Of more
    than 1000 of a kind, the newest are taken for all."""

    service: str
    live: int
    ended: int
    closed: int
    bytes: int


class StoreReaderInfo(TypedDict):
    """A process that has been reading the store's files for some time, and keeps bytes from being used again."""

    pid: int
    command: str
    age: float
    pinned: int


class OtherServices(TypedDict):
    """The services that are not named, together. `services`: how many there are, as far as known."""

    services: int
    waiting: int
    delayed: int


class Stats(TypedDict):
    """What is stored, what waits for each service, what is running, what was done since the start."""

    store: StoreStats
    services: dict[str, int]
    """Of at most about 1,000 services: those with workers, limits or other settings, and those with the most requests
    waiting."""
    other: NotRequired[OtherServices]
    """The others; absent when there are none."""
    durability: Literal["synced", "relaxed", "memory"]
    accepting: bool
    """Whether new requests are taken."""
    disk_full: bool
    disk_free: int | None
    """Bytes that the store's disk has left; None: the store was deleted, or is in a database."""
    full_in: float | None
    """Seconds until the store is full at the rate of the last hour; None: it does not fill, or it is not known yet."""
    refuses_for_room: bool
    """Whether a request was refused for want of room within the last minute."""
    readers: NotRequired[list[StoreReaderInfo]]
    """Absent when there are none."""
    since_start: SinceStart
    running: int
    waiting_clients: int
    dispatch: DispatchStats
    facts: NotRequired[FactsRoom]
    """Absent from older servers."""
    queue: NotRequired[str]
    """An id of the process. Absent from older servers that shared no store."""
    node: NotRequired[AskedNode | None]
    """This and what follows is there when nodes share the store. None: it has no lease at the moment."""
    other_nodes: NotRequired[list[OtherNode]]
    workers_elsewhere: NotRequired[dict[str, int]]
    """The workers of the other nodes, by service."""
    settings: NotRequired[dict[str, ServiceSettingInfo]]
    """What is set for services; absent when nothing is."""
    by_service: NotRequired[dict[str, ServiceStats]]
    """All about each service; this and what follows is there when it was asked for."""
    refused: NotRequired[dict[str, int]]
    """Refusals by reason."""
    refusals: NotRequired[list[Refusal]]
    """Of users: what they lacked a permission for."""
    filled_by: NotRequired[list[Filling]]
    """The services that fill the store, the largest first; there when it was asked for."""


class NodeInfo(TypedDict):
    """A node that shares the store, as it describes itself."""

    incarnation: int
    name: str
    version: str
    endpoints: list[str]
    started_at: Time
    lease: float | None
    """Seconds until it is over unless it is renewed; None: the node has ended."""
    services: dict[str, list[int]]
    """Of each service how many workers it has, and how many requests in flight."""
    draining: bool
    shard: int
    claims: int | None
    """Requests that it has claimed; None: they were not counted."""
    workers: int
    running: int
    access: str
    """The first 16 digits of the SHA-256 of its access file; "open": it has none; empty: it does not say."""
    asked: bool
    """Whether it is the one that was asked."""


class RequestInHand(TypedDict):
    """A request that a worker has."""

    uuid: Annotated[str, "Empty: a plain request, which is not stored."]
    """Empty, too, if the user may not read it."""
    service: str
    started_at: Time


class WorkerInfo(TypedDict):
    """A worker process, or one connection of a worker that does not name its process."""

    name: Annotated[str, "HOST:PID as the worker reports it; empty: it does not."]
    host: str
    pid: Count | None
    user: NotRequired[Annotated[str, "Its user, with access control."]]
    version: Annotated[str, "The version that it reports; empty: none."]
    services: list[str]
    slots: Annotated[Count, "How many requests it takes at a time."]
    requests: list[RequestInHand]
    registered_at: Time
    heard_at: Annotated[Time, "When its last message came."]


class WorkersInfo(TypedDict):
    """The workers of the server that answers."""

    workers: Annotated[list[WorkerInfo] | None, "null: unknown, or not permitted; see `reason`."]
    services: Annotated[
        dict[str, Count | None],
        "How many requests workers take at a time, by service; null: some, number unknown.",
    ]
    omitted: Annotated[Count, "Worker processes left out because there are too many."]
    node: Annotated[str | None, "The server's name, if servers share the store."]
    reason: Annotated[str, "Why `workers` is null."]


class JobConditions(TypedDict, total=False):
    """Which requests a job retries or closes: all that is given must match."""

    service: str
    owner: str
    """The user who submitted them."""
    state: str
    error: str
    """The text of a group of failures, or an error of it."""
    key: str
    text: str
    """A part of the error or the key, in any case."""
    body: str
    """A part of the body."""
    since: float
    until: float
    """When they were submitted, in seconds since 1970."""
    older_than: float
    """Seconds since they ended or, if they have not, were submitted."""


class RedriveInfo(TypedDict):
    """A job that retries or closes requests. Times in `where` are seconds since 1970."""

    id: Uuid
    action: Literal["retry", "close"]
    where: Annotated[JobConditions, "Empty: the requests were given."]
    rate: Annotated[float | None, "Requests a second at most."]
    user: str
    """Empty without access control."""
    state: Literal["counting", "counted", "running", "paused", "done", "cancelled", "stopped"]
    """`counted`: not confirmed yet; `stopped`: it ended early, for `reason`."""
    counted: Annotated[Count, "The requests that matched."]
    """So far, while it is counting."""
    done: Count
    """Those of them that it has retried or closed."""
    changed: Annotated[Count, "Left unchanged, because they did not match any more."]
    started_at: Time
    ended_at: MaybeTime
    reason: Annotated[str, "Why it ended early."]


class ScheduleReport(TypedDict):
    """A schedule as its scheduler reports it: its expression or interval, its next tick and its last one, or a later
    run that was asked for, with the UUID, in seconds since 1970."""

    name: str
    service: str
    when: str
    tz: str
    next: float
    tick: NotRequired[float]
    uuid: NotRequired[str]


class TickInfo(TypedDict):
    """The request of a tick."""

    tick: Time
    uuid: Uuid
    state: Annotated[str, "`closed`: the request is gone."]


class ScheduleInfo(TypedDict):
    """A schedule that a scheduler has registered."""

    name: str
    owner: Annotated[str, "The user of its schedulers; empty without access control."]
    service: str
    when: Annotated[str, "The cron expression, or the interval."]
    tz: str
    next: Annotated[Time, "The next tick."]
    last: TickInfo | None
    """Its last tick, or a later run that was asked for."""
    paused_at: MaybeTime
    late: Annotated[bool, "Whether its next tick was due two minutes ago."]
    process: Annotated[str, "HOST:PID of the scheduler that registered it last."]
    registered_at: Time
    seen_at: Annotated[Time, "When a scheduler registered it last."]


class ArchiveInfo(TypedDict):
    """The archive of closed requests: it has them up to number `archived_upto`, the store has `first` to `last`."""

    registered: bool
    archived_upto: int
    first: int
    last: int
    lost: int
    store: str | None
    """The id of the store."""
    archive: str | None
    """The id of the archive, if it has one, and its place for people."""
    name: str | None


class AuditAct(TypedDict):
    """An act of a user on requests of others, services, nodes or the store."""

    at: Time
    act: Annotated[str, "A word such as `close`, `retry`, `purge`, `pause` or `read`."]
    """Also kill, change, resume, set, drain, archive, access, settings, repair, restore and migrate."""
    user: Annotated[str, "Empty: anonymous. Of acts without a client, the system's user."]
    way: Annotated[str, "`http`, `page`, `mdp`; `offline`: without a client."]
    """Offline: by the server itself, too, such as a reload."""
    address: str
    """The IP address; empty: unknown."""
    service: Annotated[str, "Of the requests, if all are of one."]
    uuid: Annotated[str, "Of the first request."]
    """Empty: it is about none, or too many to name."""
    count: Count
    text: str


class AuditRefusal(TypedDict):
    """What was refused from an address in a minute; `user` and `action` are those of the last refusal."""

    at: Time
    address: str
    count: Count
    user: str
    action: str


class AuditQuery(TypedDict, total=False):
    """Which acts, or `refusals`, a page of the audit has. Absent is None. Times are in seconds since 1970."""

    refusals: bool
    user: str | None
    act: str | None
    address: str | None
    since: float | None
    until: float | None
    after: str | None
    limit: int


class AuditPage(TypedDict):
    """Acts or refusals, newest first."""

    acts: list[AuditAct]
    refusals: list[AuditRefusal]
    next: Annotated[str | None, "The next page; null: this is the last."]
