"""How to install what only some need, in the Python that runs here."""

from __future__ import annotations

import re
import sys


def how_to_install(extra: str) -> str:
    """The command that installs what an extra of titanic-queue names: it works in a checkout, in a virtual environment
    and where a package of the system has Titanic, though no index has titanic-queue."""
    from importlib.metadata import PackageNotFoundError, requires  # brings much, and is for errors only

    try:
        found = requires("titanic-queue") or []
    except PackageNotFoundError:
        found = []
    wanted = [one.partition(";")[0].strip() for one in found if re.search(rf"extra == ['\"]{extra}['\"]", one)]
    packages = [f"'{one}'" for one in wanted if not one.startswith("titanic-queue")]
    return f"{sys.executable} -m pip install {' '.join(packages or [f'titanic-queue[{extra}]'])}"
