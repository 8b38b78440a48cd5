"""The exit codes of `titanic` and `titanic-data`. 0: it did what it was asked."""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PENDING = 3
"""The request has not ended yet."""
EXIT_UNKNOWN = 4
"""No such request: an unknown UUID."""
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141
"""The reader of the output has gone, as in `| head`."""


def is_about_missing(error: BaseException | None) -> bool:
    """Whether an error comes from a file that is not there: that is wrong usage, whatever the command."""
    while error is not None:
        if isinstance(error, FileNotFoundError):
            return True
        error = error.__cause__
    return False
