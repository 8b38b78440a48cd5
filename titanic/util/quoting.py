"""Words of others in our own texts: as much as helps, however much there is."""

from __future__ import annotations

from reprlib import Repr

_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 100


def quoted(value: object) -> str:
    """A value as in a program, shortened in the middle."""
    return _repr.repr(value)
