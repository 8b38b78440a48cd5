"""`titanic cron`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.cli_titanic import here, running
from support.waiting import until

from titanic import Client, Server

FILE = """
tz = "Europe/Berlin"
[nightly]
service = "absent"
cron = "30 2 29 2 *"
missed = "once"
body = ["two", "frames"]
priority = 7
[often]
service = "absent"
every = 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "schedules.toml"
    path.write_text(FILE)
    return path


def test_it_runs_schedules_until_sigterm(server: Server, client: Client, file: Path, tmp_path: Path) -> None:
    at = ("--endpoint", server.endpoints[0])
    with running(tmp_path / "log", "cron", file, *at) as cron:
        cron.says(r"running 2 schedules at")
        cron.says(r"often: tick \S+Z is request")
        (nightly, often) = until(lambda: here("cron", "list", file, "--json", *at).json)
        cron.process.send_signal(signal.SIGTERM)
        assert cron.ends() == 0
    assert (nightly["last"], nightly["paused"], nightly["missed"]) == (None, False, "once")
    assert often["last"]["state"] == "waiting"
    assert client.show(often["last"]["uuid"])["key"] == f"cron:often:{often['last']['tick']}"


def test_pause_resume_and_run(server: Server, client: Client, file: Path) -> None:
    at = ("--endpoint", server.endpoints[0])
    assert here("cron", "pause", "often", "nightly", *at).out.decode() == "often: paused\nnightly: paused\n"
    lines = here("cron", "list", file, *at).out.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "nightly", "often"]
    assert all(" paused " in line for line in lines[1:])
    assert here("cron", "resume", "often", "--json", *at).json == {"names": ["often"]}
    assert here("cron", "resume", "often", *at).line == "often: was not paused"
    row = client.show(here("cron", "run", file, "nightly", *at).line)
    assert (row["service"], row["priority"], row["body_frames"], row["body_bytes"]) == ("absent", 7, 2, 9)
    assert row["key"].startswith("cron:nightly:run:")
    line = "often: its scheduler, if running, will submit a request within 30 s"
    assert here("cron", "run", "often", *at).line == line
    assert here("cron", file, "--once", *at).code == 0
    keys = [row["key"] for row in client.list(service="absent")[0]]
    assert len([key for key in keys if key.startswith("cron:often:run:")]) == 1


def test_once(server: Server, client: Client, file: Path) -> None:
    at = ("--endpoint", server.endpoints[0])
    assert here("cron", file, "--once", "--json", *at).json == {"uuids": []}  # they are new
    (uuid,) = until(lambda: here("cron", file, "--once", "--json", *at).json["uuids"])
    assert client.show(uuid)["service"] == "absent"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["run", "FILE"], "write titanic cron run [FILE] NAME"),
        (["run", "FILE", "nigtly"], "no schedule is named nigtly; the file has nightly, often"),
        (["pause"], "write titanic cron pause NAME"),
        (["FILE", "more"], "write titanic cron FILE"),
        (["list", "FILE", "--once"], "--once cannot be used with list"),
        ([], "missing argument"),
    ],
)
def test_wrong_usage(words: list[str], fault: str, file: Path) -> None:
    done = here("cron", *[str(file) if word == "FILE" else word for word in words])
    assert (done.code, fault in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("", 0, "there are no schedules"),
        ("[a", 1, "this is not TOML"),
        ("zone = 1", 1, "unknown key zone"),
        ("[a]\ncron = '* * * * *'", 1, "[a]: it has no service"),
        ("[a]\nservice = 's'\nsevice = 1", 3, "[a]: unknown key sevice; did you mean service?"),
        ("[a]\nservice = 's'", 1, "[a]: a schedule has either cron or every; a has neither"),
        ("[a]\nservice = 's'\ncron = 5", 3, "cron is 5; it must be a string in quotes"),
        ("[a]\nservice = 's'\ncron = '61 * * * *'", 1, "cron is '61 * * * *'; bad minute; write minute, hour"),
        ("[a]\nservice = 's'\nevery = '5x'", 3, "every is '5x'; it must be a time"),
        ("[a]\nservice = 's'\nevery = 0.5", 1, "every is 0.5; it must be a whole number of seconds"),
        ("[a]\nservice = 's'\nevery = inf", 1, "every is inf; it must be a whole number of seconds"),
        ("[a]\nservice = 's'\nevery = nan", 1, "every is nan; it must be a whole number of seconds"),
        ("[a]\nservice = 's'\nevery = 5\ntz = 'Asia/Tokyo'", 1, "every has no tz"),
        ("[a]\nservice = 's'\nevery = 5\nmissed = 'some'", 1, "missed is 'some'; it must be skip, once, all"),
        ("[a]\nservice = 's'\nevery = 5\nbody-file = 'x'", 4, "x; No such file"),
        ("[a]\nservice = 's'\nevery = 5\nbody = 5", 4, "body is 5; it must be a string"),
        ("[a]\nservice = 's'\nevery = 5\non-limit = 'x'", 1, "[a]: on-limit must be"),
        ("[a]\nservice = 's'\nevery = 5\nunique-until = 'done'", 1, "unique-until and unique-for need unique"),
        ("['a b']\nservice = 's'\nevery = 5", 1, "name is 'a b'; write up to 100 letters"),
    ],
)
def test_a_mistake_in_a_file_is_reported_with_its_line(text: str, line: int, fault: str, file: Path) -> None:
    file.write_text(text)
    done = here("cron", "list", file)
    assert (done.code, fault in done.err) == (2 if "No such file" in fault else 1, True), done.err
    assert f"{file}:{line}: " in done.err or (f"{file}: " in done.err and not line)
