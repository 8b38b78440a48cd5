"""A node as a process of its own: `python node_process.py ENDPOINT URL LEASE [AHEAD]`. LEASE is in seconds, AHEAD how
many seconds of work its broker gets ahead, or "attach": it is at the broker that is there, or "stop": it stands still
before it commits its first claim."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from itertools import count
from typing import Any

from support.node_settings import node_config

from titanic import Server
from titanic.cluster import node
from titanic.store.postgres import store
from titanic.store.postgres.store import PostgresWriteTransaction


class StopsInClaim(PostgresWriteTransaction):
    times = count()

    def claim(self, *given: Any) -> Any:
        self.optimistic()  # not a transaction by itself
        found = super().claim(*given)
        if found is not None and found.rows and not next(self.times):
            # To the process it would be another thread's to take, and this one could commit until that is scheduled.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return found


def main(endpoint: str, url: str, lease: str, ahead: str = "") -> None:
    attached = ahead == "attach"
    if ahead == "stop":
        store.PostgresWriteTransaction = StopsInClaim  # type: ignore[misc]
    elif ahead and not attached:
        node.AHEAD_REMOTE = float(ahead)
    logging.basicConfig(level=logging.INFO)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # threads inherit it
    settings = {"broker": endpoint, "lanes": 8} if attached else {"bind": (endpoint,)}
    with Server(node_config(url, float(lease), **settings)):
        signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main(*sys.argv[1:])
