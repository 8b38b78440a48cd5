"""The settings of broker, workers and clients: each is declared once, with its default and what it means.

Times are seconds, sizes bytes. The options of commands and the settings file are made of these declarations.
`python -m broker.config` prints them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf
from sys import maxsize
from typing import Any, NamedTuple

from broker.errors import UsageError

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5555"

MIN_MESSAGE = 2 << 20
"""Bytes that a message may have in any case before its connection is ended: up to there, what is too large is answered
with an error."""

MDP_VERSIONS = ("0.2", "0.1", "majortomo")


class Setting(NamedTuple):
    """What a setting means. The default is that of its field."""

    help: str
    """Sentences. Other settings are named in backquotes, as in Python: `retry_most`."""
    unit: str = ""
    """`s` for a duration, `B` for a size, else empty."""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    group: str = ""
    """The heading that it stands below in help and files."""
    is_live: bool = False
    """Whether a running server takes over a new value on SIGHUP."""
    otherwise: str = ""
    """What holds by default, if the default itself does not say it."""
    written: str = ""
    """The default as people write it, if not as Python does: `7d`."""
    option: str = ""
    """Its name as an option, if that is not the field's."""


def setting(default: Any = None, help: str = "", *, factory: Any = None, **facts: Any) -> Any:
    """A field of a dataclass that is a setting; `facts` are those of `Setting`."""
    metadata = {"setting": Setting(help, **facts)}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_of(config: Any) -> dict[str, Setting]:
    """The settings that a dataclass declares, by field."""
    return {one.name: one.metadata["setting"] for one in fields(config) if "setting" in one.metadata}


def check(fine: bool, fault: str) -> None:
    """Raise UsageError for a setting that is not fine."""
    if not fine:
        raise UsageError(fault)


_COERCE: dict[str, Any] = {
    "int": lambda value: int(min(value, maxsize)),
    "float": float,
    "tuple[str, ...]": tuple,
}


def coerce_fields(config: Any) -> None:
    """Convert numbers of other types, such as numpy's, and lists to the int, float or tuple that the fields of a
    dataclass declare: compiled modules take nothing else."""
    for one in fields(config):
        value, kind = getattr(config, one.name), one.type.removesuffix(" | None")
        if kind in _COERCE and not isinstance(value, (str, type(None))) and type(value).__name__ not in (kind, "int"):
            object.__setattr__(config, one.name, _COERCE[kind](value))


MAX_VERSION = 64
"""Bytes of the version that a worker says of its program."""


def is_version(text: str) -> bool:
    """Whether a text can be such a version."""
    return text.isprintable() and len(text.encode()) <= MAX_VERSION


def check_heartbeats(interval: float, liveness: int) -> None:
    """Raise UsageError for heartbeats that cannot work; `interval` is seconds."""
    check(interval > 0, f"heartbeat_interval is {interval}; it must be more than 0")
    check(liveness > 1, f"liveness is {liveness}; it must be 2 or more; with less, each heartbeat comes too late")


TRAFFIC = "Broker"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What a broker allows and how long it waits."""

    heartbeat_interval: float = setting(
        2.5,
        "Heartbeat interval. A peer silent for four intervals (this or its own, whichever is longer) counts as"
        " disconnected.",
        unit="s",
        least=0.01,
        group=TRAFFIC,
        option="heartbeat",
    )
    liveness: int = setting(
        4,
        "Intervals of silence after which a worker is considered dead. The longer interval of the two sides applies;"
        " a worker's is assumed to be 2.5 s until it is known.",
    )
    silent_worker_timeout: float = setting(
        900.0,
        "Silence after which a busy worker is considered dead if its dialect sends no heartbeats during work"
        " (majortomo).",
        unit="s",
    )
    request_expiry: float = setting(
        60.0,
        "How long a plain MDP request waits for a worker before it gets an error reply; 0: forever.",
        unit="s",
        least=0,
        group=TRAFFIC,
    )
    worker_return: float = setting(
        30.0,
        "How long requests wait for their worker to return after it loses its connection (or is silent for four"
        " heartbeat intervals) or the server restarts; 0: not at all.",
        unit="s",
        least=0,
        group=TRAFFIC,
    )
    max_deliveries: int = setting(
        3,
        "How many workers may die while processing the same plain MDP request before it gets an error reply. Stored"
        " requests have --poison-deaths instead.",
        group=TRAFFIC,
    )
    max_waiting: int = setting(
        1_000_000, "Maximum number of plain MDP requests waiting in the broker's memory; further ones are refused."
    )
    max_waiting_per_service: int = setting(
        100_000,
        "Maximum number of plain MDP requests waiting for one service in the broker's memory; further ones are"
        " refused.",
        group=TRAFFIC,
        option="max_waiting",
    )
    max_waiting_bytes: int = setting(
        1 << 30, "Approximate memory of all waiting requests; further ones are refused.", unit="B"
    )
    max_body: int = setting(
        64 << 20,
        "Largest body of a request; larger ones are refused. A frame larger than both 2 MiB and twice `max_body`"
        " closes its connection.",
        unit="B",
        group=TRAFFIC,
    )
    max_workers: int = setting(10_000, "Maximum number of registered workers; further ones are disconnected.", least=0)
    send_queue: int = setting(
        10_000,
        "Maximum number of messages queued for one peer that does not read; further ones are dropped and counted.",
    )
    send_queue_bytes: int = setting(
        1 << 30,
        "Maximum bytes queued for all peers, at most half for one user, and maximum bytes of all partly received"
        " messages. Beyond it, messages to peers with queued messages are dropped and counted, and peers that read"
        " nothing for two seconds are disconnected.",
        unit="B",
    )

    def __post_init__(self) -> None:
        coerce_fields(self)
        check_heartbeats(self.heartbeat_interval, self.liveness)
        for name, declared in settings_of(self).items():
            value, least = getattr(self, name), declared.least
            least = int(declared.unit != "s") if least is None else least
            check(value >= least, f"{name} is {value}; it must be {least:g} or more")
            check(value < inf, f"{name} is {value}; it must be finite")

    @property
    def max_message(self) -> int:
        """Bytes of a message that comes in, and of one of its frames."""
        return max(2 * self.max_body, MIN_MESSAGE)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a worker keeps in touch with its broker."""

    heartbeat_interval: float = setting(
        2.5, "Heartbeat interval, unless the broker's is shorter.", unit="s", least=0.01, option="heartbeat"
    )
    liveness: int = setting(
        4,
        "Intervals of silence after which the broker is considered dead. The longer interval of the two sides"
        " applies; the broker's is assumed to be 2.5 s until it is known.",
    )
    reconnect_first: float = setting(
        1.0,
        "Delay before the first reconnection; doubles with each further one. With several endpoints, all are tried"
        " first.",
        unit="s",
    )
    reconnect_most: float = setting(
        32.0,
        "Maximum delay before a reconnection; 2.5 s if a broker with access control refuses the worker.",
        unit="s",
    )
    max_reply: int = setting(
        127 << 20,
        "Largest reply, or part of a reply; a larger one becomes an error reply, 413. A broker closes the connection"
        " of a worker that sends more than twice its `max_body`: by default 128 MiB, envelope included.",
        unit="B",
    )
    versions: tuple[str, ...] = setting(
        ("0.2", "0.1"),
        'MDP versions to use, the preferred one first; "majortomo" for the broker of that package. If there'
        " are several, the worker asks the broker.",
    )

    deploy: str = setting(
        "",
        "Version of the worker's program, shown in lists of workers: at most 64 bytes, printable.",
    )

    def __post_init__(self) -> None:
        coerce_fields(self)
        check_heartbeats(self.heartbeat_interval, self.liveness)
        fault = f"deploy is {self.deploy[:100]!r}; it must be printable, with at most {MAX_VERSION} bytes"
        check(is_version(self.deploy), fault)
        check(self.max_reply > 0, f"max_reply is {self.max_reply}; it must be 1 or more")
        fault = f"versions is {self.versions}; known: 0.1, 0.2, majortomo"
        check(bool(self.versions) and set(self.versions) <= set(MDP_VERSIONS), fault)


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How long a client waits and how often it tries (the Guide's Lazy Pirate)."""

    timeout: float | None = setting(
        2.5, "How long to wait for an answer before resending the request; None: forever.", unit="s"
    )
    retries: int = setting(3, "How often to resend a request before giving up.")
    version: str | None = setting("0.2", "MDP version: 0.2, 0.1 or majortomo; None: the client asks the broker.")

    def __post_init__(self) -> None:
        coerce_fields(self)
        fault = f"version is {self.version!r}; known: {', '.join(MDP_VERSIONS)}"
        check(self.version is None or self.version in MDP_VERSIONS, fault)


if __name__ == "__main__":
    import textwrap

    for config in (BrokerConfig, WorkerConfig, ClientConfig):
        print(config.__name__)
        for one in fields(config):
            about = settings_of(config)[one.name]
            print(f"  {one.name} = {one.default!r} {about.unit}".rstrip())
            print(textwrap.indent(textwrap.fill(about.help, 76), " " * 6))
