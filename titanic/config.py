"""Every setting of the server, with its default and what it means. Times are seconds, sizes bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any

from broker import DEFAULT_ENDPOINT, BrokerConfig, WorkerConfig
from titanic.errors import CallerError, Contradiction
from titanic.store import DURABILITIES, MIN_CAPACITY, Durability, LeaseConfig, Retention

MOST_LANES = 150
"""ZeroMQ allows 1023 sockets in a process."""


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits of one service; 0: no limit."""

    waiting: int = 0
    """Requests that have not ended; further ones are refused."""
    bytes: int = 0
    """Bytes of their bodies; further requests are refused."""
    running: int = 0
    """Requests that run at the same time, however many workers there are."""
    rate: float = 0.0
    """Attempts that begin in a second, evenly spread."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How Titanic stores, dispatches and stops."""

    store: Path | str = Path("titanic-data")
    """Directory of the store, or the URL of a database of PostgreSQL: postgresql://…"""
    capacity: int | None = None
    """Size limit of the store's file; new requests are refused when it is full. None: as before, or 1 GiB."""
    durability: Durability = "synced"
    """When a request is acknowledged: `synced`, when it is on the disk; `relaxed`, with one sync instead of two, and a
    power cut may take what was acknowledged within the last second; `memory`, when it is in a store that is in RAM."""
    preallocate: bool = False
    """Whether to take the whole capacity from the disk at the start."""
    closed_body_limit: int = 64 << 10
    """Closed requests are remembered until their room is needed, without bodies that are larger than this."""
    drop_unarchived: bool = False
    """When room is needed: whether to forget closed requests that an archive does not have yet, and to count the loss;
    otherwise new requests are refused."""
    retention: Retention = field(default_factory=Retention)
    """How long replies that nobody closes, dead requests and closed ones are kept."""
    limits: Mapping[bytes, ServiceLimits] = field(default_factory=dict)
    """Limits of single services, by name."""
    bind: tuple[str, ...] = (DEFAULT_ENDPOINT,)
    """Endpoints of the integrated broker."""
    open: bool = False
    """Whether endpoints that other machines can reach are meant to be so without access control: else they are
    refused."""
    gather: tuple[str, ...] = ()
    """Endpoints of a GATHER socket, for requests without an answer; with the integrated broker only."""
    access: Path | None = None
    """The file that says who may do what; None: whoever connects may do everything. With the integrated broker only."""
    key: Path | None = None
    """File with a secret key: with `access` the one that clients know this server by; with a `broker` that is secured
    the one that this server says who it is with."""
    server_key: str | Path | None = None
    """With a `broker` that is secured: its public key, in Z85 or in a file."""
    broker: str | None = None
    """Endpoint of a broker in another process; None: the broker runs in this process."""
    node_name: str = ""
    """What people call this server among those that share its store; empty: the name of the machine."""
    advertise: tuple[str, ...] = ()
    """Endpoints at which others reach this server, for `titanic nodes`; empty: those that it has bound."""
    lanes: int = 64
    """With a broker in another process: worker sockets for each of Titanic's services, and the most requests in flight
    for one service when the broker does not tell how many workers there are. MDP allows one request at a time on
    each. 64 make up to 1,500 file descriptors."""
    max_attempts: int = 10
    """Failed attempts after which a request has failed for good."""
    retry_first: float = 1.0
    """Back-off after the first failure, in seconds; doubles with each failure, give or take a tenth."""
    retry_most: float = 300.0
    """The longest back-off."""
    unready_timeout: float = 3600.0
    """A request for which no worker was ready for this long has failed: each has given it back, because it does not
    know the task or an argument of it, or cannot import a module. Counted by each server since its start."""
    attempt_timeout: float = 600.0
    """With a broker of another project: an attempt without a reply for this long has failed. (This project's broker
    tells when a worker died, so a request may run as long as its worker lives.)"""
    presence_first: float = 0.05
    """Wait before the broker is asked again for a service without workers; doubles up to `presence_most`."""
    presence_most: float = 1.0
    """The longest such wait."""
    grace: float = 10.0
    """On shutdown: how long running requests may still take."""
    wire: BrokerConfig = field(default_factory=BrokerConfig)
    """The integrated broker's settings."""
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    """The lanes' settings."""
    lease: LeaseConfig = field(default_factory=LeaseConfig)
    """How nodes that share a store in PostgreSQL keep in touch."""

    def __post_init__(self) -> None:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        for wrong in chain(contradictions(values | {"max_body": self.wire.max_body}), access_contradictions(values)):
            raise wrong
        if self.durability not in DURABILITIES:
            raise CallerError(f"durability is {self.durability!r}", f"it must be one of {', '.join(DURABILITIES)}")
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                limit = f"at least {least}" if value < least else f"at most {most}"
                raise CallerError(f"{name} is {value}", f"it must be {limit}")


def contradictions(values: Mapping[str, Any]) -> Iterator[Contradiction]:
    """The contradictions among a server's settings, by name."""
    if values["broker"] is None and not values["bind"]:
        yield Contradiction(("bind",), "bind is empty", "nobody could connect", "name at least one endpoint")
    if values["broker"] is not None and values["gather"]:
        what, fact = "gather is for the integrated broker", "with another one there is none"
        yield Contradiction(("gather", "broker"), what, fact, "leave one out")
    for endpoint in values["bind"] if values["broker"] is None else ():
        if endpoint in values["gather"] and not endpoint.endswith((":*", ":0")):
            what, fact = f"gather is at {endpoint}", "that is where the broker listens, as bind says"
            yield Contradiction(("bind", "gather"), what, fact, "choose another port")
    largest, capacity = values["max_body"], values["capacity"]
    if capacity is not None and BrokerConfig().max_body != largest > capacity:
        what, fact = f"max_body is {largest} bytes", f"the store's capacity is {capacity}: none of that size has room"
        yield Contradiction(("max_body", "capacity"), what, fact, "change one of the two")
    first, most = values["retry_first"], values["retry_most"]
    if first > most:
        what, fact = f"retry_first is {first:g} s", f"it must not be more than retry_most, {most:g} s"
        yield Contradiction(("retry_first", "retry_most"), what, fact, "change one of the two")


def access_contradictions(values: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Those among the settings of access control. A file may have some of these, and the environment the others."""
    access, key, server_key = values["access"], values["key"], values["server_key"]
    if values["broker"] is None:
        if access is not None and values["open"]:
            what, fact = "open is for endpoints without access control", "access says who may do what"
            yield Contradiction(("open", "access"), what, fact, "leave one out")
        if access is not None and key is None:
            what, fact = "access is given without key", "clients have to know that this is the right server"
            advice = "make its key with `titanic keys server`, and give the secret file as key"
            yield Contradiction(("access", "key"), what, fact, advice)
        return
    if access is not None:
        what = "access is for the integrated broker"
        fact = "access control is where clients connect, and a broker that is not of this project has none"
        yield Contradiction(
            ("access", "broker"), what, fact, "give it to `titanic broker` there, and leave it out here"
        )
    if (server_key is None) != (key is None):
        given, missing = ("key", "server_key") if server_key is None else ("server_key", "key")
        what, fact = f"{given} is given without {missing}", "a broker that is secured takes both"
        yield Contradiction((given, missing), what, fact, "give both; `titanic keys new` makes a key")


_LIMITS: dict[str, tuple[float, float]] = {
    "capacity": (MIN_CAPACITY, 1 << 44),
    "lanes": (1, MOST_LANES),
    "max_attempts": (1, 65535),
    "retry_first": (0, 1e9),
    "retry_most": (0, 1e9),
    "unready_timeout": (0, 1e9),
    "attempt_timeout": (0.001, 1e9),
    "presence_first": (0.001, 3600),  # 0 would be to ask without a pause
    "presence_most": (0.001, 3600),
    "grace": (0, 1e6),
}
