"""A client as a process of its own: `python titanic_submitter.py ENDPOINT LEDGER NAME COUNT`.

It submits COUNT requests and writes what was acknowledged to the file LEDGER, a line `UUID body` each. What was
not acknowledged is submitted again.
"""

from __future__ import annotations

import os
import sys

from titanic import Client, Refused, TimedOut


def main(endpoint: str, ledger: str, name: str, count: str) -> None:
    descriptor = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Client(endpoint, timeout=0.3, retries=0) as client:
        for number in range(int(count)):
            body = f"{name}.{number}"
            while True:
                try:
                    uuid = client.submit("work", body)
                    break
                except (TimedOut, Refused):
                    continue
            os.write(descriptor, f"{uuid} {body}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
