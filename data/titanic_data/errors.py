"""Everything the pipeline raises on purpose, beside the errors of `titanic` itself.

    PipelineError
    ├── InvalidOption     an option that isn't known, can't have this value, or is missing
    ├── InvalidRows       a DataFrame that can't become requests: a column is missing or of the wrong type
    ├── DataLoss          what was to be read had left the ring
    ├── OtherStore        a stream that goes on finds another store than it has read
    ├── ArchiveError      the archive isn't as it must be
    │   ├── ArchiveGap    the ring begins behind the archive's end
    │   └── ArchiveBusy   another archiver is at it
    ├── Incomplete        some of the work failed; what was done is said
    ├── SparkEnded        Spark has gone away while it was needed
    └── MissingPart       a program or package that isn't installed

Messages say what is wrong, the fact behind it, and what to do.
"""

from __future__ import annotations

from titanic.errors import TitanicError


class PipelineError(TitanicError):
    """Root of all. In a Spark log the message must say by itself whose it is."""

    def __init__(self, what: str, fact: str = "", advice: str = "") -> None:
        super().__init__(f"titanic: {what}", fact, advice)


class InvalidOption(PipelineError):
    """An option of a reader or writer can't be as it is."""


class InvalidRows(PipelineError):
    """A DataFrame can't become requests."""


class DataLoss(PipelineError):
    """What was to be read had left the ring."""


class OtherStore(PipelineError):
    """A stream that goes on finds another store than it has read."""


class ArchiveError(PipelineError):
    """The archive isn't as it must be."""


class ArchiveGap(ArchiveError):
    """The ring begins behind the archive's end."""


class ArchiveBusy(ArchiveError):
    """Another archiver is at it."""


class Incomplete(PipelineError):
    """Some of the work failed."""


class MissingPart(PipelineError):
    """A program or package isn't installed."""


class SparkEnded(PipelineError):
    """Spark has gone away while it was needed."""
