"""The source files of a program: which it has loaded, and whether they have changed."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from functools import cache
from pathlib import Path


def loaded() -> list[str]:
    """The files of the modules that are loaded, without those of Python, of what is installed, and of this project."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return sorted({str(Path(name).absolute()) for name in files if isinstance(name, str) and is_own(name)})


def is_own(name: str) -> bool:
    """Whether a file is a source of the program: not of Python, of what is installed, or of this project."""
    path = Path(name)
    installed = path.is_relative_to(sys.base_prefix) or "site-packages" in path.parts
    return name.endswith(".py") and not installed and not _ours().intersection(path.parents)


@cache
def _ours() -> set[Path]:
    return {Path(sys.modules[name].__file__ or "").parent for name in ("titanic", "broker")}


def involved(target: str, error: BaseException | None) -> list[str]:
    """The files that may have to do with a MODULE:app that could not be imported."""
    path = Path(*target.partition(":")[0].split(".")).absolute()
    found = {str(path.with_suffix(".py")), str(path / "__init__.py")}
    if error is not None:
        found.update(frame.filename for frame in traceback.extract_tb(error.__traceback__))
    if isinstance(error, SyntaxError) and error.filename:
        found.add(error.filename)
    return sorted(name for name in found if not name.startswith("<"))


class Sources:
    """Files that are looked at again and again."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def watch(self, files: Iterable[str]) -> None:
        """Look at these, too."""
        for name in files:
            if name not in self._seen:
                self._seen[name] = _stamp(name)

    def changed(self) -> str:
        """The first file that is not as it was at the last look; empty: none."""
        found = ""
        for name, before in self._seen.items():
            now = _stamp(name)
            if now != before:
                self._seen[name] = now
                found = found or name
        return found


def _stamp(name: str) -> tuple[int, int]:
    """When it was written, and its size; of a file that is not there zeros."""
    try:
        stat = Path(name).stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size
