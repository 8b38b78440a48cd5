"""The tables that a store is read as, column by column.

Arrow's types, from which Spark's follow (`ddl`). Every column may be null: Spark wants the nullability of an Arrow
batch to be that of its own schema, which is nullable wherever a schema is written by hand. Times are UTC, in µs.

A request has a list of frames, nearly always one. `request` holds them all, one after the other; `request_sizes` says
where to cut when there isn't exactly one. The same for the reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from titanic_data.errors import InvalidOption
from titanic_data.suggest import suggest

SCHEMA_VERSION = 1
"""Of the rows of `closed`. Columns may be added at the end before `date`; anything else takes a new number."""

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
    """A table by its name; `schema` is Arrow's."""

    name: str
    schema: Any

    def columns(self, names: str | Sequence[str] | None) -> list[str]:
        """All columns, or those that are named (a list, or text with commas). Raises InvalidOption."""
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
        """Some of the columns as Spark writes a schema."""
        return ", ".join(f"{name} {self.sql_type(name)}" for name in columns)

    def sql_type(self, column: str) -> str:
        """The type of a column as SQL has it."""
        return _DDL[self.schema.field(column).type]

    def part(self, columns: Sequence[str]) -> Any:
        """The Arrow schema of some of the columns."""
        return pa.schema([self.schema.field(name) for name in columns])


CLOSED = Table(
    "closed",
    pa.schema(
        [
            ("seq", pa.int64()),  # the number in the ring: gapless, in the order of closing
            ("request_id", pa.string()),  # the UUID, 32 hexadecimal digits
            ("service", pa.string()),
            ("idempotency_key", pa.string()),  # null: it had none
            ("status", pa.string()),  # ok, failed, expired, cancelled
            ("attempts", pa.int32()),
            ("submitted_at", TIME),
            ("dispatched_at", TIME),  # of the last attempt; null: never
            ("replied_at", TIME),  # when it ended; null: it was closed before
            ("closed_at", TIME),
            ("request", pa.binary()),  # null: larger than the ring keeps
            ("reply", pa.binary()),  # null: the same, or there was none
            ("error", pa.string()),  # why it failed or expired; null otherwise
            ("priority", pa.int32()),
            ("unclaimed", pa.bool_()),  # nobody closed it, its retention ended
            ("request_bytes", pa.int64()),  # also when the ring did not keep them
            ("reply_bytes", pa.int64()),
            ("request_sizes", pa.list_(pa.int32())),  # bytes of each frame; null: it is one
            ("reply_sizes", pa.list_(pa.int32())),
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
            ("state", pa.string()),  # waiting (running ones too: a store does not know who runs), delayed
            ("priority", pa.int32()),
            ("attempts", pa.int32()),  # made so far
            ("submitted_at", TIME),
            ("due_at", TIME),  # when it is tried again, or for the first time; null: now
            ("expires_at", TIME),
            ("dispatched_at", TIME),  # of the last attempt that failed
            ("error", pa.string()),  # of that attempt
            ("request", pa.binary()),
            ("request_bytes", pa.int64()),
            ("request_sizes", pa.list_(pa.int32())),
            ("schema_version", pa.int32()),
        ]
    ),
)

TABLES = {table.name: table for table in (CLOSED, WAITING)}
