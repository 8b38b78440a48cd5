"""What is done to a store as a whole, in a process of its own: `python -m support.store_chores CHORE PATH …`.

    open PATH [CAPACITY]    creates it, or changes its capacity, as the case may be
    convert PATH            to the format after the present one (store_formats.synthetic_step)
    repair PATH
    restore PATH SOURCE

Exits with 3, and says why, when it can't be done.
"""

from __future__ import annotations

import sys

from support.store_formats import synthetic_step

from titanic.errors import TitanicError
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import repair, restore

CANNOT = 3


def main(chore: str, path: str, *more: str) -> None:
    try:
        if chore == "restore":
            restore(more[0], path)
            return
        if chore == "convert":
            with synthetic_step():
                LmdbStore.open(path).close()
            return
        with LmdbStore.open(path, capacity=int(more[0]) if more else None) as store:
            if chore == "repair":
                repair(store)
    except TitanicError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT)


if __name__ == "__main__":
    main(*sys.argv[1:])
