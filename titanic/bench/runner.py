"""Taking figures one after another, in a folder of their own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import zmq

from titanic.bench.figure import Figure
from titanic.bench.programme import Conditions, Entry
from titanic.util.processes import uninterrupted

SOCKETS = 10_000
"""Sockets of this process, which is all clients; a context has 1,023 otherwise."""


def run(
    entries: Sequence[Entry], requests: int, folder: Path | None, progress: Callable[[Entry], None]
) -> Iterator[Figure]:
    """Take the figures with about so many requests each. Stores go below `folder`, nothing is left there."""
    zmq.Context.instance().max_sockets = SOCKETS  # before the first is opened
    place = Path(tempfile.mkdtemp(prefix="titanic-", dir=folder))
    try:
        for entry in entries:
            progress(entry)
            yield from entry.take(Conditions(requests, place), entry.name, entry.what)
    finally:
        with uninterrupted():
            shutil.rmtree(place, ignore_errors=True)
