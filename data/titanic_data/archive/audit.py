"""The audit in the archive: acts of users, each once, in a table of its own.

    ARCHIVE/audit/FIRST-LAST.parquet    acts that a run found, with the ids of the first and the last one

A file gets its name when it is complete and synced, so a killed run leaves no part of one. An act is new if no file has
its id. Ids begin with the time: only files that reach into the time of the store's acts are read.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from titanic.facts.audit import stored_acts
from titanic_data.archive.engines import COMPRESSION, Reached
from titanic_data.archive.manifest import Archive, make_directory, measure, sync_directory
from titanic_data.errors import ArchiveError
from titanic_data.store_reader import store_at
from titanic_data.tables import TIME

_TEXTS = ("id", "act", "user", "way", "address", "service", "uuid", "text")
SCHEMA = pa.schema([("at", TIME), ("count", pa.int64()), *((name, pa.string()) for name in _TEXTS)])
"""The columns; they mean what `titanic audit --json` prints. `id` is unique."""

POINTS = ("audit staged", "audit renamed")
"""The arguments of `reached`. Tests kill the process at each."""


def archive_acts(archive: Archive, store: Path, reached: Reached) -> int:
    """Archive the acts that the store has and the archive lacks, and return how many. Raises ArchiveError."""
    known: set[str] | None = None
    new = []
    for name, act in stored_acts(store_at(store)):
        known = _known(archive, name) if known is None else known
        if name not in known:
            new.append({"id": name, **act})
    if not new:
        return 0
    folder = archive.path / "audit"
    archive.clear_staging()
    make_directory(archive.staging)
    draft = archive.staging / "audit.parquet"
    pq.write_table(pa.Table.from_pylist(new, SCHEMA), draft, compression=COMPRESSION)
    measure(draft, sync=True)
    make_directory(folder)
    reached(POINTS[0])
    draft.rename(folder / f"{new[0]['id']}-{new[-1]['id']}.parquet")
    sync_directory(folder)
    reached(POINTS[1])
    archive.clear_staging()
    return len(new)


def _known(archive: Archive, oldest: str) -> set[str]:
    """The ids in the archive, from `oldest` on."""
    known: set[str] = set()
    for file in (archive.path / "audit").glob("*.parquet"):
        if file.stem.rpartition("-")[2] >= oldest:
            try:
                known.update(pq.read_table(file, columns=["id"])["id"].to_pylist())
            except (pa.ArrowException, OSError) as error:
                advice = "restore it from a backup; or remove it, and acts that the store still has are archived again"
                raise ArchiveError(f"{file} is damaged", str(error).splitlines()[0], advice) from error
    return known
