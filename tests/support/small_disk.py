"""A small disk: a real file system that can be filled to the brim."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Disk:
    """A mounted file system. What fills it is in the file `ballast`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Leave not a byte."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        ballast.write(bytes(size))
                except OSError:
                    continue

    def make_room(self, size: int = 1 << 40) -> None:
        """Give back `size` bytes of what was filled, or all of it."""
        os.truncate(self._ballast, max(0, self._ballast.stat().st_size - size))


@contextmanager
def small_disk(path: Path, kind: str, size: int) -> Iterator[Disk]:
    """A disk of `size` bytes, mounted at `path`; `kind` is tmpfs or ext4."""
    if os.geteuid() != 0 and "CI" not in os.environ:
        pytest.skip("needs the right to mount a file system")
    path.mkdir()
    if kind == "tmpfs":
        how = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
    else:
        image = path.with_suffix(".image")
        image.touch()
        os.truncate(image, size)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        how = ["-o", "loop", str(image)]
    subprocess.run(["mount", *how, path], check=True)
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
