"""`python -m titanic.store.lmdb.tools DIR`: a check, for the process that started it (check_process.py)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from titanic.errors import StoreError
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools.check import check


def main(path: Path) -> None:
    """Check, print how far it is, and in the last line the result."""
    try:
        with LmdbStore.open_read_only(path) as store:
            problems = check(store, lambda *progress: print(*progress, flush=True))
            with store.read() as transaction:
                counts = transaction.counts()
        result = {"problems": problems, "requests": counts.requests, "replies": counts.replies}
    except StoreError as error:
        result = {"error": str(error)}
    print(json.dumps(result))


main(Path(sys.argv[1]))
