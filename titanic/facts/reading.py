"""Reads what the processes that share a store have counted: the figures of services over a span of time, the groups of
failures, and whether the totals agree with the requests that are stored."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

import msgspec

from titanic.facts import counts
from titanic.facts.counts import COUNTS, OTHER, RUN, SIZE, WAIT, StoredTally, Tallies, Tally
from titanic.facts.groups import StoredGroup, decode_group, merged
from titanic.facts.recorder import (
    DOUBT,
    FLUSH_EVERY,
    GROUPS,
    HOURS,
    INCOMPLETE,
    KEPT,
    LENGTHS,
    MARKED,
    MINUTES,
    OPEN,
    TOTALS,
    U32,
    FactsRecorder,
    Period,
    Unwritten,
    backwards,
    read_open,
    read_totals,
    requests_in,
)
from titanic.protocol.documents import FactSeries, FactsInfo, FailureGroupInfo, Percentiles, ServiceFacts, UsualTimes
from titanic.store import ReadTransaction

MAX_FAILURES = 500
"""Groups of failures in an answer."""

SILENT = 3 * FLUSH_EVERY
"""µs after which a process that counts must have written."""

HOUR, DAY = 3600, 86_400
"""Seconds. The times of the day before a span are the usual ones."""

LATE_HOURS = 2
"""How many of the newest hours, the current one included, may still change."""

_SECOND = 1_000_000

_NOTHING: Tally = [0] * SIZE
"""Stands for all that are empty, which are most."""


class FactsCache:
    """Answers that took long serve again for a while, so that many viewers cost no more than one. Used in one thread.

    An answer serves for the time in which it takes LOAD_SHARE of the thread, at most MAX_TTL.
    """

    LOAD_SHARE, MAX_TTL, MAX_CACHED, MAX_BYTES = 0.05, 10.0, 100, 16 << 20

    def __init__(self) -> None:
        self._known: dict[tuple[float, tuple[bytes, ...], bool], tuple[float, bytes]] = {}
        """With the monotonic time until which it serves."""
        self._finished = FinishedHours()

    def get(
        self,
        transaction: ReadTransaction,
        facts: FactsRecorder,
        now_us: int,
        seconds: float,
        of: Sequence[bytes],
        failures: bool,
    ) -> bytes:
        """What `facts_of` returns, or has returned a moment ago, as JSON."""
        began, key = time.monotonic(), (seconds, tuple(of), failures)
        known = self._known.pop(key, None)
        if known is None or began >= known[0]:
            document = facts_of(transaction, facts.unwritten(), now_us, seconds, of, failures, self._finished)
            text = msgspec.json.encode(document)
            known = began + min(self.MAX_TTL, (time.monotonic() - began) / self.LOAD_SHARE), text
        self._known[key] = known
        while len(self._known) > self.MAX_CACHED or sum(len(one) for _, one in self._known.values()) > self.MAX_BYTES:
            del self._known[next(iter(self._known))]
        return known[1]


def facts_of(
    transaction: ReadTransaction,
    unwritten: Unwritten,
    now_us: int,
    seconds: float,
    of: Collection[bytes] = (),
    failures: bool = False,
    finished: FinishedHours | None = None,
) -> FactsInfo:
    """What was counted in the last `seconds`: by minute if these are kept for so long, else by hour. `of`: services of
    which each minute or hour is wanted. `failures`: the groups of failures, too, of these services if any are given.
    `finished`: what an earlier answer has summed up."""
    kind = MINUTES if seconds <= KEPT[MINUTES] else HOURS
    step = LENGTHS[kind]
    now = now_us // _SECOND
    first = max(0, now - int(min(seconds, KEPT[HOURS]))) // step * step
    last = now // step * step
    wanted: dict[bytes, list[Tally]] = {name: [_NOTHING] * len(range(first, last + 1, step)) for name in of}
    every: list[Tally] = [[0] * SIZE for _ in range(first, last + 1, step)]
    sums: Tallies = {}
    for start, rows in _periods(transaction, unwritten, kind, first, last):
        at = (start - first) // step
        for row in rows:
            service = row[0]
            if service not in sums:
                sums[service] = [0] * SIZE
            counts.add_stored(sums[service], row)
            counts.add_stored(every[at], row)
            if (tallies := wanted.get(service)) is not None:
                if tallies[at] is _NOTHING:
                    tallies[at] = [0] * SIZE
                counts.add_stored(tallies[at], row)
    usual = _usual(transaction, unwritten, last, sums, finished or FinishedHours()) if kind == MINUTES else {}
    sums = counts.fold(sums)
    total = [sum(column) for column in zip(*every, strict=True)]
    document: FactsInfo = {
        "since": first * _SECOND,
        "step": step,
        "incomplete": [
            (since * _SECOND, until * _SECOND) for since, until in _marks(transaction, unwritten, now_us, first)
        ],
        "total": _figures(total, every),
        "services": {
            name.decode(errors="replace"): _figures(sums.get(name, [0] * SIZE), wanted.get(name), usual.get(name))
            for name in sorted({*sums, *of} - {OTHER})
        },
        "other": _figures(sums[OTHER]) if OTHER in sums else None,
        "bytes": transaction.facts_bytes(),
    }
    if failures:
        since = now_us - seconds * 1e6
        groups = _groups(transaction, unwritten)
        found = [one for one in groups if one.last >= since and (not of or one.service in of)]
        document["failures"] = [_group(one) for one in found[:MAX_FAILURES]]
        document["failures_omitted"] = len(found[MAX_FAILURES:])
    return document


def _periods(
    transaction: ReadTransaction, unwritten: Unwritten, kind: bytes, first: int, last: int
) -> Iterator[tuple[int, list[StoredTally]]]:
    """The tallies of each period and process."""
    for key, value in backwards(transaction, kind):
        start, number = U32.unpack_from(key, len(kind))[0], key[len(kind) + U32.size : len(kind) + 2 * U32.size]
        if start < first:
            break
        if start > last or (number == unwritten.number and Period(kind, start) in unwritten.periods):
            continue
        try:
            yield start, counts.decode(value)
        except ValueError:  # a check finds it
            continue
    for period, tallies in unwritten.periods.items():
        if period.kind == kind and first <= period.start <= last:
            yield period.start, [counts.stored(service, tally) for service, tally in tallies.items()]


class FinishedHours:
    """Sums of the hours of a day that no longer change, computed once an hour. Used in one thread."""

    def __init__(self) -> None:
        self._until = 0
        self._sums: Tallies = {}

    def sums(self, transaction: ReadTransaction, unwritten: Unwritten, until: int) -> Tallies:
        """The sums of the day that ends at `until`, the start of an hour."""
        if until != self._until:
            self._until, self._sums = until, {}
            for _, rows in _periods(transaction, unwritten, HOURS, until - DAY, until - HOUR):
                for row in rows:
                    counts.add_stored(self._sums.setdefault(row[0], [0] * SIZE), row)
            self._sums = counts.fold(self._sums)
        return self._sums


def _usual(
    transaction: ReadTransaction, unwritten: Unwritten, last: int, span: Tallies, finished: FinishedHours
) -> dict[bytes, UsualTimes]:
    """The times of the services of a span in the day before it. They are counted by hour, without what the span counts:
    a service that became slow in it does not make that usual."""
    recent = last // HOUR * HOUR - (LATE_HOURS - 1) * HOUR
    before = finished.sums(transaction, unwritten, recent)
    day = {service: before[service][:] for service in span if service in before}
    for _, rows in _periods(transaction, unwritten, HOURS, recent, last):
        for row in rows:
            if row[0] in span:
                counts.add_stored(day.setdefault(row[0], [0] * SIZE), row)
    found = dict[bytes, UsualTimes]()
    for service, tally in day.items():
        rest = [max(0, count - later) for count, later in zip(tally, span[service], strict=True)]
        if attempts := sum(rest[RUN:]):
            found[service] = {
                "attempts": attempts,
                "wait": _percentiles(rest[WAIT:RUN]),
                "run": _percentiles(rest[RUN:]),
            }
    return found


def _marks(transaction: ReadTransaction, unwritten: Unwritten, now_us: int, first: int) -> list[tuple[int, int]]:
    """Spans in which something is missing, in seconds. A process that has not written for long, although it counted
    more, was killed, or cannot reach the store; only the start of another process marks that for good."""
    rows = [(U32.unpack_from(key, len(INCOMPLETE))[0], value) for key, value in backwards(transaction, INCOMPLETE)]
    marks = [(since, U32.unpack(value)[0]) for since, value in rows if len(value) == U32.size]
    for key, value in transaction.facts(OPEN):
        at, more = read_open(value)
        if more and key[len(OPEN) :] != unwritten.number and now_us - at > SILENT:
            marks.append((at // _SECOND, at // _SECOND + MARKED))
    return sorted((since, until) for since, until in marks if until >= first)


def _groups(transaction: ReadTransaction, unwritten: Unwritten) -> list[StoredGroup]:
    found = [*unwritten.groups.values()]
    for key, value in backwards(transaction, GROUPS):
        if key in unwritten.groups:
            continue
        try:
            found.append(decode_group(value))
        except ValueError:
            continue
    return merged(found)


def _figures(
    tally: Sequence[int], series: Sequence[Sequence[int]] | None = None, usual: UsualTimes | None = None
) -> ServiceFacts:
    figures: ServiceFacts = {
        **dict(zip(COUNTS, tally, strict=False)),  # type: ignore[typeddict-item]
        "wait": _percentiles(tally[WAIT:RUN]),
        "run": _percentiles(tally[RUN:]),
    }
    if usual is not None:
        figures["usual"] = usual
    if series is not None:
        figures["series"] = _series(series)
    return figures


def _percentiles(buckets: Sequence[int]) -> Percentiles | None:
    if not any(buckets):  # mostly, and faster
        return None
    p50, p90, p99 = (counts.percentile(buckets, share) for share in (0.5, 0.9, 0.99))
    return None if p50 is None or p90 is None or p99 is None else {"p50": p50, "p90": p90, "p99": p99}


def _series(tallies: Sequence[Sequence[int]]) -> FactSeries:
    return {
        "counts": {name: [tally[at] for tally in tallies] for at, name in enumerate(COUNTS)},
        "wait": [_percentiles(tally[WAIT:RUN]) for tally in tallies],
        "run": [_percentiles(tally[RUN:]) for tally in tallies],
    }


def _group(group: StoredGroup) -> FailureGroupInfo:
    return {
        "service": group.service.decode(errors="replace") or None,
        "state": group.state,
        "text": group.text,
        "example": group.example,
        "sample": group.sample.hex(),
        "first": group.first,
        "last": group.last,
        "failed": group.failed,
        "retried": group.retried,
        "hours": [(hour * 3600 * _SECOND, count) for hour, count in sorted(group.hours.items())],
    }


def faults(transaction: ReadTransaction) -> list[tuple[bytes, str]]:
    """Rows of counts that are damaged, and totals that are not what is stored, which are not compared while a process
    may have counted more. With the key of each row; empty: all rows of totals."""
    found: list[tuple[bytes, str]] = []
    for kind in (MINUTES, HOURS):
        for key, value in backwards(transaction, kind):
            try:
                counts.decode(value)
            except ValueError as error:
                found.append((key, str(error)))
    for key, value in backwards(transaction, GROUPS):
        try:
            decode_group(value)
        except ValueError as error:
            found.append((key, str(error)))
    totals = [read_totals(value) for _, value in transaction.facts(TOTALS)]
    uncertain = transaction.facts(DOUBT) or any(read_open(value)[1] for _, value in transaction.facts(OPEN))
    if totals and not uncertain:
        there, expected = transaction.counts().requests, sum(map(requests_in, totals))
        if there != expected:
            found.append((b"", f"{expected} requests must be stored by the counts, but there are {there}"))
    return found
