"""A month of schedules in a few seconds: schedulers that are killed, stand still and have wrong clocks, at a queue that
is away now and then. The store, and the services that take messages apart, are the real ones; time is a number.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from titanic.errors import TimedOut
from titanic.facts.registered_schedules import register
from titanic.protocol.documents import ScheduleReport
from titanic.protocol.messages import SchedulesAction, read
from titanic.schedules import Schedule, Scheduler
from titanic.services import list_requests
from titanic.services.request_submit import parse_submit
from titanic.store.lmdb.store import LmdbStore
from titanic.store.records import Retention

DAY = 86_400.0


class Killed(Exception):
    """The scheduler is gone, in the middle of what it did."""


class World:
    """The queue, its clock, and all schedulers. Seconds since 1970."""

    def __init__(self, folder: Path, begin: float, schedules: list[Schedule], seed: object, **faults: float) -> None:
        """`faults`: how often (a share of messages) and how long: see `Peer`."""
        self.random = Random(str(seed))
        self.faults = faults
        self.now = begin
        self.set_by = 0.0
        """Seconds by which the queue's clock is wrong."""
        self.away_until = 0.0
        self.schedules = schedules
        self.store = LmdbStore.open(folder / "store", capacity=256 << 20, durability="memory")
        self.requests: dict[str, dict[str, float]] = defaultdict(dict)
        """By key: each UUID that was made for it, and when by the queue's clock."""
        self.counts: dict[str, int] = defaultdict(int)
        self._wakes: list[tuple[float, int, Peer]] = []
        self._trimmed = 0.0

    @property
    def clock(self) -> float:
        """The time as the queue has it."""
        return self.now + self.set_by

    def add(self, count: int) -> None:
        for _ in range(count):
            self.wake(Peer(self), self.now)

    def wake(self, peer: Peer, at: float) -> None:
        heapq.heappush(self._wakes, (at, id(peer), peer))

    def run(self, until: float) -> None:
        """Let time pass. It is called again by a peer that stands still, for all others."""
        while self._wakes and self._wakes[0][0] <= until:
            at, _, peer = heapq.heappop(self._wakes)
            self.now = max(self.now, at)
            self.wake(peer, self.now + max(0.001, peer.turn()))
            if self.now > self._trimmed + DAY / 4:
                self._trim()
        self.now = max(self.now, until)

    def _trim(self) -> None:
        """Forget keys, and drop what has ended, as the server's maintenance does."""
        self._trimmed = self.now
        now_us = int(self.clock * 1e6)
        with self.store.write() as transaction:
            transaction.expire(now_us)
            while transaction.trim(now_us, Retention(), 1000).more:
                pass

    def ticks(self, schedule: Schedule) -> dict[str, dict[str, float]]:
        """The requests by the key of their ticks."""
        prefix = f"cron:{schedule.name}:2"
        return {key: found for key, found in self.requests.items() if key.startswith(prefix)}


class Peer:
    """A scheduler on a machine of its own, again and again. To the scheduler it is the client."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._off = world.random.uniform(-7200, 7200)
        self._scheduler = self._start()
        self._may_stand = True

    def _start(self) -> Scheduler:
        client: Any = self
        return Scheduler(client, self._world.schedules, elapsed=self._elapsed)

    def _elapsed(self) -> float:
        return self._world.now + self._off

    def turn(self) -> float:
        """What a scheduler does when it wakes; how long it sleeps then."""
        world, faults = self._world, self._world.faults
        world.counts["turns"] += 1
        if world.random.random() < faults.get("jumps", 0.0):
            world.counts["jumps"] += 1
            self._off += world.random.choice([-3600, 3600, *(world.random.uniform(-600, 600) for _ in range(4))])
        before = self._off
        try:
            sleep = self._scheduler.round().sleep
        except Killed:
            self._scheduler = self._start()
            return world.random.uniform(0, faults["down"])
        except TimedOut:
            return world.random.uniform(2.0, 600.0 if world.away_until > world.now + 600 else 2.0)
        # The clock by which it sleeps may be set meanwhile.
        if world.random.random() < faults.get("jumps", 0.0):
            self._off += world.random.choice([-3600.0, 3600.0])
        return max(0.0, sleep - (self._off - before))

    # -- the client ------------------------------------------------------------------------------------------

    def clock(self) -> float:
        with self._message(stand="stand"):
            return json.loads(self._list({"now": True, "keys": []}))["now"] / 1e6

    def find(self, keys: list[str]) -> tuple[dict[str, str], dict[str, str]]:
        with self._message(stand="stand"):
            document = json.loads(self._list({"keys": keys}))
        return document["uuids"], {row["uuid"]: row["state"] for row in document["requests"]}

    def submit(self, service: str, *body: bytes, **options: Any) -> str:
        with self._message(stand="stand_in_submit"):
            now_us = int(self._world.clock * 1e6)
            frames = [one.encode() if isinstance(one, str) else one for one in body]
            requests, forget = parse_submit([json.dumps(options).encode(), service.encode(), *frames], now_us)
            with self._world.store.write() as transaction:
                transaction.forget(forget)
                ((uuid, new),) = transaction.accept(requests, now_us)
            if new:
                self._world.requests[options["key"]][uuid.hex()] = self._world.clock
        return uuid.hex()

    def close(self, uuid: str) -> None:
        with self._message(stand="stand"), self._world.store.write() as transaction:
            transaction.close(bytes.fromhex(uuid), int(self._world.clock * 1e6))

    def register_schedules(self, reports: list[ScheduleReport]) -> None:
        message = json.dumps({"do": "schedules", "rows": reports}).encode()
        with self._message(stand="stand"), self._world.store.write() as transaction:
            rows = read(SchedulesAction, message).rows
            register(transaction, rows, "", None, int(self._world.clock * 1e6))

    def _list(self, options: dict[str, Any]) -> bytes:
        with self._world.store.read() as transaction:
            now_us = int(self._world.clock * 1e6)
            return list_requests.answer(transaction, [json.dumps(options).encode()], None, now_us=now_us)[1]

    def _message(self, stand: str) -> Message:
        return Message(self._world, stand)


class Message:
    """A question and its answer, each of which may be lost."""

    nested = 0

    def __init__(self, world: World, stand: str) -> None:
        self._world = world
        self._stand = stand

    def __enter__(self) -> None:
        self._fault("question")
        world, longest = self._world, self._world.faults.get(self._stand, 0.0)
        if longest and not Message.nested and world.random.random() < world.faults["stands"]:
            world.counts["stood still"] += 1
            Message.nested += 1
            world.run(world.now + world.random.uniform(0, longest))
            Message.nested -= 1

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self._fault("answer")

    def _fault(self, what: str) -> None:
        world, random = self._world, self._world.random
        if world.now < world.away_until:
            raise TimedOut("away")
        if random.random() < world.faults.get("kills", 0.0):
            world.counts[f"killed at a {what}"] += 1
            raise Killed
        if random.random() < world.faults.get("lost", 0.0):
            world.counts[f"lost {what}"] += 1
            raise TimedOut(f"lost {what}")
        if random.random() < world.faults.get("outages", 0.0):
            world.counts["queue away"] += 1
            world.away_until = world.now + random.uniform(0, world.faults["away"])
            raise TimedOut("away")


def expected(schedule: Schedule, begin: float, end: float) -> Iterator[str]:
    """The keys of all ticks of a time."""
    tick = schedule.ticks.after(begin)
    while tick <= end:
        yield schedule.key(tick)
        tick = schedule.ticks.after(tick)
