"""A client as a process of its own: `python titanic_submitter.py ENDPOINT LEDGER NAME COUNT MODE`.

It submits COUNT requests and writes what was acknowledged to the file LEDGER, a line `UUID body` each. What was
not acknowledged is submitted again. MODE is

    plain   one by one, as RFC 9 has it
    mixed   in turn: plain, with a key, delayed, with a priority, one that fails at first, a batch of five
    same    always the same request with the same key
"""

from __future__ import annotations

import os
import sys

from titanic import Client, Refused, TimedOut
from titanic.client import SubmitOptions


def submit(client: Client, name: str, number: int, mode: str) -> dict[str, str]:
    """UUIDs and bodies of what was accepted."""
    body = f"{name}.{number}"
    if mode == "same":
        return {client.submit("work", "same", key="the same"): "same"}
    kind = number % 6 if mode == "mixed" else 0
    if kind == 5:
        bodies = [f"{body}.{part}" for part in range(5)]
        return dict(zip(client.submit_batch("work", bodies, keys=bodies), bodies, strict=True))
    if kind == 4:
        body = f"fail.{body}"
    options: SubmitOptions = [{}, {"key": body}, {"delay": 0.1}, {"priority": number % 10}, {"key": body}][kind]  # type: ignore[assignment]
    return {client.submit("work", body, **options): body}


def main(endpoint: str, ledger: str, name: str, count: str, mode: str = "plain") -> None:
    descriptor = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Client(endpoint, timeout=0.3, retries=0) as client:
        for number in range(int(count)):
            while True:
                try:
                    accepted = submit(client, name, number, mode)
                    break
                except (TimedOut, Refused):
                    continue
            os.write(descriptor, "".join(f"{uuid} {body}\n" for uuid, body in accepted.items()).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
