"""A transaction that remembers what it has read of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from titanic.store.postgres.connection import ids
from titanic.store.postgres.pool import Pool
from titanic.store.postgres.transactions.foreseen import (
    LOCK,
    LOOK,
    LOOK_AT_REPLIES,
    LOOK_FOR_REPLIES,
    Answer,
    Seen,
    answered,
    seen,
)
from titanic.store.postgres.transactions.transaction import Reading, Row, Settings, Statement
from titanic.util.ids import SIZE


class Looking(Reading):
    """`seen` is what is known of requests, None of those that are unknown. To look at them again costs nothing."""

    LOCKS: ClassVar[bool] = False
    """Whether nobody else may change what was looked at until the transaction ends."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        super().__init__(pool, settings)
        self.seen: dict[bytes, Seen | None] = {}
        self.answers: dict[bytes, Answer | None] = {}
        """What is known of replies, for who only reads."""

    def foresee(self, uuids: Sequence[bytes], replies: bool = False) -> None:
        """Read what is known of these requests, and with `replies` the frames of their replies, in one round trip.

        Who only reads mostly needs no more: this begins no transaction, which would have to be ended.
        """
        self.begins = self.LOCKS
        try:
            if replies and not self.LOCKS:
                self._read_answers(uuids)
            else:
                self._read(uuids, replies)
        finally:
            self.begins = True

    def look_again(self, uuid: bytes) -> Seen | None:
        """What is known of a request at the moment of which all is that is read from now on."""
        if not (self.begun or self.LOCKS):
            self._read((uuid,), False)
        return self.look(uuid)

    def answer(self, uuid: bytes) -> Answer | None:
        """What is to be said of a request; None when it is unknown. For who only reads."""
        if uuid not in self.answers:
            self._read_answers((uuid,))
        return self.answers[uuid]

    def fetch_once(self, text: str, *parameters: object) -> list[Row]:
        """`fetch` of all that is read, mostly: for who only reads it begins no transaction."""
        self.begins = self.LOCKS
        try:
            return self.fetch(text, *parameters)
        finally:
            self.begins = True

    def _read_answers(self, uuids: Sequence[bytes]) -> None:
        rows = self.fetch(LOOK_FOR_REPLIES, ids([uuid for uuid in uuids if len(uuid) == SIZE]))
        self.answers.update(dict.fromkeys(uuids))
        for row in rows:
            self.answers[row[0]] = answered(row)

    def _read(self, uuids: Sequence[bytes], replies: bool) -> None:
        right = [uuid for uuid in uuids if len(uuid) == SIZE]  # others are unknown without a look
        array = ids(right)
        look = Statement(LOOK_AT_REPLIES if replies else LOOK, (array,))
        statements = [Statement(LOCK, (array,)), look] if self.LOCKS else [look]
        rows = self.fetch_all(*statements)[-1]
        self.seen.update(dict.fromkeys(uuids))
        for row in rows:
            self.seen[row[0]] = seen(row)

    def look(self, uuid: bytes, reply: bool = False) -> Seen | None:
        """What is known of a request, None when it is unknown; with the frames of its reply if it was not foreseen."""
        if uuid not in self.seen:
            if self.LOCKS:
                self.foresee((uuid,), reply)
            else:
                self._read((uuid,), reply)
        return self.seen[uuid]

    def fetch_row(self, text: str, *parameters: object) -> Row:
        """The one row that a statement returns."""
        (row,) = self.fetch(text, *parameters)
        return row
