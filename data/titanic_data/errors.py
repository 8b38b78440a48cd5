"""The exceptions of the pipeline, beside those of `titanic` itself.

    PipelineError
    ├── InvalidOption     an option is unknown, missing or has a value that is not allowed
    ├── InvalidRows       a DataFrame cannot become requests: a column is missing or has the wrong type
    ├── DataLoss          closed requests left the ring before they were read
    ├── OtherStore        a stream continues with another store than it has read
    ├── ArchiveError      an archive is damaged, unusable, or belongs to another store
    │   ├── ArchiveGap    closed requests left the ring before they were archived
    │   └── ArchiveBusy   another archiver is running
    ├── Incomplete        some of the work failed; the message says what was done
    ├── SparkEnded        Spark ended while it was needed
    └── MissingPart       a program or package is not installed

A message says what is wrong, the fact behind it, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from titanic.errors import TitanicError


class PipelineError(TitanicError):
    """The root. Its message begins with `titanic:`, which distinguishes it from Spark's own in a log."""

    def __init__(self, what: str, fact: str = "", advice: str = "") -> None:
        super().__init__(f"titanic: {what}", fact, advice)


class InvalidOption(PipelineError):
    """An option is unknown, missing or has a value that is not allowed."""


class InvalidRows(PipelineError):
    """A DataFrame cannot become requests."""


class DataLoss(PipelineError):
    """Closed requests left the ring before they were read."""


class OtherStore(PipelineError):
    """A stream continues with another store than it has read."""


class ArchiveError(PipelineError):
    """An archive is damaged, unusable, or belongs to another store."""


class ArchiveGap(ArchiveError):
    """Closed requests left the ring before they were archived."""


class ArchiveBusy(ArchiveError):
    """Another archiver is running."""


class Incomplete(PipelineError):
    """Some of the work failed."""


class MissingPart(PipelineError):
    """A program or package is not installed."""


class SparkEnded(PipelineError):
    """Spark ended while it was needed."""


def suggest(word: str, known: Iterable[str]) -> tuple[str, str]:
    """The fact and the advice of a message about an unknown word: the known ones, and the one that is most like it."""
    names = list(known)
    near = difflib.get_close_matches(word.lower(), [name.lower() for name in names], n=1)
    meant = next((name for name in names if near and name.lower() == near[0]), None)
    return f"known: {', '.join(names)}", f"did you mean {meant}?" if meant else ""
