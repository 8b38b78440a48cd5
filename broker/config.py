"""Every setting of broker, workers and clients, with its default and what it means. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass

from broker.errors import UsageError

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5555"

MIN_MESSAGE = 2 << 20
"""Bytes that a message may have in any case before its connection is ended: up to there, what is too large is answered
with an error."""


def check(fine: bool, fault: str) -> None:
    """Raise UsageError for a setting that is not fine."""
    if not fine:
        raise UsageError(fault)


def check_heartbeats(interval: float, liveness: int) -> None:
    """Raise UsageError for heartbeats that cannot work; `interval` is seconds."""
    check(interval > 0, f"heartbeat_interval is {interval}; it must be more than 0")
    check(liveness > 1, f"liveness is {liveness}; it must be 2 or more, or each heartbeat comes too late")


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What a broker allows and how long it waits."""

    heartbeat_interval: float = 2.5
    """A worker that was sent nothing for this long gets a HEARTBEAT; sooner, if it sends them more often itself."""
    liveness: int = 4
    """A worker is gone when nothing came from it for this many intervals: the longer ones of these and its own, which
    are taken for 2.5 s before they were heard."""
    silent_worker_timeout: float = 900.0
    """The same for a busy worker of a dialect that sends no heartbeats while it works."""
    request_expiry: float = 60.0
    """A request that no worker took for this long gets an error reply; 0: it waits for ever."""
    max_deliveries: int = 3
    """A request whose workers died this many times gets an error reply instead of another worker. One of a queue does
    at the first death: the queue counts attempts."""
    max_waiting: int = 1_000_000
    """Requests waiting in all; more are refused."""
    max_waiting_per_service: int = 100_000
    """Requests waiting for one service; more are refused."""
    max_waiting_bytes: int = 1 << 30
    """Memory of all waiting requests, roughly; more are refused."""
    max_body: int = 64 << 20
    """Bytes of a request's body; larger ones are refused. A frame of twice that, and of more than 2 MiB, either
    way, ends its connection."""
    max_workers: int = 10_000
    """Registered workers; more are disconnected."""
    send_queue: int = 10_000
    """Messages queued for one peer that does not read; more are dropped and counted."""
    send_queue_bytes: int = 1 << 30
    """Bytes of large messages queued for all peers. One that does not read may have as much as it leaves for the
    others, and one message in any case; more are dropped and counted."""

    def __post_init__(self) -> None:
        check_heartbeats(self.heartbeat_interval, self.liveness)
        check(self.request_expiry >= 0, f"request_expiry is {self.request_expiry}; it must be 0 or more")

    @property
    def max_message(self) -> int:
        """Bytes of a message that comes in, and of one of its frames."""
        return max(2 * self.max_body, MIN_MESSAGE)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a worker keeps in touch with its broker."""

    heartbeat_interval: float = 2.5
    """When nothing was sent for this long, a HEARTBEAT goes out; sooner, if the broker sends them more often."""
    liveness: int = 4
    """The broker is gone when nothing came from it for this many intervals: the longer ones of these and its own, which
    are taken for 2.5 s before they were heard."""
    reconnect_first: float = 1.0
    """Wait before the first reconnection; each further one in a row waits twice as long."""
    reconnect_most: float = 32.0
    """The longest such wait."""
    max_reply: int = 127 << 20
    """Bytes of a reply, or of one of the parts of it; a larger one becomes an error reply, 413. A broker ends the
    connection of a worker that sends more than twice its `max_body`: by default 128 MiB, envelope included."""
    versions: tuple[str, ...] = ("0.2", "0.1")
    """MDP versions that may be spoken, the best one first: 0.1, 0.2, majortomo. If several, the broker is asked."""

    def __post_init__(self) -> None:
        check_heartbeats(self.heartbeat_interval, self.liveness)
        check(self.max_reply > 0, f"max_reply is {self.max_reply}; it must be 1 or more")
        known = {"0.1", "0.2", "majortomo"}
        fault = f"versions is {self.versions}; known: 0.1, 0.2, majortomo"
        check(bool(self.versions) and known.issuperset(self.versions), fault)


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How long a client waits and how often it tries (the Guide's Lazy Pirate)."""

    timeout: float | None = 2.5
    """Without any answer for this long, the request is sent again; None: wait for ever."""
    retries: int = 3
    """How often a request is sent again before the client gives up."""
    version: str | None = "0.2"
    """MDP version to speak: 0.2, 0.1 or majortomo; None: the broker is asked."""

    def __post_init__(self) -> None:
        known = ("0.2", "0.1", "majortomo")
        check(self.version is None or self.version in known, f"version is {self.version!r}; known: {', '.join(known)}")
