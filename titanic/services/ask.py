"""What the services are asked; where answers go, and what the dispatcher is told."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from broker import User
from titanic.errors import OutcomeUnknown, StoreAway, StoreError
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames, Progress
from titanic.services.ownership import Refusals
from titanic.settings import ServiceLimits
from titanic.store import KnownSettings, ServiceSettings
from titanic.util.clock import ClockJumps


class Ask(Protocol):
    """A request to one of Titanic's services, from the integrated broker or from a lane."""

    body: Frames

    @property
    def peer(self) -> object:
        """From where it came."""

    @property
    def user(self) -> User | None:
        """Who asks; None without access control: all is allowed."""


Answers = Sequence[tuple[Any, Frames]]
"""Asks, each with the body of its answer."""

SendAnswers = Callable[[Answers], None]
"""Sends answers to those who asked. Any thread may call it."""

HandleBatch = Callable[[bytes, Sequence[Ask]], None]
"""Takes a batch of asks for the service of that name. One thread calls it."""

CloseDoubt = tuple[Sequence[bytes], Callable[[], None]]
"""Closed requests that a worker may still get, and what to call when none can get any of them any more; another thread
calls it."""


def not_done(what: str, error: StoreError, *, others: bool) -> Frames:
    """The answer when the store has failed, such as "not stored"; or it is not known whether it has. `others`: whether
    other nodes are alive, which may reach the database if this one does not. Clients that have several endpoints repeat
    the same there, as after a lost connection."""
    doubt = "perhaps " if isinstance(error, OutcomeUnknown) else ""
    ask_another = others and isinstance(error, StoreAway | OutcomeUnknown)
    return (tsp.draining if ask_another else tsp.failure)(f"{doubt}{what}: {error}")


class DispatcherInbox(Protocol):
    """What the services tell the dispatcher. Any thread may call."""

    def arrived(self, services: Mapping[bytes, int], due_us: int | None) -> None:
        """These services have new requests on disk, the highest priority of which is given. `due_us`: when the first of
        what was stored with them is due (µs since the epoch); None: nothing is."""

    def returned(self, services: Collection[bytes]) -> None:
        """These services have requests again that were there before."""

    def closed(self, uuids: Sequence[bytes], services: Collection[bytes], doubts: Sequence[CloseDoubt]) -> None:
        """These requests are closed: do not dispatch them, drop their replies. `services`: where some waited."""

    def settings_changed(self, settings: ServiceSettings, then: Callable[[], None]) -> None:
        """This is set for services now, and on disk. `then` is called when it holds here."""

    def wait_for_replies(self, asks: Sequence[Ask]) -> None:
        """These asks for titanic.wait have come. The dispatcher answers them."""

    def replies_given(self) -> int:
        """How many replies clients got that waited for them."""

    def stats(self) -> dict[str, Any]:
        """What is going on, for titanic.stats."""

    def running(self) -> Collection[bytes]:
        """The requests that are with a worker now, or whose outcome is on its way to the disk."""

    def progress(self, uuids: Collection[bytes]) -> Mapping[bytes, Progress]:
        """How far those of these requests are that are running, as far as their workers have said."""

    def worker_of(self, uuid: bytes) -> str:
        """The process whose worker has a request, as HOST:PID; empty: it is not known."""

    def running_since(self, uuids: Collection[bytes]) -> Mapping[bytes, int]:
        """When those of these requests were sent that are running here, in µs since the epoch."""


NOTHING: Mapping[bytes, Any] = MappingProxyType({})


class ServiceFigures(NamedTuple):
    """Of services: requests that are in flight here, workers, as far as known, and how many requests have ended here
    since the start: done, failed, expired."""

    running: Mapping[bytes, int] = NOTHING
    workers: Mapping[bytes, int | None] = NOTHING
    ended: Mapping[bytes, Sequence[int]] = NOTHING


class FillRate:
    """When the store will be full if it goes on as in the last hour. Any thread may ask: a lock."""

    EVERY = 60.0
    """Seconds between two looks."""
    LEAST = 600.0
    """Seconds from when on they say something."""
    SPAN = 3600.0
    """Seconds for which they count."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    def full_in(self, now: float, room: Callable[[], int]) -> float | None:
        """Seconds until there is no room; None: it does not get less, or it is not known yet. `room`: asks the store
        for it, about once a minute."""
        looks = self._looks
        with self._lock:
            if not looks or now >= looks[-1][0] + self.EVERY:
                looks.append((now, room()))
            while looks[0][0] < now - self.SPAN:
                looks.popleft()
            (began, before), (ended, left) = looks[0], looks[-1]
        if ended - began < self.LEAST or left >= before:
            return None
        return max(0.0, left * (ended - began) / (before - left) - (now - ended))


REASONS = ("invalid", "forbidden", "store_full", "service_full", "user_full", "busy", "stopping", "disk")
"""Why requests are refused."""


@dataclass(slots=True, eq=False)
class ServiceContext:
    """What the services share: where answers go, who is told what, settings and counts."""

    send_answers: SendAnswers
    dispatcher: DispatcherInbox
    clock_jumps: ClockJumps
    """The wall clock, as the writer's thread sees it."""
    limits: Mapping[bytes, ServiceLimits] = field(default_factory=dict)
    """Limits of single services. Any thread may set others."""
    most_body: int | None = None
    """Bytes of the body of a request, at most; None: the broker refuses what is too large."""
    most_bytes: int = 1 << 30
    """Bytes of bodies that may wait for the disk; more are refused, or a slow disk would fill the memory."""
    refusals: Refusals = field(default_factory=Refusals)
    """What users lacked a permission for."""
    refusing: Frames | None = None
    """What every new request is refused with; None: they are taken. Any thread may set it."""
    others: Callable[[], bool] = bool
    """Whether other nodes that share the store are alive, as far as this one knows. Any thread may ask."""
    incarnation: Callable[[], int | None] | None = None
    """The number under which this node claims requests, if it has one now; None: its server has the store to itself."""
    settings: KnownSettings = field(default_factory=KnownSettings)
    """What is set for services. The dispatcher keeps it up to date."""
    fill_rate: FillRate = field(default_factory=FillRate)
    """When the store will be full."""
    refused_full_at: float = -math.inf
    """When a request was refused for want of room in the store, in monotonic seconds."""
    forbidden: Callable[[], Mapping[tuple[str, str], int]] = dict
    """What users lacked a permission for, by user and action, in the server and its broker."""
    figures: Callable[[], ServiceFigures] = ServiceFigures
    """What is known here of services."""
    source_of: Callable[[Any], bytes] = lambda ask: b""
    """The IP address from which an ask came; empty: it is unknown. Any thread may ask."""
    queue: str = ""
    """Which of the nodes that share the store this is; empty when there can be no others."""
    # What follows is counted in one thread each, because += is not atomic.
    bytes_written: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("accepted", "refused", "repeated", "replies_given", "closed"), 0)
    )
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    """Refusals by reason."""
