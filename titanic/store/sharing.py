"""What nodes that share a store read there of each other, and the recalls that they leave for each other.

A request that is closed while another node has claimed it may be on its way to a worker there. The close leaves a
*recall* for that node, in the same commit. The node takes the request back from its broker if no worker has it yet;
when no worker can be given it any more, it removes the recall. Then the close is answered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from titanic.store.interface import ReadTransaction, Store, WriteTransaction
from titanic.store.news import NewsLine
from titanic.store.records import Page


class Recall(NamedTuple):
    """A request that was closed while an incarnation had claimed it. `over`: that incarnation has ended."""

    uuid: bytes
    incarnation: int
    over: bool = False


class Sight(NamedTuple):
    """What a node finds when it looks. `ended`: those that it asked for which have ended or are unknown. `closed`:
    those in flight that have left the store. `recalls`: what its incarnations are to take back. `recalled`: the recalls
    that it waits for and that are still there. `others`: how many other incarnations live."""

    ended: Collection[bytes]
    closed: Collection[bytes]
    recalls: Sequence[Recall]
    recalled: Sequence[Recall]
    others: int
    namesakes: int = 0
    """How many of them have this node's name."""


class Question(NamedTuple):
    """What a node asks. `awaited`: requests for whose end its clients wait. `flights`: what is in flight here.
    `incarnations`: its own, also former ones. `recalled`: closed requests that others may still give to a worker."""

    awaited: Collection[bytes]
    flights: Collection[bytes]
    incarnations: Collection[int]
    recalled: Collection[bytes]


class Limits(NamedTuple):
    """What holds for a service at all nodes; 0: no limit. `waiting` requests and their `bytes`, how many are `running`,
    and how many attempts begin in a second (`rate`)."""

    waiting: int = 0
    bytes: int = 0
    running: int = 0
    rate: float = 0.0


class SharedReadTransaction(ReadTransaction, Protocol):
    """What a `remote` store tells of all its nodes. A request is *claimed* when a row of `ready` names an incarnation
    that has not ended: to people it is running."""

    def service_limits(self) -> dict[bytes, Limits]:
        """Those of all services that have some."""

    def look_around(self, question: Question) -> Sight:
        """What has happened at other nodes, in one round trip."""

    def recalled(self, uuids: Collection[bytes]) -> Sequence[Recall]:
        """Those of these closed requests that a node has still to take back."""

    def running(self, uuids: Collection[bytes]) -> set[bytes]:
        """Those of these requests that a node has claimed."""

    def list_running(
        self,
        *,
        service: bytes | None,
        owner: bytes | None,
        after: bytes | None,
        limit: int,
        newest: bool = False,
        text: str | None = None,
    ) -> Page:
        """`list` of those that a node has claimed."""


class SharedWriteTransaction(WriteTransaction, SharedReadTransaction, Protocol):
    """Changes that concern other nodes."""

    def agree_limits(self, given: Mapping[bytes, Limits]) -> None:
        """Set limits for services that have none, and, while no node renews its lease, for the others, too."""

    def change_limits(self, changes: Mapping[bytes, Limits | None]) -> None:
        """Set limits, or none any more."""

    def settle(self, recalls: Iterable[tuple[bytes, int]]) -> None:
        """No worker can be given these requests any more by these incarnations: remove the recalls."""


class SharedStore(Store, Protocol):
    """A `remote` store: its transactions have what is above. `news`: None where nobody carries any."""

    news: NewsLine | None
