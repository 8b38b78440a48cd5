from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.desk import Desk

from titanic.store import MIN_CAPACITY, Store


@pytest.fixture
def desk(tmp_path: Path, engine: Callable[..., Store]) -> Iterator[Desk]:
    with engine(tmp_path / "store", capacity=MIN_CAPACITY) as store:
        desk = Desk(store)
        desk.writer.start()
        desk.reader.start()
        yield desk
        desk.reader.stop()
        desk.writer.stop()
