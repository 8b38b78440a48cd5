"""A server whose store is elsewhere: lives are whole, and the broker goes on while the network carries nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.raw_mdp import raw_client, raw_worker
from support.serving import QUICK, config
from support.store_remote import RemoteStore
from support.waiting import until

from broker import BrokerConfig, RemoteError, Worker
from titanic import Client, RequestFailed, Server

SHORT = 0.05
"""Seconds between heartbeats."""

HEARTBEAT = [b"MDPW02", b"\x05"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    def open_remote(path: Path, **settings: object) -> RemoteStore:
        return RemoteStore(path)

    monkeypatch.setattr("titanic.server.server.open_store", open_remote)
    wire = BrokerConfig(heartbeat_interval=SHORT, liveness=40)
    with Server(config(tmp_path, max_attempts=2, wire=wire)) as server:
        server.front.loop.call(note_loop, server.store)
        yield server
        assert server.alive


def note_loop(store: RemoteStore) -> None:
    store.loops.add(threading.get_ident())


def test_lives_are_whole(server: Server, client: Client) -> None:
    def work(frames: list[bytes]) -> list[bytes]:
        if frames == [b"bad"]:
            raise RemoteError(500, "no")
        return frames

    with Worker("echo", work, server.endpoints[0], config=QUICK):
        uuids = [client.submit("echo", f"{number}", delay=number % 2 * 0.01) for number in range(20)]
        bad = client.submit("echo", "bad")
        for number, uuid in enumerate(uuids):
            assert client.wait(uuid, 30) == [b"%d" % number]
        with pytest.raises(RequestFailed):
            client.wait(bad, 30)
        client.close(*uuids, bad)
    absent = client.submit("nobody", "x")
    late = client.submit("nobody", "x", ttl=0.01)
    with pytest.raises(RequestFailed):
        client.wait(late, 30)
    client.close(absent, late)
    until(lambda: not server.dispatcher.core.backlogs)
    assert client.stats()["store"]["requests"] == 0
    assert server.store.claimed == set()


def test_the_broker_goes_on_while_the_network_is_silent(server: Server, client: Client) -> None:
    """It answers others, and sends and hears heartbeats: nobody is taken for dead. (P7)"""
    waiting = client.submit("later", "stored")
    with (
        raw_worker(server.endpoints[0], b"plain") as worker,
        raw_client(server.endpoints[0]) as plain,
        raw_client(server.endpoints[0]) as submitting,
    ):
        with server.store.stalled():
            submitting.send(b"titanic.request", b"plain", b"stored")
            submitting.send(b"titanic.close", waiting.encode())
            submitting.send(b"titanic.wait", b"30", waiting.encode())
            with Worker("later", list, server.endpoints[0], config=QUICK):
                assert server.store.waits.wait(30)
                plain.send(b"plain", b"x")
                token, _ = worker.take()
                worker.final(token, b"done")
                assert plain.receive() == [b"done"]
                for _ in range(80):  # more than two silences that mean death
                    assert worker.socket.poll(30_000)
                    assert worker.socket.recv_multipart() == HEARTBEAT
                    worker.socket.send_multipart(HEARTBEAT)
                    assert plain.ask(b"mmi.service", b"plain") == [b"200"]
                assert not submitting.socket.poll(0)
        assert sorted(submitting.receive()[0][:3] for _ in range(3)) == [b"200", b"200", b"400"]
        token, body = worker.take()
        assert body == [b"stored"]
