"""Doors of packages: their names are loaded when they are first used, so nobody waits for what others import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence


def door(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """The `__getattr__` of a package: which of its names are in which modules. Type checkers find them in its
    `__init__.pyi`."""

    def load(name: str) -> object:
        for module, names in modules.items():
            if name in names:
                # `-X importtime` does not see what importlib.import_module loads.
                value: object = getattr(__import__(module, fromlist=[name]), name)
                setattr(sys.modules[package], name, value)
                return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
