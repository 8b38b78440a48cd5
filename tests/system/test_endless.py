"""A small store under endless use keeps to its capacity and refuses nothing; when nobody closes, it refuses in order.

Some turns of a store of 16 MiB; ten minutes with one of 64 MiB in the long run.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from support.processes import Process
from support.torture import LONG, SEED
from support.waiting import until

from broker import Worker
from titanic import Client, Refused
from titanic.store import MIN_CAPACITY, open_store
from titanic.store.lmdb.tools import check

CAPACITY = 64 << 20 if LONG else MIN_CAPACITY
SECONDS = 600 if LONG else 0
TURNS = 50 if LONG else 2
CLIENTS = 4
SIZES = (0, 10, 1000, 30_000, 100_000)

pytestmark = pytest.mark.torture(short=True)


class Life:
    """A client that submits, fetches what is there, and closes in any order, until it has had enough."""

    def __init__(self, endpoint: str, number: int, until: float) -> None:
        self.bytes = 0
        self.closed = 0
        self.error: BaseException | None = None
        self._dice = random.Random(f"{SEED} {number}")
        self._endpoint = endpoint
        self._until = until
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with Client(self._endpoint, timeout=30) as client:
                while time.monotonic() < self._until or self.bytes < TURNS * CAPACITY // CLIENTS:
                    self._round(client)
        except BaseException as error:
            self.error = error

    def _round(self, client: Client) -> None:
        """Twenty requests; some are closed before anybody has seen them, some unread, all in any order."""
        bodies = [self._dice.randbytes(self._dice.choice(SIZES)) for _ in range(20)]
        uuids = client.submit_many("mirror", bodies)
        cancelled = self._dice.sample(uuids, 4)
        client.close_many(cancelled)
        wanted = {uuid: body for uuid, body in zip(uuids, bodies, strict=True) if uuid not in cancelled}
        for uuid, reply in client.replies(wanted, 60):
            assert reply == [wanted[uuid][::-1]]
        rest = [*wanted]
        self._dice.shuffle(rest)
        client.close_many(rest)
        self.bytes += 2 * sum(map(len, bodies))
        self.closed += len(uuids)


def serve(path: Path) -> tuple[Process, str]:
    endpoint = f"ipc://{path}/titanic.ipc"
    arguments = "-m", "titanic", "serve", "--bind", endpoint, "--store", path / "store", "--capacity", str(CAPACITY)
    return Process(*arguments, output=path / "serve.out"), endpoint


def file_size(path: Path) -> int:
    return (path / "store" / "data.mdb").stat().st_size


def test_it_is_used_for_ever(tmp_path: Path) -> None:
    process, endpoint = serve(tmp_path)
    with process, Worker("mirror", lambda frames: frames[0][::-1], endpoint, jobs=8), Client(endpoint) as client:
        until = time.monotonic() + SECONDS
        lives = [Life(endpoint, number, until) for number in range(CLIENTS)]
        for life in lives:
            life.join()
        stats = client.stats()
        closed = sum(life.closed for life in lives)
        assert stats["since_start"]["accepted"] == closed
        assert stats["since_start"]["refused"] == 0
        assert file_size(tmp_path) <= CAPACITY
        print(
            f"{sum(life.bytes for life in lives) / CAPACITY:.0f} turns, {closed} requests, {file_size(tmp_path)} bytes"
        )
        assert process.terminate() == 0
    with open_store(tmp_path / "store") as store:
        assert check(store) == []


def test_nobody_closes(tmp_path: Path) -> None:
    process, endpoint = serve(tmp_path)
    body = bytes(50_000)
    with process, Client(endpoint) as client:
        uuids: list[str] = []
        with pytest.raises(Refused, match="store full"):
            uuids.extend(iter(lambda: client.submit("mirror", body), ""))
        assert len(uuids) * len(body) > CAPACITY // 2
        with Worker("mirror", lambda frames: frames[0][:100], endpoint, jobs=8):
            assert all(reply == [body[:100]] for _, reply in client.replies(uuids, 60))
        with pytest.raises(Refused, match="store full"):
            client.submit("mirror", body)
        assert client.reply(uuids[0]) == [body[:100]]
        client.close_many(uuids[: len(uuids) // 2])

        def accepted() -> str | None:
            try:
                return client.submit("mirror", body)
            except Refused:
                return None

        again = until(accepted)
        assert client.reply(again) is None
        assert client.reply(uuids[-1]) == [body[:100]], "the others are as they were"
        assert file_size(tmp_path) <= CAPACITY
        assert process.terminate() == 0
    with open_store(tmp_path / "store") as store:
        assert check(store) == []
