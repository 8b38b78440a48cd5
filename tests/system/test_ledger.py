"""The promises, whichever processes are killed meanwhile: random lives of random requests, beside a model of them.

Eight clients do what comes into their mind, workers do what they like with it, and server, broker and workers are
killed with SIGKILL at random moments and started again. Everybody writes down what was done and said, outside of all
that is tested; in the end it is compared with the promises of README (support/lives.py). TITANIC_SEED makes the lives,
the moments and the victims different, TITANIC_MINUTES the long run longer or shorter.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.cast import Cast
from support.journal import Journal
from support.lives import Life, Seen, World, summary, violations
from support.random_client import ABSENT, RandomClient
from support.store_facts import closed_in, closed_range
from support.torture import LONG, SEED, figures, tally
from support.waiting import until

from titanic import Client, Refused, TimedOut
from titanic.store import open_store

CLIENTS = 8
WORKERS = 3
LONG_EPISODE = 45.0
"""Seconds. Then all is compared, and a new one begins with a new store."""

MINUTES = float(os.environ.get("TITANIC_MINUTES", "30"))
WAYS = pytest.mark.parametrize("integrated", [True, False], ids=["integrated", "stand-alone"])
SETTLED = 90.0
"""Seconds after which everything has ended that can, on a busy machine."""


class Episode:
    """From an empty store to one that was emptied again."""

    def __init__(self, path: Path, stack: ExitStack, seed: int, *, integrated: bool) -> None:
        self.dice = random.Random(seed)
        self.count: Counter[str] = Counter()
        self.slowest = 0.0
        self.world = World(copies=not integrated)
        self.cast = Cast(path, stack, integrated=integrated, workers=WORKERS)
        self.over = threading.Event()
        stack.callback(self.over.set)
        self.clients = [
            RandomClient(f"c{number}", self.cast.endpoint, self.world, seed, self.over, hoards=number == 0)
            for number in range(CLIENTS)
        ]

    @property
    def operations(self) -> int:
        return sum(client.count["operations"] for client in self.clients)

    def live(self, seconds: float, kills: int) -> None:
        """Kill somebody again and again until the time is over, and so many times at least."""
        until = time.monotonic() + seconds
        with Client(self.cast.endpoint, timeout=1, retries=int(SETTLED)) as client:
            client.stats()
        for each in self.clients:
            each.start()
        roles = self.cast.roles
        victims = self.dice.sample(roles, len(roles))  # each at least once, then whoever comes up
        while time.monotonic() < until or self.count["kills"] < kills:
            self._for_a_while(self.dice.choice((5, 60, 300) if LONG else (5, 60)))
            self._strike(victims.pop() if victims else self.dice.choice(roles))
        self._for_a_while(100)
        self.over.set()
        for each in self.clients:
            each.join(SETTLED)
            assert not each.is_alive()
            self.count.update(each.count)

    def _for_a_while(self, operations: int) -> None:
        enough = self.operations + self.dice.randrange(operations)
        until(lambda: self.cast.mend() and self.operations >= enough, SETTLED)

    def _strike(self, role: str) -> None:
        """End one, or one and the broker or the server with it, look at the store, and start them again."""
        both = role in ("server", "broker") and self.dice.random() < 0.3
        roles = [one for one in ("server", "broker") if one in self.cast.roles] if both else [role]
        for one in roles:
            if self.dice.random() < 0.15:
                self.cast.terminate(one)
            else:
                self.cast.kill(one)
            self.count["kills"] += 1
        look = [time.monotonic(), float("inf")]
        self.world.looks.append(look)
        self.cast.check()
        look[1] = time.monotonic()
        self.dice.shuffle(roles)
        for one in roles:
            self.cast.start(one)
            if len(roles) > 1:
                self._for_a_while(3)
        if "server" in roles:
            began = time.monotonic()
            with Client(self.cast.endpoint, timeout=1, retries=int(SETTLED)) as client:
                client.stats()
            self.slowest = max(self.slowest, time.monotonic() - began)

    # -- what has become of it -----------------------------------------------------------------------------------

    def settle(self) -> None:
        """All that can end ends; what was said stays as it is; what is closed is gone, and there is room again."""
        known = [life for life in self.world.lives.values() if life.uuids]
        with Client(self.cast.endpoint, timeout=5, retries=18) as client:
            # With the store full, nothing ends. What fills it may have been stored for a client that did not wait.
            self._close(client, [life for life in known if life.service == ABSENT])
            client.purge("waiting", service=ABSENT)
            self._until_all_ended(client, [life for life in known if not life.endless])
            for life in self.dice.sample(known, min(100, len(known))):
                self._saw(client, life)
            until(lambda: self.cast.mend() and client.stats()["running"] == 0, SETTLED)
            for service in sorted({life.service for life in known}):
                keyed = [life for life in known if life.key and life.service == service]
                for at in range(0, len(keyed), 500):
                    part = keyed[at : at + 500]
                    again = client.submit_batch(
                        service, [life.body for life in part], keys=[life.body for life in part]
                    )
                    for life, uuid in zip(part, again, strict=True):
                        life.uuids.append(uuid)
            self._close(client, known)
            self.clients[0].saw_many(known, client, SETTLED)
            until(lambda: self._empty(client), SETTLED)
            # Room is free again, bit by bit (titanic/store/lmdb/capacity.py).
            filling = [until(lambda: self._accepted(client), SETTLED) for _ in range(15)]  # 6 MB of 12
            client.close_many(filling)

    @staticmethod
    def _accepted(client: Client) -> str:
        try:
            return client.submit(ABSENT, bytes(400_000))
        except Refused:
            return ""

    @staticmethod
    def _close(client: Client, lives: list[Life]) -> None:
        began = time.monotonic()
        client.close_many(life.uuid for life in lives)
        for life in lives:
            life.closes.append((began, time.monotonic()))

    def _until_all_ended(self, client: Client, lives: list[Life]) -> None:
        pending = {life.uuid: life for life in lives}
        ended: list[Life] = []

        def look() -> bool:
            self.cast.mend()
            for uuid in [*pending]:
                seen = self._saw(client, pending[uuid])
                if seen.state == "pending":
                    store = client.stats()["store"]
                    if store["used"] > 0.7 * store["capacity"]:  # of which a quarter is not for requests
                        if not ended:  # others have, whose replies fill it
                            continue
                        print("to make room, of", store, "these are closed:", [one.uuid for one in ended[-50:]])
                        self._close(client, ended[-50:])
                        del ended[-50:]
                    return False
                ended.append(pending.pop(uuid))
            return True

        until(look, SETTLED, every=0.05)

    def _saw(self, client: Client, life: Life) -> Seen:
        seen = self.clients[0].saw(life, client.reply)
        assert seen is not None
        return seen

    def _empty(self, client: Client) -> bool:
        """Whether nothing is left, after another try: there may be requests of which no client knows."""
        self.cast.mend()
        for state in ("waiting", "delayed", "done", "failed", "expired"):
            client.purge(state)
        return bool(client.stats()["store"]["requests"] == 0)

    def compare(self) -> None:
        """With all that was written down."""
        for role in [*self.cast.running]:
            self.cast.terminate(role)
        self.cast.check()
        assert self.cast.complaints() == []
        self._ring()
        journal = Journal(self.cast.journal)
        self.world.deaths, self.world.births = self.cast.deaths, self.cast.births
        found = violations(self.world, journal)
        if found:
            pytest.fail(summary(found), pytrace=False)
        executions = [*journal.all.values()]
        self.count["executions"] = len(executions)
        self.count["parts"] = sum(one.parts for one in executions)
        self.count["errors"] = sum(one.outcome == "failed" for one in executions)
        self.count["errors after a part"] = sum(
            one.outcome in ("failed", "dies") and one.parts > 0 for one in executions
        )
        self.count["suicides"] = len(journal.deaths)

    def _ring(self) -> None:
        """Each request that was closed is remembered once, as long as there was room."""
        with open_store(self.cast.store) as store, store.read() as transaction:
            first, last = closed_range(transaction)
            uuids = [closed.uuid.hex() for closed in closed_in(transaction, first - 1, last, 1 << 30)]
        assert len(uuids) == len({*uuids})
        if first == 1:
            assert {life.uuid for life in self.world.lives.values() if life.uuids} <= {*uuids}


def live_through_it(path: Path, seed: int, *, integrated: bool, seconds: float, kills: int) -> Episode:
    path.mkdir(exist_ok=True)
    with ExitStack() as stack:
        episode = Episode(path, stack, seed, integrated=integrated)
        episode.live(seconds, kills)
        episode.settle()
        episode.compare()
    count = episode.count
    for what in ("acknowledged", "executions", "parts", "errors", "errors after a part", "refused", "closed", "kills"):
        assert count[what], f"no {what}; {count}"
    tally["operations modelled"] += count["operations"]
    tally["acknowledged requests checked"] += count["acknowledged"]
    tally["processes killed"] += count["kills"] + count["suicides"]
    tally["executions compared"] += count["executions"]
    tally["parts of replies sent"] += count["parts"]
    tally["errors of workers"] += count["errors"]
    tally["submissions refused"] += count["refused"]
    return episode


@pytest.mark.timeout(600)
@WAYS
def test_promises_hold_whoever_is_killed(tmp_path: Path, integrated: bool) -> None:
    live_through_it(tmp_path, SEED, integrated=integrated, seconds=1, kills=6)


@pytest.mark.torture
@pytest.mark.timeout(MINUTES * 60 + 600)
@WAYS
def test_promises_hold_for_long(tmp_path: Path, integrated: bool) -> None:
    until = time.monotonic() + MINUTES * 30  # half of it each
    slowest = 0.0
    for seed in _seeds():
        episode = live_through_it(tmp_path / f"{seed}", seed, integrated=integrated, seconds=LONG_EPISODE, kills=10)
        slowest = max(slowest, episode.slowest)
        if time.monotonic() > until:
            break
    way = "integrated" if integrated else "stand-alone"
    figures.append(f"{way}: {slowest:.2f} s at most from the start of a server's process to its first answer")


def _seeds() -> Iterator[int]:
    seed = SEED * 1000
    while True:
        yield seed
        seed += 1


def submit_the_same(path: Path, clients: int, each: int, kills: int, seed: int) -> None:
    """Several clients submit the same with the same key; only then comes a worker."""
    dice = random.Random(seed)
    told: list[str] = []

    def submit() -> None:
        with Client(cast.endpoint, timeout=0.3, retries=0) as client:
            for _ in range(each):
                while True:
                    try:
                        told.append(client.submit("a", "plain.same", key="the same"))
                        break
                    except (TimedOut, Refused):
                        continue

    with ExitStack() as stack:
        cast = Cast(path, stack, integrated=True, workers=0)
        threads = [threading.Thread(target=submit, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for moment in sorted(dice.randrange(clients * each * 9 // 10) for _ in range(kills)):
            until(lambda moment=moment: len(told) >= moment, SETTLED)  # type: ignore[misc]
            cast.kill("server")
            cast.start("server")
        for thread in threads:
            thread.join(SETTLED)
        assert len(told) == clients * each
        assert len({*told}) == 1
        cast.add_worker("worker")  # a server that is killed while one is busy hands out the request again
        with Client(cast.endpoint, timeout=5, retries=12) as client:
            reply = client.wait(told[0], SETTLED)
            assert client.submit("a", "same", key="the same") == told[0]
            assert client.stats()["store"]["requests"] == 1
            assert client.reply(told[0]) == reply
        cast.terminate("server")
    assert [len(each) for each in Journal(cast.journal).executions.values()] == [1]
    tally["acknowledged requests checked"] += len(told)
    tally["processes killed"] += kills


def test_one_key_is_one_request_whoever_is_killed(tmp_path: Path) -> None:
    submit_the_same(tmp_path, 4, 50, 3, SEED)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(SEED, SEED + 5))
def test_one_key_a_thousand_times(tmp_path: Path, seed: int) -> None:
    submit_the_same(tmp_path, 8, 125, 7, seed)
