"""Whether the pages of a file make the trees that LMDB takes them for.

LMDB believes what it reads: on a damaged page it ends the process (SIGABRT, SIGSEGV, SIGBUS) or writes over pages that
are in use. So who has time looks first, without LMDB, and doesn't let it near a file that isn't sound.
"""

from __future__ import annotations

from pathlib import Path

from lmdb.verify import VerifyError, verify

from titanic.errors import StoreCorrupt

SALVAGE = "restore a backup, or save what can be read: titanic check --repair"
"""What to do about damaged pages."""


def faults(data: Path) -> list[str]:
    """What is wrong with the pages of a file that nobody changes meanwhile.

    It takes about a quarter of the time of check().
    """
    try:
        found: list[str] = verify(str(data), subdir=False)  # type: ignore[no-untyped-call]
    except (VerifyError, OSError) as error:
        return [str(error)]
    return found


def expect_sound(data: Path) -> None:
    """Raise StoreCorrupt when something is wrong with the pages."""
    if found := faults(data):
        count = "a fault" if len(found) == 1 else f"{len(found)} faults"
        raise StoreCorrupt(f"{data} is damaged", f"{count} in its pages, first: {found[0]}", SALVAGE)
