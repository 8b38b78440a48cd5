"""Who has workers, in the log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.cli_titanic import running

from broker import Worker
from titanic.dispatch.service_log import PresenceLog


def test_first_and_last(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    presence = PresenceLog()
    for workers in ({}, {b"a": 1}, {b"a": 2, b"odd\nname\xff": 1}, {b"a": 1}, {b"a": 1}, {}):
        presence.update(workers)
    said = [(record.levelname, record.getMessage(), vars(record)["service"]) for record in caplog.records]
    assert said == [
        ("INFO", "a has a worker", "a"),
        ("INFO", "odd name� has a worker", "odd\nname�"),
        ("WARNING", "odd name� has no workers left", "odd\nname�"),
        ("WARNING", "a has no workers left", "a"),
    ]


@pytest.mark.parametrize("command", ["serve", "broker"])
def test_servers_tell(tmp_path: Path, command: str) -> None:
    store = ("--store", tmp_path / "store") if command == "serve" else ()
    with running(tmp_path / "log", command, "--bind", f"ipc://{tmp_path}/socket", *store) as server:
        server.says("(serving|broker) at")
        with Worker("mail", lambda frames: frames, f"ipc://{tmp_path}/socket"):
            server.says("INFO titanic.dispatch.service_log: mail has a worker\n")
        server.says("WARNING titanic.dispatch.service_log: mail has no workers left\n")
