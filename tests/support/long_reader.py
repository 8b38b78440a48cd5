"""A process that reads a store and comes to no end: `python -m support.long_reader STORE [NAME]`.

Prints a line when it has begun. `NAME`: as the kernel is to know it.
"""

import signal
import sys

from titanic.store.lmdb.readers import rename_process
from titanic.store.lmdb.store import LmdbStore

with LmdbStore.open_read_only(sys.argv[1]) as store, store.read():
    for name in sys.argv[2:]:
        rename_process(name)
    print("begun", flush=True)
    while True:
        signal.pause()
