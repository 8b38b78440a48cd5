"""A disk that fails at the page that says where a store's trees begin, without a disk that fails."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from titanic.store.lmdb.store import LmdbStore


def break_meta_page(store: LmdbStore) -> None:
    """From now on no commit of this process ends well: LMDB writes that page through a descriptor of its own, which is
    replaced by one that cannot write."""
    data = store.path / "data.mdb"
    for entry in Path("/proc/self/fd").iterdir():
        descriptor = int(entry.name)
        try:
            ours = os.path.samestat(os.fstat(descriptor), data.stat())
        except OSError:
            continue  # it was the one by which the folder was read
        if ours and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DSYNC:
            unable = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
            os.dup2(unable, descriptor, inheritable=False)
            os.close(unable)
            return
    raise AssertionError("LMDB has no such descriptor")
