"""titanic.close: see PROTOCOL.md.

A request that is closed before it has ended may be on its way to a worker. The answer waits until no further
worker can get it: it was not sent, the broker returned it, or a worker has it already. With `kill` it names the
requests whose workers cannot end them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from broker import User
from titanic.commit.writer import LIGHT_ITEMS, halves
from titanic.errors import StoreError, StoreFull
from titanic.facts.audit import Act, Tally, report
from titanic.facts.counts import CANCELLED, CLOSED
from titanic.protocol import tsp
from titanic.protocol.permissions import lacks
from titanic.protocol.tsp import Frames
from titanic.services.ask import Ask, Closed, CloseDoubt, ServiceContext, not_done, source_of
from titanic.services.ownership import not_owned
from titanic.store import CloseResult, WriteTransaction

UUID_BYTES = 33
"""Bytes of one UUID in the body of a request, separator included."""


@dataclass(slots=True, eq=False)
class _CloseAsk:
    """A request to titanic.close, its answer, and how many of its UUIDs are not closed yet."""

    context: ServiceContext
    ask: Ask
    left: int
    alive: list[bytes] | None
    """With `kill`: the requests that workers go on with."""
    answer: Frames = field(default_factory=lambda: [tsp.OK])

    def done(self, count: int) -> bool:
        """Count closed UUIDs; return whether these were the last. Any thread may call it."""
        with _counting:
            self.left -= count
            return not self.left

    def withdrawn(self, count: int) -> None:
        if self.done(count):
            self.context.send_answers([(self.ask, self.said())])

    def said(self) -> Frames:
        """Return the answer."""
        if self.alive is None or self.answer != [tsp.OK]:
            return self.answer
        return [tsp.OK, b"\n".join(uuid.hex().encode() for uuid in self.alive)]


_counting = threading.Lock()


class CloseWrite:
    """A batch of requests to titanic.close, as one `Write`.

    In a full store a transaction must not change too much, so the UUIDs of a request can be closed in several, and
    the answer follows the last one.
    """

    def __init__(self, context: ServiceContext, asks: Sequence[Ask]) -> None:
        self._context = context
        self._asks = asks
        self.light = sum(len(frame) for ask in asks for frame in ask.body) <= LIGHT_ITEMS * UUID_BYTES
        self._items: Sequence[tuple[_CloseAsk, bytes]] | None = None
        self._answers: list[tuple[Any, Frames]] = []
        self._begin()

    def _begin(self) -> None:
        self._closed: list[bytes] = []
        self._counts: dict[bytes, int] = {}
        self._cancelled: dict[bytes, int] = {}
        self._kill: set[bytes] = set()
        self._doubtful: set[int] = set()
        self._refused: dict[int, StoreError] = {}
        self._forbidden: list[tuple[User, bytes, Ask]] = []
        self._acts: list[Act] = []

    def uuids(self) -> Sequence[bytes]:
        if self._items is None:
            self._items = self._read()
        return [uuid for _, uuid in self._items]

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        if self._items is None:
            self._items = self._read()
        self._begin()
        tallies: dict[_CloseAsk, Tally] = {}
        steps: list[tuple[bytes, CloseResult]] = []
        for at, (closing, uuid) in enumerate(self._items):
            user = closing.ask.user
            owner = None if user is None else transaction.owner(uuid)
            if user is not None and owner is not None and not user.closes(owner):  # answered like an unknown one
                self._forbidden.append((user, uuid, closing.ask))
                continue
            try:
                closed = transaction.close(uuid, now_us)
                if closed is not None and (closing.alive is not None or self._is_of_others(closed, closing.ask, owner)):
                    tallies.setdefault(closing, Tally()).add(closed.service, uuid)
                # Of a request that was closed before the owner is not known any more.
                if closing.alive is not None and (closed is not None or user is None or user.reads_all):
                    self._kill.add(uuid)
                if closed is not None:
                    steps += [(uuid, closed)] if closed.key else []
                    self._closed.append(uuid)
                    self._counts[closed.service] = self._counts.get(closed.service, 0) + 1
                if closed is None:  # perhaps it was closed a moment ago, and that ask is not answered yet
                    self._doubtful.add(at)
                elif closed.waited:
                    self._doubtful.add(at)
                    self._cancelled[closed.service] = self._cancelled.get(closed.service, 0) + 1
            except StoreFull as error:  # the archive is far behind and may miss nothing; the others may fit
                self._refused[at] = error
        self._acts = [
            tally.act(self._context.origin(one.ask), "close" if one.alive is None else "kill")
            for one, tally in tallies.items()
        ]
        self._context.audit.put(transaction, self._acts, now_us)
        self._context.closed_steps.put(transaction, steps)

    def _is_of_others(self, closed: CloseResult, ask: Ask, owner: bytes | None) -> bool:
        """Whether the audit is to know who closed it. Completion events are the server's: who receives them closes
        them. Without access control, requests have no owners, and programs close their own: only pages are noted."""
        if ask.user is None:
            return ask.body[-1].startswith(tsp.VIA + b"page")
        if owner == ask.user.owner:
            return False
        return closed.service not in self._context.settings.event_services

    def __len__(self) -> int:
        return len(self._items or ())

    def parts(self) -> list[CloseWrite]:
        parts = []
        for half in halves(self._items or []):
            part = CloseWrite(self._context, [])
            part._items = half
            parts.append(part)
        if parts:
            parts[0]._answers = self._answers  # to asks that make no sense
        return parts

    def committed(self) -> None:
        self._context.counts["closed"] += len(self._closed)
        self._context.facts.count(CLOSED, self._counts)
        self._context.facts.count(CANCELLED, self._cancelled)
        for user, uuid, ask in self._forbidden:
            address = source_of(self._context.host, ask)
            self._context.refusals.add(user, tsp.CLOSE, not_owned(user, uuid), uuid=uuid, address=address)
        report(self._acts)
        self._report()

    def failed(self, error: StoreError) -> None:
        if self._items is None:
            self._items = self._read()
        self._begin()
        self._refused = dict.fromkeys(range(len(self._items)), error)
        self._report()

    def _read(self) -> list[tuple[_CloseAsk, bytes]]:
        items = []
        for ask in self._asks:
            body = tsp.without_via(ask.body)
            kill = body[1:] == [tsp.KILL]
            uuids = tsp.read_uuids(body[:1] if kill else body)
            fault = None if ask.user is None else lacks(ask.user, "close")
            if ask.user is not None and fault is not None:
                self._context.refusals.add(ask.user, tsp.CLOSE, fault, address=source_of(self._context.host, ask))
                self._answers.append((ask, tsp.forbidden(tsp.CLOSE, fault)))
            elif uuids is None:
                self._answers.append((ask, tsp.BAD_UUID))
            else:
                closing = _CloseAsk(self._context, ask, len(uuids), [] if kill else None)
                items += [(closing, uuid) for uuid in uuids]
        return items

    def _report(self) -> None:
        """Answer the finished requests, and notify the dispatcher."""
        in_doubt: dict[tuple[_CloseAsk, bool], list[bytes]] = {}
        for at, (closing, uuid) in enumerate(self._items or ()):
            if at in self._doubtful:
                in_doubt.setdefault((closing, uuid in self._kill), []).append(uuid)
                continue
            if at in self._refused:
                closing.answer = not_done("not closed", self._refused[at], others=self._context.host.others())
            if closing.done(1):
                self._answers.append((closing.ask, closing.said()))
        if self._closed or in_doubt:
            doubts = [CloseDoubt(uuids, one, one.alive if kill else None) for (one, kill), uuids in in_doubt.items()]
            self._context.dispatcher.post(Closed(self._closed, self._cancelled.keys(), doubts, self._kill))
        if self._answers:
            self._context.send_answers(self._answers)
