"""What somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(word: str, known: Iterable[str]) -> tuple[str, str]:
    """A fact and an advice for the message about an unknown word."""
    names = list(known)
    near = difflib.get_close_matches(word.lower(), [name.lower() for name in names], n=1)
    meant = next((name for name in names if near and name.lower() == near[0]), None)
    return f"there are {', '.join(names)}", f"did you mean {meant}?" if meant else ""
