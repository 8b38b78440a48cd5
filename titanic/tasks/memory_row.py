"""A request in a queue in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from titanic.store import Description, NewRequest, ReadyRow, State, Status


@dataclass(slots=True, eq=False)
class Row:
    """A stored request. Times are µs since the epoch; `due`: 0: now."""

    uuid: bytes
    new: NewRequest
    submitted_at: int
    due: int
    expires_at: int
    attempts: int = 0
    deliveries: int = 0
    dispatched_at: int = 0
    finished_at: int = 0
    reason: str = ""
    status: Status | None = None
    frames: list[bytes] = field(default_factory=list)

    @property
    def place(self) -> bytes:
        """Its place in the queue of its service, as of a ReadyRow."""
        return b"%b\0%c%b" % (self.new.service, 9 - self.new.priority, self.uuid)

    @property
    def state(self) -> State:
        if self.status is not None:
            return State(self.status)
        return State.DELAYED if self.due else State.WAITING

    def ready(self) -> ReadyRow:
        """What the dispatcher's core is given."""
        new = self.new
        return ReadyRow(
            self.place,
            self.uuid,
            self.attempts,
            [*new.body],
            new.max_attempts,
            self.expires_at,
            new.options,
            new.key,
            self.deliveries,
        )

    def described(self) -> Description:
        """All that is known of it."""
        new = self.new
        return Description(
            self.uuid,
            self.state,
            new.service,
            new.priority,
            self.submitted_at,
            new.not_before,
            self.expires_at,
            new.max_attempts,
            new.options,
            len(new.body),
            sum(map(len, new.body)),
            self.attempts,
            self.due,
            self.dispatched_at,
            self.finished_at,
            self.reason,
            len(self.frames),
            sum(map(len, self.frames)),
            new.key,
        )
