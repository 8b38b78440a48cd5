"""A store that is sound at the end. `pytest.mark.settings(capacity=…)` says how it is opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.serving import settings_of

from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LmdbStore]:
    with LmdbStore.open(tmp_path / "store", **settings_of(request)) as store:
        yield store
        assert check(store) == []
