"""What changed, for streams that each go on from where they are: no queue for a reader, however slow.

Each change has a number. What is kept is the last state of each thing, and the number of its last change; so a stream
asks for all that changed after a number, gets it as it is now, and remembers the new number. It may ask as rarely as it
likes. What is forgotten moves `reach`: who comes from before it has to begin anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import KeysView, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Numbers:
    """Numbers changes, of several kinds of things together."""

    def __init__(self) -> None:
        self.last = 1  # 0 is before everything

    def next(self) -> int:
        """The number of a new change."""
        self.last += 1
        return self.last


class Changes(Generic[Key, Value]):
    """The last states of some things, the longest unchanged first."""

    def __init__(self, numbers: Numbers, most: int) -> None:
        """`most`: things that are remembered."""
        self.reach = 0
        """The last change that is forgotten."""
        self._numbers = numbers
        self._most = most
        self._known: OrderedDict[Key, tuple[int, Value]] = OrderedDict()

    def put(self, key: Key, value: Value, *, anew: bool = False) -> None:
        """A thing is so now; with `anew` that is a change even if it was so before."""
        before = self._known.get(key)
        if before is not None and before[1] == value and not anew:
            return
        self._known[key] = self._numbers.next(), value
        self._known.move_to_end(key)
        while len(self._known) > self._most:
            _, (self.reach, _) = self._known.popitem(last=False)

    def get(self, key: Key) -> tuple[int, Value] | None:
        """The number of its last change, and how it is since; None: it is not known."""
        return self._known.get(key)

    def keys(self) -> KeysView[Key]:
        """All that is known."""
        return self._known.keys()

    def after(self, number: int) -> Mapping[Key, Value]:
        """What changed after a change with this number, as it is now."""
        found: dict[Key, Value] = {}
        for key in reversed(self._known):
            at, value = self._known[key]
            if at <= number:
                break
            found[key] = value
        return found
