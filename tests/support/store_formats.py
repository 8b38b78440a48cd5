"""Packed stores, and what is in them.

`python -m support.store_formats`, in tests/, packs a store of the present format into format-N.tar.gz: a directory's
file, the tables as SQL, and the contents of both. It stays for ever: each later version must open it. unreleased-N are
directories from before the first release, which are refused.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lmdb
import psycopg
from support.postgres import new_server
from support.store_contents import contents, fill

from titanic.store import open_export, open_import, open_store
from titanic.store.lmdb import opening
from titanic.store.moving import move
from titanic.store.postgres import schema as postgres_schema

STORES = Path(__file__).parents[1] / "titanic" / "store" / "formats"
CAPACITY = 64 << 20


def unpack(path: Path, name: str) -> dict[str, Any]:
    """Make the store that is packed under a name in the directory `path`. Returns what must be in it, if that is
    known."""
    with tarfile.open(STORES / f"{name}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not before Python 3.11.4
        archive.extractall(path, [archive.getmember("data.mdb")])
        if "contents.json" not in archive.getnames():
            return {}
        file = archive.extractfile("contents.json")
        assert file is not None
        found: dict[str, Any] = json.load(file)
        return found


def unpack_tables(url: str, name: str) -> None:
    """Make the store that is packed under a name in an empty database."""
    with tarfile.open(STORES / f"{name}.tar.gz") as archive:
        file = archive.extractfile("tables.sql")
        assert file is not None
        script = file.read()
    with psycopg.connect(url) as connection:
        connection.execute(script)


@contextmanager
def synthetic_step() -> Iterator[None]:
    """Have a format after the present one. Its step writes an index anew, and a row for each request."""
    step = opening.FORMAT
    opening.FORMAT = step + 1
    opening.STEPS[step] = _convert
    try:
        yield
    finally:
        opening.FORMAT = step
        del opening.STEPS[step]


def _convert(env: lmdb.Environment, txn: lmdb.Transaction[memoryview]) -> None:
    timers, requests, aside = (env.open_db(name, txn=txn) for name in (b"timers", b"requests", b"aside"))
    rows = [bytes(key) for key in txn.cursor(timers).iternext(values=False)]
    txn.drop(timers, delete=False)
    for key in rows:
        txn.put(key, b"", db=timers)
    for uuid in [bytes(key) for key in txn.cursor(requests).iternext(values=False)]:
        txn.put(b"converted " + uuid, b"", db=aside)


def _pack() -> None:
    with new_server() as server:
        url = server.url(server.new_database())
        with TemporaryDirectory() as folder:
            made, packed = Path(folder) / "made", Path(folder) / "packed"
            with open_store(made, capacity=CAPACITY, closed_body_limit=10_000) as store:
                fill(store)
            packed.mkdir()
            with lmdb.open(str(made), max_dbs=16) as env:
                env.copy(str(packed), compact=True)
            with open_export(made) as source, open_import(url) as target:
                move(source, target, lambda doing, done, total: None)
            dump = ["pg_dump", "--schema=titanic", "--inserts", "--no-owner", "--no-privileges", url]
            script = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
            # What is set belongs to one version of PostgreSQL, and what begins with \\ to psql.
            others = ("--", "SET ", "SELECT pg_catalog.set_config", "\\")
            lines = [line for line in script.splitlines() if line and not line.startswith(others)]
            (packed / "tables.sql").write_text("\n".join(lines))
            (packed / "contents.json").write_text(json.dumps(contents(str(made)), indent=0))
            number = max(opening.FORMAT, postgres_schema.FORMAT)
            with tarfile.open(STORES / f"format-{number}.tar.gz", "w:gz") as archive:
                for file in ("data.mdb", "tables.sql", "contents.json"):
                    archive.add(packed / file, file)


if __name__ == "__main__":
    _pack()
