"""Endpoints: which are impossible, which other machines can reach, and what may listen there."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.each import each

from broker import Broker, Client, EndpointError, Permission, Unprotected, is_exposed, load_access, new_keys
from titanic import Server, ServerConfig

HERE = [
    "tcp://127.0.0.1:5555",
    "tcp://127.9.9.9:*",
    "tcp://127.1:5555",
    "tcp://localhost:5555",
    "localhost:5555",
    "tcp://[::1]:5555",
    "tcp://lo:*",
    "ipc:///run/titanic.sock",
    "inproc://x",
    "nonsense",
    "tcp://127.0.0.1",
    "carrier://pigeon",
]
"""Also what libzmq refuses: its own error says more."""

EXPOSED = [
    "tcp://*:5555",
    "*:*",
    "tcp://0.0.0.0:*",
    "tcp://0:5555",
    "tcp://[::]:5555",
    "tcp://[*]:5555",
    "tcp://:5555",
    "tcp://10.0.0.5:5555",
    "tcp://[2001:db8::1]:5555",
    "tcp://no-such-card:5555",
    "tcp://127.0.0.1 :5555",
    "tcp://127.0.0.1;0.0.0.0:5555",
    "tcp://127.0.0.1.example.invalid:5555",
    "ws://127.0.0.1:5555",
]


@each("endpoint", HERE)
def test_on_this_machine(endpoint: str) -> None:
    assert not is_exposed(endpoint)


@each("endpoint", EXPOSED)
def test_for_others(endpoint: str) -> None:
    assert is_exposed(endpoint)


def test_what_mends_it_can_be_copied(tmp_path: Path) -> None:
    lines = [line.strip() for line in str(Unprotected("tcp://0.0.0.0:5555")).split("\n") if line.startswith("    ")]
    keys, users, start = lines
    assert (keys, start) == (
        "titanic keys server && titanic keys new me",
        "--access access.toml --key-file server.key_secret",
    )
    new_keys(tmp_path, "me")
    subprocess.run(users, shell=True, cwd=tmp_path, check=True, timeout=30)
    (me,) = load_access(tmp_path / "access.toml").users.values()
    assert (me.name, me.close, me.read.value) == ("me", True, "own")
    assert all(me.may(permission, b"mail") for permission in (Permission.SUBMIT, Permission.WORK))


def test_a_broker_listens_to_others_only_when_that_is_meant(caplog: pytest.LogCaptureFixture) -> None:
    shy = Broker()
    with shy:
        with pytest.raises(Unprotected, match="titanic keys server"):
            shy.bind("tcp://0.0.0.0:*")
        shy.bind("tcp://127.0.0.1:*")
    assert caplog.records == []
    with Broker(open=True) as frank:
        with pytest.raises(EndpointError, match="this machine has no such address"):
            frank.bind("tcp://192.0.2.1:5555")
        frank.bind("tcp://127.0.0.1:*")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("name", ["bind", "gather"])
def test_a_server_too(tmp_path: Path, name: str) -> None:
    settings: dict[str, Any] = {"bind": ("tcp://127.0.0.1:*",), name: ("tcp://0.0.0.0:*",)}
    with pytest.raises(EndpointError, match=r"open=True"):
        Server(ServerConfig(store=tmp_path / "store", **settings))


IMPOSSIBLE = ["tcp://127.0.0.1:65536", "tcp://127.0.0.1:99999", "tcp://*:700000"]


@pytest.mark.parametrize("endpoint", IMPOSSIBLE)
def test_no_such_port_to_bind(endpoint: str) -> None:
    broker = Broker()
    with pytest.raises(EndpointError, match="65535"):
        broker.bind(endpoint)
    broker.stop()


@pytest.mark.parametrize("endpoint", IMPOSSIBLE)
def test_no_such_port_to_connect_to(endpoint: str) -> None:
    with Client(endpoint, timeout=0.1, retries=0) as client, pytest.raises(EndpointError, match="65535"):
        client.call("echo", b"hello")
