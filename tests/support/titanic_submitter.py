"""A client as a process of its own: `python titanic_submitter.py ENDPOINT LEDGER NAME COUNT MODE`.

It submits COUNT requests and writes what was acknowledged to the file LEDGER, a line `UUID body` each. What was
not acknowledged is submitted again. MODE is

    mixed   the requests of `KINDS` in turn. What a body begins with says what is to become of it
    same    always the same request with the same key
"""

from __future__ import annotations

import os
import sys
from typing import Any

from titanic import Client, Refused, TimedOut

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("plain", {}),  # has no key: what was not acknowledged may be there all the same
    ("keyed", {}),
    ("delayed", {"delay": 0.1}),
    ("urgent", {"priority": 9}),
    ("idle", {"priority": 0}),
    ("fail", {}),
    ("never", {"max_attempts": 2}),
    ("slow", {}),
    ("brief", {"ttl": 0.1}),
    ("waited", {}),
    ("closed", {}),
    ("batch", {}),
]
BATCH = 4
PER_ROUND = len(KINDS) - 1 + BATCH


def insist(call: Any, *arguments: Any, **options: Any) -> Any:
    """The answer, however often it takes."""
    while True:
        try:
            return call(*arguments, **options)
        except (TimedOut, Refused):
            continue


def submit(client: Client, name: str, number: int, mode: str) -> dict[str, str]:
    """UUIDs and bodies of what was accepted."""
    if mode == "same":
        return {insist(client.submit, "work", "same", key="the same"): "same"}
    kind, options = KINDS[number % len(KINDS)]
    body = f"{kind}.{name}.{number}"
    if kind == "batch":
        bodies = [f"{body}.{part}" for part in range(BATCH)]
        return dict(zip(insist(client.submit_batch, "work", bodies, keys=bodies), bodies, strict=True))
    if kind == "plain":
        return {insist(client.submit, "work", body): body}
    uuid = insist(client.submit, "work", body, key=body, **options)
    if kind == "waited":
        assert insist(client.wait, uuid, 1) == [b"done:" + body.encode()]
    elif kind == "closed":
        insist(client.close, uuid)
    return {uuid: body}


def main(endpoint: str, ledger: str, name: str, count: str, mode: str) -> None:
    descriptor = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Client(endpoint, timeout=0.3, retries=0) as client:
        for number in range(int(count)):
            accepted = submit(client, name, number, mode)
            os.write(descriptor, "".join(f"{uuid} {body}\n" for uuid, body in accepted.items()).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
