"""Who is at work when somebody is killed: what is promised then, and what is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.processes import SUPPORT, Process
from support.raw_mdp import RawWorker, raw_worker
from support.waiting import until

from titanic import Client, UnknownRequest

NODE = SUPPORT / "server_process.py"
WAYS = pytest.mark.parametrize("integrated", [True, False], ids=["integrated", "stand-alone"])


class Place:
    """Where a server and, when that is apart, a broker run."""

    def __init__(self, path: Path, integrated: bool) -> None:
        self.path = path
        self.integrated = integrated
        self.endpoint = f"ipc://{path}/titanic.ipc"
        self.client = Client(self.endpoint, timeout=0.5, retries=60)

    def server(self) -> Process:
        mode = "serve" if self.integrated else "attach"
        return Process(NODE, mode, self.endpoint, self.path / "store", output=self.path / "server.out")

    def running(self) -> int:
        return int(self.client.stats()["running"])


@contextmanager
def place(path: Path, integrated: bool) -> Iterator[Place]:
    here = Place(path, integrated)
    broker = None if integrated else Process(NODE, "broker", here.endpoint, output=path / "broker.out")
    try:
        yield here
    finally:
        here.client.disconnect()
        if broker is not None:
            broker.kill()


def take(worker: RawWorker) -> bytes:
    token, body = worker.take()
    assert body == [b"x"]
    return token


@WAYS
def test_while_all_live_nobody_else_gets_what_a_worker_is_at(tmp_path: Path, integrated: bool) -> None:
    with place(tmp_path, integrated) as here, here.server(), raw_worker(here.endpoint, b"work") as first:
        uuid = here.client.submit("work", "x")
        token = take(first)
        with raw_worker(here.endpoint, b"work") as second:
            other = here.client.submit("work", "other")
            assert second.take()[1] == [b"other"]
            assert here.running() == 2
            here.client.close(other)
            first.final(token, b"X")
            assert here.client.wait(uuid, 30) == [b"X"]
            assert not second.has_request()


@WAYS
def test_a_server_that_was_killed_has_forgotten_who_is_at_work(tmp_path: Path, integrated: bool) -> None:
    """The request is handed out again. The first reply to this counts, a late one from before changes nothing."""
    with place(tmp_path, integrated) as here, raw_worker(here.endpoint, b"work") as first:
        with here.server() as server:
            uuid = here.client.submit("work", "x")
            before = take(first)
            server.kill()
        with here.server(), raw_worker(here.endpoint, b"work") as second:
            again = take(second)
            first.final(before, b"from before")
            second.final(again, b"again")
            assert here.client.wait(uuid, 30) == [b"again"]
            assert here.client.reply(uuid) == [b"again"]
            until(lambda: here.running() == 0)
            here.client.close(uuid)


@WAYS
def test_what_was_closed_before_the_server_was_killed_is_not_handed_out_again(tmp_path: Path, integrated: bool) -> None:
    with place(tmp_path, integrated) as here, raw_worker(here.endpoint, b"work") as first:
        with here.server() as server:
            uuid = here.client.submit("work", "x")
            take(first)
            here.client.close(uuid)
            server.kill()
        with here.server(), raw_worker(here.endpoint, b"work") as second:
            here.client.submit("work", "next")
            assert second.take()[1] == [b"next"]
            with pytest.raises(UnknownRequest):
                here.client.reply(uuid)


@WAYS
def test_who_waits_for_a_reply_gets_it_though_the_server_is_killed(
    tmp_path: Path, integrated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("titanic.client.core.WAIT_MOST", 0.5)  # how late it may notice
    with place(tmp_path, integrated) as here:
        with here.server() as server:
            uuid = here.client.submit("work", "x")
            replies: list[list[bytes]] = []

            def wait() -> None:
                with Client(here.endpoint, timeout=0.5, retries=60) as client:
                    replies.append(client.wait(uuid, 60))

            waiting = threading.Thread(target=wait)
            waiting.start()
            until(lambda: here.client.stats()["waiting_clients"] == 1)
            server.kill()
        with here.server(), raw_worker(here.endpoint, b"work") as worker:
            worker.final(take(worker), b"X")
            waiting.join(60)
            assert replies == [[b"X"]]
