"""A store with something of everything in it, and all that is in a store as a document."""

from __future__ import annotations

import json
from enum import Enum
from hashlib import sha256
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict
from support.store_facts import accept_all, closed_range, state_of

from titanic.store import (
    Archivist,
    NewRequest,
    Retention,
    ServiceSetting,
    State,
    Status,
    Store,
    WriteTransaction,
    open_export,
)
from titanic.store.uniqueness import made_unique

START = 1_795_258_520_106_479
SECOND = 1_000_000


def end(tx: WriteTransaction, uuid: bytes, status: Status, *frames: bytes) -> None:
    times = {"attempts": 3, "dispatched_at": START + 5, "finished_at": START + 7}
    assert tx.finish(uuid, status, frames, reason="" if status is Status.DONE else f"änd {status.name}", **times)


def fill(store: Store) -> None:
    """Something of everything that a store can have."""
    bodies: list[list[bytes]] = [[], [b""], [b"one"], [b"two", b"", b"frames"], [bytes(5000)], [bytes(70_000), b"x"]]
    keep, keep_body = b'{"keep": 70, "keep_failed": 9000}', b'{"keep_body": 9000}'
    new = [
        NewRequest(
            service=b"a" if n % 2 else "größer".encode(),
            body=bodies[n % len(bodies)],
            priority=n % 10,
            not_before=START + 3600 * SECOND if n % 7 == 0 else 0,
            expires_at=START + 10 * SECOND if n % 11 == 5 else START + 9000 * SECOND if n % 3 == 0 else 0,
            max_attempts=n % 4,
            options=b'{"limit": 5}' if n % 4 == 0 else (b"", keep, b"", keep_body, b"", b"", b"", b"")[n % 8],
            key=b"key %d" % n if n % 5 == 0 else b"",
            key_until=START + 86_400 * SECOND,
            owner=(b"", b"eve", b"evelyn")[n % 3],
            source=(b"", b"192.0.2.7", b"2001:db8::7", b"")[n % 4],
        )
        for n in range(120)
    ]
    together = [NewRequest(b"a", [b"1"], key=b"three", key_until=START + 3600 * SECOND, together=3, owner=b"eve")]
    together += [NewRequest(b"a", [b"n"], owner=b"eve")] * 2
    for name, until, ends_at in (("b", "started", 0), ("c", "done", 0), ("d", "", START + 7200 * SECOND)):
        said = {"unique": name, "unique_until": until} if until else {"unique": name, "unique_for": 7200}
        one = NewRequest(b"a", [b"once"], options=json.dumps(said).encode(), owner=b"eve")
        together.append(made_unique(one, name, until, ends_at))
    with store.write() as tx:
        uuids = accept_all(tx, new, START)
        accept_all(tx, together, START)
    with store.write() as tx:
        waiting = [uuid for uuid in uuids if state_of(tx, uuid) is State.WAITING]
        for n, uuid in enumerate(waiting[:60]):
            if n % 6 == 0:
                tx.postpone(uuid, due=START + n * SECOND, attempts=2, dispatched_at=START + 1, reason="not yet")
            elif n % 6 < 4:
                end(tx, uuid, list(Status)[n % 4], *bodies[n % len(bodies)])
        tx.promote(START + 20 * SECOND)
        for uuid, _ in tx.expire(START + 20 * SECOND)[::2]:
            assert tx.retry(uuid, START + 30 * SECOND)
    with store.write() as tx:
        archivist = Archivist(bytes(range(16)), "the archive, at /ärchive")
        for uuid in uuids[::5]:
            tx.close(uuid, START + 40 * SECOND)
        tx.trim(START + 60 * SECOND, Retention(closed_retention=20 * SECOND), limit=7)  # the ring begins later
        tx.trim(START + 60 * SECOND, Retention(reply_retention=50 * SECOND), limit=3)
        tx.update_archive(archivist, register=True)
        tx.set_service(b"mail", ServiceSetting(True, "größe".encode()))
        tx.update_archive(archivist, upto=closed_range(tx)[0] + 2)
        tx.put_facts([(b"c-short", b""), (b"c-long", bytes(range(256)) * 40), (b"x", b"of another kind")])


def contents(place: str) -> dict[str, Any]:
    """All of a store that no process has open. A store of an earlier format is converted."""
    with open_export(place) as store:
        head = plain(store.head)
        return {
            "head": {**head, "archivist": head["archive"]["archivist"]},  # packed stores have it there
            "requests": [plain(life) for lives in store.requests() for life in lives],
            "keys": sorted((plain(key) for keys in store.idempotency_keys() for key in keys), key=str),
            "closed": [plain(closing) for closings in store.closed() for closing in closings],
            "facts": [plain(row) for rows in store.facts() for row in rows],
        }


def plain(value: Any) -> Any:
    """A value as JSON has it: records by the names of their fields, large bytes by their digest."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 64 else f"{len(value)} {sha256(value).hexdigest()}"
    if isinstance(value, dict):
        return {name.decode(): plain(one) for name, one in value.items()}
    if isinstance(value, Struct):
        return {name: plain(one) for name, one in asdict(value).items()}
    if hasattr(value, "_asdict"):
        return {name: plain(one) for name, one in value._asdict().items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def difference(expected: Any, found: Any, where: str = "") -> list[str]:
    """Where something of `expected` is missing or different. `found` may have more fields: later versions add some."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [line for name in expected for line in difference(expected[name], found.get(name), f"{where}.{name}")]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for n, (one, other) in pairs for line in difference(one, other, f"{where}[{n}]")]
    return [] if expected == found else [f"{where}: {found!r} instead of {expected!r}"]
