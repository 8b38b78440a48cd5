"""A seeded workload on a store, with a ledger outside of it of what was acknowledged.

    python -m support.store_workload STORE LEDGER SEED STEPS DURABILITY

Each line of the ledger is a JSON object. A step writes one before its transaction begins (`try`) and one after it was
committed (`did`) or failed (`failed`), so that of the last step alone it can be unknown whether it happened. The body
of a request and of a reply follow from their number, so that the ledger needn't hold them. `verify` opens the store
that is left and compares it with the ledger: nothing acknowledged may be missing, nothing may be there twice, a reply
is the one that was stored, and the step in doubt happened wholly or not at all.
"""

from __future__ import annotations

import json
import os
import random
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from support.faults import Lost
from support.store_facts import accept_all, closed_in, closed_range, state_of

from titanic.errors import StoreError
from titanic.store import NewRequest, Outcome, Retention, Status
from titanic.store.lmdb.pages import faults
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check

CAPACITY = 16 << 20
START = 1_795_258_520_106_479
POLICY = Retention(reply_retention=60, dead_retention=60)
SIZES = (0, 10, 200, 1500, 3000, 9000, 40_000)


def body(number: int) -> bytes:
    """The body of request `number`; that of its reply is `body(-number)`."""
    rng = random.Random(number)
    return rng.randbytes(rng.choice(SIZES))


def owner(number: int) -> bytes:
    """Who submits request `number`."""
    return (b"", b"eve", b"bob")[number % 3]


def key(number: int) -> bytes:
    """Its idempotency key, if it has one: others have the same."""
    return b"key %d" % (number // 3)


def digest(frames: list[bytes]) -> str:
    return sha256(b"\0".join(frames)).hexdigest()


class Ledger:
    """Lines that are on their way to the disk when `write` returns, whatever becomes of this process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, line: dict[str, Any]) -> None:
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")


class Workload:
    """Does random things to a store and keeps a ledger of them."""

    def __init__(self, store: LmdbStore, ledger: Ledger, seed: int) -> None:
        self.store = store
        self.ledger = ledger
        self.rng = random.Random(seed)
        self.now = START
        self.numbers = 0
        self.number_of: dict[str, int] = {}
        self.waiting: list[str] = []
        self.ended: list[str] = []
        self.failures = 0

    def run(self, steps: int) -> None:
        for step in range(steps):
            self.now += self.rng.randrange(10)
            act = self.rng.choice(
                (
                    *(self.accept,) * 6,
                    *(self.finish,) * 4,
                    *(self.close, self.postpone, self.tidy) * 2,
                    self.retry,
                )
            )
            act(step)
            if self.failures > 3:
                return

    def pick(self, uuids: list[str], most: int) -> list[str]:
        return self.rng.sample(uuids, min(len(uuids), self.rng.randrange(1, most + 1)))

    def accept(self, step: int) -> None:
        count = self.rng.choice((1, 1, 5, 20))
        numbers = list(range(self.numbers + 1, self.numbers + count + 1))
        self.numbers += count
        keyed = self.rng.random() < 0.3
        requests = [
            NewRequest(
                b"s%d" % (number % 3),
                [body(number)],
                not_before=self.now + 5 if number % 7 == 0 else 0,
                expires_at=self.now + 40 if number % 5 == 0 else 0,
                key=key(number) if keyed else b"",
                key_until=self.now + 10**9 if keyed else 0,
                owner=owner(number),
            )
            for number in numbers
        ]
        if keyed:
            requests += requests  # each key twice
        made: list[bytes] = []

        def change(txn: Any) -> list[str]:
            made.extend(accept_all(txn, requests, self.now))
            return [uuid.hex() for uuid in made[:count]]

        uuids = self.step(step, "accept", {"numbers": numbers, "keyed": keyed}, change)
        if uuids:
            assert not keyed or made[:count] == made[count:]
            self.waiting += uuids
            self.number_of.update(zip(uuids, numbers, strict=True))

    def finish(self, step: int) -> None:
        uuids = self.pick(self.waiting, 5)
        status = self.rng.choice((Status.DONE, Status.DONE, Status.FAILED))

        def change(txn: Any) -> list[str]:
            for uuid in uuids:
                done = txn.finish(
                    bytes.fromhex(uuid),
                    status,
                    [body(-self.number_of[uuid])],
                    attempts=1,
                    dispatched_at=self.now,
                    finished_at=self.now,
                )
                assert done
            return uuids

        if self.step(step, "finish", {"uuids": uuids, "status": status.name}, change):
            self.waiting = [uuid for uuid in self.waiting if uuid not in uuids]
            self.ended += uuids

    def close(self, step: int) -> None:
        uuids = self.pick(self.ended + self.waiting, 5)

        def change(txn: Any) -> list[str]:
            for uuid in uuids:
                assert txn.close(bytes.fromhex(uuid), self.now)
            return uuids

        if self.step(step, "close", {"uuids": uuids}, change):
            self.waiting = [uuid for uuid in self.waiting if uuid not in uuids]
            self.ended = [uuid for uuid in self.ended if uuid not in uuids]

    def postpone(self, step: int) -> None:
        uuids = self.pick(self.waiting, 3)

        def change(txn: Any) -> list[str]:
            for uuid in uuids:
                txn.postpone(bytes.fromhex(uuid), due=self.now + 3, attempts=1, dispatched_at=self.now, reason="no")
            return uuids

        self.step(step, "postpone", {"uuids": uuids}, change)

    def retry(self, step: int) -> None:
        uuids = self.pick(self.ended, 5)

        def change(txn: Any) -> list[str]:
            return [uuid for uuid in uuids if txn.retry(bytes.fromhex(uuid), self.now)]

        if again := self.step(step, "retry", {"uuids": uuids}, change):
            self.ended = [uuid for uuid in self.ended if uuid not in again]
            self.waiting += again

    def tidy(self, step: int) -> None:
        def change(txn: Any) -> list[str]:
            expired = {uuid.hex() for uuid, _ in txn.expire(self.now, 5)}
            promoted = sum(count for _, count in txn.promote(self.now, 5))
            trimmed = txn.trim(self.now, POLICY, 5)
            left = [uuid for uuid in self.ended if state_of(txn, bytes.fromhex(uuid)) is not None]
            moved = [uuid for uuid in self.waiting if uuid in expired and state_of(txn, bytes.fromhex(uuid))]
            self._next = ([uuid for uuid in self.waiting if uuid not in expired], left + moved)
            happened = {"expired": expired, "promoted": promoted, "trimmed": trimmed.replies + trimmed.dead}
            return ["tidied", *(name for name, some in happened.items() if some)]

        if self.step(step, "tidy", {}, change):
            self.waiting, self.ended = self._next

    def step(self, step: int, act: str, what: dict[str, Any], change: Any) -> list[str]:
        """One transaction, with its two lines in the ledger. Returns nothing when it failed."""
        self.ledger.write({"try": step, "act": act, **what})
        try:
            with self.store.write() as txn:
                result: list[str] = change(txn)
        except StoreError as error:
            self.failures += 1
            self.ledger.write({"failed": step, "error": str(error)})
            return []
        self.failures = 0
        self.ledger.write({"did": step, "result": result})
        return result


def verify(path: Path, lines: list[dict[str, Any]]) -> int:
    """Open the store and compare it with the ledger; an AssertionError says what is wrong.

    Returns how many requests were looked at.
    """
    known: dict[str, dict[str, Any]] = {}
    doubt: dict[str, Any] | None = None
    keys: dict[int, str] = {}
    tidied = False
    for line in lines:
        if "try" in line:
            doubt = line
            tidied = tidied or line["act"] == "tidy"
            continue
        step, doubt = doubt, None
        assert step is not None
        if "failed" in line:
            continue
        if step["act"] == "accept":
            for number, uuid in zip(step["numbers"], line["result"], strict=True):
                known[uuid] = {"number": number}
                if step["keyed"]:
                    keys[number] = uuid
        for uuid in step.get("uuids", ()):
            if step["act"] in ("finish", "close"):
                known[uuid][step["act"]] = step.get("status", True)
            elif step["act"] == "retry" and uuid in line["result"]:
                known[uuid].pop("finish", None)
    in_doubt = set(doubt.get("uuids", ())) if doubt else set()

    with LmdbStore.open(path) as store:
        problems = check(store)
        assert problems == [], problems
        happened = set()
        with store.read() as txn:
            first, _ = closed_range(txn)
            assert first == 1, "nothing was dropped"
            lives = closed_in(txn, 0, 100_000, 1 << 40)
            ring = {life.uuid.hex(): life for life in lives}
            assert len(ring) == len(lives), "nothing is closed twice"
            for uuid, facts in known.items():
                found, reply = txn.request(bytes.fromhex(uuid)), txn.reply(bytes.fromhex(uuid))
                if found is None and uuid not in ring:
                    raise Lost(f"{uuid} was accepted and is nowhere")
                assert (found is None) == (uuid in ring), f"{uuid} is in one place"
                content = found.body if found else ring[uuid].request
                assert digest(content) == digest([body(facts["number"])]), f"{uuid} is as it was accepted"
                assert txn.owner(bytes.fromhex(uuid)) == (owner(facts["number"]) if found else None)
                waits = found and not isinstance(reply, Outcome)
                retried = waits and uuid in in_doubt and doubt is not None and doubt["act"] == "retry"
                if "finish" in facts and not retried:
                    if waits:
                        raise Lost(f"the reply to {uuid} is nowhere")
                    frames = reply.frames if isinstance(reply, Outcome) else ring[uuid].reply
                    assert digest(frames) == digest([body(-facts["number"])]), f"{uuid} has its reply"
                    status = reply.status if isinstance(reply, Outcome) else ring[uuid].status
                    assert status.name == facts["finish"]
                elif uuid not in in_doubt and not tidied:
                    assert not isinstance(reply, Outcome), f"{uuid} has not ended"
                if "close" in facts:
                    assert uuid in ring, f"{uuid} was closed"
                elif uuid not in in_doubt and not tidied:
                    assert uuid not in ring, f"{uuid} was not closed"
                if uuid in in_doubt and doubt is not None:
                    after = uuid in ring if doubt["act"] == "close" else isinstance(reply, Outcome) or uuid in ring
                    happened.add(after)
            strangers = [row.uuid.hex() for row in txn.select(limit=100_000) if row.uuid.hex() not in known]
        if doubt and doubt["act"] in ("finish", "close") and not tidied:
            assert len(happened) <= 1, "a step happens wholly or not at all"
        wanted = len(doubt["numbers"]) if doubt and doubt["act"] == "accept" else 0
        assert len(strangers) in (0, wanted), "a step happens wholly or not at all"
        with store.write() as txn:  # the store goes on
            again = [NewRequest(b"s", [], key=key(n), key_until=2 * START, owner=owner(n)) for n in keys]
            assert [one.uuid.hex() for one in txn.accept(again, START)] == list(keys.values()), "keys are remembered"
            accept_all(txn, [NewRequest(b"s", [b"one more"])], START)
        assert check(store) == []
    assert faults(path / "data.mdb") == []
    return len(known)


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a ledger."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def main(path: str, ledger: str, seed: str, steps: str, durability: Any) -> None:
    with LmdbStore.open(path, capacity=CAPACITY, durability=durability) as store:
        Workload(store, Ledger(Path(ledger)), int(seed)).run(int(steps))


if __name__ == "__main__":
    main(*sys.argv[1:])
