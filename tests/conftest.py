"""What takes minutes is left out, unless TITANIC_TORTURE is set (`make torture`)."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "TITANIC_TORTURE" not in os.environ:
        long = [item for item in items if item.get_closest_marker("torture")]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)
