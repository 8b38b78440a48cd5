"""What all engines have, as titanic/store/interface.py says: who calls by keyword calls all of them alike."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from support.postgres import needs_postgres
from support.store_engines import forget_databases, open_postgres

from titanic.store import ReadTransaction, Store, WriteTransaction, open_store
from titanic.store.memory import MemoryStore

OPENED = [pytest.param(open_store, id="lmdb"), pytest.param(MemoryStore, id="memory")]
OPENED.append(pytest.param(open_postgres, id="postgres", marks=needs_postgres))


def names(method: Any) -> list[str]:
    return [name for name in inspect.signature(method).parameters if name not in ("self", "tx")]


@pytest.mark.parametrize("opened", OPENED)
def test_methods_and_their_parameters_have_the_names_of_the_interface(opened: Any, tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        for one, protocol in ((store, Store), (store.read(), ReadTransaction), (store.write(), WriteTransaction)):
            wanted = dict(inspect.getmembers(protocol, inspect.isfunction))
            for name in (name for name in wanted if not name.startswith("_")):
                if names(getattr(one, name)) == ["args", "options"]:
                    continue  # what is behind it is compiled, and keeps no names of parameters
                assert names(getattr(one, name)) == names(wanted[name]), name
            assert set(protocol.__annotations__) <= set(dir(one))
    forget_databases()
