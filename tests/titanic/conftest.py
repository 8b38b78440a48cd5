"""A store that is sound at the end. `pytest.mark.settings(capacity=…)` says how it is opened.

It is LMDB's, unless the test uses `engine` (support/store_engines.py): then there is one of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.serving import settings_of
from support.store_engines import is_sound

from titanic.store import Store
from titanic.store.lmdb.store import LmdbStore


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    engine = request.getfixturevalue("engine") if "engine" in request.fixturenames else LmdbStore.open
    with engine(tmp_path / "store", **settings_of(request)) as store:
        yield store
        assert is_sound(store)
