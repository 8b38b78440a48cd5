"""Gathers what this process counts, and writes it with commits that happen anyway.

Each process writes rows of its own, under a random number; readers add them up. A row always has everything that the
process has counted for its period, so writing it again does no harm.

    cm, ch + period + number + part   u32 s, u32, u8   counts.py: the counts of a minute or an hour
    ct + number                       u32              all counts since the store was made; 0: of processes that ended
    co + number                       u32              a process that counts: [when it wrote, whether more may follow]
    ci + from                         u32 s            until, u32 s: counts of this time are incomplete
    cd                                                 the totals are incomplete
    cl                                                 written by a process that begins, so that another one waits
    g + number + group                u32, u32         groups.py: a group of failures

A process that was killed leaves its `co` row, and loses what it counted since its last write, at most about
FLUSH_EVERY. The next one marks that time. The totals are corrected as soon as one process has the store to itself:
accepted - closed + CORRECTION = the requests that are stored.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from titanic.facts import counts
from titanic.facts.counts import ACCEPTED, CLOSED, EXPIRED, FAILED, OTHER, RETRIED, RUN, WAIT, Tallies, Tally
from titanic.facts.groups import IDLE_US, FailureGroups, StoredGroup, decode_group
from titanic.store import ReadTransaction, Store, WriteTransaction

FLUSH_EVERY = 10_000_000
"""µs between two writes."""

IDLE_EVERY = 60_000_000
"""µs after which a node of a shared store writes its `co` row again although it has counted nothing."""

GONE = 600_000_000
"""µs after which a node that has not written its `co` row was killed."""

MAX_NAMES = 2000
"""Services in memory by name; further ones are counted together until the next write."""

MINUTES, HOURS = b"cm", b"ch"
LENGTHS = {MINUTES: 60, HOURS: 3600}
KEPT = {MINUTES: 4 * 3600, HOURS: 28 * 86_400}
"""Seconds for which the counts of minutes and hours are kept."""

TOTALS, OPEN, INCOMPLETE, DOUBT, LOCK, GROUPS = b"ct", b"co", b"ci", b"cd", b"cl", b"g"

CORRECTION = len(counts.COUNTS)
"""Where the correction stands in a row of totals, behind the counts."""

TIDY_EVERY = 3_600_000_000
"""µs between two searches for rows that are too old or too many."""

COUNTS_SHARE, GROUPS_SHARE = 0.5, 0.2
"""Of `Store.facts_room`."""

MARKED = 15
"""Seconds after its last write in which a process that was killed may have counted more."""

log = logging.getLogger(__name__)

U32 = struct.Struct(">I")

_OPEN = msgspec.msgpack.Decoder(tuple[int, bool])
_TOTALS = msgspec.msgpack.Decoder(list[int])


class AttemptEnd(NamedTuple):
    """The end of an attempt, or of a request that had none. `kind`: one of counts.SUCCEEDED, FAILED, RETRIED, EXPIRED.
    `wait`: seconds until the first attempt, `run`: those of this one; None: not known, or there was none."""

    uuid: bytes
    service: bytes
    kind: int
    wait: float | None
    run: float | None
    reason: str


class Period(NamedTuple):
    """A minute or an hour: `kind` is MINUTES or HOURS, `start` in seconds since the epoch."""

    kind: bytes
    start: int


class Unwritten(NamedTuple):
    """The last periods of a process, and its groups that have changed, by the keys of their rows."""

    number: bytes = b""
    periods: Mapping[Period, Tallies] = {}
    groups: Mapping[bytes, StoredGroup] = {}


MOST_NAMED = 100
"""Services whose totals are kept by name: metrics have some fifty time series for each."""


class ServiceTotals(NamedTuple):
    """What a process has counted of a service since it began: the tally, and the sums of waiting and run times in
    seconds."""

    tally: Tally
    wait: float
    run: float


class FactsRecorder:
    """What this process counts. Any thread may count; commits of one process come one after the other, and call
    `flush` and `flushed`."""

    def __init__(self, store: Store) -> None:
        self._now_us = store.now_us
        self._shared = store.remote
        self._room = store.facts_room
        self._lock = threading.Lock()
        self._delta: Tallies = {}
        """What was counted since the last flush, since `_since`."""
        self._since = 0
        self._seconds: dict[bytes, list[float]] = {}
        """The waiting and the run time of what is in `_delta`."""
        self._services: dict[bytes, ServiceTotals] = {}
        """Everything since the start. The first MOST_NAMED have their names for good: no number decreases."""
        self._periods: dict[Period, Tallies] = {}
        """The last periods."""
        self._parts: dict[Period, int] = {}
        self._totals: Tally = [0] * (CORRECTION + 1)
        self._groups = FailureGroups()
        self._changed: set[Period] = set()
        """Those that are not written yet."""
        self.number = 0
        """The number of this process; 0: it has none yet."""
        self._joined = False
        """Whether its number is on disk."""
        self._open = False
        """Whether the `co` row says that more may follow."""
        self._flushed_at = self._tidied_at = 0
        self.changed_at = 0
        """When anything else was committed last."""

    # -- counting --------------------------------------------------------------------------------------------

    def count(self, kind: int, services: Mapping[bytes, int]) -> None:
        """So many more of a kind (counts.COUNTS), by service."""
        if not services:
            return
        with self._lock:
            for service, count in services.items():
                self._tally(service)[kind] += count

    def attempts(self, ends: Iterable[AttemptEnd], now_us: int) -> None:
        """Attempts have ended, and this is on disk."""
        with self._lock:
            for uuid, service, kind, wait, run, reason in ends:
                tally = self._tally(service)
                tally[kind] += 1
                if wait is not None:
                    tally[WAIT + counts.bucket(wait)] += 1
                if run is not None:
                    tally[RUN + counts.bucket(run)] += 1
                if wait is not None or run is not None:
                    seconds = self._seconds.setdefault(service if service in self._delta else OTHER, [0.0, 0.0])
                    seconds[0] += wait or 0.0
                    seconds[1] += run or 0.0
                if kind in (FAILED, RETRIED, EXPIRED):
                    state = "expired" if kind == EXPIRED else "failed"
                    self._groups.add(service, state, reason, uuid, now_us, retried=kind == RETRIED)

    def _tally(self, service: bytes) -> Tally:
        tally = self._delta.get(service)
        if tally is None:
            if not self._delta:
                self._since = self._now_us()
            if len(self._delta) >= MAX_NAMES:
                service = OTHER
            tally = self._delta.setdefault(service, [0] * counts.SIZE)
        return tally

    def since_start(self) -> dict[bytes, ServiceTotals]:
        """What this process has counted since it began, by service: MOST_NAMED and OTHER. Any thread may call it."""
        with self._lock:
            self._collect()
            return self._services.copy()

    # -- what is not written yet -----------------------------------------------------------------------------

    def unwritten(self) -> Unwritten:
        """What readers take instead of rows of this process. Any thread may call it."""
        with self._lock:
            self._collect()
            periods = {period: dict(tallies) for period, tallies in self._periods.items()}
            groups = {self._group_key(number): group for number, group in self._groups.copies().items()}
            return Unwritten(U32.pack(self.number), periods, groups)

    def is_due(self, now_us: int) -> bool:
        """Whether a flush is due although there is no commit to share."""
        if self._delta or self._open:
            return not 0 <= now_us - self._flushed_at < FLUSH_EVERY
        return self._shared and self._joined and not 0 <= now_us - self._flushed_at < IDLE_EVERY

    def wants(self, now_us: int) -> bool:
        """Whether the next commit is to contain a flush."""
        return not self._open or not 0 <= now_us - self._flushed_at < FLUSH_EVERY

    # -- writing ---------------------------------------------------------------------------------------------

    def flush(self, transaction: WriteTransaction, now_us: int, *, alone: bool = False, last: bool = False) -> bool:
        """Write what was counted, first of all in a transaction. `alone`: it changes nothing else. `last`: the process
        ends. Return whether more may follow, for `flushed`."""
        if not self._joined or (self._shared and not transaction.facts(self._key(OPEN))):
            self._join(transaction, now_us)
        rows: dict[bytes, bytes | None] = {}
        with self._lock:
            self._collect()
            first = [one for one in self._changed if one not in self._parts]
        before = {one: transaction.facts(self._period_key(one)) for one in first}  # some, if the clock went back
        with self._lock:
            for period, old in before.items():
                for _, row in old:
                    for one in counts.decode(row):
                        counts.add_stored(self._periods[period].setdefault(one[0], [0] * counts.SIZE), one)
                self._parts[period] = len(old)
            for period in self._changed:
                self._put_period(rows, period, self._periods[period])
            rows |= {self._group_key(number): row for number, row in self._groups.changed().items()}
        more = not (last or (alone and not 0 <= now_us - self.changed_at < FLUSH_EVERY))
        rows[self._key(TOTALS)] = msgspec.msgpack.encode(self._totals)
        rows[self._key(OPEN)] = None if last else msgspec.msgpack.encode((now_us, more))
        if self._flushed_at and not last and not 0 <= now_us - self._tidied_at < TIDY_EVERY:
            rows |= self._tidy(transaction, now_us)
            self._tidied_at = now_us
        transaction.put_facts(rows.items())
        return more

    def flushed(self, now_us: int, more: bool) -> None:
        """The flush is on disk."""
        with self._lock:
            self._groups.written(now_us)
            self._changed.clear()
            now = now_us // 1_000_000
            for period in [one for one in self._periods if abs(now - one.start) > LENGTHS[one.kind] + 60]:
                del self._periods[period]
                self._parts.pop(period, None)
        self._flushed_at, self._open, self._joined = now_us, more, True

    def give_up(self, now_us: int) -> None:
        """What was counted cannot be written, because of a bug: begin again, since no request may wait for counts."""
        log.exception("a bug in this program: counts and failure groups since the last write are dropped")
        with self._lock:
            self._delta, self._periods, self._parts, self._changed = {}, {}, {}, set()
            self._seconds = {}
            self._groups, self._totals = FailureGroups(), [0] * (CORRECTION + 1)
            self._joined, self._open, self._flushed_at = False, True, now_us

    def _collect(self) -> None:
        if not self._delta:
            return
        seconds = self._since // 1_000_000
        for kind, length in LENGTHS.items():
            period = Period(kind, seconds - seconds % length)
            tallies = self._periods.setdefault(period, {})
            counts.add_all(tallies, self._delta)
            if len(tallies) > MAX_NAMES:
                self._periods[period] = counts.fold(tallies)
            self._changed.add(period)
        for service, tally in self._delta.items():
            for at in range(CORRECTION):
                self._totals[at] += tally[at]
            wait, run = self._seconds.get(service, (0.0, 0.0))
            named = service in self._services or len(self._services) < MOST_NAMED
            name = service if named else OTHER
            known = self._services.get(name) or ServiceTotals([0] * counts.SIZE, 0.0, 0.0)
            total = [one + more for one, more in zip(known.tally, tally, strict=True)]
            self._services[name] = ServiceTotals(total, known.wait + wait, known.run + run)
        self._delta, self._seconds = {}, {}

    def _put_period(self, rows: dict[bytes, bytes | None], period: Period, tallies: Tallies) -> None:
        parts = counts.encode(counts.fold(tallies))
        prefix = self._period_key(period)
        for part, row in enumerate(parts[:256]):
            rows[prefix + bytes([part])] = row
        for part in range(len(parts), self._parts.get(period, 0)):
            rows[prefix + bytes([part])] = None
        self._parts[period] = len(parts)

    def _key(self, kind: bytes) -> bytes:
        return kind + U32.pack(self.number)

    def _period_key(self, period: Period) -> bytes:
        return period.kind + packed(period.start) + U32.pack(self.number)

    def _group_key(self, group: int) -> bytes:
        return self._key(GROUPS) + U32.pack(group)

    def _join(self, transaction: WriteTransaction, now_us: int) -> None:
        """Begin to count, under a new number: mark what processes lost that were killed, and correct the totals."""
        self.number = int.from_bytes(os.urandom(4)) or 1
        with self._lock:
            if self._joined:  # another node took it for killed, and marked what it had not written
                self._periods, self._parts, self._totals = {}, {}, [0] * (CORRECTION + 1)
                self._changed, self._groups, self._joined = set(), FailureGroups(), False
            self._collect()
            unwritten = requests_in(self._totals)
        rows: dict[bytes, bytes | None] = {LOCK: U32.pack(self.number)}
        transaction.put_facts([*rows.items()])
        others = set[bytes]()
        doubt = self._flushed_at > 0 or bool(transaction.facts(DOUBT))  # what it counted before may be lost
        for key, value in transaction.facts(OPEN):
            at, more = read_open(value)
            if self._shared and abs(now_us - at) < GONE:  # `now_us` is of before it waited for those that joined
                others.add(key[len(OPEN) :])
                continue
            rows[key] = None
            if more:
                doubt = True
                start = at // 1_000_000
                end = max(start, min(now_us // 1_000_000, start + MARKED))
                rows[INCOMPLETE + packed(start)] = packed(end)
        ended: Tally = [0] * (CORRECTION + 1)
        found = transaction.facts(TOTALS)
        for key, value in found:
            if key[len(TOTALS) :] not in others:
                ended = [one + more for one, more in zip(ended, read_totals(value), strict=True)]
                rows[key] = None
        if not others and (doubt or not found):
            ended[CORRECTION] += transaction.counts().requests - requests_in(ended) - unwritten
            doubt = False
        rows[DOUBT] = b"\xc3" if doubt else None
        rows[TOTALS + U32.pack(0)] = msgspec.msgpack.encode(ended)
        transaction.put_facts(rows.items())

    def _tidy(self, transaction: WriteTransaction, now_us: int) -> dict[bytes, bytes | None]:
        """Delete rows that are too old, or of a clock far ahead, and the oldest of those that take too much room."""
        now, old = now_us // 1_000_000, list[bytes]()
        size = 0
        for kind, kept in ((HOURS, KEPT[HOURS]), (MINUTES, KEPT[MINUTES]), (INCOMPLETE, KEPT[HOURS])):
            for key, value in backwards(transaction, kind):
                size += len(key) + len(value)
                if abs(now - U32.unpack_from(key, len(kind))[0]) > kept or size > self._room * COUNTS_SHARE:
                    old.append(key)
        groups = list[tuple[int, int, bytes]]()
        for key, value in backwards(transaction, GROUPS):
            try:
                groups.append((decode_group(value).last, len(key) + len(value), key))
            except ValueError:
                old.append(key)
        size = 0
        for last, length, key in sorted(groups, reverse=True):
            size += length
            if last < now_us - KEPT[HOURS] * 1_000_000 or (
                size > self._room * GROUPS_SHARE and last < now_us - IDLE_US
            ):
                old.append(key)
        return dict.fromkeys(old)


def packed(seconds: int) -> bytes:
    """A time in a key; a clock that is wrong by centuries shows the first or the last one that there is."""
    return U32.pack(min(max(seconds, 0), 0xFFFFFFFF))


def backwards(transaction: ReadTransaction, prefix: bytes) -> Iterable[tuple[bytes, bytes]]:
    """All rows whose keys begin with a prefix, the last first."""
    after = b""
    while rows := transaction.facts(prefix, after, newest=True):
        yield from rows
        after = rows[-1][0]


def read_open(row: bytes) -> tuple[int, bool]:
    """When a process wrote last, and whether it may have counted more; a damaged row says nothing."""
    try:
        return _OPEN.decode(row)
    except msgspec.MsgspecError:
        return 0, True


def read_totals(row: bytes) -> Tally:
    """The counts of a row of totals, and the correction. Of a damaged row all are 0."""
    try:
        numbers = _TOTALS.decode(row)
    except msgspec.MsgspecError:
        numbers = []
    return [*numbers, *[0] * (CORRECTION + 1)][: CORRECTION + 1]


def requests_in(totals: Sequence[int]) -> int:
    """How many requests there must be."""
    return totals[ACCEPTED] - totals[CLOSED] + totals[CORRECTION]
