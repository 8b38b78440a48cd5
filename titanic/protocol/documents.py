"""What Titanic reports about itself: the JSON of titanic.stats and titanic.admin. A later version may report more."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


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
    """Requests that failed because three workers died of them; they are among the `failed`."""


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
    on_end: str | None
    """The service that is notified of its ends."""


class LimitValues(TypedDict, total=False):
    """Limits of a service; None: there is none. In a change, None means the configured one, and an absent one stays."""

    waiting: int | None
    bytes: int | None
    running: int | None
    rate: float | None


class LimitsSet(LimitValues):
    """The limits that an admin has set; None: the configured one holds."""

    configured: LimitValues
    at: int
    """When they were set, in µs since 1970."""
    by: str
    """By which user; empty without access control, and for users who may not read the audit."""


class ServiceStats(ServiceSettingInfo):
    """All about a service."""

    waiting: int
    delayed: int
    running: int
    bytes: int
    workers: int | None
    """None: there are some, their number is unknown."""
    oldest: int | None
    done: int
    """Since the start of the server, as `failed` and `expired`."""
    failed: int
    expired: int
    limits: LimitValues
    """Those in force."""
    limits_set: NotRequired[LimitsSet]


class Percentiles(TypedDict):
    """Seconds that half, 90 % and 99 % do not exceed, about."""

    p50: float
    p90: float
    p99: float


class FactSeries(TypedDict):
    """The figures of each minute or hour, the first first. `counts` has a list for each count of ServiceFacts."""

    counts: dict[str, list[int]]
    wait: list[Percentiles | None]
    run: list[Percentiles | None]


class ServiceFacts(TypedDict):
    """What a service has done in a span of time. `dispatched`: deliveries to workers; `retried`: attempts that failed
    and were followed by another; `closed` contains `cancelled`, those that had not ended; `requeued`: failed
    and expired ones that users sent again."""

    accepted: int
    dispatched: int
    succeeded: int
    failed: int
    retried: int
    expired: int
    closed: int
    cancelled: int
    requeued: int
    wait: Percentiles | None
    """Until the first attempt; None: there was none."""
    run: Percentiles | None
    """Of attempts that have ended."""
    series: NotRequired[FactSeries]


class FailureGroupInfo(TypedDict):
    """Failures of a service with the same error, apart from numbers, ids, paths and quoted texts. `service` is null for
    those that are not counted by name."""

    service: str | None
    state: str
    text: str
    example: str
    sample: str
    """The UUID of the last one."""
    first: int
    last: int
    failed: int
    """Requests that have ended so."""
    retried: int
    """Attempts that failed so and were followed by another."""
    hours: list[tuple[int, int]]
    """The beginning of an hour, and its failures."""


class FactsInfo(TypedDict):
    """What services have done since `since`, by minute or hour (`step`, seconds), over restarts and on all nodes."""

    since: int
    step: int
    incomplete: list[tuple[int, int]]
    """Spans for which counts are missing, because a server was killed."""
    total: ServiceFacts
    services: dict[str, ServiceFacts]
    other: ServiceFacts | None
    """The least active services, if there are more than 1000."""
    bytes: int
    """What all facts take in the store."""
    failures: NotRequired[list[FailureGroupInfo]]
    """The largest first; absent without the permission to read all requests."""
    failures_omitted: NotRequired[int]


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
    node: NotRequired[AskedNode | None]
    """This and what follows is there when nodes share the store. None: it has no lease at the moment."""
    other_nodes: NotRequired[list[OtherNode]]
    workers_elsewhere: NotRequired[dict[str, int]]
    """The workers of the other nodes, by service."""
    queue: NotRequired[str]
    """An id of the process."""
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
    started_at: int
    """Microseconds since 1970."""
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

    uuid: str
    """Empty: a plain request, which is not stored, or one that the user may not read."""
    service: str
    started_at: int
    """When it was sent to the worker, in microseconds since 1970."""


class WorkerInfo(TypedDict):
    """A worker process, or one connection of a worker that does not name its process."""

    name: str
    """HOST:PID as the worker reports it; empty: it does not."""
    host: str
    pid: int | None
    user: NotRequired[str]
    """With access control."""
    version: str
    """The version that it reports; empty: none."""
    services: list[str]
    slots: int
    """How many requests it takes at a time."""
    requests: list[RequestInHand]
    registered_at: int
    """Microseconds since 1970."""
    heard_at: int
    """When its last message came."""


class WorkersInfo(TypedDict):
    """The workers of a server."""

    workers: list[WorkerInfo] | None
    """None: unknown, for `reason`."""
    services: dict[str, int | None]
    """How many requests the workers of each service take at a time. None: some, their number is unknown."""
    omitted: int
    """Worker processes that are left out of `workers`, because there are too many."""
    node: str | None
    """The name of the server, if servers share the store."""
    reason: str


class JobConditions(TypedDict, total=False):
    """Which requests a job retries or closes: all that is given must match."""

    service: str
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
    """A job that retries or closes requests. Times are in microseconds since 1970; 0: not yet."""

    id: str
    action: Literal["retry", "close"]
    where: JobConditions
    """Empty: the requests were given."""
    rate: float | None
    """Requests a second at most."""
    user: str
    """Empty without access control."""
    state: Literal["counting", "counted", "running", "paused", "done", "cancelled", "stopped"]
    """`counted`: not confirmed yet; `stopped`: it ended early, for `reason`."""
    counted: int
    """The requests that matched, so far while it is counting."""
    done: int
    """Those of them that it has retried or closed."""
    changed: int
    """Those that it has left as they are: they did not match any more."""
    started_at: int
    ended_at: int
    reason: str


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
    """A tick, or a run that was asked for, and its request; `state` is `closed` if that is gone."""

    tick: int
    uuid: str
    state: str


class ScheduleInfo(TypedDict):
    """A registered schedule. Times are in microseconds since 1970; 0: never."""

    name: str
    owner: str
    """The user of its schedulers; empty without access control."""
    service: str
    when: str
    """The cron expression, or the interval as `every 300 s`."""
    tz: str
    next: int
    last: TickInfo | None
    paused_at: int
    late: bool
    """Whether no scheduler has submitted the next tick two minutes afterwards."""
    process: str
    """HOST:PID of the scheduler that registered it last."""
    registered_at: int
    seen_at: int
    """When a scheduler registered it last."""


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

    at: int
    """Microseconds since 1970."""
    act: str
    """close, kill, retry, purge, change, read, pause, resume, set, drain, archive, access, settings, repair, restore or
    migrate."""
    user: str
    """Empty without access control; if `way` is offline, the system's user."""
    way: str
    """http, page, mdp, or offline: by the server itself, such as a reload."""
    address: str
    """The IP address; empty: unknown."""
    service: str
    """Of the requests, if all are of one."""
    uuid: str
    """Of the first request; empty: it is about none, or too many to name."""
    count: int
    """How many requests."""
    text: str


class AuditRefusal(TypedDict):
    """What was refused from an address in a minute."""

    at: int
    """The minute, in microseconds since 1970."""
    address: str
    count: int
    user: str
    """Of the last one; empty: unknown."""
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
    next: str | None
    """The `after` of the next page."""
