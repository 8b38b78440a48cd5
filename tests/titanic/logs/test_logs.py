"""The log's formats, its fields, and what is repeated."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import re
import signal
import socket
import struct
from pathlib import Path

import pytest
from support.cli_titanic import running
from support.shortages import no_more_threads

from broker.core.throttle import MOST_KINDS
from titanic.client.client import Client
from titanic.errors import InvalidRequest, RequestFailed
from titanic.logs import COUNTED, LINES, WINDOW, event, suppression
from titanic.logs.output import JournalHandler, Json
from titanic.logs.suppression import RepeatFilter

ANY = "tcp://127.0.0.1:*"


def record(text: str, *args: object, level: int = logging.WARNING, **extra: object) -> logging.LogRecord:
    return logging.getLogger("titanic.test").makeRecord("titanic.test", level, "file", 1, text, args, None, extra=extra)


def received(journal: socket.socket) -> dict[str, str]:
    """An entry, read as the protocol has it."""
    data = journal.recv(1 << 20)
    fields = {}
    while data:
        head, _, rest = data.partition(b"\n")
        name, equals, value = head.partition(b"=")
        if not equals:
            (length,) = struct.unpack_from("<Q", rest)
            value, rest = rest[8 : 8 + length], rest[9 + length :]
        fields[name.decode()] = value.decode()
        data = rest
    return fields


def test_json_has_a_line_per_event() -> None:
    text = Json().format(record("no\nway: %s", "é", **event("failed", uuid=b"\1" * 16, service=b"mail\xff")))
    assert "\n" not in text
    document = json.loads(text)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", document.pop("time"))
    assert document == {
        "level": "warning",
        "logger": "titanic.test",
        "message": "no\nway: é",
        "event": "failed",
        "uuid": "01" * 16,
        "service": "mail�",
    }


def test_the_journal_gets_priorities_and_fields(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(path)
        handler = JournalHandler(path)
        handler.emit(record("two\nlines", level=logging.ERROR, **event("store-full", service=b"mail")))
        assert received(journal) == {
            "MESSAGE": "two\nlines",
            "PRIORITY": "3",
            "SYSLOG_IDENTIFIER": "titanic",
            "LOGGER": "titanic.test",
            "THREAD_NAME": "MainThread",
            "TITANIC_EVENT": "store-full",
            "TITANIC_SERVICE": "mail",
        }
        handler.emit(record("x" * (1 << 20), level=logging.INFO))
        entry = received(journal)
        assert (entry["PRIORITY"], len(entry["MESSAGE"])) == ("6", 32 << 10)
        handler.close()


def test_without_a_journal_stderr_gets_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = JournalHandler(str(tmp_path / "absent"))
    handler.emit(record("lost?"))
    assert capsys.readouterr().err == "<4>lost?\n"
    handler.close()


def test_a_journal_that_does_not_read_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after the first line that it has no room for, and how many were lost is told."""
    monkeypatch.setattr("titanic.logs.output.PATIENCE", 0.01)
    path = str(tmp_path / "journal")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(path)
        handler = JournalHandler(path)
        for number in range(5000):
            handler.emit(record(f"line {number}"))
        journal.setblocking(False)
        kept = 0
        with contextlib.suppress(BlockingIOError):
            while received(journal)["MESSAGE"] == f"line {kept}":
                kept += 1
        assert 0 < kept < 5000
        handler.emit(record("at last"))
        assert received(journal)["MESSAGE"] == f"the journal did not read: {5000 - kept} lines are lost"
        assert received(journal)["MESSAGE"] == "at last"
        handler.close()


def test_a_log_that_can_go_nowhere_is_no_error_of_who_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = JournalHandler(str(tmp_path / "absent"))
    with Path("/dev/full").open("w", buffering=1) as full:
        monkeypatch.setattr("sys.stderr", full)
        handler.emit(record("lost"))
        handler.emit(record("%s %s", "too few"))
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
    handler.close()


def test_repeats_are_counted_not_listed() -> None:
    now, told = 0.0, list[logging.LogRecord]()
    repeats = RepeatFilter(told.append, lambda: now)
    assert [repeats.filter(record("no %s", number)) for number in range(LINES + 5)] == [True] * LINES + [False] * 5
    assert repeats.filter(record("another"))
    now = WINDOW
    assert told == []
    assert repeats.filter(record("no %s", "more"))
    assert [one.getMessage() for one in told] == ["no 24 (the last of 5 more like this within 60 s)"]


def test_repeats_of_one_service_hide_no_other() -> None:
    told = list[logging.LogRecord]()
    repeats = RepeatFilter(told.append, lambda: 0.0)
    for number in range(100):
        repeats.filter(record("%s failed", number, **event("failed", uuid=b"\1" * 16, service=b"flood")))
    assert repeats.filter(record("%s failed", "x", **event("failed", service=b"mail")))
    repeats.finish()
    (one,) = told
    assert (one.getMessage(), vars(one)["event"], vars(one)["service"], one.levelname) == (
        "99 failed (the last of 80 more like this within 60 s)",
        "failed",
        "flood",
        "WARNING",
    )
    assert "uuid" not in vars(one)


def test_repeats_are_told_when_nothing_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suppression, "CHECK_INTERVAL", 0.01)
    now, told = 0.0, queue.Queue[logging.LogRecord]()
    repeats = RepeatFilter(told.put, lambda: now)
    for number in range(LINES + 3):
        repeats.filter(record("no %s", number))
    now = WINDOW
    assert told.get(timeout=30).getMessage() == "no 22 (the last of 3 more like this within 60 s)"


def test_repeats_are_told_where_no_thread_is_to_be_had() -> None:
    told: list[logging.LogRecord] = []
    now = [0.0]
    repeats = RepeatFilter(told.append, lambda: now[0])
    with no_more_threads():
        assert [repeats.filter(record("no")) for _ in range(LINES + 3)] == [True] * LINES + [False] * 3
        now[0] = WINDOW
        assert repeats.filter(record("other"))
    assert [one.getMessage() for one in told] == [f"no (the last of 3 more like this within {WINDOW:.0f} s)"]


def test_what_has_a_window_of_its_own_goes_out() -> None:
    repeats = RepeatFilter(lambda _: None, lambda: 0.0)
    assert all(repeats.filter(record("no", **COUNTED)) for _ in range(100))


def test_lines_of_an_application_are_not_counted() -> None:
    repeats = RepeatFilter(lambda _: None, lambda: 0.0)
    line = record("sold %s")
    for line.name in ("shop", "titanic_shop.tasks", "root"):
        assert all(repeats.filter(line) for _ in range(LINES + 5))
    line.name = "broker"
    assert sum(repeats.filter(line) for _ in range(LINES + 5)) == LINES


def test_repeats_of_very_many_kinds_are_counted_together() -> None:
    told = list[logging.LogRecord]()
    repeats = RepeatFilter(told.append, lambda: 0.0)
    assert sum(repeats.filter(record(f"message {number}")) for number in range(5000)) == MOST_KINDS + LINES
    repeats.finish()
    assert [one.getMessage() for one in told] == ["message 4999 (the last of 4780 more like this within 60 s)"]


def test_a_server_that_logs_json_says_nothing_else(on_disk: Path) -> None:
    log = on_disk / "log"
    with running(log, "serve", "--bind", ANY, "--store", on_disk / "store", "--log-format", "json") as server:
        server.says("serving at")
        server.send(signal.SIGHUP)
        server.says("reloaded")
        server.send(signal.SIGTERM)
        assert server.ends() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["serving", "reloaded", "stopping"]
    assert all(line["level"] == "info" for line in lines)


def test_the_journal_is_chosen_when_stderr_goes_there(tmp_path: Path) -> None:
    """With JOURNAL_STREAM naming our stderr: what is logged does not come there as text, unless there is no journal."""
    log = tmp_path / "log"
    log.touch()
    stat = log.stat()
    stream = f"{stat.st_dev}:{stat.st_ino}"
    with running(log, "broker", "--bind", ANY, JOURNAL_STREAM=stream) as broker:
        broker.says("broker at")
        broker.send(signal.SIGHUP)
        if not Path("/run/systemd/journal/socket").exists():
            broker.says("<6>reloaded: nothing has changed\n")
        broker.send(signal.SIGTERM)
        assert broker.ends() == 0
    assert " INFO titanic: " not in log.read_text()


def test_bodies_are_never_logged(tmp_path: Path) -> None:
    """Not of requests, of replies, of what is refused or fails, however much is logged."""
    log = tmp_path / "log"
    arguments = ("serve", "--bind", ANY, "--store", tmp_path / "store", "--log-level", "debug", "--max-attempts", "1")
    with running(log, *arguments) as server:
        endpoint = server.says(r"serving at (\S+);")[1]
        command = ("work", "s", "--endpoint", endpoint, "--log-level", "debug", "--", "sh", "-c", "! grep fails")
        with running(tmp_path / "work.log", *command), Client(endpoint) as client:
            assert client.wait(client.submit("s", b"s3cret"), 30) == [b""]
            with pytest.raises(RequestFailed):
                client.wait(client.submit("s", b"s3cret fails"), 30)
            with pytest.raises(InvalidRequest):
                client.submit("mmi.x", b"s3cret")
        server.send(signal.SIGTERM)
        assert server.ends() == 0
    assert "s3cret" not in log.read_text() + (tmp_path / "work.log").read_text()
