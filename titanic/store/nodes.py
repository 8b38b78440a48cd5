"""What a store that nodes share tells of them, and how one of them is told to end (titanic/store/claiming.py)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from titanic.store.interface import ReadTransaction, WriteTransaction


class NodeRow(NamedTuple):
    """An incarnation of a node, as it has told of itself when it renewed its lease.

    `lease`: seconds until it is over unless it is renewed, by the clock of the store; None: it has ended. `started_at`:
    when the incarnation began, in µs since the epoch. `services`: of each service that it has workers or requests of,
    how many of both. `claims`: how many requests it has claimed; None: they were not counted. `access`: the first 16
    digits of the SHA-256 of its access file; "open": it has none; empty: it is not known.
    """

    incarnation: int
    name: str
    version: str
    endpoints: Sequence[str]
    started_at: int
    lease: float | None
    services: Mapping[str, tuple[int, int]]
    draining: bool
    shard: int
    claims: int | None
    access: str = ""

    @property
    def workers(self) -> int:
        """How many it has."""
        return sum(workers for workers, _ in self.services.values())

    @property
    def running(self) -> int:
        """How many requests are in flight there."""
        return sum(running for _, running in self.services.values())


class NodesReadTransaction(ReadTransaction, Protocol):
    """A read transaction of a `remote` store."""

    def nodes(self) -> list[NodeRow]:
        """Those that live."""

    def nodes_and_claims(self) -> list[NodeRow]:
        """The same with what each has claimed; and the dead that have claimed something which nobody has claimed since.
        It takes a look at all that waits."""


class NodesWriteTransaction(WriteTransaction, NodesReadTransaction, Protocol):
    """A write transaction of a `remote` store."""

    def drain_nodes(self, incarnations: Collection[int]) -> None:
        """Have those of these that live end when they have nothing left to do. They read it when they renew their
        leases."""
