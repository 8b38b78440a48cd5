"""Waiting, administration and retention: real store, real broker, real sockets."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from support.raw_mdp import RawClient, raw_client, raw_worker
from support.serving import QUICK, config, serving
from support.waiting import until

from broker import RemoteError, Worker
from titanic import Client, InvalidRequest, RequestFailed, Server, UnknownRequest
from titanic.protocol.messages import read_admin
from titanic.store import Retention

UNKNOWN = b"0123456789abcdef0123456789abcdef"


pytestmark = pytest.mark.settings(max_attempts=3)


# -- waiting --------------------------------------------------------------------------------------------------


def test_waiting(server: Server, client: Client, raw: RawClient) -> None:
    uuid, closed = client.submit("echo", "x"), client.submit("absent", "y")
    assert raw.ask(b"titanic.wait", b"0", uuid.encode()) == [b"300"]
    assert raw.ask(b"titanic.wait", b"0.01", uuid.encode()) == [b"300"]
    assert raw.ask(b"titanic.wait", b"60", UNKNOWN)[0].startswith(b"400 unknown")
    for _ in range(1000):
        raw.send(b"titanic.wait", b"60", uuid.encode())
    with raw_client(server.endpoints[0]) as vanishing, raw_client(server.endpoints[0]) as other:
        vanishing.send(b"titanic.wait", b"60", uuid.encode())
        other.send(b"titanic.wait", b"60", closed.encode())
        until(lambda: client.stats()["waiting_clients"] == 1002)
        vanishing.socket.close(0)
        client.close(closed)
        assert other.receive()[0].startswith(b"400 unknown")
    with Worker("echo", lambda frames: b"here", server.endpoints[0], config=QUICK):
        assert [raw.receive() for _ in range(1000)] == [[b"200", b"here"]] * 1000
    assert raw.ask(b"titanic.wait", b"60", uuid.encode()) == [b"200", b"here"]
    assert client.stats()["waiting_clients"] == 0


def test_who_still_waits_at_the_end_gets_an_answer(tmp_path: Path) -> None:
    server = Server(config(tmp_path)).start()
    with raw_client(server.endpoints[0]) as raw, Client(server.endpoints[0]) as client:
        uuid = raw.submit(b"absent", b"x")
        for _ in range(3):
            raw.send(b"titanic.wait", b"60", uuid)
        until(lambda: client.stats()["waiting_clients"] == 3)
        server.stop()
        assert [raw.receive() for _ in range(3)] == [[b"300"]] * 3


def test_a_wait_outlasts_a_restart(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/titanic.ipc"
    server = Server(config(tmp_path, bind=(endpoint,))).start()
    replies: list[object] = []
    with Client(endpoint) as client:
        uuid = client.submit("echo", "x")

        def wait() -> None:
            with Client(endpoint, timeout=0.2, retries=0) as other:
                replies.append(other.wait(uuid, 60))

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: client.stats()["waiting_clients"] == 1)
        server.stop()
        with serving(tmp_path, bind=(endpoint,)), Worker("echo", lambda frames: frames, endpoint, config=QUICK):
            thread.join(60)
    assert replies == [[b"x"]]


# -- administration -------------------------------------------------------------------------------------------


def admin(raw: RawClient, **options: Any) -> dict[str, Any]:
    status, text = raw.ask(b"titanic.admin", json.dumps(options).encode())
    assert status == b"200"
    document: dict[str, Any] = json.loads(text)
    return document


def test_retry_and_purge(server: Server, client: Client, raw: RawClient) -> None:
    works = threading.Event()

    def work(frames: list[bytes]) -> list[bytes]:
        if not works.is_set():
            raise RemoteError(500, "not today", [b"line 7"])
        return frames

    with Worker("echo", work, server.endpoints[0], jobs=4, config=QUICK):
        uuids = client.submit_batch("echo", [b"%d" % n for n in range(20)], max_attempts=1)
        outcomes = dict(client.replies(uuids, 30))
        failure = outcomes[uuids[0]]
        assert isinstance(failure, RequestFailed)
        assert failure.detail == [b"line 7"]
        assert admin(raw, do="purge", state="failed", service="other") == {"done": 0, "next": None}
        assert admin(raw, do="purge", uuids=uuids[15:]) == {"done": 5, "next": None}
        works.set()
        assert client.retry(uuids[0], uuids[19]) == 1
        assert client.retry_all(service="echo") == 14
        assert len([r for _, r in client.replies(uuids[:15], 30) if isinstance(r, list)]) == 15
    assert client.purge("done", older_than=1000) == 0
    assert client.purge("done", service="echo") == 15
    assert client.stats()["store"]["requests"] == 0


def test_many_are_purged_in_pages(server: Server, client: Client, raw: RawClient) -> None:
    uuids = client.submit_batch("absent", [b"x"] * 2500)
    first = admin(raw, do="purge", state="waiting")
    assert first == {"done": 1000, "next": uuids[999]}
    assert client.purge("waiting") == 1500


def test_a_purge_leaves_to_a_worker_what_it_has(server: Server, client: Client) -> None:
    running, waiting = client.submit_batch("echo", ["x", "y"])
    with raw_worker(server.endpoints[0], b"echo") as worker:
        token, _ = worker.take()
        assert client.purge("waiting") == 1
        worker.final(token, b"X")
        assert client.wait(running, 30) == [b"X"]
    with pytest.raises(UnknownRequest):
        client.reply(waiting)


# -- retention ------------------------------------------------------------------------------------------------


def test_what_nobody_closes_goes_in_time(tmp_path: Path) -> None:
    brief = Retention(reply_retention=1000, dead_retention=1000, closed_retention=1000)
    with serving(tmp_path, retention=brief, max_attempts=1) as server, Client(server.endpoints[0]) as client:

        def work(frames: list[bytes]) -> bytes:
            if frames[0] == b"fail":
                raise RemoteError(500, "no")
            return b""

        with Worker("echo", work, server.endpoints[0], jobs=2, config=QUICK):
            client.submit_batch("echo", [b"x"] * 500 + [b"fail"] * 500)
            until(lambda: client.stats()["dispatch"]["succeeded"] == 500)
            until(lambda: client.stats()["store"]["requests"] == 0)
            until(lambda: client.stats()["store"]["closed"] == 0)
            client.close(client.submit("absent", "x"))
            until(lambda: client.stats()["store"]["closed"] == 0)


def test_an_archive_registers_and_acknowledges(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Client(server.endpoints[0]) as client:
        there = {
            "registered": False,
            "archived_upto": 0,
            "first": 1,
            "last": 0,
            "lost": 0,
            "archive": None,
            "name": None,
        }
        found = client.archive()
        store = found.pop("store")
        assert found == there
        uuids = [client.submit("absent", b"x", key=f"key {n}") for n in range(3)]
        client.close(*uuids[:2])
        assert client.archive(register=True)["registered"]
        with pytest.raises(InvalidRequest, match="another request has that number"):
            client.archive(upto=1, uuid=uuids[1])
        with pytest.raises(InvalidRequest, match="the last is 2"):
            client.archive(upto=3, uuid=uuids[2])
        assert client.archive(upto=2, uuid=uuids[1])["archived_upto"] == 2
        with pytest.raises(InvalidRequest, match=r"this server has another store; its id is .*, not 0{32}"):
            client.archive(register=False, store=32 * "0")
        assert client.archive(store=store)["registered"]
        assert not client.archive(register=False, store=store)["registered"]


def test_one_archive_is_registered(tmp_path: Path) -> None:
    one, other = 32 * "1", 32 * "2"
    with serving(tmp_path) as server, Client(server.endpoints[0]) as client:
        uuid = client.submit("absent", b"x")
        client.close(uuid)
        assert client.archive(register=True)["archive"] is None
        found = client.archive(register=True, archive=one, name="/archive on atlas")  # anybody's once
        assert (found["archive"], found["name"]) == (one, "/archive on atlas")
        for said in ({"register": True}, {"upto": 1, "uuid": uuid}):
            for who in ({"archive": other}, {}):
                with pytest.raises(
                    InvalidRequest, match=r"another archive is registered; /archive on atlas \(id 1{32}\)"
                ):
                    client.archive(**said, **who)  # type: ignore[arg-type]
        assert client.archive(upto=1, uuid=uuid, archive=one)["archived_upto"] == 1
        client.archive(register=False)
        assert client.archive(register=True, archive=one)["archived_upto"] == 1
        client.archive(register=False)
        found = client.archive(register=True, archive=other)
        assert (found["archive"], found["archived_upto"]) == (other, 0), "it has nothing yet"
        for wrong in ({"archive": "x"}, {"archive": one, "name": 3}, {"store": "x"}):
            with pytest.raises(InvalidRequest, match="must be"):
                client.archive(**wrong)  # type: ignore[arg-type]


def test_what_an_archive_finds(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Client(server.endpoints[0]) as client:
        uuids = [client.submit("absent", b"x", key=f"key {n}") for n in range(3)]
        client.close(*uuids[:2])
        found = client.find(["key 0", "key 2", "no such key"])
        assert found == ({"key 0": uuids[0], "key 2": uuids[2]}, {uuids[2]: "waiting"})


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"register": 1}, "register must be true or false"),
        ({"upto": -1}, "upto must be a number, 0 or more"),
        ({"upto": 1}, "uuid must be the UUID of the request with the number upto"),
        ({"uptp": 1}, "unknown option 'uptp'"),
    ],
)
def test_what_an_archive_may_not_say(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read_admin(json.dumps({"do": "archive", **options}).encode())


# -- an archive that is behind --------------------------------------------------------------------------------


def test_what_an_archive_does_not_have_yet_is_not_looked_at_again_and_again(tmp_path: Path) -> None:
    brief = Retention(reply_retention=0, dead_retention=0, closed_retention=1000)
    with serving(tmp_path, retention=brief) as server, Client(server.endpoints[0]) as client:
        with server.store.write() as transaction:
            transaction.update_archive(register=True)
        client.close(client.submit("absent", "x"))
        turns: list[None] = []
        keep = server.writer.enqueue

        def put(write: Any) -> None:
            turns.append(None)
            keep(write)

        server.writer.enqueue = put  # type: ignore[method-assign]
        with raw_client(server.endpoints[0]) as raw:
            assert raw.ask(b"titanic.wait", b"0.5", client.submit("absent", "y").encode()) == [b"300"]
        assert len(turns) < 10
