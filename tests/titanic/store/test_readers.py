"""Readers that are killed while they read pin no pages and take no places for long."""

import subprocess
import sys

import pytest
from support.cli_titanic import titanic
from support.processes import SUPPORT
from support.serving import serving
from support.torture import tally
from support.waiting import until

from titanic import Client
from titanic.dispatch import maintenance
from titanic.store.lmdb.store import LmdbStore

CAPACITY = 16 << 20
PLACES = 126
ROUNDS, EACH = 8, 25


class Readers:
    """Processes that read the store and are killed."""

    def __init__(self, process):
        self._process = process

    def die(self):
        """EACH of them."""
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "killed\n"
        tally["readers killed"] += EACH


@pytest.fixture
def readers(tmp_path):
    script = [sys.executable, SUPPORT / "killed_readers.py", tmp_path / "store", str(ROUNDS), str(EACH)]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Readers(process)
        process.kill()


def places(store):
    """How many readers the store's table has, dead ones too."""
    return len(store.environment.env.readers().splitlines()) - 1


@pytest.mark.torture(short=True)
def test_a_server_forgets_readers_that_were_killed(tmp_path, readers, monkeypatch):
    monkeypatch.setattr(maintenance, "READERS_EVERY", 0.05)
    with (
        serving(tmp_path, capacity=CAPACITY, closed_body_limit=0) as server,
        Client(server.endpoints[0], timeout=30) as client,
    ):
        for _ in range(ROUNDS):
            readers.die()
            until(lambda: places(server.store) < EACH)
            # a third of the capacity in each round: it would not fit if the killed ones pinned what they saw
            uuids = client.submit_many("absent", [bytes(50_000)] * 100)
            client.close_many(uuids)
            assert (tmp_path / "store" / "data.mdb").stat().st_size <= CAPACITY
        assert client.stats()["since_start"]["refused"] == 0
        assert titanic("check", "--store", tmp_path / "store").code == 0


def test_whoever_finds_no_place_takes_those_of_the_killed(tmp_path, readers):
    """Nobody has looked for a while."""
    with LmdbStore.open(tmp_path / "store") as store:
        while places(store) < PLACES - 1:
            readers.die()
        with store.read() as one, store.read() as another:
            assert one.counts() == another.counts()
        assert places(store) < EACH
    with LmdbStore.open(tmp_path / "store") as store:
        for _ in range(3):
            readers.die()
        titanic("check", "--store", store.path)
        assert places(store) < EACH
