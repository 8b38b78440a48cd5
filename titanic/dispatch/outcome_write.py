"""The outcomes of requests, on their way to the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from titanic.commit.writer import Write, halves
from titanic.dispatch.actions import AttemptOutcome, Finish
from titanic.errors import StoreError, StoreFull
from titanic.logs import event
from titanic.store import WriteTransaction

log = logging.getLogger(__name__)


class Written(NamedTuple):
    """What became of outcomes that were written."""

    done: Sequence[AttemptOutcome]
    """They are on disk."""
    unchanged: Sequence[AttemptOutcome]
    """Those of them that changed nothing there: the requests were closed, or had ended already."""
    without_room: Sequence[AttemptOutcome]
    """The store had no room for them."""


class OutcomeWrite:
    """A batch of outcomes, as one `Write`. `written` and `unwritten` are called in the writer's thread."""

    def __init__(
        self,
        outcomes: Sequence[AttemptOutcome],
        written: Callable[[Written], None],
        unwritten: Callable[[Sequence[AttemptOutcome]], None],
    ) -> None:
        """`unwritten`: is told when the disk did not take them."""
        self._outcomes = outcomes
        self._written = written
        self._unwritten = unwritten
        self._unchanged: list[AttemptOutcome] = []
        self._without_room: list[AttemptOutcome] = []

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        self._unchanged, self._without_room = [], []
        now = time.monotonic()
        for outcome in self._outcomes:
            try:
                dispatched_at = max(0, now_us - int((now - outcome.started) * 1e6))
                if not _write(transaction, outcome, now_us, dispatched_at):
                    self._unchanged.append(outcome)
            except StoreFull as error:  # the others may fit
                extra = event("no-room-for-reply", uuid=outcome.uuid)
                log.error("no room for the reply to %s: %s", outcome.uuid.hex(), error, extra=extra)
                self._without_room.append(outcome)

    def __len__(self) -> int:
        return len(self._outcomes)

    def parts(self) -> list[Write]:
        return [OutcomeWrite(half, self._written, self._unwritten) for half in halves(self._outcomes)]

    def committed(self) -> None:
        without_room = {outcome.uuid for outcome in self._without_room}
        outcomes = [outcome for outcome in self._outcomes if outcome.uuid not in without_room]
        self._written(Written(outcomes, self._unchanged, self._without_room))

    def failed(self, error: StoreError) -> None:
        self._unwritten(self._outcomes)


def _write(transaction: WriteTransaction, outcome: AttemptOutcome, now_us: int, dispatched_at: int) -> bool:
    """False when there was nothing to be changed: the request was closed, or has ended already."""
    if isinstance(outcome, Finish):
        return transaction.finish(
            outcome.uuid,
            outcome.status,
            outcome.frames,
            attempts=outcome.attempts,
            dispatched_at=dispatched_at,
            finished_at=now_us,
            reason=outcome.reason,
        )
    return transaction.postpone(
        outcome.uuid,
        due=now_us + int(outcome.delay * 1e6),
        attempts=outcome.attempts,
        dispatched_at=dispatched_at,
        reason=outcome.reason,
    )
