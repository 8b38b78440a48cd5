"""Requests of workers that lost their connections, until these return or are given up.

    what happens                                          what becomes of the request
    ----------------------------------------------------  -----------------------------------------------------
    the worker returns and names it                       the worker has it again; the reply counts
      ... but its client has withdrawn it                 the same, and CANCEL to the worker
    the worker returns and does not name it               the next worker gets it: this one never had it
    the worker's process is gone, or has not returned     as a worker's death
      within `worker_return`
      ... after a restart of the server                   the next worker gets it

A worker that names a request which does not wait for it, by user, service, `keeper` and secret, gets CANCEL, and what
it still says of that is dropped.

A queue that was restarted announces the requests that workers have (`expect`); when it sends them, they wait here. A
queue with several brokers knows only later what a worker that comes from another one has: until it says so, what the
worker says of that is kept (`NamedRequest`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from broker.access.users import User
from broker.core.mdp import Command, Frames, Peer, read_error
from broker.core.requests import Request, footprint
from broker.core.timers import Timers
from broker.core.worker_registry import WorkerPeer, process_name

Draw = Callable[[], bytes]
"""Returns 32 random hex digits."""

_NUMBER = 16
"""Digits of the number of a delivery."""
_SECRET = 32
"""Those of its secret, in hexadecimal."""


def keeper_of(user: User | None, name: bytes) -> bytes:
    """Return by what a worker of a user is known, which said this name in READY."""
    return (user.name if user is not None else "").encode() + b"\0" + name


def delivery_of(token: bytes) -> bytes:
    """Return the number and the secret of a delivery, without the context."""
    return token.partition(b"{")[0]


class Secrets:
    """The secrets of deliveries to workers that keep their requests: random, or, with a key, made from the delivery, so
    that other brokers with this key know them."""

    def __init__(self, draw: Draw) -> None:
        self.key = b""
        self._draw = draw

    def of(self, keeper: bytes, number: bytes, context: bytes) -> bytes:
        """Return that of a delivery."""
        if not (self.key and context):
            return self._draw()
        import hmac  # only queues with several brokers need it

        return hmac.digest(self.key, keeper + number + context, "sha256").hex()[:_SECRET].encode()

    def are_in(self, token: bytes, keeper: bytes) -> bool:
        """Return whether a worker has this `client` frame from a broker with this key."""
        import hmac

        said = token[_NUMBER : _NUMBER + _SECRET]
        return hmac.compare_digest(said, self.of(keeper, token[:_NUMBER], token[_NUMBER + _SECRET :]))


class NamedRequest(NamedTuple):
    """A request that a worker has by its own word, while its queue decides."""

    worker: WorkerPeer
    request: Request
    """Stands for it meanwhile."""
    said: list[tuple[Command, Frames]]
    """What the worker has said of it meanwhile."""
    has_ended: bool = False
    """Whether it has replied to it, perhaps in vain, and does not have it any more."""

    @property
    def services(self) -> Iterable[bytes]:
        """The worker's services: only of these it may have requests."""
        return self.worker.group.services

    @property
    def has_reply(self) -> bool:
        """Whether the worker has finished it, and not with an error."""
        return any(command is Command.FINAL and read_error(rest[2:]) is None for command, rest in self.said)

    @property
    def goes_on(self) -> bool:
        """Whether the worker works on it."""
        return not self.has_ended and all(command is not Command.FINAL for command, _ in self.said)


def attempt_of(request: Request) -> bytes:
    """Return what is the same each time that a queue sends a request for the same attempt."""
    return request.context.partition(b',"of"')[0]


class Expected(NamedTuple):
    """A request that a worker had when the server ended."""

    delivery: bytes
    """As `delivery_of`."""
    keeper: bytes
    seconds: float
    """For how long it has had it."""


def read_given(said: bytes) -> Expected | None:
    """Read what a queue says behind GIVEN; None: it does not know that a worker has the request."""
    delivery, _, rest = said.partition(b" ")
    seconds, space, keeper = rest.partition(b" ")
    return Expected(delivery, keeper, float(seconds)) if space and seconds.isdigit() and len(seconds) < 10 else None


class Orphan(NamedTuple):
    """A request that a worker has of a queue that has lost its connection."""

    service: bytes
    context: bytes
    expected: Expected


class MissingRequest(NamedTuple):
    """A request that waits for its worker."""

    request: Request
    keeper: bytes
    process: tuple[str, bytes]
    """As `WorkerPeer.process_key`; after a restart: unknown."""
    expected: bool
    """Whether it is known from before a restart."""
    worker: WorkerPeer | None = None
    """The worker that had it, unless it is known from before a restart."""


class MissingRequests:
    """Waits `patience` seconds for each worker."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.timers: Timers[bytes] = Timers()
        self.decisions: Timers[bytes] = Timers()
        """When those `named` are refused; one of these may wait for another worker as well."""
        self.of_services: dict[bytes, int] = {}
        """How many there are of each service. Any thread may read it."""
        self.expected: dict[tuple[Peer, bytes], Expected] = {}
        """What a local queue is about to send, by its peer and the request's context."""
        self.decided_within = 0.0
        """Seconds in which a queue decides about requests that are not known here; 0: none does."""
        self.named: dict[bytes, NamedRequest] = {}
        """Those that it has not decided about, by `delivery_of`."""
        self.is_new = False
        """Whether there are more of these, or replies to them, since the shell reset this."""
        self.queues: set[Peer] = set()
        """Queues elsewhere, which say GIVEN."""
        self.orphans: dict[bytes, Orphan] = {}
        """What workers have of queues that have lost their connections, by `attempt_of`. Any thread may read it."""
        self._said = 0
        """Bytes of what workers have said of those named."""
        self._requests: dict[bytes, MissingRequest] = {}
        """By `delivery_of`."""
        self._keepers: dict[bytes, dict[bytes, None]] = {}
        """The same, by the worker that each waits for."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[bytes]:
        return iter(list(self._requests))

    def add(self, missing: MissingRequest, now: float) -> None:
        """Have a request wait for its worker."""
        request = missing.request
        delivery = delivery_of(request.token)
        self._requests[delivery] = missing
        self._keepers.setdefault(missing.keeper, {})[delivery] = None
        self.timers.set(delivery, now + self.patience)
        self.of_services[request.service] = self.of_services.get(request.service, 0) + 1

    def wait_again(self, delivery: bytes, now: float) -> None:
        """Wait as long again for a worker, or for the decision about what one has named."""
        for timers, seconds in ((self.timers, self.patience), (self.decisions, self.decided_within)):
            if delivery in timers:
                timers.set(delivery, now + seconds)

    def get(self, delivery: bytes) -> MissingRequest | None:
        """Return a request that waits."""
        return self._requests.get(delivery)

    def pop(self, delivery: bytes) -> MissingRequest:
        """Return a request that waits no longer."""
        missing = self._requests.pop(delivery)
        self.timers.cancel(delivery)
        of_keeper = self._keepers[missing.keeper]
        del of_keeper[delivery]
        if not of_keeper:
            del self._keepers[missing.keeper]
        service = missing.request.service
        count = self.of_services.pop(service)
        if count > 1:
            self.of_services[service] = count - 1
        return missing

    def name(self, worker: WorkerPeer, request: Request, now: float, *, has_ended: bool = False) -> bool:
        """Have a worker's request wait for the decision of its queue. Return whether there is one that decides; about a
        request without a context there is none."""
        delivery = delivery_of(request.token)
        if not self.decided_within or delivery in self.named or delivery == request.token:
            return False
        self.named[delivery], self.is_new = NamedRequest(worker, request, [], has_ended), True
        self.decisions.set(delivery, now + self.decided_within)
        return True

    def keep(self, named: NamedRequest, command: Command, rest: Frames, most: int) -> bool:
        """Keep what a worker says of a request that it has named, `most` bytes of all of them. Return whether that is
        possible."""
        if self._said > most:
            return False
        named.said.append((command, rest))
        self.is_new = self.is_new or command is Command.FINAL
        self._said += footprint(rest)
        return True

    def decided(self, delivery: bytes) -> NamedRequest | None:
        """Return a request that waits for the decision no longer; None: it does not."""
        named = self.named.pop(delivery, None)
        if named is not None:
            self.decisions.cancel(delivery)
            self._said -= sum(footprint(rest) for _, rest in named.said)
        return named

    def forget(self, worker: WorkerPeer) -> None:
        """Forget what a worker has named, which has left."""
        for delivery in [delivery for delivery, named in self.named.items() if named.worker is worker]:
            self.decided(delivery)

    def of_keeper(self, keeper: bytes) -> list[bytes]:
        """Return what waits for a worker."""
        return list(self._keepers.get(keeper, ()))

    def of_process(self, name: str) -> list[bytes]:
        """Return what waits for workers of a process, by its name HOST:PID."""
        return [delivery for delivery, missing in self._requests.items() if process_name(missing.process[1]) == name]
