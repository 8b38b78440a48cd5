"""Which services have requests in each span of ids, so that a listing of one service skips the other spans.

Ids ascend: requests leave a span (closed, removed), but none comes into one. So what is known of it stays true. The
writer notes the services of what it stores, which costs about 1 µs for each service of a commit; those of requests from
before are known once a listing has read them. Nothing of it is on disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import reduce
from operator import or_
from threading import Lock
from typing import NamedTuple
from zlib import crc32

SPAN = 4096
"""Requests in a span: a listing reads them in some 4 ms."""

MOST_SPANS = 8192
"""Spans that are remembered, at most, in some 5 MiB: those of the last 30 million requests."""

_SIEVE = 4096
"""Bits for the services of a span."""


class Span(NamedTuple):
    """The ids from `first` to below `end`, with the services of all their requests, as bits of the hashes of names."""

    first: bytes
    end: bytes
    bits: int

    def lacks(self, service: bytes) -> bool:
        """Whether no request in it is of this service."""
        return not self.bits & _bit(service)


class ServiceSpans:
    """The spans that are known, in order; they do not overlap. One thread notes, any thread finds and learns."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._firsts = list[bytes]()
        self._spans = list[Span]()
        self._noted = SPAN
        """Requests of the last span; with more than SPAN the next ones begin another."""

    def note(self, first: bytes, last: bytes, count: int, services: Iterable[bytes]) -> None:
        """The services of requests that are about to be stored, above all that are."""
        bits = 0
        for service in services:  # no calls: each commit passes here
            bits |= 1 << crc32(service) % _SIEVE
        with self._lock:
            self._noted += count
            if self._noted <= SPAN:
                before = self._spans[-1]
                self._spans[-1] = Span(before.first, last + b"\0", before.bits | bits)
            else:
                self._noted = count
                self._insert(len(self._spans), Span(first, last + b"\0", bits))

    def learn(self, first: bytes, end: bytes, services: Iterable[bytes]) -> None:
        """The services of all requests from `first` to below `end`, of which some may be known already."""
        bits = reduce(or_, map(_bit, services), 0)
        with self._lock:
            while first < end:
                place = bisect_right(self._firsts, first)
                if place and (known := self._spans[place - 1]).end > first:
                    first = known.end
                    continue
                stop = min([end, *self._firsts[place : place + 1]])
                self._insert(place, Span(first, stop, bits))
                first = stop

    def find(self, uuid: bytes) -> Span | None:
        """The known span that has this id."""
        with self._lock:
            place = bisect_right(self._firsts, uuid) - 1
            return self._spans[place] if place >= 0 and uuid < self._spans[place].end else None

    def _insert(self, place: int, span: Span) -> None:
        self._firsts.insert(place, span.first)
        self._spans.insert(place, span)
        if len(self._spans) > MOST_SPANS:
            del self._firsts[0], self._spans[0]


def behind(uuid: bytes) -> bytes:
    """The first key behind an id, in LMDB's order."""
    return uuid + b"\0"


def _bit(service: bytes) -> int:
    return 1 << crc32(service) % _SIEVE
