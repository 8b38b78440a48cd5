"""A server or a broker as a process of its own, with settings that suit a test:

    python server_process.py serve ENDPOINT STORE [CAPACITY [DURABILITY]]       with its broker
    python server_process.py attach ENDPOINT STORE [CAPACITY [DURABILITY]]      at the broker that is there
    python server_process.py broker ENDPOINT

STORE is a directory, or the URL of a database.
SIGTERM stops it as it should be stopped.
"""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path

from broker import Broker, BrokerConfig, WorkerConfig
from titanic import Server, ServerConfig
from titanic.store import Durability
from titanic.util.text import is_url


def main(mode: str, endpoint: str, store: str = "", capacity: str = "", durability: Durability = "synced") -> None:
    logging.basicConfig(level=logging.INFO)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # threads inherit it
    wire = BrokerConfig(heartbeat_interval=0.2, liveness=50)  # a busy machine is no death
    node: Server | Broker
    if mode == "broker":
        node = Broker(wire)
        node.bind(endpoint)
    else:
        config = ServerConfig(
            store=store if is_url(store) else Path(store),
            capacity=int(capacity) if capacity else None,
            durability=durability,
            bind=(endpoint,),
            broker=endpoint if mode == "attach" else None,
            lanes=8,
            retry_first=0.05,
            retry_most=0.5,
            max_attempts=1000,
            poison_deaths=1000,
            grace=1.0,
            wire=wire,
            worker=WorkerConfig(heartbeat_interval=0.2, liveness=50, reconnect_first=0.05, reconnect_most=0.2),
        )
        node = Server(config)
    node.start()
    signal.sigwait({signal.SIGTERM})
    node.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
