"""LMDB's file, read page by page without LMDB.

LMDB trusts what it reads: on a damaged page it ends the process (SIGABRT, SIGSEGV, SIGBUS) or writes over pages that
are in use. `faults` verifies the pages without LMDB, so that a damaged file is not opened. `Pages` reads what can be
read of such a file.

The verifier that comes with lmdb (lmdb.verify) describes each fault, but takes about 1 µs for each row. So `_Screen`
goes first: it makes the same checks for the kinds of trees that a store has, a page at a time, in a quarter of the
time, and only says whether everything is sound. If not, or if it meets what it does not know, lmdb.verify decides.

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
from functools import lru_cache
from itertools import repeat
from operator import add, lt
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
_META = 8
_VERSION = 1
_META_PAGE = struct.Struct("<IIQQ48s48sQQ")
"""Of a meta page, from 16 on: magic, data version, address and size of the map, both trees, last page, transaction."""
_DB = struct.Struct("<IHHQQQQQ")
"""Of a tree: size of a page (of the free tree), flags, depth, branches, leaves, overflow pages, rows, root."""
_DUPLICATES = 0x74
"""Flags of trees with several values for a key."""
_OVERFLOW_HEADER = struct.Struct("<QHHI")


def faults(data: Path) -> list[str]:
    """What is wrong with the pages of a file that no process changes meanwhile.

    It takes about a third of the time of check().
    """
    with suppress(OSError, struct.error), data.open("rb", 0) as file:
        if _Screen(file.fileno()).is_sound():
            return []
    try:
        found: list[str] = verify(str(data), subdir=False)  # type: ignore[no-untyped-call]
    except (VerifyError, OSError) as error:
        return [str(error)]
    return found


class _Screen:
    """Whether all pages of a file are certainly sound: each belongs to one tree or is free, every node is inside its
    page, keys ascend, and the counts of each tree are right.

    Raises struct.error, too, when they are not.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = bytearray()
        self._counts = [0, 0, 0, 0]
        """Branches, leaves, overflow pages and rows of the tree that is being read."""

    def is_sound(self) -> bool:
        """Read the whole file."""
        metas = [self._meta(number) for number in (0, 1)]
        if None in metas:
            return False
        transaction, last, free, main = max(meta for meta in metas if meta is not None)
        if last < 1 or (last + 1) * PAGE > os.fstat(self._descriptor).st_size:
            return False
        self._seen = bytearray(b"\1\1") + bytes(last - 1)
        lists = self._rows(free, is_free=True)
        trees = self._rows(main)
        if lists is None or trees is None or not all(self._mark_free(*row, transaction) for row in lists):
            return False
        return all(self._rows(tree, is_named=True) is not None for _, tree in trees) and 0 not in self._seen

    def _meta(self, number: int) -> tuple[int, int, bytes, bytes] | None:
        """Transaction, last page, free tree and main tree."""
        page = os.pread(self._descriptor, PAGE, number * PAGE)
        own, _, kind, _, _ = _HEADER.unpack_from(page)
        magic, version, _, _, free, main, last, transaction = _META_PAGE.unpack_from(page, _HEADER.size)
        size, flags, *_ = _DB.unpack(free)
        is_right = (own, kind, magic, version, size) == (number, _META, _MAGIC, _VERSION, PAGE)
        if not is_right or flags & _DUPLICATES or (transaction and transaction % 2 != number):
            return None
        return transaction, last, free, main

    def _rows(self, tree: bytes, *, is_free: bool = False, is_named: bool = False) -> list[tuple[bytes, bytes]] | None:
        """Read a tree and compare its counts. Returns the rows, of a named tree none; None when it isn't sound."""
        size, flags, depth, *counts, root = _DB.unpack(tree)
        if not is_free and (size or flags):
            return None
        if root == _EMPTY:
            return None if depth or any(counts) else []
        if depth > _DEEPEST:
            return None
        self._counts = [0, 0, 0, 0]
        rows: list[tuple[bytes, bytes]] = []
        last_key = b""
        todo = [(root, 1)]
        while todo:
            number, level = todo.pop()
            if not 2 <= number < len(self._seen) or self._seen[number]:
                return None
            self._seen[number] = 1
            page = os.pread(self._descriptor, PAGE, number * PAGE)
            own, _, kind, lower, upper = _HEADER.unpack_from(page)
            if own != number or not _HEADER.size < lower <= upper <= PAGE or len(page) != PAGE or lower % 2:
                return None
            pointers = _u16s((lower - _HEADER.size) // 2).unpack_from(page, _HEADER.size)
            if min(pointers) < upper:
                return None
            if kind == _BRANCH and level < depth:
                below = self._children(page, pointers, is_free)
                if below is None:
                    return None
                todo += [(child, level + 1) for child in reversed(below)]
                continue
            if kind != _LEAF or level != depth:
                return None
            self._counts[1] += 1
            self._counts[3] += len(pointers)
            if is_named and (last := _last_key(page, pointers, last_key)):
                last_key = last
                continue
            for at in pointers:
                row = self._row(page, at)
                if row is None:
                    return None
                key, value, node_flags = row
                order = key[::-1] if is_free else key
                if order <= last_key or bool(node_flags & _TREE) != (not is_free and not is_named):
                    return None
                last_key = order
                if not is_named:
                    rows.append((key, value))
        return rows if self._counts == counts else None

    def _children(self, page: bytes, pointers: tuple[int, ...], is_free: bool) -> list[int] | None:
        """The pages below a branch."""
        self._counts[0] += 1
        children, keys = [], []
        for at in pointers:
            low, high, key_size = _NODE.unpack_from(page, at)
            if at + _NODE.size + key_size > PAGE:
                return None
            children.append(low | high << 32)
            key = page[at + _NODE.size : at + _NODE.size + key_size]
            keys.append(key[::-1] if is_free else key)
        keys[0] = b""  # that of the first has no meaning
        return children if all(map(lt, keys, keys[1:])) else None

    def _row(self, page: bytes, at: int) -> tuple[bytes, bytes, int] | None:
        """Key, value and flags of a node, with its overflow pages."""
        size, flags, key_size = _NODE.unpack_from(page, at)
        value_at = at + _NODE.size + key_size
        key = page[at + _NODE.size : value_at]
        if flags not in (0, _ELSEWHERE, _TREE) or value_at > PAGE:
            return None
        if flags != _ELSEWHERE:
            return None if value_at + size > PAGE else (key, page[value_at : value_at + size], flags)
        (first,) = _U64.unpack_from(page, value_at)
        count = (_HEADER.size - 1 + size) // PAGE + 1
        if first < 2 or first + count > len(self._seen) or any(self._seen[first : first + count]):
            return None
        value = os.pread(self._descriptor, count * PAGE, first * PAGE)
        own, _, kind, pages = _OVERFLOW_HEADER.unpack_from(value)
        if (own, kind, pages, len(value)) != (first, _OVERFLOW, count, count * PAGE):
            return None
        self._seen[first : first + count] = b"\1" * count
        self._counts[2] += count
        return key, value[_HEADER.size : _HEADER.size + size], flags

    def _mark_free(self, key: bytes, value: bytes, transaction: int) -> bool:
        """Mark the pages that a row of the free tree lists."""
        if len(key) != _U64.size or not 1 <= _U64.unpack(key)[0] <= transaction or not value or len(value) % _U64.size:
            return False
        count, *pages = (number for (number,) in _U64.iter_unpack(value))
        if count != len(pages) or pages != sorted(set(pages), reverse=True):
            return False
        for number in pages:
            if not 2 <= number < len(self._seen) or self._seen[number]:
                return False
            self._seen[number] = 1
        return True


@lru_cache(maxsize=PAGE // 2)
def _u16s(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}H")


@lru_cache(maxsize=_MOST_KEY + 1)
def _node_with_key(size: int) -> struct.Struct:
    return struct.Struct(f"<IHH{size}s")


def _last_key(page: bytes, pointers: tuple[int, ...], above: bytes) -> bytes:
    """The last key of a leaf if all its keys are of one size, ascend above `above`, and all values are in the page.
    Empty: one is not, or more has to be checked. What is done for each row is done in C."""
    size = _NODE.unpack_from(page, pointers[0])[2]
    try:
        values, flags, sizes, keys = zip(*map(_node_with_key(size).unpack_from, repeat(page), pointers), strict=True)
    except struct.error:  # one that is shorter is the last of the page
        return b""
    if any(flags) or sizes.count(size) != len(sizes) or max(map(add, pointers, values)) + _NODE.size + size > PAGE:
        return b""
    return keys[-1] if keys[0] > above and all(map(lt, keys, keys[1:])) else b""


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
    # A page may be damaged, and the file deleted: then nothing can use pages again.
    with suppress(struct.error, IndexError, FileNotFoundError), data.open("rb", 0) as file:
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
        todo = [] if root == _EMPTY else [Hole(tree, root, b"", None)]
        while todo:
            place = todo.pop()
            page = self._page(place.page, _BRANCH | _LEAF)
            if page is None or (self._live[place.page] or self._free[place.page]):
                self.holes.append(place)
                continue
            if page[10] == _BRANCH:
                below = self._branch(page, place)
                if not below:
                    self.holes.append(place)
                    continue
                self._live[place.page] = 1
                todo += reversed(below)
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
