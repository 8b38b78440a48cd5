"""What cannot be done is told, but not at every try."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.serving import QUICK, config
from support.store_damage import edit, make
from support.waiting import until

from broker import Worker
from titanic import Client, Server
from titanic.logs.suppression import EVERY, MOST_REASONS, Incident


def lines(caplog: pytest.LogCaptureFixture, level: str = "ERROR") -> list[str]:
    said = [record.getMessage() for record in caplog.records if record.levelname == level]
    caplog.clear()
    return said


def test_each_reason_is_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    incident = Incident(logging.getLogger("test"), "see", lambda: now)
    incident.recovered()
    for _ in range(100):
        incident.failed(OSError("dark"))
        incident.failed(OSError("fog"))
    assert lines(caplog) == ["cannot see: dark", "cannot see: fog"]
    now = EVERY
    incident.failed(OSError("dark"))
    assert lines(caplog) == ["cannot see: dark"]
    incident.recovered()
    incident.recovered()
    assert lines(caplog, "INFO") == ["can see again"]
    incident.failed(OSError("dark"))
    assert lines(caplog) == ["cannot see: dark"]
    for number in range(2 * MOST_REASONS):
        incident.failed(OSError(str(number)))
    assert len(incident.reasons) == MOST_REASONS


@pytest.mark.parametrize(
    ("database", "key", "said"),
    [
        ("later", b"\0", "cannot read what is due: the store is damaged; 00 in 'later' has 1 bytes"),
        ("timers", b"E", "cannot read what is due: the store is damaged; E in 'timers' has 1 bytes"),
        ("ready", b"echo\0\xff" + bytes(16), f"cannot dispatch: the record of {bytes(16).hex()}"),
    ],
)
def test_a_server_tells_of_an_odd_row_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, database: str, key: bytes, said: str
) -> None:
    """Whatever is done beside it, and makes it look there again."""
    make(tmp_path / "store")
    edit(tmp_path / "store", lambda txn, databases: txn.put(key, b"", db=databases[database]))
    with (
        Server(config(tmp_path)) as server,
        Client(server.endpoints[0], timeout=30) as client,
        Worker("echo", lambda frames: frames, server.endpoints[0], config=QUICK),
    ):
        looked = 0
        look = server.dispatcher.maintenance._refresh

        def counting() -> None:
            nonlocal looked
            looked += 1
            look()

        server.dispatcher.maintenance._refresh = counting  # type: ignore[method-assign]
        while looked < 30:
            client.close(client.submit("echo", "x", delay=0.001))
        until(lambda: any(record.getMessage().startswith(said) for record in caplog.records))
    found = lines(caplog)
    assert sorted(found) == sorted(set(found))
    assert 1 <= len(found) < 6
