"""The settings of the server: each is declared once, with its default, unit, range and meaning.

Times are in seconds, sizes in bytes. The options of `titanic serve`, deploy/titanic.toml and what SIGHUP reloads come
from these declarations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any

from broker import DEFAULT_ENDPOINT, BrokerConfig, WorkerConfig, coerce_fields, setting, settings_of
from titanic.errors import CallerError, Contradiction
from titanic.store import DURABILITIES, MIN_CAPACITY, Durability, LeaseConfig, Retention
from titanic.util.units import MAX_SECONDS

JITTER = 0.1
"""Each delay before a retry, even the longest, varies by up to this share, so that requests that failed together are
not retried together. A delay that a handler asks for is not changed."""

MAX_LANES = 150
"""ZeroMQ allows 1023 sockets in a process."""

KEPT, TRIED, TRAFFIC, OPERATION = "Retention", "Attempts", "Broker", "Monitoring"
"""Headings in the help and in files."""


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits of one service; 0: no limit. `keep`, `keep_failed` and `keep_body` apply only on the server that has them,
    to requests submitted to it without such an option."""

    waiting: int = 0
    """Requests that have not ended; further ones are refused."""
    bytes: int = 0
    """Bytes of their bodies; further requests are refused."""
    running: int = 0
    """Requests that run at the same time, however many workers there are."""
    rate: float = 0.0
    """Attempts that begin per second, evenly spread."""
    keep: float = 0.0
    """Seconds that a reply is kept; 0: the server's time."""
    keep_failed: float = 0.0
    """Seconds that a failed or expired request is kept; 0: the server's time."""
    keep_body: float | str = ""
    """Seconds that the body of an ended request is kept; `never`: deleted on success; empty: kept with the request."""

    def __post_init__(self) -> None:
        coerce_fields(self)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How Titanic stores, dispatches and stops."""

    store: Path | str = setting(
        Path("titanic-data"),
        "Directory of the store, or the URL of a PostgreSQL database: postgresql://USER@HOST/DATABASE.",
    )
    capacity: int | None = setting(
        None,
        "Size limit of the store. When it is full, new requests are refused.",
        unit="B",
        least=MIN_CAPACITY,
        most=1 << 44,
        otherwise="the capacity of an existing store, 1GiB for a new one",
    )
    durability: Durability = setting(
        "synced",
        "When a request is acknowledged. synced: once it is on disk. relaxed: sooner; a power failure may lose"
        " requests acknowledged within the last second. memory: for tests and caches; the store is in RAM, and"
        " `store` must be a directory there, such as /dev/shm/titanic.",
        choices=DURABILITIES,
    )
    preallocate: bool = setting(False, "Allocate the whole capacity on disk at startup.", group=KEPT)
    keep_body: float = setting(
        0,
        "How long to keep the bodies of requests that have ended; without a body, no retry is possible. 0: as long as"
        " the requests. A request or its service may override it.",
        unit="s",
        least=0,
        group=KEPT,
        is_live=True,
    )
    closed_body_limit: int = setting(
        64 << 10,
        "Largest body kept with a closed request.",
        unit="B",
        least=0,
        group=KEPT,
    )
    drop_unarchived: bool = setting(
        False,
        "When space runs out, drop closed requests that are not archived yet, instead of refusing new requests. The"
        " metric titanic_store_lost_total counts them.",
        group=KEPT,
    )
    retention: Retention = field(default_factory=Retention)
    """How long ended and closed requests are kept: see `OperatorSettings`."""
    limits: Mapping[bytes, ServiceLimits] = setting(
        factory=dict,
        help="Limits of a service, as in mail:waiting=1000,rate=10/s. waiting=N: unfinished requests; bytes=SIZE:"
        " their bodies; running=N: requests at once; rate=N/s (or /m, /h): attempts started, evenly spaced. These four"
        " are totals over all servers that share a store. keep=TIME (or never), keep_failed=TIME and keep_body=TIME (or"
        " never) are defaults for requests without these options.",
        group=TRIED,
        is_live=True,
        option="service_limit",
    )
    bind: tuple[str, ...] = setting((DEFAULT_ENDPOINT,), "Endpoint of the integrated broker; * or 0 for any free port.")
    open: bool = setting(
        False,
        "Allow endpoints that other machines can reach, without access control: any client may submit, read, close"
        " and work. Otherwise such endpoints are refused.",
    )
    gather: tuple[str, ...] = setting(
        (), "Endpoint for requests that need no reply, from SCATTER sockets; with the integrated broker only."
    )
    access: Path | None = setting(
        None,
        "Access file: the users and their permissions. With the integrated broker only; requires `key`.",
        otherwise="any client may do anything",
    )
    key: Path | None = setting(
        None,
        "Secret key file. With `access`: the key that identifies this server to clients. With `broker`: the key that"
        " identifies this server to that broker; requires `server_key`.",
        otherwise="none",
        option="key_file",
    )
    server_key: str | Path | None = setting(
        None,
        "With `broker`: public key of that broker, as Z85 or a file, if it has access control.",
        otherwise="none",
    )
    broker: str | None = setting(
        None,
        "Use the broker at this endpoint, in another process.",
        otherwise="the integrated broker",
    )
    node_name: str = setting(
        "",
        "With a store in PostgreSQL: unique name of this server among those that share the store.",
        otherwise="the host name",
    )
    advertise: tuple[str, ...] = setting(
        (),
        "With a store in PostgreSQL: endpoint at which clients reach this server, shown by `titanic nodes`.",
        otherwise="the endpoints that it binds",
    )
    lanes: int = setting(
        64,
        "With `broker`: number of worker sockets for each of the five busiest titanic.* services; the other titanic.*"
        " services have 4. If that broker does not report its workers, this is also the maximum number of requests in"
        " flight for one service.",
        least=1,
        most=MAX_LANES,
        group=TRAFFIC,
    )
    max_attempts: int = setting(
        10,
        "Failed attempts after which a request fails for good.",
        least=1,
        most=65535,
        group=TRIED,
        is_live=True,
    )
    poison_deaths: int = setting(
        3,
        "A request fails for good after this many workers died while it was their only request, whatever"
        " --max-attempts is.",
        least=1,
        most=65535,
        group=TRIED,
        is_live=True,
    )
    retry_first: float = setting(
        1.0,
        f"Delay before the first retry; doubles with each further one, plus or minus {JITTER * 100:g} % (jitter).",
        unit="s",
        least=0,
        group=TRIED,
        is_live=True,
    )
    retry_most: float = setting(
        300.0, "Maximum delay before a retry, not counting the jitter.", unit="s", least=0, group=TRIED, is_live=True
    )
    unready_timeout: float = setting(
        3600.0,
        "How long to keep redispatching a request that workers return because they do not know its task or an"
        " argument, or cannot import a module; then the request fails. A restart of the server resets this time.",
        unit="s",
        least=0,
        group=TRIED,
        is_live=True,
    )
    attempt_timeout: float = setting(
        600.0,
        "With a third-party `broker`, which does not report dead workers: an attempt fails if there is no reply"
        " within this time.",
        unit="s",
        least=0.001,
        group=TRIED,
    )
    presence_first: float = setting(
        0.05,
        "Delay before the broker is polled again for a service without workers; doubles up to `presence_most`.",
        unit="s",
        least=0.001,  # 0 would poll without a pause
        most=3600,
    )
    presence_most: float = setting(
        1.0, "Maximum delay before the broker is polled again.", unit="s", least=0.001, most=3600
    )
    grace: float = setting(
        10.0,
        "On shutdown: maximum time for running requests to finish. Requests that workers keep across a restart"
        " are not awaited.",
        unit="s",
        least=0,
        is_live=True,
    )
    limit_grace: float = 15.0
    """Seconds after the limit of an attempt until the next one begins although a worker still has the first. Commands
    of `titanic work` need 10 s by default."""
    wire: BrokerConfig = field(default_factory=BrokerConfig)
    """The integrated broker's settings."""
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    """The lanes' settings."""
    lease: LeaseConfig = field(default_factory=LeaseConfig)
    """How nodes that share a store in PostgreSQL keep in touch."""

    def __post_init__(self) -> None:
        coerce_fields(self)
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        for wrong in chain(contradictions(values | {"max_body": self.wire.max_body}), access_contradictions(values)):
            raise wrong
        for name, declared in settings_of(self).items():
            value = values[name]
            if declared.choices and value not in declared.choices:
                raise CallerError(f"{name} is {value!r}", f"it must be one of {', '.join(declared.choices)}")
            least = declared.least
            most = MAX_SECONDS if declared.most is None and declared.unit == "s" else declared.most
            if value is not None and least is not None and value < least:
                raise CallerError(f"{name} is {value}", f"it must be at least {least}")
            if value is not None and most is not None and not value <= most:
                raise CallerError(f"{name} is {value}", f"it must be at most {most:g}")


def live_settings(config: type) -> frozenset[str]:
    """The settings of a dataclass that a running server can change."""
    return frozenset(name for name, declared in settings_of(config).items() if declared.is_live)


LIVE = live_settings(ServerConfig) | {"retention"}
"""The fields that a running server can change."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Settings of `titanic serve` that are not fields of `ServerConfig`, or only parts of one."""

    keep_replies: float = setting(
        7 * 86_400.0,
        "How long to keep replies that no client closes; 0: forever.",
        unit="s",
        least=0,
        group=KEPT,
        is_live=True,
        written="7d",
    )
    keep_dead: float = setting(
        30 * 86_400.0,
        "How long to keep failed and expired requests; 0: forever.",
        unit="s",
        least=0,
        group=KEPT,
        is_live=True,
        written="30d",
    )
    keep_closed: float = setting(
        0,
        "Maximum time to keep closed requests; 0: unlimited. They are dropped sooner when their space is needed.",
        unit="s",
        least=0,
        group=KEPT,
        is_live=True,
    )
    lease: float = setting(
        LeaseConfig().lease,
        "With a store in PostgreSQL: how long other servers wait before taking over from a dead server. Must be equal"
        " on all servers; stop all of them before changing it.",
        unit="s",
        least=3.0,  # a renewal is given up after a fifth of it
        most=3600.0,  # the requests of a dead server must not wait for a day
    )
    metrics: str | None = setting(
        None,
        "Address for /metrics (Prometheus), /healthz and /readyz. :PORT listens on all addresses; port 0 picks a free"
        " port.",
        group=OPERATION,
        otherwise="none",
    )

    @staticmethod
    def retention(settings: Mapping[str, float]) -> Retention:
        """How long requests are kept, in µs."""
        return Retention(*(int(settings[name] * 1e6) for name in ("keep_replies", "keep_dead", "keep_closed")))


def contradictions(values: Mapping[str, Any]) -> Iterator[Contradiction]:
    """The contradictions among a server's settings, by name."""
    if values["broker"] is None and not values["bind"]:
        yield Contradiction(("bind",), "bind is empty", "no client could connect", "name at least one endpoint")
    if values["broker"] is not None and values["gather"]:
        what, fact = "gather is for the integrated broker", "broker names another one"
        yield Contradiction(("gather", "broker"), what, fact, "leave one out")
    for endpoint in values["bind"] if values["broker"] is None else ():
        if endpoint in values["gather"] and not endpoint.endswith((":*", ":0")):
            what, fact = f"gather is at {endpoint}", "bind has the same endpoint"
            yield Contradiction(("bind", "gather"), what, fact, "choose another port")
    largest, capacity = values["max_body"], values["capacity"]
    if capacity is not None and BrokerConfig().max_body != largest > capacity:
        what, fact = f"max_body is {largest} bytes", f"the store's capacity is {capacity}: such a body does not fit"
        yield Contradiction(("max_body", "capacity"), what, fact, "change one of the two")
    first, most = values["retry_first"], values["retry_most"]
    if first > most:
        what, fact = f"retry_first is {first:g} s", f"it must not be more than retry_most, {most:g} s"
        yield Contradiction(("retry_first", "retry_most"), what, fact, "change one of the two")


def access_contradictions(values: Mapping[str, Any]) -> Iterator[Contradiction]:
    """The contradictions among the settings of access control. Some may be in a file, the others in the environment."""
    access, key, server_key = values["access"], values["key"], values["server_key"]
    if values["broker"] is None:
        if access is not None and values["open"]:
            what, fact = "open is for endpoints without access control", "access turns access control on"
            yield Contradiction(("open", "access"), what, fact, "leave one out")
        if access is not None and key is None:
            what, fact = "access is given without key", "clients verify the server by its key"
            advice = "create one with `titanic keys server`, and give the secret file as key"
            yield Contradiction(("access", "key"), what, fact, advice)
        return
    if access is not None:
        what = "access is for the integrated broker"
        fact = "access control is enforced by the broker that clients connect to"
        yield Contradiction(
            ("access", "broker"), what, fact, "give it to `titanic broker` there, and leave it out here"
        )
    if (server_key is None) != (key is None):
        given, missing = ("key", "server_key") if server_key is None else ("server_key", "key")
        what, fact = f"{given} is given without {missing}", "a broker with access control needs both"
        yield Contradiction((given, missing), what, fact, "give both; `titanic keys new` creates a key")
