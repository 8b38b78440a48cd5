"""A node as a process of its own: `python node_process.py ENDPOINT URL LEASE [AHEAD]`. LEASE is in seconds, AHEAD how
many seconds of work its broker gets ahead, or "attach": it is at the broker that is there."""

from __future__ import annotations

import logging
import signal
import sys

from support.node_settings import node_config

from titanic import Server
from titanic.cluster import node


def main(endpoint: str, url: str, lease: str, ahead: str = "") -> None:
    attached = ahead == "attach"
    if ahead and not attached:
        node.AHEAD_REMOTE = float(ahead)
    logging.basicConfig(level=logging.INFO)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # threads inherit it
    settings = {"broker": endpoint, "lanes": 8} if attached else {"bind": (endpoint,)}
    with Server(node_config(url, float(lease), **settings)):
        signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main(*sys.argv[1:])
