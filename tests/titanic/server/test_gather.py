"""`titanic serve --gather`: requests without an answer are stored, also when that takes patience."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from support.access_files import AccessFiles
from support.cli_titanic import here, running
from support.serving import serving
from support.shortages import no_draft_sockets
from support.waiting import until
from support.zmtp import message, zmtp

from broker import BrokerConfig, Worker
from broker.patterns import MissingDrafts, Scatter, pack
from titanic import Server, ServerConfig
from titanic.errors import CallerError
from titanic.settings import ServiceLimits

ANY = "tcp://127.0.0.1:*"


@contextmanager
def scattering(server: Server) -> Iterator[Scatter]:
    with Scatter() as scatter:
        for endpoint in server.gathers:
            scatter.connect(endpoint)
        yield scatter


def stored(server: Server) -> int:
    with server.store.read() as transaction:
        return transaction.counts().requests


def test_what_is_gathered_is_stored_and_executed(tmp_path: Path) -> None:
    done: list[list[bytes]] = []
    with serving(tmp_path, gather=(ANY,)) as server:
        with scattering(server) as scatter:
            for number in range(500):
                scatter.send(pack([b"work", b"%d" % number, b"x" * 300]))
        until(lambda: server.gathered["stored"] == 500)
        assert stored(server) == 500
        with Worker("work", done.append, server.endpoints[0]):
            until(lambda: len(done) == 500)
    assert sorted(done) == sorted([b"%d" % number, b"x" * 300] for number in range(500))


def test_what_cannot_be_stored_is_dropped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path, gather=(ANY, f"ipc://{tmp_path}/gather")) as server, scattering(server) as scatter:
        for message in (b"", b"\2a", b"not packed", pack([b"\0bad", b"x"]), pack([b""])):
            scatter.send(message)
        scatter.send(pack([b"good", b"x"]))
        until(lambda: server.gathered == {"stored": 1, "dropped": 5, "waiting": 0})
    assert "gathered messages dropped; the last one: " in caplog.text


def test_what_is_too_large_is_dropped_and_does_not_come_again(tmp_path: Path) -> None:
    with serving(tmp_path, gather=(ANY,), wire=BrokerConfig(max_body=1000)) as server, scattering(server) as scatter:
        for size in (1001, 10_000, 1000):
            scatter.send(pack([b"work", bytes(size)]))
        until(lambda: server.gathered == {"stored": 1, "dropped": 2, "waiting": 0})


def test_halves_of_messages_are_not_stored(tmp_path: Path) -> None:
    half = pack([b"work", b"half"])
    with serving(tmp_path, gather=(ANY,)) as server, zmtp(server.gathers[0], b"SCATTER") as stream:
        stream.sendall((message(half, half) + message(half, b"", half)) * 100 + message(pack([b"work", b"whole"])))
        until(lambda: server.gathered["stored"])
        done: list[list[bytes]] = []
        with Worker("work", done.append, server.endpoints[0]):
            until(lambda: done)
        assert server.gathered == {"stored": 1, "dropped": 0, "waiting": 0}
        assert done == [[b"whole"]]


def test_what_a_full_service_refuses_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("titanic.server.gather.PAUSE", 0.02)
    monkeypatch.setattr("titanic.server.gather.MOST_IN_HAND", 50)
    limits = {b"work": ServiceLimits(waiting=10)}
    done: list[bytes] = []
    with serving(tmp_path, gather=(ANY,), limits=limits) as server, scattering(server) as scatter:
        for number in range(200):
            scatter.send(pack([b"work", b"%d" % number]))
        until(lambda: server.gathered["stored"] == 10)
        until(lambda: "gathered messages wait: service full" in caplog.text)
        until(lambda: server.gathered["waiting"] >= 40)
        with Worker("work", lambda frames: done.append(frames[0]), server.endpoints[0]):
            until(lambda: len(done) == 200)
    assert sorted(done) == sorted(b"%d" % number for number in range(200))


def test_what_has_come_by_the_end_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.server.gather.QUIET", 40)  # the sender is in this process, and may be slow
    with serving(tmp_path, gather=(ANY,)) as server:
        with scattering(server) as scatter:
            for number in range(2500):
                scatter.send(pack([b"work", b"%d" % number]))
        until(lambda: server.gathered["stored"])
    assert server.gathered == {"stored": 2500, "dropped": 0, "waiting": 0}


def test_what_is_lost_at_the_end_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    limits = {b"work": ServiceLimits(waiting=1)}
    with serving(tmp_path, gather=(ANY,), limits=limits) as server, scattering(server) as scatter:
        for _ in range(3):
            scatter.send(pack([b"work", b"x"]))
        until(lambda: server.gathered["stored"] == 1)
        until(lambda: server.gathered["waiting"] == 2)
    assert "2 gathered messages could not be stored before shutdown; they are lost" in caplog.text


def test_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="gather is for the integrated broker"):
        ServerConfig(broker="tcp://127.0.0.1:9", gather=(ANY,))
    with no_draft_sockets(), pytest.raises(MissingDrafts, match="pip install"):
        Server(ServerConfig(store=tmp_path / "store", bind=(ANY,), gather=(ANY,)))


def test_the_commands(tmp_path: Path) -> None:
    serve = ("serve", "--bind", ANY, "--gather", ANY, "--store", tmp_path / "store")
    scatter = ("pattern", "scatter-gather", "scatter", "--service", "upper")
    with running(tmp_path / "log", *serve) as server:
        where, gather = server.says(r"serving at (\S+), gathering at (\S+);").groups()
        assert here(*scatter, "one", "two", "--endpoint", gather).code == 0
        until(lambda: here("ls", "--endpoint", where).out.count(b"upper") == 2)
        server.send(signal.SIGTERM)
        assert server.ends() == 0
    assert here("serve", "--broker", where, "--gather", ANY, "--store", tmp_path / "other").code == 2


def test_with_access_control_each_endpoint_submits_as_its_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after another file says who that is."""
    endpoints = [f"ipc://{tmp_path}/{name}" for name in "ab"]
    users = '[users.a]\nsubmit = ["a"]\n[users.b]\nsubmit = ["b"]\n'
    named = [f'[endpoints."{endpoint}"]\nuser = "{name}"\n' for endpoint, name in zip(endpoints, "ab", strict=True)]
    files = AccessFiles(tmp_path / "access", users + "".join(named))
    with serving(tmp_path, gather=tuple(endpoints), access=files.path, key=files.key) as server:

        def send(*services: bytes) -> None:
            for endpoint in endpoints:
                with Scatter() as scatter:
                    scatter.connect(endpoint)
                    for service in services:
                        scatter.send(pack([service, b"x"]))

        send(b"a", b"b")
        until(lambda: server.gathered == {"stored": 2, "dropped": 2, "waiting": 0})
        with server.store.read() as transaction:
            found = {(one.service, one.owner) for one in transaction.select()}
        assert found == {(b"a", b"a"), (b"b", b"b")}
        files.write(users + named[0].replace('user = "a"', 'user = "b"'))
        server.reload(server.config)
        send(b"b")
        until(lambda: server.gathered == {"stored": 3, "dropped": 3, "waiting": 0})
        held, go = Event(), Event()
        server.front.loop.call(held.set)
        server.front.loop.call(go.wait, 30)
        assert held.wait(30)
        before = [local.user for local in server.broker._locals]
        files.write(users + "".join(named))
        server.reload(server.config)
        same = [local.user for local in server.broker._locals] == before
        go.set()
        assert same, "in the broker's turn, or it could take who it was before for who it is now"
    assert "may not submit to 'b'" in caplog.text
    assert ", from this process; " in caplog.text
