"""Compiled modules, or their source. A wheel may have both, side by side: Python takes the compiled ones, and with
TITANIC_PURE=1 in the environment the source, here and in Titanic."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader

PACKAGES = ("broker.", "titanic.")


class SourceFinder:
    """Finds the source of modules, and nothing else."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """What the import system asks for."""
        if path is None or not name.startswith(PACKAGES):
            return None
        found = (FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name) for folder in path)
        return next(filter(None, found), None)


def choose() -> None:
    """Do as TITANIC_PURE says, for what is imported from now on."""
    if os.environ.get("TITANIC_PURE") == "1":
        sys.meta_path.insert(0, SourceFinder)


def is_compiled() -> bool:
    """Whether compiled modules are what is imported."""
    from importlib.util import find_spec  # a client does not ask

    spec = find_spec("broker.core.broker")
    return spec is not None and not str(spec.origin).endswith(".py")
