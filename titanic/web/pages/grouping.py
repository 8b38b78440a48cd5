"""Failures that are the same but for their numbers, names and times: grouped by their text without these."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from titanic.protocol.answers import RequestInfo

MOST_TEXT = 300
"""Characters of a text that count."""

GAP = "…"

VARIES = re.compile(
    r"""
      [0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}     # a UUID
    | \b[a-zA-Z][a-zA-Z0-9+.-]{0,30}://[^\s'"<>]{1,300}            # a URL
    | '[^'\n]{1,300}' | "[^"\n]{1,300}" | `[^`\n]{1,300}`          # what is quoted
    | (?<![\w.])~?(?:/[\w.+@%=-]+){2,20}/?                       # a path
    | \b[A-Za-z]:\\[^\s'"]{1,300}
    | 0[xX][0-9a-fA-F]+
    | \b(?=[0-9a-fA-F]*[0-9])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{6,128}\b  # digits of a hash
    | (?:(?<!\w)[-+])?\d+(?:[.,:]\d+)*                               # a number, a time
    """,
    re.VERBOSE,
)
"""What differs from one failure to the next."""


def normal(reason: str) -> str:
    """The first line of a text, with a gap for each thing that may be different the next time."""
    text = VARIES.sub(GAP, _first_line(reason))
    return " ".join(text.split())[:MOST_TEXT]


def _first_line(reason: str) -> str:
    line = next((line.strip() for line in reason.splitlines() if line.strip()), "")
    return line[: 4 * MOST_TEXT]


@dataclass(slots=True)
class Group:
    """Failures of one service with one text."""

    service: str
    state: str
    text: str
    rows: list[RequestInfo] = field(default_factory=list)

    @property
    def id(self) -> str:
        """By what it is known in addresses."""
        name = "\0".join((self.service, self.state, self.text))
        return hashlib.sha256(name.encode(errors="replace")).hexdigest()[:16]

    @property
    def title(self) -> str:
        """The text; without gaps when all say the same."""
        lines = {_first_line(row["reason"]) for row in self.rows}
        line = " ".join(lines.pop().split())[:MOST_TEXT] if len(lines) == 1 else ""
        return line or self.text

    @property
    def first(self) -> int:
        """When the first of them ended, in microseconds since 1970."""
        return min(row["finished_at"] for row in self.rows)

    @property
    def last(self) -> int:
        """When the last of them ended."""
        return max(row["finished_at"] for row in self.rows)


def group(rows: Iterable[RequestInfo]) -> list[Group]:
    """The groups of failures, the largest first."""
    groups: dict[tuple[str, str, str], Group] = {}
    for row in rows:
        state = str(row["state"])
        text = normal(row["reason"]) or (
            "no worker has begun it in time" if state == "expired" else "no text was given"
        )
        key = (row["service"], state, text)
        if key not in groups:
            groups[key] = Group(*key)
        groups[key].rows.append(row)
    return sorted(groups.values(), key=_weight, reverse=True)


def _weight(one: Group) -> tuple[int, int]:
    return len(one.rows), one.last


def spread(rows: Sequence[RequestInfo], since: int, until: int, parts: int) -> list[int]:
    """How many ended in each part of the time between two moments."""
    counts = [0] * parts
    width = max(1, until - since) / parts
    for row in rows:
        at = int((row["finished_at"] - since) / width)
        if -1 <= at <= parts:
            counts[min(max(at, 0), parts - 1)] += 1
    return counts
