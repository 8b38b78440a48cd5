"""The one place that names the version."""

from pathlib import Path

__version__ = "0.1.0"


def commit() -> str:
    """The commit that an installed package was built from; empty when it is not known, as in a checkout."""
    try:
        return Path(__file__).with_name("commit.txt").read_text().strip()
    except OSError:
        return ""
