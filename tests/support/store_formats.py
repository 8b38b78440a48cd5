"""Stores that earlier versions wrote, and what must be found in them."""

from __future__ import annotations

import json
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from titanic.store import Outcome
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check

STORES = Path(__file__).parents[1] / "titanic" / "store" / "formats"


def unpack(path: Path, number: int) -> dict[str, Any]:
    """Make the store that the code of format `number` wrote; what must be found in it."""
    with tarfile.open(STORES / f"format-{number}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not before Python 3.11.4
        archive.extractall(path)
    found: dict[str, Any] = json.loads((STORES / f"format-{number}.json").read_text())
    return found


def digest(frames: list[bytes]) -> str:
    return sha256(b"\0".join(frames)).hexdigest()


def expect_all(store: LmdbStore, expected: dict[str, Any]) -> None:
    """It is sound, and has all of it."""
    assert check(store) == []
    with store.read() as txn:
        assert {name.decode(): n for name, n in txn.waiting().items()} == expected["waiting"]
        for row in expected["requests"]:
            uuid = bytes.fromhex(row["uuid"])
            if row["state"] is None:
                assert txn.request(uuid) is None
                continue
            found, described, reply = txn.request(uuid), txn.describe(uuid), txn.reply(uuid)
            assert (found.service.decode(), found.options.decode(), found.key) == (
                row["service"],
                row["options"],
                row.get("key", "").encode(),
            )
            assert digest(found.body) == row["body_sha256"]
            assert described.state.name == row["state"]
            for field in ("priority", "submitted_at", "not_before", "expires_at", "max_attempts"):
                assert getattr(described, field) == row[field]
            for field in ("attempts", "due", "dispatched_at", "finished_at", "reason"):
                assert getattr(described, field) == row[field]
            if row["reply_sha256"]:
                assert isinstance(reply, Outcome)
                assert digest(reply.frames) == row["reply_sha256"]
