"""Requests to the services, their answers, notices to the dispatcher, and the state that services share."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

from broker import Access, Broker, User, WorkerHold
from titanic.commit.writer import Write
from titanic.errors import OutcomeUnknown, StoreAway, StoreError
from titanic.facts.audit import Audit, Origin, origin
from titanic.facts.closed_steps import ClosedSteps
from titanic.facts.reading import FactsCache
from titanic.facts.recorder import FactsRecorder
from titanic.facts.set_service import KnownSettings
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames, Progress
from titanic.services.named_services import NamedServices
from titanic.services.ownership import Refusals
from titanic.store import HistoryWriter, ReadTransaction, ServiceSettings
from titanic.store.rules import FACTS_ROOM
from titanic.util.clock import ClockJumps


class Ask(Protocol):
    """A request to one of Titanic's services, from the integrated broker or from a lane."""

    body: Frames

    @property
    def peer(self) -> object:
        """The connection or socket that it came from."""

    @property
    def user(self) -> User | None:
        """The user that sent it; None without access control: everything is allowed."""


Answers = Sequence[tuple[Any, Frames]]
"""Requests, each with the body of its answer."""

SendAnswers = Callable[[Answers], None]
"""Sends answers to their clients. Any thread may call it."""

HandleBatch = Callable[[bytes, Sequence[Ask]], None]
"""Handles a batch of requests to the service of that name. One thread calls it."""


class ClosingAsk(Protocol):
    """An ask that closed requests: it is answered when no worker can get them any more."""

    def withdrawn(self, count: int) -> None:
        """No worker can get `count` more of its requests. Called in the dispatcher's thread."""


class CloseDoubt(NamedTuple):
    """Closed requests that a worker may still get."""

    uuids: Sequence[bytes]
    ask: ClosingAsk
    alive: list[bytes] | None = None
    """Those of them that workers go on with, filled before `withdrawn`; None: that is not asked for."""


class WaitingCloses:
    """Closes by the requests that they wait for."""

    def __init__(self) -> None:
        self._closes: dict[bytes, list[tuple[set[bytes], CloseDoubt]]] = {}

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._closes)

    def add(self, close: CloseDoubt, uuids: set[bytes]) -> None:
        """Have a close wait for these requests."""
        for uuid in uuids:
            self._closes.setdefault(uuid, []).append((uuids, close))

    def killing(self, uuid: bytes) -> list[list[bytes]]:
        """Return the lists of what goes on of the closes that want this request to be killed."""
        return [close.alive for _, close in self._closes.get(uuid, ()) if close.alive is not None]

    def over(self, uuid: bytes) -> list[CloseDoubt]:
        """Wait no longer for this request. Return the closes that do not wait for any other."""
        ready = []
        for left, close in self._closes.pop(uuid, ()):
            left.discard(uuid)
            if not left:
                ready.append(close)
        return ready


def not_done(what: str, error: StoreError, *, others: bool) -> Frames:
    """Return the answer for a failed store, such as "not stored", or for an unknown outcome. `others`: whether other
    nodes are alive, which may reach the database if this one does not. Clients with several endpoints then repeat the
    request there, as after a lost connection."""
    doubt = "perhaps " if isinstance(error, OutcomeUnknown) else ""
    ask_another = others and isinstance(error, StoreAway | OutcomeUnknown)
    return (tsp.draining if ask_another else tsp.failure)(f"{doubt}{what}: {error}")


class Arrived(NamedTuple):
    """These services have new requests on disk; the values are their highest priorities. `due_us`: when the first
    delayed request, TTL or key stored with them is due (µs since the epoch); None: none is."""

    services: Mapping[bytes, int]
    due_us: int | None


class Returned(NamedTuple):
    """Requests of these services are waiting again. `held`: those among them that `DispatcherInbox.hold` has held."""

    services: Collection[bytes]
    held: Collection[bytes] = ()


class Closed(NamedTuple):
    """These requests are closed: do not dispatch them, drop their replies. `services`: where some waited. `kill`: have
    the processes of these killed."""

    uuids: Sequence[bytes]
    services: Collection[bytes]
    doubts: Sequence[CloseDoubt]
    kill: Collection[bytes] = ()


class SettingsChanged(NamedTuple):
    """These settings of services are on disk."""

    settings: ServiceSettings


class WaitForReplies(NamedTuple):
    """Clients ask for titanic.wait. The dispatcher answers them."""

    asks: Sequence[Ask]


Notice = Arrived | Returned | Closed | SettingsChanged | WaitForReplies

Posted = TypeVar("Posted", contravariant=True)


class Inbox(Protocol[Posted]):
    """The dispatcher, for those that report to it what was committed, read or received."""

    def post(self, notice: Posted) -> None:
        """Hand over a notice. The dispatcher handles it in its own thread, in order. Any thread may call."""


class DispatchView(NamedTuple):
    """What the dispatcher knows of a request and its service. Times are seconds from now."""

    running_for: float | None = None
    """For how long it has been in flight here; None: it is not."""
    settling: bool = False
    """Whether its attempt is over and the outcome is not stored yet."""
    held: bool = False
    """Whether the store did not take that outcome."""
    hold: WorkerHold | None = None
    """The worker that has it; None: none has it, or that is unknown."""
    in_flight: Sequence[bytes] = ()
    """The requests of its service that are in flight here, those sent first before the others."""
    rate_in: float | None = None
    """When the rate of its service lets the next one begin; None: nothing waits for that."""
    speed: float = 0.0
    """Attempts of its service that end in a second; 0: not known."""
    seen: tuple[str, float] | None = None
    """The process of the service's last worker, empty if unknown, and how long ago it left; None: unknown."""
    trouble_in: float | None = None
    """When the broker, which refused requests of the service, is asked again; None: it did not."""


class DispatcherInbox(Inbox[Notice], Protocol):
    """The dispatcher, as services see it. Any thread may call."""

    def replies_given(self) -> int:
        """Return the number of replies sent to waiting clients."""

    def stats(self) -> dict[str, Any]:
        """Return the current figures for titanic.stats."""

    def running(self) -> Collection[bytes]:
        """Return the requests that a worker has or that wait for their outcome to be stored."""

    def hold(self, uuid: bytes) -> bool:
        """Keep a request from being dispatched until `Returned` names it: what was read of it is about to change.
        False: it is running."""

    def progress(self, uuids: Collection[bytes]) -> Mapping[bytes, Progress]:
        """Return the progress of the running ones among these requests, as reported by their workers."""

    def worker_of(self, uuid: bytes) -> str:
        """Return the process of the worker that has a request, as HOST:PID; empty: unknown."""

    def view(self, uuid: bytes, service: bytes) -> DispatchView:
        """Return what is known of a request and its service."""

    def running_since(self, uuids: Collection[bytes]) -> Mapping[bytes, int]:
        """Return when the running ones among these requests were sent, in µs since the epoch."""


NOTHING: Mapping[bytes, Any] = MappingProxyType({})


class ServiceFigures(NamedTuple):
    """Figures of services at this server: requests in flight, workers as far as known, and the requests that have ended
    since the start: done, failed, expired."""

    running: Mapping[bytes, int] = NOTHING
    workers: Mapping[bytes, int | None] = NOTHING
    ended: Mapping[bytes, Sequence[int]] = NOTHING


class FillRate:
    """Estimates when the store will be full at the rate of the last hour. Any thread may query it."""

    EVERY = 60.0
    """Seconds between two samples."""
    LEAST = 600.0
    """Seconds that the samples must cover for an estimate."""
    SPAN = 3600.0
    """Seconds for which a sample is kept."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    def full_in(self, now: float, store: ReadTransaction) -> float | None:
        """Return the seconds until there is no room; None: the room is not shrinking, or the samples do not suffice
        yet. The store is queried about once a minute."""
        samples = self._samples
        with self._lock:
            if not samples or now >= samples[-1][0] + self.EVERY:
                samples.append((now, store.room_left()))
            while samples[0][0] < now - self.SPAN:
                samples.popleft()
            (began, before), (ended, left) = samples[0], samples[-1]
        if ended - began < self.LEAST or left >= before:
            return None
        return max(0.0, left * (ended - began) / (before - left) - (now - ended))


class ServiceHost(Protocol):
    """The server, as services see it. Any thread may call. The defaults are those of services without a server."""

    @property
    def broker(self) -> Broker | None:
        """The broker in this process; None: it is separate."""
        return None

    @property
    def shares(self) -> bool:
        """Whether other nodes may share the store."""
        return False

    def others(self) -> bool:
        """Whether other nodes that share the store are alive, as far as this one knows."""
        return False

    def incarnation(self) -> int | None:
        """The number under which this node claims requests, if it has one now."""
        return None

    def awaited_for(self, _incarnation: int) -> float | None:
        """For how many seconds more this node awaits the workers of one that has ended, as far as it knows."""
        return None

    @property
    def access(self) -> Access | None:
        """The users now; None: only the broker knows them, or there is no access control."""
        return None

    def wake_jobs(self) -> None:
        """Jobs over many requests were started or changed."""
        return

    def forbidden(self) -> Mapping[tuple[str, str], int]:
        """Numbers of refusals by user and action, in the server and its broker."""
        return {}

    def figures(self) -> ServiceFigures:
        """Figures of services at this server."""
        return ServiceFigures()

    def congested(self, ask: Any, /) -> bool:
        """Whether the peer of an ask does not read its answers."""
        return False

    def record(self, write: Write, /) -> None:
        """Have something written that no message asked for."""
        write.committed()


class NoHost(ServiceHost):
    """Services without a server."""


def source_of(host: ServiceHost, ask: Any) -> bytes:
    """The IP address that an ask came from; empty: unknown."""
    return b"" if host.broker is None else host.broker.source_of(ask)


REASONS = ("invalid", "forbidden", "store_full", "service_full", "user_full", "busy", "stopping", "disk")
"""Why requests are refused."""


@dataclass(slots=True, eq=False)
class ServiceContext:
    """State that the services share: where answers and notices go, settings and counts."""

    send_answers: SendAnswers
    dispatcher: DispatcherInbox
    clock_jumps: ClockJumps
    """Jumps of the wall clock, as the writer's thread measures them."""
    facts: FactsRecorder
    """That of the writer."""
    most_body: int | None = None
    """Maximum bytes of a request's body; None: the broker refuses larger ones."""
    most_bytes: int = 1 << 30
    """Maximum bytes of bodies that wait for the disk; more are refused, or a slow disk would fill the memory."""
    refusals: Refusals = field(default_factory=Refusals)
    """Refusals for want of a permission."""
    audit: Audit = field(default_factory=Audit)
    """Acts on the requests of others, and on services."""
    refusing: Frames | None = None
    """The answer to every new request while all are refused; None: they are accepted. Any thread may set it."""
    host: ServiceHost = field(default_factory=NoHost)
    """The server."""
    settings: KnownSettings = field(default_factory=KnownSettings)
    """Stored settings of services. The dispatcher keeps them up to date."""
    fill_rate: FillRate = field(default_factory=FillRate)
    """When the store will be full."""
    refused_full_at: float = -math.inf
    """When a request was last refused because the store was full, in monotonic seconds."""
    began: float = field(default_factory=time.monotonic)
    """When the server started, in monotonic seconds."""
    queue: str = ""
    """This node's id among those that share the store; empty when there can be no others."""
    histories: HistoryWriter = field(default_factory=lambda: HistoryWriter(FACTS_ROOM))
    """Keeps the bodies that retries replace."""
    closed_steps: ClosedSteps = field(default_factory=lambda: ClosedSteps(FACTS_ROOM))
    """Notes the closed steps of flows."""
    keep_body: float = 0.0
    """Seconds for which bodies are kept, if neither request nor service says it; 0: as long as the request. Any thread
    may replace it."""
    named: NamedServices = field(default_factory=NamedServices)
    """Which services answers name."""
    history: FactsCache = field(default_factory=FactsCache)
    """Answers about what services did, used by the reader's thread."""
    # Each of the following is counted in one thread, because += is not atomic.
    bytes_written: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("accepted", "refused", "repeated", "replies_given", "closed"), 0)
    )
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    """Refusals by reason."""
    refused_users: dict[tuple[str, str], int] = field(default_factory=dict)
    """Refusals by user and reason, with access control."""

    def count_refused(self, reason: str, ask: Ask) -> None:
        """Count a refusal."""
        self.refused[reason] += 1
        if ask.user is not None:
            key = ask.user.name, reason
            self.refused_users[key] = self.refused_users.get(key, 0) + 1

    def origin(self, ask: Ask) -> Origin:
        """Who sent an ask, and from where."""
        return origin(ask.user, ask.body, source_of(self.host, ask))
