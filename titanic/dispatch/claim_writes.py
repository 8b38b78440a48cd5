"""Claims and releases, as writes that are committed with whatever else has gathered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from titanic.commit.writer import Write
from titanic.dispatch.claim_steps import Claim, Release
from titanic.errors import StoreError
from titanic.store import Claimed, NodeTransaction, Place, WriteTransaction

CLAIM_BYTES = 8 << 20
"""Bytes of bodies that one claim takes for all services together, plus at most one body. Only other writes wait
meanwhile."""


class _OneWrite:
    """What claims and releases have in common. `failed` is told why it was not committed."""

    light = False

    def __init__(self, failed: Callable[[StoreError], None]) -> None:
        self.failed = failed

    def uuids(self) -> Sequence[bytes]:
        """None: what is claimed, nobody has seen here, and what is released, needs no look."""
        return ()

    def parts(self) -> list[Write]:
        return []


class ClaimWrite(_OneWrite):
    """`claimed` is told what was found, once that is committed."""

    def __init__(
        self,
        op: Claim,
        claimed: Callable[[Claimed | None], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        super().__init__(failed)
        self._op, self._claimed = op, claimed
        self._found: Claimed | None = None

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        op = self._op
        self._found = cast(NodeTransaction, transaction).claim(op.incarnation, op.wants, CLAIM_BYTES, op.bounds)

    def __len__(self) -> int:
        return sum(map(len, self._found.rows.values())) if self._found is not None else 0

    def committed(self) -> None:
        self._claimed(self._found)


class ReleaseWrite(_OneWrite):
    """`bounded`: those that count for bounds. `released` is called once it is committed."""

    def __init__(
        self, op: Release, bounded: Sequence[Place], released: Callable[[], None], failed: Callable[[StoreError], None]
    ) -> None:
        super().__init__(failed)
        self._op, self._bounded, self._released = op, bounded, released

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        shared = cast(NodeTransaction, transaction)
        shared.release(self._op.incarnation, self._op.places)
        if self._bounded:
            shared.count_no_more(self._op.incarnation, self._bounded)

    def __len__(self) -> int:
        return len(self._op.places)

    def committed(self) -> None:
        self._released()
