"""What became of requests, on its way to the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from titanic.commit.writer import Write, halves
from titanic.dispatch.actions import Finish, Outcome
from titanic.errors import StoreError, StoreFull
from titanic.logs import event
from titanic.store import Status, WriteTransaction

if TYPE_CHECKING:
    from titanic.dispatch.dispatcher import Dispatcher

log = logging.getLogger(__name__)


class Outcomes:
    """A batch of outcomes, as one `Write`; each that finds no room is tried again alone."""

    def __init__(self, dispatcher: Dispatcher, outcomes: Sequence[Outcome]) -> None:
        self._dispatcher = dispatcher
        self._outcomes = outcomes
        self._homeless: list[Outcome] = []
        self._moot: list[Outcome] = []

    def write(self, transaction: WriteTransaction, now_us: int) -> None:
        self._homeless, self._moot = [], []
        now = time.monotonic()
        for outcome in self._outcomes:
            try:
                dispatched_at = max(0, now_us - int((now - outcome.started) * 1e6))
                if not self._write(transaction, outcome, now_us, dispatched_at):
                    self._moot.append(outcome)
            except StoreFull as error:  # the others may fit
                extra = event("no-room-for-reply", uuid=outcome.uuid)
                log.error("no room for the reply to %s: %s", outcome.uuid.hex(), error, extra=extra)
                self._homeless.append(outcome)

    @staticmethod
    def _write(transaction: WriteTransaction, outcome: Outcome, now_us: int, dispatched_at: int) -> bool:
        """False when there was nothing to be changed: it was closed, or has ended already."""
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

    def __len__(self) -> int:
        return len(self._outcomes)

    def parts(self) -> list[Write]:
        return [Outcomes(self._dispatcher, half) for half in halves(self._outcomes)]

    def committed(self) -> None:
        self._dispatcher.loop.call(self._settle)

    def failed(self, error: StoreError) -> None:
        self._dispatcher.loop.call(self._dispatcher.core.unsettled, self._outcomes, time.monotonic())

    def _settle(self) -> None:
        homeless = {outcome.uuid for outcome in self._homeless}
        moot = {outcome.uuid for outcome in self._moot}
        uuids = [outcome.uuid for outcome in self._outcomes if outcome.uuid not in homeless]
        core = self._dispatcher.core
        for outcome in self._outcomes:
            flight = core.flights.get(outcome.uuid)
            if flight is None or flight.closed or outcome.uuid in homeless or outcome.uuid in moot:
                continue
            if isinstance(outcome, Finish) and outcome.status is not Status.DONE:
                self._dispatcher.failures.tell(outcome.uuid, flight.backlog.name, outcome.status, outcome.reason)
        core.settled(uuids, self._moot)
        if homeless:
            core.unsettled(self._homeless, time.monotonic(), full=True)
        self._dispatcher.waiters.wake(uuids)
        # Only now: those that were put off are not in flight any more, and the end of their time counts again.
        self._dispatcher.look()
