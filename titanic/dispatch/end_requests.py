"""The requests that are stored because others have ended, in the same commit: see `on_end` in PROTOCOL.md."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence

from titanic.errors import InvalidRequest, RecordCorrupt, StoreFull
from titanic.logs import Incident, event
from titanic.protocol.submit_options import DEFAULT_PRIORITY
from titanic.store import Description, KnownSettings, NewRequest, WriteTransaction

log = logging.getLogger(__name__)

OPTIONS = b'{"type": "application/json"}'


class CompletionEvents:
    """What is to be stored, by the settings as they are known. One thread at a time may call."""

    def __init__(self, settings: KnownSettings, arrived: Callable[[Mapping[bytes, int], int | None], None]) -> None:
        """`arrived`: is told which services have something new."""
        self.settings = settings
        self._arrived = arrived
        self._incident = Incident(log, "store a request for the end of another")

    def store(self, transaction: WriteTransaction, uuids: Sequence[bytes], now_us: int) -> Stored:
        """Store a request for each of these that ended in this transaction, where one is wanted."""
        new = []
        on_end = self.settings.on_end
        for uuid in uuids:
            try:
                row = transaction.describe(uuid)
            except RecordCorrupt:
                continue
            if row is not None and (target := on_end.get(row.service)):
                new.append(NewRequest(target, [body_of(row)], options=OPTIONS, owner=row.owner))
        return self._accept(transaction, new, now_us)

    def committed(self, stored: Stored) -> None:
        """This is on disk."""
        self.settings.missed += stored.missed
        if stored.error is not None:
            self._incident.failed(stored.error, **event("no-room-for-end"))
        if stored.services:
            self._arrived(stored.services, None)

    def _accept(self, transaction: WriteTransaction, new: Sequence[NewRequest], now_us: int) -> Stored:
        stored = Stored()
        try:
            if new:
                transaction.accept(new, now_us)
            stored.services = dict.fromkeys((one.service for one in new), DEFAULT_PRIORITY)
        except (StoreFull, InvalidRequest) as error:
            if len(new) == 1:
                stored.missed, stored.error = 1, error
                return stored
            for one in new:  # the others may still fit
                stored.add(self._accept(transaction, [one], now_us))
        return stored


class Stored:
    """What one write has stored."""

    def __init__(self) -> None:
        self.services: dict[bytes, int] = {}
        self.missed = 0
        self.error: StoreFull | InvalidRequest | None = None

    def add(self, more: Stored) -> None:
        """This as well."""
        self.services |= more.services
        self.missed += more.missed
        self.error = more.error or self.error


def body_of(row: Description) -> bytes:
    """What is told of a request that has ended."""
    said = {
        "uuid": row.uuid.hex(),
        "service": row.service.decode(errors="replace"),
        "state": row.state.name.lower(),
        "key": row.key.decode(errors="replace"),
        "submitted_at": row.submitted_at,
        "finished_at": row.finished_at,
        "attempts": row.attempts,
        "reason": row.reason,
        "owner": row.owner.decode(errors="replace"),
    }
    return json.dumps(said).encode()
