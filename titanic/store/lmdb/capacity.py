"""How the capacity is divided, so that a full store still works.

The data file never exceeds the capacity: LMDB's map ends there. So a part of it is kept back, and the fuller the store
is, the fewer kinds of writes may use the rest. What counts is the pages in use, not the bytes in them: pages from which
some requests were closed are partly empty, and stay so.

    facts                                                                            (beside the rest)

    0 ............................. accept ....... reply ....... least ............ capacity
      requests and their replies,          replies        ends,          copies of pages
      entries of `closed`                                 postponing     that change

facts   What the server remembers of its work (facts.py) has room of its own, which nothing else may use. Only what is
        beyond that counts as used.

What readers pin that take long (readers.py) counts as used as well. They may pin what requests do not need, up to
`accept`, and `readers` bytes more; beyond that, those of Titanic end.

accept  Up to here, requests are accepted. Each one that has not ended counts CHARGE bytes more than it has, for the
        record of its end. Entries of `closed` that may be dropped make way.
reply   Up to here, replies are stored that are larger than the charge. Beyond, finish() refuses them: the request goes
        on waiting, or ends with a reason instead of a reply.
least   Up to here, closed requests are remembered at all, at the end without their frames. The end of a request, a
        delay, a promotion never take more than the charge, so they need no limit: there a long reason is cut.

A disk that has no room for the capacity is a smaller capacity (`divide_disk`): closing and replies need room there as
well.

Behind that is working space. LMDB changes no page in place: a transaction writes a copy of each page that it changes,
and what it frees can be used from the second transaction after it, not before. So a transaction must not change or
free too much at once: a bounded number of pages of large bodies is freed per transaction, the others wait in `graves`;
and when a transaction has changed very many pages, an empty one follows that makes them available (free_space.py). The
number of requests that one transaction can change in the worst case, each on pages of its own, is `batch`.

The list of freed pages that LMDB keeps per transaction is a value of its own: from 509 pages on it needs several pages
in one piece. That is the other reason for freeing a little at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from titanic.errors import CapacityTooSmall
from titanic.store.lmdb.schema import PAGE
from titanic.store.records import MIN_CAPACITY
from titanic.store.rules import FACTS_ROOM

CHARGE = 192
"""Bytes that a request counts beyond its own until it has ended."""

_MIN_RESERVE = 4 << 20
_MAX_RESERVE = 256 << 20
_PAGES_PER_REQUEST = 8
_PAGES_PER_LIST = 480


class StoreRoom(NamedTuple):
    """The capacity and its limits, in bytes, and what one transaction does at most, in pages or requests."""

    capacity: int
    accept: int
    reply: int
    least: int
    headroom: int  # kept free of entries in `closed`, below `accept`
    readers: int  # that readers may pin although requests are refused
    facts: int
    pages_freed: int
    batch: int


def divide(capacity: int) -> StoreRoom:
    """Divide a capacity. Raises CapacityTooSmall."""
    if capacity < MIN_CAPACITY:
        raise CapacityTooSmall(
            "the capacity is too small", f"it is {capacity} bytes", f"choose at least {MIN_CAPACITY >> 20} MiB"
        )
    return _divide(capacity)


def divide_disk(room: StoreRoom, size: int) -> StoreRoom:
    """What is left of a capacity when its disk has room for a file of this size."""
    return room if size >= room.capacity else _divide(size)


def _divide(capacity: int) -> StoreRoom:
    capacity -= capacity % PAGE
    facts = min(capacity // 16, FACTS_ROOM)
    reserve = min(reserved(capacity), capacity // 4)
    pages = reserve // PAGE
    rest = capacity - facts
    return StoreRoom(
        capacity,
        accept=rest - reserve,
        reply=rest - reserve * 5 // 8,
        least=rest - reserve // 2,
        headroom=reserve // 2,
        readers=reserve // 8,
        facts=facts,
        pages_freed=min(pages // 8, _PAGES_PER_LIST),
        batch=pages // 4 // _PAGES_PER_REQUEST,
    )


def reserved(capacity: int) -> int:
    """What is kept back of a capacity."""
    return min(max(capacity // 8, _MIN_RESERVE), _MAX_RESERVE)
