"""Records of the store in columns, as Arrow batches.

Records of the ring are decoded by column, not by row: the fixed fields of all records with one numpy view, texts and
bodies with one copy per column. A row costs about a microsecond that way, most of it for the checksum; as Python
objects it would cost ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from titanic.store import CLOSED_LAYOUT, CLOSED_TEXTS, UNCLAIMED, ClosedBulk, Description, Status
from titanic_data.tables import CLOSED, HISTORY, SCHEMA_VERSION, TEXT_COLUMNS, TIME, WAITING

_HEADER = np.dtype([(name, "V16" if code == "16s" else np.dtype(f"<{code}")) for name, code in CLOSED_LAYOUT])
_DAY = 24 * 3600 * 1_000_000
STATUSES = {Status.DONE: "ok", Status.FAILED: "failed", Status.EXPIRED: "expired", Status.CANCELLED: "cancelled"}


def closed_batch(bulk: ClosedBulk, columns: Sequence[str], histories: Mapping[int, str] = MappingProxyType({})) -> Any:
    """The closed requests of a bulk as a RecordBatch with these columns of tables.CLOSED. `histories`: by number."""
    decoder = _Closed(bulk, histories)
    found = [_COLUMNS[name](decoder) if name in _COLUMNS else decoder.field(name) for name in columns]
    return pa.record_batch(found, schema=CLOSED.part(columns))


class _Closed:
    """The columns of a bulk, each a method or a field of its header."""

    def __init__(self, bulk: ClosedBulk, histories: Mapping[int, str]) -> None:
        self._histories = histories
        self.first = bulk.first
        self.count = len(bulk.starts)
        self._data = bulk.data
        self._apart = bulk.apart
        self._starts = np.array(bulk.starts, np.int64)
        # A header begins at any byte: this is a view of headers one byte apart, and the right ones are selected.
        # They are selected as plain bytes: numpy takes twice as long to move fields.
        view = np.ndarray((len(bulk.data) - _HEADER.itemsize + 1,), f"V{_HEADER.itemsize}", bulk.data, 0, (1,))
        self.header = view[self._starts].view(_HEADER)
        self.status = self.header["kind"] & ~np.uint8(UNCLAIMED)

    @cached_property
    def _bounds(self) -> list[Any]:
        """Where each of CLOSED_TEXTS begins in the data, and where the last one ends."""
        sizes = [self.header[f"{name}_size"] for name in CLOSED_TEXTS]
        return [*accumulate(sizes, initial=self._starts + _HEADER.itemsize)]

    def text(self, name: str) -> Any:
        """One of CLOSED_TEXTS; null where it is empty, unless it is the service."""
        n = CLOSED_TEXTS.index(name)
        there = None if name == "service" else self.header[f"{name}_size"] > 0
        return self._text(self._bounds[n], self._bounds[n + 1], there)

    def uuid(self) -> Any:
        digits = self.header["uuid"].tobytes().hex().encode()
        bounds = np.arange(self.count + 1, dtype=np.int32) * 32
        return pa.Array.from_buffers(pa.string(), self.count, [None, pa.py_buffer(bounds), pa.py_buffer(digits)])

    def field(self, name: str) -> Any:
        """A time, null where it is 0, or a small number."""
        values = self.header[name]
        if CLOSED.schema.field(name).type != TIME:
            return pa.array(values.astype(np.int32))
        return pa.array(values.astype(np.int64), pa.int64(), mask=values == 0).cast(TIME)

    def status_name(self) -> Any:
        names = [STATUSES.get(Status(n)) if n in set(Status) else None for n in range(max(Status) + 1)]
        return pa.array(names).take(pa.array(self.status))

    def date(self) -> Any:
        return pa.array((self.header["closed_at"] // _DAY).astype(np.int32), pa.int32()).cast(pa.date32())

    def size(self, part: str) -> Any:
        size = self.header[f"{part}_size"].astype(np.int64) - 4 * self.header[f"{part}_frames"].astype(np.int64)
        return pa.array(np.maximum(size, 0))

    def body(self, part: str) -> Any:
        """The frames of `request` or `reply`, joined."""
        header = self.header
        frame = header[f"{part}_frames"] == 1
        start = self._bounds[-1] + 4 * frame
        there = np.ones(self.count, bool)
        if part == "reply":
            start += header["request_size"]
            there = (header["reply_frames"] > 0) | (self.status == int(Status.DONE))
        size = np.where(frame, header[f"{part}_size"].astype(np.int64) - 4, 0)
        bounds = np.append(self._starts, len(self._data))
        for n, whole in self._apart.items():
            request, reply = sum(map(len, whole.request)), sum(map(len, whole.reply))
            end = int(bounds[n + 1])
            start[n], size[n] = (end - reply - request, request) if part == "request" else (end - reply, reply)
            there[n] &= not getattr(whole, f"{part}_left_out")
        return self._slices(start, start + size, there)

    def sizes(self, part: str) -> Any:
        """The bytes of each frame, where there isn't exactly one."""
        sizes: dict[int, list[int]] = {int(n): [] for n in np.nonzero(self.header[f"{part}_frames"] == 0)[0]}
        if part == "reply":
            sizes = {n: empty for n, empty in sizes.items() if self.status[n] == int(Status.DONE)}
        for n, whole in self._apart.items():
            frames = getattr(whole, part)
            if getattr(whole, f"{part}_left_out"):
                sizes.pop(n, None)
            elif len(frames) > 1:
                sizes[n] = list(map(len, frames))
        kind = pa.list_(pa.int32())
        return pa.array([sizes.get(n) for n in range(self.count)], kind) if sizes else pa.nulls(self.count, kind)

    def history(self) -> Any:
        found = self._histories
        numbers = range(self.first, self.first + self.count)
        return pa.array([found.get(n) for n in numbers], pa.string()) if found else pa.nulls(self.count, pa.string())

    def _text(self, starts: Any, ends: Any, there: Any = None) -> Any:
        found = self._slices(starts, ends, there)
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:  # names are bytes, and some are not UTF-8
            texts = [None if one is None else one.decode(errors="backslashreplace") for one in found.to_pylist()]
            return pa.array(texts, pa.string())

    def _slices(self, starts: Any, ends: Any, there: Any = None) -> Any:
        """Pieces of the data, in order, as a column: every second one of the pieces between all bounds."""
        bounds = np.empty(2 * self.count, np.int32)
        bounds[0::2] = starts
        bounds[1::2] = ends
        pieces = pa.Array.from_buffers(
            pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(self._data)]
        )
        even = np.arange(0, len(bounds), 2, dtype=np.int32)
        return pieces.take(pa.array(even, mask=None if there is None else ~there))


_COLUMNS: dict[str, Callable[[_Closed], Any]] = {
    "seq": lambda rows: pa.array(np.arange(rows.first, rows.first + rows.count, dtype=np.int64)),
    "request_id": _Closed.uuid,
    "status": _Closed.status_name,
    "request": lambda rows: rows.body("request"),
    "reply": lambda rows: rows.body("reply"),
    "unclaimed": lambda rows: pa.array(rows.header["kind"] >= UNCLAIMED),
    "request_bytes": lambda rows: rows.size("request"),
    "reply_bytes": lambda rows: rows.size("reply"),
    "request_sizes": lambda rows: rows.sizes("request"),
    "reply_sizes": lambda rows: rows.sizes("reply"),
    "schema_version": lambda rows: pa.array(np.full(rows.count, SCHEMA_VERSION, np.int32)),
    "date": _Closed.date,
    "error": lambda rows: rows.text("error"),
    HISTORY: _Closed.history,
    **{column: partial(_Closed.text, name=name) for name, column in TEXT_COLUMNS.items()},
}
"""The columns that are more than a field of the header."""


def waiting_batch(rows: Iterable[tuple[Description, list[bytes]]], columns: Sequence[str]) -> Any:
    """Requests that have not ended, with their bodies, as a RecordBatch with these columns of tables.WAITING."""
    documents = [{name: _WAITING[name](row, body) for name in columns} for row, body in rows]
    return pa.RecordBatch.from_pylist(documents, schema=WAITING.part(columns))


def _text_of(name: str, row: Description, body: list[bytes]) -> str | None:
    value: bytes = getattr(row, name)
    return value.decode(errors="backslashreplace") or None


_WAITING: dict[str, Callable[[Description, list[bytes]], Any]] = {
    "request_id": lambda row, body: row.uuid.hex(),
    "state": lambda row, body: row.state.name.lower(),
    "priority": lambda row, body: row.priority,
    "attempts": lambda row, body: row.attempts,
    "submitted_at": lambda row, body: row.submitted_at,
    "due_at": lambda row, body: row.due or None,
    "expires_at": lambda row, body: row.expires_at or None,
    "dispatched_at": lambda row, body: row.dispatched_at or None,
    "error": lambda row, body: row.reason or None,
    "request": lambda row, body: b"".join(body),
    "request_bytes": lambda row, body: row.body_bytes,
    "request_sizes": lambda row, body: None if len(body) == 1 else list(map(len, body)),
    "schema_version": lambda row, body: SCHEMA_VERSION,
    **{column: partial(_text_of, name) for name, column in TEXT_COLUMNS.items()},
}
