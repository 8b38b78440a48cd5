"""How handlers say how a request has ended, through sockets to the disk, on both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.node_settings import node_config
from support.postgres import needs_postgres, shared_server
from support.serving import QUICK, config
from support.waiting import until

from broker import Worker
from titanic import Client, Failed, RequestFailed, Retry, Server, current


@pytest.fixture(params=["lmdb", pytest.param("postgres", marks=needs_postgres)])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    if request.param == "lmdb":
        with Server(config(tmp_path)) as server, Client(server.endpoints[0], timeout=30) as client:
            yield client
        return
    database = shared_server().new_store()
    settings = node_config(shared_server().url(database), 1000.0)
    with Server(settings) as server, Client(server.endpoints[0], timeout=30) as client:
        yield client
    shared_server().drop_database(database)


def work(client: Client, handler: Callable[[list[bytes]], Any]) -> Worker:
    return Worker("echo", handler, client.endpoint, config=QUICK)


def test_failed_for_good_at_the_first_attempt(client: Client) -> None:
    def fail(frames: list[bytes]) -> None:
        raise Failed("no such user", b"line 1", "line 2")

    with work(client, fail):
        uuid = client.submit("echo", "x")
        with pytest.raises(RequestFailed, match="no such user") as caught:
            client.wait(uuid, 30)
    assert caught.value.detail == [b"line 1", b"line 2"]
    assert client.show(uuid)["attempts"] == 1


def test_tried_again_when_the_handler_says_so(client: Client) -> None:
    """What did not count is not among the attempts, and a key is known in each."""
    seen = []

    def work_later(frames: list[bytes]) -> str:
        here = current()
        seen.append((here.attempt, here.key))
        if len(seen) == 1:
            raise Retry("not yet", after=0.02, count=False)
        if len(seen) == 2:
            raise Retry("busy", after=0.02)
        return "done"

    with work(client, work_later):
        uuid = client.submit("echo", "x", key="a key", retry_first=100, max_attempts=2)
        assert client.wait(uuid, 30) == [b"done"]
    assert seen == [(1, "a key"), (1, "a key"), (2, "a key")]
    assert client.show(uuid)["attempts"] == 2


def test_a_retry_is_due_when_it_was_asked_for(client: Client) -> None:
    def work_later(frames: list[bytes]) -> str:
        raise Retry("they are closed", after=5000)

    with work(client, work_later):
        uuid = client.submit("echo", "x")
        until(lambda: client.show(uuid)["state"] == "delayed")
    row = client.show(uuid)
    assert 4_990e6 < row["due"] - row["dispatched_at"] < 5_010e6
    assert (row["attempts"], row["reason"]) == (1, "they are closed")


def test_a_traceback_is_kept_with_the_failure_and_with_each_attempt(client: Client) -> None:
    def stumble(frames: list[bytes]) -> None:
        [][len(frames)]

    with work(client, stumble):
        failed = client.submit("echo", "x", max_attempts=1)
        with pytest.raises(RequestFailed, match="IndexError: list index out of range") as caught:
            client.wait(failed, 30)
        delayed = client.submit("echo", "x", retry_first=1000)
        until(lambda: client.show(delayed)["state"] == "delayed")
        with pytest.raises(Exception, match="IndexError") as direct:
            client.call("echo", "x")
    (said,) = caught.value.detail
    first, second, *rest = said.decode().splitlines()
    assert first == "Traceback (most recent call last):"
    assert f'{__file__}", line' in second
    assert second.endswith("in stumble")
    assert rest[-1] == "IndexError: list index out of range"
    assert client.show(delayed)["reason"] == f"IndexError: list index out of range\n{said.decode()}"
    assert not getattr(direct.value, "detail", [])


def test_of_a_long_traceback_the_end_is_kept(client: Client) -> None:
    def dive(frames: list[bytes]) -> None:
        ahead(300)

    def ahead(steps: int) -> None:
        if steps % 2:
            ahead(steps - 1)
        elif steps:
            (lambda: ahead(steps - 1))()
        else:
            raise ValueError("the bottom")

    with work(client, dive):
        uuid = client.submit("echo", "x", max_attempts=1)
        with pytest.raises(RequestFailed) as caught:
            client.wait(uuid, 30)
    (said,) = caught.value.detail
    assert 3000 < len(said) <= 4096
    assert said.startswith(b"Traceback (most recent call last):\n  ...\n")
    assert said.endswith(b"ValueError: the bottom\n")
