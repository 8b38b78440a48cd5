"""LMDB's file, read page by page without LMDB.

LMDB trusts what it reads: on a damaged page it ends the process (SIGABRT, SIGSEGV, SIGBUS) or writes over pages that
are in use. `faults` verifies the pages without LMDB, so that a damaged file is not opened. `Pages` reads what can be
read of such a file.

The file is a row of pages of 4 KiB. Pages 0 and 1 are meta pages, written in turn: the one with the higher transaction
is in force. Each names two trees: the free pages, and the main tree with the roots of all databases. All numbers are
little-endian.

    every page   0 number of the page, u64 · 10 kind, u16 · 12 end of the pointers, u16 · 14 start of the nodes, u16
    meta        16 magic, u32 · 40 free tree · 88 main tree · 136 last page, u64 · 144 transaction, u64
    tree        40 root, u64, all ones when it is empty
    branch, leaf  from 16 on a pointer, u16, to each node
    node         0 size of the value, u32 · 4 flags, u16 · 6 size of the key, u16 · 8 key, then the value
                 in a branch the first six bytes are the number of the page below, and there is no value
    overflow    a value too large for a leaf, from 16 on, over as many pages as it needs; the leaf has their number

What a page's node refers to is believed only if that page has the right number and kind, isn't free, belongs to no
other node, and its keys are in the range of its place.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lmdb.verify import VerifyError, verify

from titanic.errors import StoreCorrupt
from titanic.store.lmdb.schema import PAGE

SALVAGE = "restore a backup, or save what can be read: titanic check --repair"
"""What to do about damaged pages."""

_MAGIC = 0xBEEFC0DE
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_ELSEWHERE, _TREE = 1, 2
_HEADER = struct.Struct("<QHHHH")
_NODE = struct.Struct("<IHH")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_TREE_SIZE = 48
_FREE_TREE_AT = 40
_TRANSACTION_AT = 144
_ROOT_AT = 40
_EMPTY = 2**64 - 1
_DEEPEST = 32
_MOST_KEY = 511


def faults(data: Path) -> list[str]:
    """What is wrong with the pages of a file that no process changes meanwhile.

    It takes about a quarter of the time of check().
    """
    try:
        found: list[str] = verify(str(data), subdir=False)  # type: ignore[no-untyped-call]
    except (VerifyError, OSError) as error:
        return [str(error)]
    return found


def expect_sound(data: Path) -> None:
    """Raise StoreCorrupt when something is wrong with the pages."""
    if found := faults(data):
        count = "a fault" if len(found) == 1 else f"{len(found)} faults"
        raise StoreCorrupt(f"{data} is damaged", f"{count} in its pages, first: {found[0]}", SALVAGE)


def release(data: Path) -> str:
    """The release of LMDB that reads a file, "0.9" or "1.0"; nothing when it is not to be seen."""
    with data.open("rb", 0) as file:
        head = file.read(32)
    # 1.0 has the number of a transaction in each page's header: what follows stands 8 bytes later.
    places = {"0.9": 16, "1.0": 24}
    return next((name for name, at in places.items() if head[at : at + 4] == _U32.pack(_MAGIC)), "")


def freed_since(data: Path, transaction: int) -> tuple[int, int]:
    """Return how many pages were freed by this transaction and later ones and wait to be used again, and the last
    transaction that was read (that before this one when there is none).

    Reads the list of free pages without LMDB, which does not show it. Other processes may use the file: the caller is
    in a transaction, so the pages that this one reads stay as they are.
    """
    pages, last = 0, transaction - 1
    with data.open("rb", 0) as file, suppress(struct.error, IndexError):  # of a page that is damaged
        metas = os.pread(file.fileno(), 2 * PAGE, 0)
        newest = max(0, PAGE, key=lambda at: _U64.unpack_from(metas, at + _TRANSACTION_AT)[0])
        todo = [(_root(metas[newest + _FREE_TREE_AT :]), 0)]
        while todo:
            number, depth = todo.pop()
            if number == _EMPTY or depth > _DEEPEST:
                continue
            page = os.pread(file.fileno(), PAGE, number * PAGE)
            nodes = [(at, *_NODE.unpack_from(page, at)) for at in _pointers(page)]
            keys = [_U64.unpack_from(page, at + _NODE.size)[0] if size == 8 else 0 for at, _, _, size in nodes]
            for n, (at, low, high, size) in enumerate(nodes):
                if page[10] & _BRANCH:
                    if n + 1 == len(nodes) or keys[n + 1] > transaction:
                        todo.append((low | high << 32, depth + 1))
                elif keys[n] >= transaction:
                    value = page[at + _NODE.size + size :][:8]
                    if high & _ELSEWHERE:
                        value = os.pread(file.fileno(), 8, _U64.unpack(value)[0] * PAGE + _HEADER.size)
                    pages += _U64.unpack(value)[0]
                    last = max(last, keys[n])
    return pages, last


class Hole(NamedTuple):
    """A page that can't be read, and between which keys its rows were: from `low` up to `high` (None: to the end)."""

    tree: str
    page: int
    low: bytes
    high: bytes | None


class Pages:
    """The pages of a file that no process changes.

    `holes` are the pages that were not found where they must be; `odd_rows` counts unreadable rows in other pages.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._count = os.fstat(descriptor).st_size // PAGE
        self._live = bytearray(self._count)
        self._free = bytearray(self._count)
        self._knows_free = False
        self._last = 0
        self.holes: list[Hole] = []
        self.is_older = False
        self.odd_rows = 0

    def trees(self) -> dict[bytes, int]:
        """The roots of the databases by name, as the last transaction left them of which that can be read.

        When that is not the last one, `is_older`. Nothing is found when there is no such transaction.
        """
        for n, (_, last, free, main) in enumerate(sorted(self._metas(), reverse=True)):
            self._live[:] = self._free[:] = bytes(self._count)
            self.holes.clear()
            self.odd_rows = 0
            self._find_free(free)
            found = {key: value for key, value, flags in self._walk("main", main) if flags & _TREE}
            if found:
                self._last, self.is_older = last, n > 0
                return {key: _root(value) for key, value in found.items() if len(value) == _TREE_SIZE}
        return {}

    def rows(self, name: str, root: int) -> Iterator[tuple[bytes, bytes]]:
        """What can be read of a tree, mostly in order."""
        for key, value, flags in self._walk(name, root):
            if not flags & _TREE:
                yield key, value

    def strays(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """The rows of each leaf that no tree has and that isn't free: it was below a page that can't be read.

        All trees must have been read.
        """
        if not self._knows_free:
            return
        for number in range(2, min(self._count, self._last + 1)):  # behind it is what was never committed
            if self._live[number] or self._free[number]:
                continue
            page = self._page(number, _LEAF)
            if page is not None:
                yield [(key, value) for key, value, flags in self._leaf(page) if not flags & _TREE]

    # -- trees -----------------------------------------------------------------------------------------------

    def _metas(self) -> Iterator[tuple[int, int, int, int]]:
        """Transaction, last page, root of the free pages, root of the main tree."""
        for number in (0, 1):
            page = self._read(number)
            if len(page) == PAGE and _U32.unpack_from(page, 16)[0] == _MAGIC:
                last, transaction = _U64.unpack_from(page, 136)[0], _U64.unpack_from(page, 144)[0]
                yield transaction, last, _root(page[40:88]), _root(page[88:136])

    def _find_free(self, root: int) -> None:
        for _, value, _ in self._walk("free", root, ordered=False):
            for (number,) in _U64.iter_unpack(value[8 : len(value) // 8 * 8]):
                if number < self._count:
                    self._free[number] = 1
        self._knows_free = not self.holes and not self.odd_rows
        if not self._knows_free:
            self._free[:] = bytes(self._count)

    def _walk(self, tree: str, root: int, *, ordered: bool = True) -> Iterator[tuple[bytes, bytes, int]]:
        """Keys, values and flags below a page, in order. `todo` has what is to come, the last first."""
        todo = [] if root == _EMPTY else [(Hole(tree, root, b"", None), 0)]
        while todo:
            place, depth = todo.pop()
            page = self._page(place.page, _BRANCH | _LEAF) if depth < _DEEPEST else None
            if page is None or (self._live[place.page] or self._free[place.page]):
                self.holes.append(place)
                continue
            if page[10] == _BRANCH:
                below = self._branch(page, place)
                if not below:
                    self.holes.append(place)
                    continue
                self._live[place.page] = 1
                todo += [(child, depth + 1) for child in reversed(below)]
                continue
            rows = list(self._leaf(page))
            keys = [key for key, _, _ in rows]
            if not keys or (
                ordered and (max(keys) < place.low or (place.high is not None and min(keys) >= place.high))
            ):
                self.holes.append(place)
                continue
            self._live[place.page] = 1
            yield from rows

    def _branch(self, page: bytes, place: Hole) -> list[Hole]:
        found: list[tuple[bytes, int]] = []
        for at in _pointers(page):
            size, high, key_size = _NODE.unpack_from(page, at)
            if key_size <= _MOST_KEY and at + _NODE.size + key_size <= PAGE:
                key = page[at + _NODE.size : at + _NODE.size + key_size]
                found.append((key if found else place.low, size | high << 32))
        highs = [key for key, _ in found[1:]]
        return (
            [Hole(place.tree, child, key, high) for (key, child), high in zip(found, [*highs, place.high], strict=True)]
            if found
            else []
        )

    # -- pages -----------------------------------------------------------------------------------------------

    def _page(self, number: int, kinds: int) -> bytes | None:
        """The page, if it is one of these kinds."""
        if not 2 <= number < self._count:
            return None
        page = self._read(number)
        if len(page) != PAGE:
            return None
        found, _, kind, lower, upper = _HEADER.unpack_from(page)
        if found != number or kind not in (_BRANCH, _LEAF, _OVERFLOW) or not kind & kinds:
            return None
        if kind != _OVERFLOW and not _HEADER.size <= lower <= upper <= PAGE:
            return None
        return page

    def _leaf(self, page: bytes) -> Iterator[tuple[bytes, bytes, int]]:
        for at in _pointers(page):
            size, flags, key_size = _NODE.unpack_from(page, at)
            key_at = at + _NODE.size
            value_at = key_at + key_size
            if not 0 < key_size <= _MOST_KEY or flags & ~(_ELSEWHERE | _TREE):
                self.odd_rows += 1
            elif flags & _ELSEWHERE:
                value = self._elsewhere(page[value_at : value_at + 8], size)
                if value is None:
                    self.odd_rows += 1
                else:
                    yield page[key_at:value_at], value, flags
            elif value_at + size > PAGE:
                self.odd_rows += 1
            else:
                yield page[key_at:value_at], page[value_at : value_at + size], flags

    def _elsewhere(self, reference: bytes, size: int) -> bytes | None:
        """A value that has pages of its own."""
        if len(reference) != 8:
            return None
        (number,) = _U64.unpack(reference)
        first = self._page(number, _OVERFLOW)
        pages = -(-(_HEADER.size + size) // PAGE)
        if first is None or number + pages > self._count or any(self._free[number : number + pages]):
            return None
        self._live[number : number + pages] = b"\1" * pages
        return b"".join(self._read(number + n) for n in range(pages))[_HEADER.size :][:size]

    def _read(self, number: int) -> bytes:
        """A page, or less of it; nothing where the disk can't read it."""
        try:
            return os.pread(self._descriptor, PAGE, number * PAGE)
        except OSError:
            return b""


def _root(tree: bytes) -> int:
    root: int = _U64.unpack_from(tree, _ROOT_AT)[0]
    return root


def _pointers(page: bytes) -> list[int]:
    """Where the nodes are, as far as they are in the page."""
    _, _, _, lower, upper = _HEADER.unpack_from(page)
    found = struct.unpack_from(f"<{(lower - _HEADER.size) // 2}H", page, _HEADER.size)
    return [at for at in found if upper <= at <= PAGE - _NODE.size]
