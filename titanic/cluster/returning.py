"""Workers that come to this node with requests from another one.

    the node that gave the request out             what becomes of it here
    ---------------------------------------------  ------------------------------------------------
    has left, or its lease has lapsed and another  this node takes the request over: the worker goes
      node has ended it                              on, and its reply counts
    lives                                          the worker goes on, and what it says is kept; this
                                                     node asks the store again every POLL_INTERVAL, and
                                                     the other one waits as long. A reply is stored at
                                                     once: the first one counts
    ... and the request is closed, has ended, or   CANCEL, and what the worker says is dropped
      waits

Without a decision for two leases and `worker_return` after that it is CANCEL, too. A worker's word is believed if it
has the secret of the delivery (`broker.core.missing.Secrets`), which was for this worker and this attempt, and the
request is of one of its services.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from broker import Expected, read_json
from titanic.cluster.claims_core import POLL_INTERVAL, ClaimsCore
from titanic.cluster.node_writes import KeepWrite, NamedByWorker, NodeWrite, TakeOverWrite, place_of
from titanic.commit.writer import Writer
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.deliveries import Deliveries
from titanic.dispatch.transport import OwnBrokerTransport, Transport, WorkerClaim
from titanic.errors import OutcomeUnknown
from titanic.protocol.submit_options import read_policy
from titanic.services.ask import Inbox
from titanic.store import Notification, NotificationChannel
from titanic.util.clock import elapsed


def read_named(token: bytes, claim: WorkerClaim) -> NamedByWorker | None:
    """Read a `client` frame, or its context; None: it is of no stored request."""
    try:
        said = read_json(token[len(_delivery_of(token)) :])
        attempt, deadline = int(said["attempt"]), float(said.get("deadline", 0))
        uuid, delivery = bytes.fromhex(said["uuid"]), int(said.get("delivery", attempt))
        return NamedByWorker(uuid, attempt, delivery, deadline, token, claim.keeper, claim.services, claim.has_reply)
    except (LookupError, ValueError, TypeError, AttributeError):
        return None


def _delivery_of(token: bytes) -> bytes:
    return token.partition(b"{")[0]


class ReturningWorkers:
    """Methods are called in the loop's thread."""

    def __init__(
        self,
        claims: ClaimsCore,
        core: DispatchCore,
        writer: Writer,
        inbox: Inbox[NodeWrite],
        now_us: Callable[[], int],
        channel: NotificationChannel | None = None,
    ) -> None:
        """`channel`: to other nodes."""
        self._channel = channel
        self._claims, self._core, self._writer, self._inbox, self._now_us = claims, core, writer, inbox, now_us
        self._transport: OwnBrokerTransport | None = None
        self._deliveries: Deliveries | None = None
        self._write: TakeOverWrite | None = None
        """What is on its way."""
        self._asked: dict[bytes, bool] = {}
        """The requests about which the store was asked, and whether there were replies."""
        self.due_at: float | None = None
        """When to ask again."""

    @property
    def busy(self) -> bool:
        """Whether the store is asked."""
        return self._write is not None

    def connect(self, transport: Transport | None, deliveries: Deliveries | None) -> None:
        """Serve the workers of a broker of this project; those of others keep nothing."""
        self._transport = transport if isinstance(transport, OwnBrokerTransport) and deliveries is not None else None
        self._deliveries = deliveries

    def keeps(self, service: bytes) -> bool:
        """Return whether workers of a service may go to another node with its requests."""
        transport = self._transport
        return transport is not None and self._claims.lease.config.patience > 0 and transport.keeps(service)

    def is_held(self, uuid: bytes) -> bool:
        """Return whether a request is known to be with a worker."""
        return self._transport is not None and self._transport.worker_of(uuid) is not None

    def keep(self) -> None:
        """Keep for their workers what these have if this node ends, as far as it was not claimed for them: it was sent
        ahead, or another worker had it first."""
        claims, deliveries = self._claims, self._deliveries
        if deliveries is None or not claims.writes or claims.lease.incarnation is None:
            return
        if places := claims.unkept(deliveries):
            self._writer.enqueue(KeepWrite(self._inbox, claims.lease.incarnation, places))

    def poll(self, now: float) -> None:
        """Ask the store about what workers have named."""
        transport = self._transport
        if transport is None or self._write is not None:
            return
        named = transport.claims()
        asked = {token: one.has_reply for token, one in named.items()}
        if not asked:
            self.due_at = None
        elif asked != self._asked or self.due_at is None or now >= self.due_at:
            self._asked, self.due_at = asked, now + POLL_INTERVAL
            found = []
            for token, claim in [*named.items()]:
                if (one := read_named(token, claim)) is None or one.uuid in self._core.flights:
                    transport.refuse(token)
                elif one.has_reply or not self._claims.draining:
                    found.append(one)
            if found and (op := self._claims.take_over()) is not None:
                self._write = TakeOverWrite(self._inbox, op, found, self._claims.bounds)
                self._writer.enqueue(self._write)

    def answered(self, write: TakeOverWrite) -> None:
        """The store has answered."""
        self._write = None
        if write.error is not None:
            self._claims.failed(write.op, elapsed(), unchanged=not isinstance(write.error, OutcomeUnknown))
            return
        taken = [place_of(*write.rows[uuid]) for uuid, took in write.taken.items() if took]
        mine = {place.uuid for place in self._claims.taken_over(write.op, taken)}
        transport, deliveries = self._transport, self._deliveries
        if transport is None:  # another broker has come
            self._claims.given_back(mine)
            return
        assert deliveries is not None
        now, now_us, named, brought = time.monotonic(), self._now_us(), transport.claims(), set[bytes]()
        for one in write.named:
            if one.uuid not in write.taken:
                transport.refuse(one.token)
            elif one.uuid in self._core.flights:
                pass  # named twice
            elif one.uuid in mine or (one.has_reply and one.token in named):
                service, row = write.rows[one.uuid]
                left = one.deadline - now_us / 1e6
                seconds = max(0.0, read_policy(row.options).limit - left) if one.deadline else 0.0
                send = self._core.resume(service, row, seconds, now, now_us - int(seconds * 1e6))
                delivery = _delivery_of(one.token)
                if one.keeper:  # else the broker says GIVEN
                    deliveries.note(one.uuid, bytes.fromhex(delivery.decode()), one.keeper)
                transport.resume(send, Expected(delivery, one.keeper, seconds), now)
            elif one.token in named and named[one.token].goes_on:
                transport.await_decision(one.token, now)
                brought.add(one.uuid)
        if brought and self._channel is not None:
            self._channel.publish(Notification(brought=brought))
        transport.push(now)

    def brought_elsewhere(self, uuids: Collection[bytes]) -> None:
        """Workers have come to another node with these, which this one has given out: wait longer for the workers."""
        if self._transport is not None:
            for uuid in uuids:
                if uuid in self._core.flights:
                    self._transport.await_worker(uuid, time.monotonic())
