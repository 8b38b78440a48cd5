"""Requests whose workers' connections are gone, until these workers return or are given up.

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

A queue that was restarted announces the requests that workers have (`expect`); when it sends them, they wait here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from broker.access.users import User
from broker.core.mdp import Peer
from broker.core.requests import Request
from broker.core.timers import Timers
from broker.core.worker_registry import process_name


def keeper_of(user: User | None, name: bytes) -> bytes:
    """Return by what a worker of a user is known, which said this name in READY."""
    return (user.name if user is not None else "").encode() + b"\0" + name


def delivery_of(token: bytes) -> bytes:
    """Return the number and the secret of a delivery, without the context."""
    return token.partition(b"{")[0]


class Expected(NamedTuple):
    """A request that a worker had when the server ended."""

    delivery: bytes
    """As `delivery_of`."""
    keeper: bytes
    seconds: float
    """For how long it has had it."""


class MissingRequest(NamedTuple):
    """A request that waits for its worker."""

    request: Request
    keeper: bytes
    process: tuple[str, bytes]
    """As `WorkerPeer.process_key`; after a restart: unknown."""
    expected: bool
    """Whether it is known from before a restart."""


class MissingRequests:
    """Waits `patience` seconds for each worker."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.timers: Timers[bytes] = Timers()
        self.of_services: dict[bytes, int] = {}
        """How many there are of each service. Any thread may read it."""
        self.expected: dict[tuple[Peer, bytes], Expected] = {}
        """What a local queue is about to send, by its peer and the request's context."""
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

    def of_keeper(self, keeper: bytes) -> list[bytes]:
        """Return what waits for a worker."""
        return list(self._keepers.get(keeper, ()))

    def of_process(self, name: str) -> list[bytes]:
        """Return what waits for workers of a process, by its name HOST:PID."""
        return [delivery for delivery, missing in self._requests.items() if process_name(missing.process[1]) == name]
