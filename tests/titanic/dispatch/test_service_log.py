"""What the log says of requests that fail for good."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.serving import QUICK, serving
from support.waiting import until

from broker import RemoteError, Worker
from broker.core.throttle import MOST_KINDS
from titanic import Client, RequestFailed
from titanic.dispatch.service_log import MOST_TEXT, FailureLog
from titanic.logs import LINES, WINDOW
from titanic.store import Status

UUID = bytes(range(16))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records if record.name == "titanic.dispatch.service_log"]
    caplog.clear()
    return said


def test_what_a_worker_said_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    FailureLog().report(UUID, b"ser\x1bvice", Status.FAILED, "a\nb\t\x1b[31m" + "x" * 1000)
    (line,) = lines(caplog)
    assert line.startswith(f"{UUID.hex()} for ser\\x1bvice failed: a b \\x1b[31mxxx")
    assert line.isprintable()
    assert len(line) < MOST_TEXT + 100


def test_a_flood_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = FailureLog(lambda: now)
    for _ in range(1000):
        log.report(UUID, b"s", Status.FAILED, "no")
    said = lines(caplog)
    assert len(said) == LINES + 1
    assert said[-1] == "more requests for s are failing: for 60 s they are only counted; see titanic ls --state failed"
    now = WINDOW
    counted = f"{1000 - LINES} more requests for s failed or expired within 60 s; see titanic ls --state failed"
    log.report(UUID, b"s", Status.EXPIRED, "no")
    assert lines(caplog) == [counted, f"{UUID.hex()} for s expired: no"]


def test_the_count_is_told_when_nothing_follows(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog(lambda: 0.0)
    for _ in range(LINES + 5):
        log.report(UUID, b"s", Status.FAILED, "no")
    lines(caplog)
    log.tick(WINDOW - 1)
    assert lines(caplog) == []
    log.tick(WINDOW)
    log.finish()
    assert lines(caplog) == ["5 more requests for s failed or expired within 60 s; see titanic ls --state failed"]


def test_a_flood_of_one_service_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog(lambda: 0.0)
    for _ in range(1000):
        log.report(UUID, b"flood", Status.FAILED, "no")
    lines(caplog)
    log.report(UUID, b"mail", Status.FAILED, "no")
    assert lines(caplog) == [f"{UUID.hex()} for mail failed: no"]


def test_a_flood_of_services_is_counted_too(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog(lambda: 0.0)
    for number in range(1000):
        log.report(UUID, b"s%d" % number, Status.FAILED, "no")
    assert len(lines(caplog)) == MOST_KINDS + LINES + 1
    log.finish()
    (last,) = lines(caplog)
    assert last.startswith(f"{1000 - MOST_KINDS - LINES} more requests of further services failed or expired within 60")


def test_a_server_logs_what_failed_for_good_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def work(frames: list[bytes]) -> list[bytes]:
        if frames == [b"fail"]:
            raise RemoteError(500, "no way")
        return frames

    with (
        serving(tmp_path, max_attempts=2) as server,
        Client(server.endpoints[0], timeout=30) as client,
        Worker("s", work, server.endpoints[0], config=QUICK),
    ):
        assert client.wait(client.submit("s", "fine"), 30) == [b"fine"]
        failing, late = client.submit("s", "fail"), client.submit("absent", "x", ttl=0.01)
        for uuid in (failing, late):
            with pytest.raises(RequestFailed):
                client.wait(uuid, 30)
        expected = {f"{failing} for s failed: no way", f"{late} for absent expired: not done in time"}
        said: set[str] = set()
        until(lambda: said.update(lines(caplog)) or len(said) >= len(expected))
        assert said == expected
