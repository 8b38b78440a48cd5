"""How the modules of both packages are imported: on first use, and compiled or as source.

A package's `__init__.pyi` declares what the package exports, and in which module each name is defined. Type checkers
read it, and so does `lazy_exports`, which loads a module when one of its names is first used.

A wheel may contain a module twice, compiled and as source. Python prefers the compiled one; with TITANIC_PURE=1 in the
environment the source is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader

PACKAGES = ("broker.", "titanic.")


def lazy_exports(package: str) -> tuple[Callable[[str], object], list[str]]:
    """Make `__getattr__` and `__all__` of a package from its `__init__.pyi`.

    Each line there is `from MODULE import NAME as NAME`.
    """
    exporter = sys.modules[package]
    with open(f"{exporter.__path__[0]}/__init__.pyi", encoding="utf-8") as stub:  # noqa: PTH123 a client loads no pathlib
        modules = {line.split()[3]: line.split()[1] for line in stub if line.startswith("from ")}

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # `-X importtime` does not show what importlib.import_module loads.
        value: object = getattr(__import__(modules[name], fromlist=[name]), name)
        setattr(exporter, name, value)
        return value

    return load, [*modules]


class SourceFinder:
    """Finds the source of modules, and never a compiled one."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Find a module for the import system."""
        if path is None or not name.startswith(PACKAGES):
            return None
        found = (FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name) for folder in path)
        return next(filter(None, found), None)


def choose_build() -> None:
    """Apply TITANIC_PURE to all later imports."""
    if os.environ.get("TITANIC_PURE") == "1":
        sys.meta_path.insert(0, SourceFinder)


def is_compiled() -> bool:
    """Whether compiled modules are imported."""
    from importlib.util import find_spec  # a client does not need it

    spec = find_spec("broker.core.broker")
    return spec is not None and not str(spec.origin).endswith(".py")
