"""What is to be sent, from the store to the core.

LocalFetch       the store is in this machine: it is read in the loop, while the core waits
ClaimedFetch     the store is elsewhere (`remote`), and other nodes may share it: the writer claims, the loop goes on

What is claimed is in flight here, or it is given back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Protocol, cast

from titanic.commit.writer import Write, Writer
from titanic.dispatch.attempts import Send
from titanic.dispatch.backlogs import Backlog, Fetch
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.read_aside import ReadAside
from titanic.errors import RecordCorrupt, StoreError
from titanic.logs import Trouble
from titanic.protocol.submit_options import DEFAULT_PRIORITY
from titanic.store import ClaimingTransaction, ReadTransaction, ReadyRow, Store, WriteTransaction
from titanic.util.clock import Leaps, wall_us

log = logging.getLogger(__name__)

FETCH_BYTES = 1 << 20
"""Bytes of bodies that a round reads from the store for all services together, plus at most one body: everything else
waits meanwhile."""

LOOKS = 20
"""Reads of the store in one round, until results get their turn."""

CLAIM_BYTES = 8 << 20
"""Bytes of bodies that one claim takes for all services together, plus at most one body. Only other writes wait
meanwhile."""

PAUSE = 1.0
"""Seconds until something is claimed again after a claim that failed."""


class Fetching(Protocol):
    """Methods are called in the loop's thread."""

    @property
    def busy(self) -> bool:
        """Whether something is on its way between the core and the store."""

    def begin(self) -> None:
        """Tell the core what the store holds. LocalFetch raises StoreError."""

    def fetch(self, now: float) -> float | None:
        """Read what the core wants, and send it. When to call again: 0 when there is more at once, None when not before
        something has happened."""

    def emptied(self, names: Sequence[bytes]) -> None:
        """Something has left the queues of these services: tell the core which are empty now."""


class LocalFetch:
    """Reads in the loop's thread."""

    busy = False

    def __init__(self, store: Store, core: DispatchCore, send: Callable[[Sequence[Send], float], None]) -> None:
        """`send`: gives requests to the transport."""
        self._store = store
        self._core = core
        self._send = send
        self._clock = Leaps()
        self._clock.look(wall_us())
        """The wall clock, as the dispatcher sees it."""
        self._damage = Trouble(log, "dispatch")
        self._unread = Trouble(log, "read what to dispatch")

    def begin(self) -> None:
        with self._store.read() as transaction:
            self._core.arrived(dict.fromkeys(transaction.waiting(), DEFAULT_PRIORITY), time.monotonic())

    def fetch(self, now: float) -> float | None:
        core, left = self._core, FETCH_BYTES
        for _ in range(LOOKS):
            if not (fetches := core.take_fetches()):
                return None
            left = self._read(fetches, left, now)
            if sends := core.take_sends(now, self._clock.look(wall_us())):
                self._send(sends, now)
            if left <= 0:
                break
        return 0.0

    def emptied(self, names: Sequence[bytes]) -> None:
        try:
            with self._store.read() as transaction:
                self._core.emptied([name for name in names if transaction.oldest(name) is None])
        except StoreError as error:
            self._unread.met(error)

    def _read(self, fetches: Sequence[Fetch], left: int, now: float) -> int:
        """Read the store once, bodies of `left` bytes at most; how many are left then."""
        sure_us = self._clock.look(wall_us())
        try:
            with self._store.read() as transaction:
                for service, after, limit in fetches:
                    if left <= 0:
                        break
                    try:
                        rows = transaction.next_ready(service, after, limit, left, skip=self._core.flights)
                    except RecordCorrupt as damage:
                        self._damage.met(damage)
                        self._core.damaged(service, damage.uuid, str(damage), now)
                    else:
                        left -= _bytes(rows)
                        self._core.fetched(service, rows, now, sure_us)
            self._unread.over()
        except StoreError as error:
            self._unread.met(error)
            for fetch in fetches:
                self._core.unreadable(fetch.service, now)
        return left


class _Moment:
    """A backlog at one time: whether it is the same later, and nothing has come to its queue."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog, self._news = backlog, backlog.news

    def is_now(self, backlog: Backlog | None) -> bool:
        """Whether what the store said of that time holds for this backlog."""
        return backlog is self._backlog and backlog.news == self._news


class ClaimedFetch:
    """Claims in the writer's thread. A service has one claim on its way at most."""

    def __init__(
        self,
        core: DispatchCore,
        send: Callable[[Sequence[Send], float], None],
        writer: Writer,
        aside: ReadAside,
        call: Callable[..., None],
    ) -> None:
        """`send`: gives requests to the transport. `call`: has a function called in the loop's thread."""
        self._core = core
        self._send = send
        self._writer = writer
        self._aside = aside
        self.call = call
        self._clock = Leaps()
        self._clock.look(wall_us())
        self._unread = Trouble(log, "claim what to dispatch")
        self._given_back = core.given_back = list[bytes]()
        """What is to be released."""
        self._on_way: dict[bytes, _Moment] = {}
        """The services for which a claim is on its way, as they were when it began."""
        self._writes = 0
        """How many writes are on their way."""
        self._begun = True
        """Whether the core was told what the store holds, or will be."""
        self._doubtful = False
        """Whether a write failed: the store may hold claims that are in no flight here, because nobody was told of
        them, or they could not be released."""
        self._resume_at = 0.0

    @property
    def busy(self) -> bool:
        return self._writes > 0 or (len(self._given_back) > 0 and not self._doubtful)

    def begin(self) -> None:
        self._begun = True
        self._aside.read(_waiting, self._found_waiting, self._not_begun)

    def fetch(self, now: float) -> float | None:
        if now < self._resume_at:
            return self._resume_at
        if not self._begun:
            self.begin()
        core, fetches, kept = self._core, list[Fetch](), None
        if not self._doubtful:
            fetches = [fetch for fetch in core.take_fetches() if fetch.service not in self._on_way]
        elif self._writes:
            return None  # what they claim is in no flight yet, and must not be given back
        else:
            kept = set(core.flights)
        if fetches or self._given_back or kept is not None:
            self._on_way |= {fetch.service: _Moment(core.backlogs[fetch.service]) for fetch in fetches}
            self._writes += 1
            write = ClaimWrite(self, fetches, self._given_back.copy(), kept)
            self._given_back.clear()
            self._writer.enqueue(write)
        return None

    def emptied(self, names: Sequence[bytes]) -> None:
        moments = {name: _Moment(self._core.backlogs[name]) for name in names if name not in self._on_way}
        if moments:
            self._aside.read(partial(_empty, list(moments)), partial(self._found_empty, moments), self._unread.met)

    # -- what was found --------------------------------------------------------------------------------------

    def claimed(self, fetches: Sequence[Fetch], found: Mapping[bytes, list[ReadyRow]], all_kept: bool) -> None:
        """This was claimed and is on disk. `all_kept`: nothing else is claimed but what was in flight."""
        core, now = self._core, time.monotonic()
        self._writes -= 1
        self._unread.over()
        if all_kept:
            self._doubtful = False
        sure_us = self._clock.look(wall_us())
        more = sum(map(_bytes, found.values())) >= CLAIM_BYTES
        for name, _, limit in fetches:
            moment = self._on_way.pop(name)
            if (rows := found.get(name)) is None:
                continue  # the others took all bytes
            # What is in flight here was claimed anew. It is not sent again.
            new = [row for row in rows if row.uuid not in core.flights]
            sure = moment.is_now(core.backlogs.get(name))
            if new or (sure and not rows):
                core.fetched(name, new, now, sure_us)
            left = [row.uuid for row in new if row.uuid not in core.flights]
            self._given_back += left
            if sure and not left and not more and len(rows) < limit:
                core.emptied([name])
        if sends := core.take_sends(now, sure_us):
            self._send(sends, now)

    def failed(self, fetches: Sequence[Fetch], error: StoreError) -> None:
        """It is not known what is claimed."""
        now = time.monotonic()
        self._writes -= 1
        self._unread.met(error)
        self._doubtful = True
        self._resume_at = now + PAUSE
        for fetch in fetches:
            del self._on_way[fetch.service]
            self._core.unreadable(fetch.service, now)

    def _found_waiting(self, services: Collection[bytes]) -> None:
        self._core.arrived(dict.fromkeys(services, DEFAULT_PRIORITY), time.monotonic())

    def _not_begun(self, error: StoreError) -> None:
        self._unread.met(error)
        self._begun = False
        self._resume_at = time.monotonic() + PAUSE

    def _found_empty(self, moments: Mapping[bytes, _Moment], names: Sequence[bytes]) -> None:
        """These had nothing at those moments."""
        backlogs = self._core.backlogs
        sure = [name for name in names if name not in self._on_way and moments[name].is_now(backlogs.get(name))]
        self._core.emptied(sure)


class ClaimWrite:
    """Claims and releases, as one `Write`."""

    light = False

    def __init__(
        self,
        fetching: ClaimedFetch,
        fetches: Sequence[Fetch],
        released: Sequence[bytes],
        kept: Collection[bytes] | None,
    ) -> None:
        """`kept`: all else that this node has claimed is released; None: only these are `released`."""
        self._fetching = fetching
        self._fetches = fetches
        self._released = released
        self._kept = kept
        self._found: Mapping[bytes, list[ReadyRow]] = {}

    def uuids(self) -> Sequence[bytes]:
        """None: what it finds, nobody has seen here."""
        return ()

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        claiming = cast(ClaimingTransaction, transaction)
        self._found = {}
        if self._kept is not None:
            claiming.release_all_but(self._kept)
        elif self._released:
            claiming.release(self._released)
        if self._fetches:
            self._found = claiming.claim([(name, limit) for name, _, limit in self._fetches], CLAIM_BYTES)

    def __len__(self) -> int:
        return len(self._released) + sum(map(len, self._found.values()))

    def parts(self) -> list[Write]:
        return []

    def committed(self) -> None:
        self._fetching.call(self._fetching.claimed, self._fetches, self._found, self._kept is not None)

    def failed(self, error: StoreError) -> None:
        self._fetching.call(self._fetching.failed, self._fetches, error)


def _bytes(rows: Sequence[ReadyRow]) -> int:
    return sum(map(len, chain.from_iterable([row.body for row in rows])))


def _waiting(transaction: ReadTransaction) -> Collection[bytes]:
    return transaction.waiting()


def _empty(names: Sequence[bytes], transaction: ReadTransaction) -> list[bytes]:
    return [name for name in names if transaction.oldest(name) is None]
