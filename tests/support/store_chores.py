"""What is done to a store as a whole, in a process of its own: `python -m support.store_chores CHORE PATH …`.

    open PATH [CAPACITY]    creates it, upgrades it, or changes its capacity, as the case may be
    repair PATH
    restore PATH SOURCE

Exits with 3, and says why, when it can't be done.
"""

from __future__ import annotations

import sys

from titanic.errors import TitanicError
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import repair, restore

CANNOT = 3


def main(chore: str, path: str, *more: str) -> None:
    try:
        if chore == "restore":
            restore(more[0], path)
            return
        with LmdbStore.open(path, capacity=int(more[0]) if more else None) as store:
            if chore == "repair":
                repair(store)
    except TitanicError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT)


if __name__ == "__main__":
    main(*sys.argv[1:])
