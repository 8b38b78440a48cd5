"""Groups of failures: those of one service with the same error, apart from numbers, ids, paths and quoted texts.

A group is stored in one row, which the node that counts it writes again when it has grown. Groups of several nodes with
the same service, state and text add up.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable
from functools import lru_cache

import msgspec

MAX_TEXT = 300
"""Characters of an error that are compared."""

MAX_GROUPS = 100
"""Groups of one service by their text; further errors are counted together."""

MAX_ALL = 5000
"""Groups of all services."""

MAX_HOURS = 48
"""Hours for which a group counts each on its own."""

IDLE_US = 3_600_000_000
"""A group without a failure for so many µs makes room for others. If its error comes again, it begins a new row."""

OTHER_TEXT = "other errors"

GAP = "…"

VARIABLE = re.compile(
    r"""
      [0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}     # a UUID
    | \b[a-zA-Z][a-zA-Z0-9+.-]{0,30}://[^\s'"<>]{1,300}            # a URL
    | '[^'\n]{1,300}' | "[^"\n]{1,300}" | `[^`\n]{1,300}`          # quoted text
    | (?<![\w.])~?(?:/[\w.+@%=-]+){2,20}/?                       # a path
    | \b[A-Za-z]:\\[^\s'"]{1,300}
    | 0[xX][0-9a-fA-F]+
    | \b(?=[0-9a-fA-F]*[0-9])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{6,128}\b  # digits of a hash
    | (?:(?<!\w)[-+])?\d+(?:[.,:]\d+)*                               # a number, a time
    """,
    re.VERBOSE,
)
"""What differs between failures with the same cause."""

EXPIRED_TEXT = "not done in time"


def first_line(reason: str) -> str:
    """The first line of an error that is not empty."""
    line = next((line.strip() for line in reason.splitlines() if line.strip()), "")
    return line[: 4 * MAX_TEXT]


def normalize(reason: str, state: str = "failed") -> str:
    """The first line of an error, with a gap for each variable part. All that expired have the same."""
    if state == "expired":
        return EXPIRED_TEXT
    return _normalized(first_line(reason)) or "no error text"


@lru_cache(maxsize=1024)
def _normalized(line: str) -> str:
    return " ".join(VARIABLE.sub(GAP, line).split())[:MAX_TEXT]


class StoredGroup(msgspec.Struct, array_like=True):
    """A group of failures. Times are µs since the epoch."""

    service: bytes
    state: str
    """failed or expired."""
    text: str
    """The normalized error."""
    example: str
    """The first line of the last error."""
    sample: bytes
    """The UUID of a request that failed last."""
    first: int
    last: int
    failed: int = 0
    """Requests that have ended so."""
    retried: int = 0
    """Attempts that failed so and were followed by another."""
    hours: dict[int, int] = {}
    """Both of them by hour since the epoch."""

    @property
    def count(self) -> int:
        """All failures."""
        return self.failed + self.retried

    def count_in(self, hour: int, count: int = 1) -> None:
        """So many more failures in an hour."""
        self.hours[hour] = self.hours.get(hour, 0) + count
        while len(self.hours) > MAX_HOURS:
            del self.hours[min(self.hours)]

    def merge(self, other: StoredGroup) -> None:
        """Add the same group of another node or process."""
        if other.last > self.last:
            self.example, self.sample = other.example, other.sample
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.failed += other.failed
        self.retried += other.retried
        for hour, count in other.hours.items():
            self.count_in(hour, count)


_DECODER = msgspec.msgpack.Decoder(StoredGroup)


def decode_group(row: bytes) -> StoredGroup:
    """The group in a row. Raises ValueError for a damaged one."""
    try:
        return _DECODER.decode(row)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a group of failures: {error}") from error


class FailureGroups:
    """The groups that this process counts. One thread at a time."""

    def __init__(self) -> None:
        self._groups: OrderedDict[tuple[bytes, str, str], tuple[int, StoredGroup]] = OrderedDict()
        """With the numbers of their rows; the one that failed last is at the end."""
        self._of: Counter[bytes] = Counter()
        self._number = 0
        self._changed: dict[int, StoredGroup] = {}

    def add(self, service: bytes, state: str, reason: str, uuid: bytes, now_us: int, *, retried: bool) -> None:
        """Count a failure."""
        key = service, state, normalize(reason, state)
        if key not in self._groups:
            key = self._place(key)
        known = self._groups.get(key)
        if known is None:
            self._number += 1
            self._of[key[0]] += 1
            known = self._number, StoredGroup(*key, "", uuid, now_us, now_us, hours={})
        number, group = known
        self._groups[key] = known
        self._groups.move_to_end(key)
        group.example, group.sample, group.last = first_line(reason)[:MAX_TEXT], uuid, now_us
        group.failed += not retried
        group.retried += retried
        group.count_in(now_us // 3_600_000_000)
        self._changed[number] = group

    def _place(self, key: tuple[bytes, str, str]) -> tuple[bytes, str, str]:
        """The key itself if there is room for one more group, else that of the others."""
        service, state, _ = key
        if self._of[service] < MAX_GROUPS and len(self._groups) < MAX_ALL:
            return key
        if len(self._groups) < MAX_ALL + MAX_GROUPS:
            return service, state, OTHER_TEXT
        return b"", state, OTHER_TEXT

    def changed(self) -> dict[int, bytes]:
        """The rows to be written, by their numbers."""
        return {number: msgspec.msgpack.encode(group) for number, group in self._changed.items()}

    def written(self, now_us: int) -> None:
        """The changed rows are on disk. Forget idle groups."""
        self._changed.clear()
        while self._groups:
            key = next(iter(self._groups))
            if abs(self._groups[key][1].last - now_us) < IDLE_US:  # the clock may have been far ahead
                break
            del self._groups[key]
            self._of[key[0]] -= 1
            if not self._of[key[0]]:
                del self._of[key[0]]

    def copies(self) -> dict[int, StoredGroup]:
        """The groups that have changed since they were written."""
        return {number: decode_group(row) for number, row in self.changed().items()}


def merged(groups: Iterable[StoredGroup]) -> list[StoredGroup]:
    """The groups of all rows, each service and text once, the largest first; of a service at most MAX_GROUPS by their
    text."""
    found: dict[tuple[bytes, str, str], StoredGroup] = {}
    for group in groups:
        key = group.service, group.state, group.text
        if key in found:
            found[key].merge(group)
        else:
            found[key] = group
    kept: dict[tuple[bytes, str, str], StoredGroup] = {}
    named: Counter[bytes] = Counter()
    for key, group in sorted(found.items(), key=lambda item: (item[1].count, item[1].last), reverse=True):
        named[group.service] += group.text != OTHER_TEXT
        if named[group.service] > MAX_GROUPS:
            group.text = OTHER_TEXT
            key = group.service, group.state, OTHER_TEXT
        if key in kept:
            kept[key].merge(group)
        else:
            kept[key] = group
    return sorted(kept.values(), key=lambda group: (group.count, group.last), reverse=True)
