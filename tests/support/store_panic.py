"""A server on the store PATH, and a client: `python -m support.store_panic PATH`. Prints what became of a request."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from support.serving import config
from support.waiting import until

from titanic import Client, Refused, Server


def main(path: str) -> None:
    logging.disable(logging.WARNING)  # what has expired is none of this test's business
    with Server(config(Path(path), capacity=16 << 20)) as server, Client(server.endpoints[0], timeout=30) as client:
        try:
            client.submit("absent", b"x")
            print("accepted", file=sys.stderr)
        except Refused as error:
            print(error, file=sys.stderr)
            until(lambda: not server.alive)
            print("it knows that it can't go on", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
