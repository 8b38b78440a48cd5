"""What a long run has done, for the record: how many kills, executions, steps."""

from __future__ import annotations

import json
import os
from pathlib import Path


def add(name: str, count: int) -> None:
    """Append a count to the file that TITANIC_TALLY names, if it does: a JSON object a line."""
    if path := os.environ.get("TITANIC_TALLY"):
        with Path(path).open("a") as file:
            file.write(json.dumps({"name": name, "count": count}) + "\n")
