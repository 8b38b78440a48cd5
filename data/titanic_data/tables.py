"""The tables of a store, column by column.

The types are Arrow's; Spark's follow from them (`ddl`). Every column may be null: Spark wants an Arrow batch to be as
nullable as its own schema, and a schema that is written by hand is nullable throughout. Times are UTC, in µs.

A request has a list of frames, nearly always one. `request` holds all of them, joined; `request_sizes` says where to
cut when there isn't exactly one. `reply` and `reply_sizes` are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from titanic.store import LASTING_TEXTS
from titanic_data.errors import InvalidOption, suggest

SCHEMA_VERSION = 1
"""The version of the rows of `closed`. A column may be added before `date`; any other change takes a new number."""

TEXT_COLUMNS = {name: "idempotency_key" if name == "key" else name for name in LASTING_TEXTS}
"""The columns of a request's texts, by the names that these have in the store."""

HISTORY = "attempts_history"
"""The column with the attempts that failed: JSON, as `history` of `titanic show --json`."""

_MORE_TEXTS = tuple(name for name in TEXT_COLUMNS.values() if name not in ("service", "idempotency_key"))
ADDED = (*_MORE_TEXTS, HISTORY)
"""Columns of `closed` that came later: files of earlier versions lack them, and are read with null."""

TIME = pa.timestamp("us", tz="UTC")
_DDL = {
    pa.int64(): "BIGINT",
    pa.int32(): "INT",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.bool_(): "BOOLEAN",
    pa.date32(): "DATE",
    TIME: "TIMESTAMP",
    pa.list_(pa.int32()): "ARRAY<INT>",
}


class Table(NamedTuple):
    """A table; `schema` is Arrow's."""

    name: str
    schema: Any

    def columns(self, names: str | Sequence[str] | None) -> list[str]:
        """All columns, or the given ones (a list, or names with commas between them). Raises InvalidOption."""
        if names is None:
            return list(self.schema.names)
        wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        for name in wanted:
            if name not in self.schema.names:
                near = suggest(name, self.schema.names)
                raise InvalidOption(f"there is no column {name!r} in {self.name}", *near)
        if len(set(wanted)) < len(wanted):
            raise InvalidOption("a column is named twice", ", ".join(wanted))
        return wanted

    def ddl(self, columns: Sequence[str]) -> str:
        """Some columns, as Spark writes a schema."""
        return ", ".join(f"{name} {self.sql_type(name)}" for name in columns)

    def sql_type(self, column: str) -> str:
        """The SQL type of a column."""
        return _DDL[self.schema.field(column).type]

    def part(self, columns: Sequence[str]) -> Any:
        """The Arrow schema of some columns."""
        return pa.schema([self.schema.field(name) for name in columns])


CLOSED = Table(
    "closed",
    pa.schema(
        [
            ("seq", pa.int64()),  # the number in the ring, in the order of closing, without gaps
            ("request_id", pa.string()),  # the UUID, 32 hexadecimal digits
            ("service", pa.string()),
            ("idempotency_key", pa.string()),  # null: none
            ("status", pa.string()),  # ok, failed, expired, cancelled
            ("attempts", pa.int32()),
            ("submitted_at", TIME),
            ("dispatched_at", TIME),  # of the last attempt; null: never
            ("replied_at", TIME),  # when the request ended; null: it was closed before it ended
            ("closed_at", TIME),
            ("request", pa.binary()),  # null: larger than the ring keeps
            ("reply", pa.binary()),  # null: larger than the ring keeps, or none
            ("error", pa.string()),  # why it failed or expired; null otherwise
            ("priority", pa.int32()),
            ("unclaimed", pa.bool_()),  # not closed by a client: its retention ended
            ("request_bytes", pa.int64()),  # also when the ring did not keep the body
            ("reply_bytes", pa.int64()),
            ("request_sizes", pa.list_(pa.int32())),  # bytes of each frame; null: one frame
            ("reply_sizes", pa.list_(pa.int32())),
            *((name, pa.string()) for name in ADDED),  # null: empty
            ("schema_version", pa.int32()),
            ("date", pa.date32()),  # of closing, UTC
        ]
    ),
)

WAITING = Table(
    "waiting",
    pa.schema(
        [
            ("request_id", pa.string()),
            ("service", pa.string()),
            ("idempotency_key", pa.string()),
            ("state", pa.string()),  # waiting (also while it runs: the store does not know), delayed
            ("priority", pa.int32()),
            ("attempts", pa.int32()),  # made so far
            ("submitted_at", TIME),
            ("due_at", TIME),  # when the next attempt is due; null: now
            ("expires_at", TIME),
            ("dispatched_at", TIME),  # of the last attempt that failed
            ("error", pa.string()),  # of that attempt
            ("request", pa.binary()),
            ("request_bytes", pa.int64()),
            ("request_sizes", pa.list_(pa.int32())),
            *((name, pa.string()) for name in _MORE_TEXTS),
            ("schema_version", pa.int32()),
        ]
    ),
)

TABLES = {table.name: table for table in (CLOSED, WAITING)}
