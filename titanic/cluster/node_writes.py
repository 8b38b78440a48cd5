"""What a node itself changes in the store: claims, releases, and what workers bring from other nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from titanic.cluster.claims_core import Claim, Release, TakeOver
from titanic.commit.writer import Write
from titanic.dispatch.fetching import ready_row
from titanic.errors import RecordCorrupt, StoreError
from titanic.services.ask import Inbox
from titanic.store import Bound, Claimed, Place, ReadyRow, SharedWriteTransaction, WriteTransaction, priority_in

CLAIM_BYTES = 8 << 20
"""Bytes of bodies that one claim takes for all services together, plus at most one body. Only other writes wait
meanwhile."""


class NodeWrite(Write):
    """The base of a node's own writes. A write is posted when it is committed, or has failed with an `error`. Claimed
    requests are new here, and others need not be read beforehand."""

    error: StoreError | None = None

    def __init__(self, inbox: Inbox[NodeWrite]) -> None:
        self._inbox = inbox

    def committed(self) -> None:
        self._inbox.post(self)

    def failed(self, error: StoreError) -> None:
        self.error = error
        self._inbox.post(self)


class ClaimWrite(NodeWrite):
    """Claim requests."""

    def __init__(self, inbox: Inbox[NodeWrite], op: Claim) -> None:
        super().__init__(inbox)
        self.op = op
        self.found: Claimed | None = None
        """What was claimed; None: the incarnation is over."""

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        op = self.op
        shared = cast(SharedWriteTransaction, transaction)
        self.found = shared.claim(op.incarnation, op.wants, CLAIM_BYTES, op.bounds, op.keeps)

    def __len__(self) -> int:
        return sum(map(len, self.found.rows.values())) if self.found is not None else 0


class ReleaseWrite(NodeWrite):
    """Release requests. `bounded`: those that count for bounds."""

    def __init__(self, inbox: Inbox[NodeWrite], op: Release, bounded: Sequence[Place]) -> None:
        super().__init__(inbox)
        self.op, self._bounded = op, bounded

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        shared = cast(SharedWriteTransaction, transaction)
        shared.release(self.op.incarnation, self.op.places)
        if self._bounded:
            shared.count_no_more(self.op.incarnation, self._bounded)

    def __len__(self) -> int:
        return len(self.op.places)


class NamedByWorker(NamedTuple):
    """A request that a worker has by its own word, and what the context of its delivery says."""

    uuid: bytes
    attempt: int
    delivery: int
    deadline: float
    """When its limit is over, in seconds since 1970; 0: it has none."""
    token: bytes
    """Its `client` frame."""
    keeper: bytes
    services: Iterable[bytes]
    """Those of the worker."""
    has_reply: bool
    """Whether the worker has finished it."""


class TakeOverWrite(NodeWrite):
    """Take over what workers have."""

    def __init__(
        self, inbox: Inbox[NodeWrite], op: TakeOver, named: Sequence[NamedByWorker], bounds: Mapping[bytes, Bound]
    ) -> None:
        super().__init__(inbox)
        self.op, self.named, self._bounds = op, named, bounds
        self.rows: dict[bytes, tuple[bytes, ReadyRow]] = {}
        """The requests that are theirs, and their services."""
        self.taken: dict[bytes, bool] = {}
        """Whether each is taken over; those of no other node are absent."""

    def uuids(self) -> Sequence[bytes]:
        return [one.uuid for one in self.named]

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        self.rows.clear()
        for one in self.named:
            try:
                found = ready_row(transaction, one.uuid)
            except RecordCorrupt:
                continue
            if found is None or found[0] not in one.services:
                continue
            row = found[1]
            if one.attempt == row.attempts + 1 and one.delivery > max(row.attempts, row.deliveries):
                self.rows[one.uuid] = found
        places = [place_of(*found) for found in self.rows.values()]
        shared = cast(SharedWriteTransaction, transaction)
        self.taken = shared.take_over(self.op.incarnation, places, self._bounds) if places else {}

    def __len__(self) -> int:
        return len(self.taken)


def place_of(service: bytes, row: ReadyRow) -> Place:
    """Return where a waiting request is."""
    return Place(service, 9 - priority_in(row.key), row.uuid)


class KeepWrite(NodeWrite):
    """Keep requests for their workers beyond the end of this node."""

    def __init__(self, inbox: Inbox[NodeWrite], incarnation: int, places: Sequence[Place]) -> None:
        super().__init__(inbox)
        self._incarnation, self.places = incarnation, places

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        cast(SharedWriteTransaction, transaction).keep(self._incarnation, self.places)

    def __len__(self) -> int:
        return len(self.places)
