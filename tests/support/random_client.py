"""A client that does what comes into its mind, in a thread, and notes all of it (lives.py)."""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import zmq
from support.lives import LONG, PURGED, Life, Seen, World, looked
from support.random_worker import KINDS, SERVICES

from titanic import Client, InvalidRequest, Refused, RequestFailed, TimedOut, UnknownRequest

TIMEOUT = 0.5
FOR_EVER = 1000.0
"""Seconds that are not over when all is compared: a delay, a pause."""

BEAR = ("store full", "shutting down", "stopping")
"""Refusals that may be: of new requests, and while a server stops."""

ABSENT = "absent"
"""A service that nobody serves."""

HOARD = 400_000
"""Bytes of requests that are to fill a store."""

GARBAGE: list[list[bytes]] = [
    [],
    [b""],
    [b"", b""],
    [b"MDPC02"],
    [b"MDPC02", b"\x01"],
    [b"MDPC02", b"\x09", b"a", b"x"],
    [b"", b"MDPC01"],
    [b"MDPW02", b"\x02", b"who", b"", b"x"],
    [b"MDPW02", b"\x03", b"who", b"", b"x"],
    [b"", b"MDPW01", b"\x03", b"", b"", b""],
    [b"MDPC02", b"\x01", b"titanic.request"],
    [b"MDPC02", b"\x01", b"titanic.submit", b'{"many": 1, "keys": [', b"a", b"x"],
    [b"MDPC02", b"\x01", b"titanic.submit", b'{"ttl": -1}', b"a", b"x"],
    [b"MDPC02", b"\x01", b"titanic.reply", b"../../etc/passwd"],
    [b"MDPC02", b"\x01", b"titanic.close", b"\xff" * 32],
    [b"MDPC02", b"\x01", b"titanic.wait", b"nan", b"0" * 32],
    [b"MDPC02", b"\x01", b"titanic.admin", b"[" * 10_000],
    [b"MDPC02", b"\x01", b"titanic.list", b'{"limit": 1e400}'],
]


class RandomClient(threading.Thread):
    """One of several clients of one world."""

    def __init__(
        self, name: str, endpoint: str, world: World, seed: int, over: threading.Event, *, hoards: bool
    ) -> None:
        super().__init__(name=name)
        self.world = world
        self.count: Counter[str] = Counter()
        """What was done, and how it was answered."""
        self._endpoint = endpoint
        self._dice = random.Random(f"{seed}.{name}")
        self._over = over
        self._hoards_at = self._dice.randrange(20, 60) if hoards else 0
        self._own: list[Life] = []
        self._unsure: list[Life] = []
        self._hoarded: list[Life] = []
        self._numbers = 0

    def run(self) -> None:
        doings: list[tuple[int, Callable[[], None]]] = [
            (30, self._submit),
            (6, self._submit_batch),
            (5, self._submit_shared),
            (4, self._submit_again),
            (20, self._look),
            (8, self._wait),
            (4, self._look_at_many),
            (7, self._close),
            (1, self._close_many),
            (4, self._retry),
            (1, self._retry_all),
            (1, self._purge),
            (2, self._list),
            (1, self._hoard),
            (2, self._garbage),
        ]
        weights, acts = [weight for weight, _ in doings], [act for _, act in doings]
        with Client(self._endpoint, timeout=TIMEOUT, retries=0) as self._client:
            while not self._over.is_set():
                self.count["operations"] += 1
                hoarding = self._hoards_at and self.count["operations"] == self._hoards_at
                act = self._hoard if hoarding or self._is_bored() else self._dice.choices(acts, weights)[0]
                began = time.monotonic()
                try:
                    act()
                except TimedOut:
                    self.count["without an answer"] += 1
                except Refused as error:
                    self.count["refused"] += 1
                    bear = (*BEAR, "the store is full") if looked(self.world, began) else BEAR
                    if not any(word in str(error) for word in bear):
                        self.world.faults.append(f"P6: {act.__name__} was refused: {error}")
                except Exception as error:
                    self.world.faults.append(f"P6: {act.__name__} of {self.name}: {error!r}")
                    raise

    # -- submitting ----------------------------------------------------------------------------------------------

    def _options(self, kind: str) -> dict[str, Any]:
        dice = self._dice
        options: dict[str, Any] = {}
        if dice.random() < 0.1:
            options["ttl"] = dice.uniform(0.05, 1.5)
        if dice.random() < 0.15:
            options["delay"] = dice.choice((0.05, 0.3, 1.0, FOR_EVER))
        if dice.random() < 0.1:
            options["limit"] = dice.uniform(0.05, 0.5)
        if dice.random() < 0.2:
            options["priority"] = dice.randrange(10)
        if dice.random() < 0.1:
            options |= {"retry_first": FOR_EVER, "retry_most": FOR_EVER}
        if kind in ("never", "mortal") or "limit" in options or dice.random() < 0.2:
            options["max_attempts"] = dice.randrange(1, 4)
        return options

    def _new(self, service: str, kind: str, options: dict[str, Any], size: int = 0) -> tuple[Life, list[bytes]]:
        """A request that is about to be submitted, and its frames."""
        self._numbers += 1
        padding = [self._dice.randbytes(size)] if size else []
        body = ":".join([f"{kind}.{self.name}.{self._numbers}", *(str(zlib.crc32(frame)) for frame in padding)])
        life = self.world.lives[body] = Life(body, service, options, time.monotonic())
        return life, [body.encode(), *padding]

    def _choose(self) -> tuple[str, str]:
        dice = self._dice
        service = ABSENT if dice.random() < 0.05 else dice.choice(SERVICES)
        return service, dice.choices(KINDS, (8, 6, 2, 2, 6, 2, 1))[0]

    def _submitted(self, lives: list[Life], ask: Callable[[], list[str]]) -> None:
        try:
            uuids = ask()
        except TimedOut:
            for life in lives:
                life.doubtful = True
            self._unsure += [life for life in lives if life.key]
            raise
        except Refused as error:
            for life in lives:
                life.refusals.append(str(error))
            raise
        now = time.monotonic()
        for life, uuid in zip(lives, uuids, strict=True):
            life.uuids.append(uuid)
            life.accepted = life.accepted or now
        self._own += lives
        self.count["acknowledged"] += len(lives)

    def _submit(self) -> None:
        service, kind = self._choose()
        life, frames = self._new(service, kind, self._options(kind), self._dice.choice((0, 0, 0, 5, 5000, 50_000)))
        options = dict(life.options)
        if self._dice.random() < 0.5:
            life.key = options["key"] = life.body
        self._submitted([life], lambda: [self._client.submit(service, *frames, **options)])

    def _submit_batch(self) -> None:
        service, kind = self._choose()
        options = self._options(kind)
        count = self._dice.choice((1, 5, 20, 100))
        if count == 100:  # fast ones, of which some are sent ahead to the broker
            service, kind, options = "a", "plain", {}
        made = [self._new(service, kind, options) for _ in range(count)]
        lives, bodies = [life for life, _ in made], [frames[0] for _, frames in made]
        keys = None
        if self._dice.random() < 0.5:
            keys = [life.body for life in lives]
            for life in lives:
                life.key = life.body
        self._submitted(lives, lambda: self._client.submit_batch(service, bodies, keys=keys, **options))

    def _submit_shared(self) -> None:
        """What several clients submit, with one key."""
        body = f"plain.shared.{len(self.world.lives) // 200}"
        life = self.world.lives.setdefault(body, Life(body, "a", {}, time.monotonic(), key=body))
        self._submitted([life], lambda: [self._client.submit("a", body, key=body)])

    def _submit_again(self) -> None:
        """What has a key: it is the same request, closed or not."""
        keyed = self._unsure or [life for life in self._own[-50:] if life.key]
        if not keyed:
            return
        life = self._dice.choice(keyed)
        if ":" not in life.body:
            assert life.key
            options = {**life.options, "key": life.key}
            self._submitted([life], lambda: [self._client.submit(life.service, life.body, **options)])
        if life in self._unsure:
            self._unsure.remove(life)

    def _is_bored(self) -> bool:
        """Whether to give back what fills the store. Replies that find no room hold the places of their workers."""
        return bool(self._hoarded) and self._dice.random() < 0.05

    def _hoard(self) -> None:
        """Fill the store, or give back what filled it."""
        if self._hoarded:
            hoarded, self._hoarded = self._hoarded, []
            self._closing(hoarded, lambda: self._client.close_many([life.uuid for life in hoarded]))
            return
        # Until it is full: on a slow machine, who does not wait would only leave behind what nobody knows and closes.
        with Client(self._endpoint, timeout=TIMEOUT, retries=60) as patient:
            for _ in range(60):
                life, frames = self._new(ABSENT, "hoard", {}, HOARD)
                self._submitted([life], lambda frames=frames: [patient.submit(ABSENT, *frames)])  # type: ignore[misc]
                self._hoarded.append(life)

    # -- looking -------------------------------------------------------------------------------------------------

    def _pick(self) -> Life:
        """A request, more often a late one."""
        lives = self._own[-15:] if self._dice.random() < 0.7 else self._own
        return self._dice.choice(lives) if lives else self._new(ABSENT, "nobody", {})[0]

    def saw(self, life: Life, ask: Callable[[str], Any]) -> Seen | None:
        """What is said of a request; None when it has no UUID."""
        if not life.uuid:
            return None
        asked = time.monotonic()
        state, text, frames = "pending", "", None
        try:
            frames = ask(life.uuid)
        except UnknownRequest:
            state = "unknown"
        except RequestFailed as error:
            text = str(error)
            state = text.split(":")[0]
        if frames is not None:
            state = "done"
        seen = Seen(asked, time.monotonic(), state, text, tuple(frames or ()))
        life.seen.append(seen)
        self.count[f"seen {state}"] += 1
        return seen

    def _look(self) -> None:
        self.saw(self._pick(), self._client.reply)

    def _wait(self) -> None:
        """For a while. Whether nobody answered or there is no reply, the text tells."""
        patience = self._dice.choice((0.05, 0.3))
        self.saw(self._pick(), lambda uuid: self._client.wait(uuid, patience))

    def _look_at_many(self) -> None:
        self.saw_many([life for life in (self._pick() for _ in range(30)) if life.uuid], self._client, 0.3)

    def saw_many(self, some: list[Life], client: Client, patience: float) -> None:
        """The same of several, as they end. Raises TimedOut when some are pending still."""
        lives = {life.uuid: life for life in some}
        asked = time.monotonic()
        for uuid, ended in client.replies(lives, patience):
            frames = tuple(ended) if isinstance(ended, list) else ()
            text = str(ended) if isinstance(ended, RequestFailed) else ""
            state = "unknown" if isinstance(ended, UnknownRequest) else text.split(":")[0] or "done"
            lives[uuid].seen.append(Seen(asked, time.monotonic(), state, text, frames))

    def _list(self) -> None:
        life = self._pick()
        if life.uuid:
            asked = time.monotonic()
            try:
                state = self._client.show(life.uuid)["state"]
            except UnknownRequest:
                state = "unknown"
            if state in ("unknown", "waiting", "running", "delayed"):
                state = "unknown" if state == "unknown" else "pending"
                life.seen.append(Seen(asked, time.monotonic(), state))
        self._client.list(limit=20, service=self._dice.choice(SERVICES))
        self._client.stats()

    # -- ending --------------------------------------------------------------------------------------------------

    def _closing(self, lives: list[Life], ask: Callable[[], object]) -> None:
        def note(began: float, told: float) -> None:
            for life in lives:
                life.closes.append((began, told))
            self.count["closed"] += len(lives)

        self._noting(ask, note)

    def _close(self) -> None:
        life = self._pick()
        if life.uuid:
            self._closing([life], lambda: self._client.close(life.uuid))

    def _close_many(self) -> None:
        lives = [life for life in (self._pick() for _ in range(8)) if life.uuid]
        self._closing(lives, lambda: self._client.close_many([life.uuid for life in lives]))

    def _noting(self, ask: Callable[[], object], note: Callable[[float, float], None]) -> None:
        began = time.monotonic()
        told = float("inf")
        try:
            ask()
            told = time.monotonic()
        finally:
            note(began, told)

    def _retry(self) -> None:
        dead = [life for life in self._own[-300:] if life.seen and life.seen[-1].state in ("failed", "expired")]
        if dead:
            life = self._dice.choice(dead)
            self._noting(lambda: self._client.retry(life.uuid), lambda *times: life.retries.append(times))

    def _retry_all(self) -> None:
        self._noting(lambda: self._client.retry_all(service=PURGED), lambda *times: self.world.revivals.append(times))

    def _purge(self) -> None:
        state = self._dice.choice(("done", "failed", "expired", "waiting", "delayed"))
        self._noting(
            lambda: self._client.purge(state, service=PURGED),
            lambda began, told: self.world.purges.append((state, began, told)),
        )

    # -- harm ----------------------------------------------------------------------------------------------------

    def _garbage(self) -> None:
        """What makes no sense: it is dropped, or said to be wrong."""
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(self._endpoint)
        try:
            for _ in range(5):
                frames = self._dice.choice(GARBAGE) or [self._dice.randbytes(9)]
                socket.send_multipart(frames, zmq.DONTWAIT)
            socket.poll(20)
        finally:
            socket.close()
        try:
            self._client.submit("mmi.service", b"a")
        except InvalidRequest:
            self.count["errors in asking"] += 1
        else:
            self.world.faults.append("P6: a request for mmi.service was accepted")


assert FOR_EVER > LONG
