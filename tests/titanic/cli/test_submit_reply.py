"""`titanic submit`, `reply`, `close` and `call` against a running server."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from support.cli_titanic import CLEAN, Ended, here, on_terminal, running, titanic
from support.processes import line, script

pytestmark = pytest.mark.usefixtures("workers")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server is not taken for one that is away, however short a wait is."""
    monkeypatch.setattr("titanic.client.calls.LEAST_LOOK", 30.0)


@pytest.fixture
def at(endpoint: str) -> tuple[str, str]:
    return ("--endpoint", endpoint)


def silent_endpoint(listener: socket.socket) -> str:
    """Somebody listens there, and never answers."""
    listener.listen()
    return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


# -- bodies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"\x00\xff\xfe\n\r\n", "čaj ☕".encode(), b"x" * 3_000_000])
def test_a_body_comes_back_byte_for_byte(at: tuple[str, str], body: bytes) -> None:
    done = here("submit", "echo", "--stdin", "--wait", "20", *at, stdin=body)
    assert (done.code, done.out) == (0, body)
    assert here("reply", done.err.strip(), *at).out == body


def test_each_body_argument_is_a_frame(at: tuple[str, str]) -> None:
    assert here("submit", "bars", "a", "", "ö", "--wait", "20", *at).out.decode() == "a||ö"
    assert here("call", "bars", "a", "b", *at).out == b"a|b"


def test_arguments_that_are_not_utf8_arrive_as_they_are(at: tuple[str, str]) -> None:
    assert titanic("call", "echo", b"\xff\xfe", *at) == (0, b"\xff\xfe", "")


def test_a_dash_is_standard_input(at: tuple[str, str]) -> None:
    assert here("submit", "bars", "a", "-", "b", "--wait", "20", *at, stdin=b"x\ny\n").out == b"a|x\ny\n|b"
    assert here("call", "echo", "-", *at, stdin=b"-").out == b"-"
    for command in ("submit", "call"):
        done = here(command, "echo", "-", "-", *at, stdin=b"x")
        assert (done.code, done.out) == (2, b"")
        assert "- is given more than once" in done.err


def test_a_time_to_start_at(at: tuple[str, str]) -> None:
    uuid = here("submit", "echo", "x", "--at", (datetime.now(UTC) + timedelta(hours=1)).isoformat(), *at).out.decode()
    assert b"delayed" in here("show", uuid.strip(), *at).out
    assert here("submit", "echo", "x", "--at", "1970-01-01T00:00Z", "--wait", "20", *at).out == b"x"


def test_no_body_is_an_empty_one(at: tuple[str, str]) -> None:
    uuid = here("submit", "echo", *at).line
    assert here("reply", uuid, "--wait", "20", *at) == (0, b"", "")
    for said in ((), ("",)):  # nobody waits for a pipe that is open
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as silent:
            assert silent.stdout is not None
            done = titanic("submit", "echo", *said, "--wait", "20", *at, stdin=silent.stdout.fileno())
            assert (done.code, done.out) == (0, b"")
            silent.communicate()


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_standard_input_that_nobody_asked_for_is_no_empty_body(at: tuple[str, str], tmp_path: Path, kind: str) -> None:
    (tmp_path / "body").write_bytes(b"hello")
    reading, writing = os.pipe()
    os.write(writing, b"hello")
    if kind == "file":
        os.dup2(os.open(tmp_path / "body", os.O_RDONLY), reading)
    os.close(writing)
    command = ("submit", "echo", "--wait", "20", *at)
    done = titanic(*command, stdin=reading)
    assert (done.code, done.out) == (2, b"")
    assert "there is no BODY; standard input has bytes, but is read only with -; add - " in done.err
    assert titanic(*command, "", stdin=reading).out == b""
    assert titanic(*command, "-", stdin=reading).out == b"hello"
    os.close(reading)


def test_frames_are_json_strings_or_base64(at: tuple[str, str]) -> None:
    done = here("call", "echo", "--stdin", "--json", *at, stdin=b"\xff\xfe")
    assert done.json == {"body": [{"base64": "//4="}], "error": None}
    assert here("call", "echo", "é", "", "--json", *at).json == {"body": ["é", ""], "error": None}


@pytest.mark.parametrize(
    ("text", "bodies"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"one\r\ntwo\r\n", [b"one", b"two"]),
        (b"one\n\nno end", [b"one", b"", b"no end"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
    ],
)
def test_a_line_is_a_request(at: tuple[str, str], tmp_path: Path, text: bytes, bodies: list[bytes]) -> None:
    (tmp_path / "lines").write_bytes(text)
    uuids = here("submit", "echo", "--lines", tmp_path / "lines", *at).out.decode().split()
    assert [here("reply", uuid, "--wait", "20", *at).out for uuid in uuids] == bodies


def test_no_lines_are_told(at: tuple[str, str]) -> None:
    assert here("submit", "echo", "--lines", "-", *at) == (0, b"", "titanic: nothing to submit: the file is empty\n")
    assert here("submit", "echo", "--lines", "-", "--json", *at).json == {"uuids": []}


def test_lines_come_from_standard_input_too(at: tuple[str, str]) -> None:
    text = b"".join(b"%d\n" % number for number in range(2500))  # in several parts
    uuids = here("submit", "parked", "--lines", "-", "--json", *at, stdin=text).json["uuids"]
    assert len(set(uuids)) == 2500
    assert here("close", *uuids[:3], *at).code == 0


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_what_was_accepted_before_a_failure_is_told(
    at: tuple[str, str], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """A body that is too large is refused and ends it; UUIDs of the parts before are printed all the same."""
    (tmp_path / "lines").write_bytes(b"x\n" * 1000 + b"y" * (9 << 20) + b"\n")
    done = here("submit", "parked", "--lines", tmp_path / "lines", *flags, *at)
    assert done.code == 1, done.err
    assert "at most 8388608" in done.err
    assert len(re.findall(rb"[0-9a-f]{32}", done.out)) == 1000


@pytest.mark.parametrize("command", ["submit", "call"])
def test_a_body_that_the_broker_would_drop_is_not_sent(at: tuple[str, str], command: str) -> None:
    """More than twice what it takes ends the connection; nobody would answer."""
    done = here(command, "echo", "--stdin", "--timeout", "20", *at, stdin=b"x" * (17 << 20))
    assert done.code == 1
    assert re.search(rf"body has \d+ bytes; the broker at {at[1]} accepts at most 8388608; .*--max-body", done.err)


# -- what becomes of a request -------------------------------------------------------------------------------------


def test_pending(at: tuple[str, str]) -> None:
    uuid = here("submit", "absent", "x", *at).line
    assert re.fullmatch("[0-9a-f]{32}", uuid)
    for flags in ((), ("--wait", "0"), ("--wait", "0.05")):
        done = here("reply", uuid, *flags, *at)
        assert (done.code, done.out) == (3, b"")
        document = here("reply", uuid, "--json", *flags, *at)
        assert (document.code, document.json["state"], document.json["body"]) == (3, "pending", [])


def test_submit_that_waits_in_vain_still_tells_the_uuid(at: tuple[str, str]) -> None:
    done = here("submit", "absent", "x", "--wait", "0.05", *at)
    assert (done.code, done.out) == (3, b"")
    assert re.match("[0-9a-f]{32}\ntitanic: no reply to ", done.err)
    document = here("submit", "absent", "x", "--wait", "0.05", "--json", *at)
    assert (document.code, document.json["state"], len(document.json["uuid"])) == (3, "pending", 32)


def test_failed_for_good(at: tuple[str, str]) -> None:
    """What the worker said is there, on stderr and as JSON."""
    done = here("submit", "fail", "x", "--wait", "20", *at)
    uuid, said = done.err.split("\n", 1)
    assert (done.code, done.out, said) == (1, b"", "titanic: failed: no way\nsaid the worker\n")
    assert here("reply", uuid, *at) == (1, b"", said)
    assert here("reply", uuid, "--json", *at).json == {
        "uuid": uuid,
        "state": "failed",
        "body": ["said the worker\n"],
        "error": "failed: no way",
    }


def test_unknown_and_closed(at: tuple[str, str]) -> None:
    uuid = here("submit", "absent", "x", *at).line
    assert here("close", uuid, uuid.upper(), "0" * 32, *at) == (0, b"", "")
    assert here("reply", uuid, *at).code == 4
    assert here("show", uuid, *at).code == 4
    document = here("reply", uuid, "--json", "--wait", "5", *at)
    assert (document.code, document.json["state"]) == (4, "unknown")


def test_a_uuid_may_have_dashes(at: tuple[str, str]) -> None:
    uuid = here("submit", "echo", "x", "--wait", "20", *at).err.split()[0]
    dashed = str(UUID(uuid)).upper()
    assert here("reply", dashed, *at).out == b"x"
    assert here("reply", dashed, "--json", *at).json["uuid"] == uuid
    assert here("show", dashed, *at).out.startswith(f"uuid         {uuid}\n".encode())
    assert here("retry", dashed, *at).out == b"0 requests requeued\n"
    assert here("close", dashed, *at).code == 0
    assert here("reply", dashed, *at).code == 4


def test_on_a_terminal_it_is_told_that_nobody_is_there_to_do_it(at: tuple[str, str]) -> None:
    assert on_terminal("submit", "uper", "x", *at) == "titanic: no worker for 'uper' yet; the request waits\n"
    assert on_terminal("submit", "echo", "x", *at) == ""


def test_what_a_broker_does_not_have(at: tuple[str, str]) -> None:
    said = f"titanic: 501 the broker at {at[1]} has no mmi.foo\n"
    assert here("call", "mmi.foo", *at) == (1, b"", said)
    document = here("call", "mmi.foo", "--json", *at)
    assert (document.code, document.json) == (1, {"body": ["501"], "error": said[9:-1]})


def test_plain_requests_that_fail(at: tuple[str, str]) -> None:
    assert here("call", "fail", "x", *at) == (1, b"", "titanic: 500 no way\nsaid the worker\n")
    assert here("call", "fail", "x", "--json", *at).json == {"body": ["said the worker\n"], "error": "500 no way"}
    absent = here("call", "absent", "x", "--timeout", "0.01", *at)
    assert absent.code == 3
    assert "does the service have a worker?" in absent.err


@pytest.mark.parametrize("service", ["", "two\nlines", "mmi.service", "x" * 256])
def test_a_service_that_cannot_be_is_refused(at: tuple[str, str], service: str) -> None:
    done = here("submit", service, "x", *at)
    assert (done.code, done.out) == (1, b"")
    assert done.err.startswith("titanic: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("reply", "short"),
        ("reply", "01a1fdd4-0f82-747e-a223cfe554e7afbc"),
        ("reply", "01a1fdd4-0f82-747e-a223-cfe554e7afb-"),
        ("reply", "x" * 32),
        ("close",),
        ("submit",),
        ("submit", "s", "x", "--stdin"),
        ("submit", "s", "--stdin", "--lines", "-"),
        ("submit", "s", "--lines", "/no/such/file"),
        ("submit", "s", "--lines", "-", "--wait", "1"),
        ("submit", "s", "--wait", "nan"),
        ("submit", "s", "--wait", "-1"),
        ("submit", "s", "--timeout", "inf"),
        ("submit", "s", "--at", "2026-12-01T08:00"),
        ("submit", "s", "--at", "tomorrow"),
        ("submit", "s", "--timeout", "0"),
        ("submit", "s", "--mdp", "3"),
        ("call", "s", "x", "--stdin"),
        ("bench", "nofig"),
        ("nothing",),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    done = here(*arguments)
    assert (done.code, done.out) == (2, b"")
    assert done.err.startswith("titanic: ")
    assert len(done.err.splitlines()) == 1


# -- nobody there --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("submit", "s"), ("reply", "0" * 32), ("close", "0" * 32), ("status",), ("ls",)])
def test_nobody_answers(command: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = silent_endpoint(listener)
        done = here(*command, "--endpoint", endpoint, "--timeout", "0.01")
    assert (done.code, done.out) == (3, b"")
    assert f"titanic: no answer from {endpoint}; waited " in done.err


@pytest.mark.parametrize("command", [("submit", "s"), ("call", "s"), ("status",), ("work", "s", "cat")])
def test_an_endpoint_that_cannot_be(command: tuple[str, ...]) -> None:
    done = here(*command, "--endpoint", "127.0.0.1")
    assert (done.code, done.out) == (2, b"")
    assert done.err.splitlines()[-1] == (
        "titanic: cannot connect to 127.0.0.1: Invalid argument;"
        " write it like tcp://127.0.0.1:5555 or ipc:///run/titanic.sock"
    )


@pytest.mark.parametrize("command", [("submit", "s"), ("call", "s"), ("status",)])
def test_a_name_that_nobody_knows(command: tuple[str, ...]) -> None:
    done = here(*command, "--endpoint", f"tcp://{'x' * 64}:5555")  # names are shorter: no DNS is asked
    assert (done.code, done.out) == (2, b"")
    assert "titanic: invalid value for '--endpoint': unknown host name" in done.err


def test_a_name_that_cannot_be_looked_up_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is a DNS server is not up to a test."""

    def fail(*_: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    done = here("status", "--endpoint", "tcp://127.0.0.1:1", "--timeout", "0.01")
    assert done.code == 3
    said = "cannot resolve the host name '127.0.0.1' now (Temporary failure in name resolution); trying anyway"
    assert said in done.err


def test_interrupted_while_waiting(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        running(tmp_path / "log", "reply", "0" * 32, "--wait", "60", "--endpoint", silent_endpoint(listener)) as one,
    ):
        listener.accept()[0].close()
        one.send(signal.SIGINT)
        assert one.ends() == 130
        assert one.log.read_text() == ""


def test_a_reader_that_goes_away(tmp_path: Path, at: tuple[str, str]) -> None:
    """`titanic ls | head -1`"""
    here("submit", "absent", "--lines", "-", *at, stdin=b"x\n" * 2000)
    with running(tmp_path / "log", "ls", "--most", "2000", *at) as one:
        assert one.process.stdout is not None
        assert one.process.stdout.read(10)
        one.process.stdout.close()
        assert one.ends() == 128 + signal.SIGPIPE
        assert one.log.read_text() == ""


def test_output_that_cannot_be_written(at: tuple[str, str]) -> None:
    command = [sys.executable, "-m", "titanic", "submit", "absent", "x", *at]
    buffered = {name: value for name, value in CLEAN.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=buffered, timeout=30, check=False)
    ended = Ended(done.returncode, b"", done.stderr.decode())
    assert ended.code == 1
    assert ended.err == "titanic: cannot write the output; No space left on device\n"


@pytest.mark.parametrize("option", ["help", "--version"])
def test_help_that_cannot_be_written(option: str) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "titanic", option]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=CLEAN, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (1, b"titanic: cannot write the output; No space left on device\n")


@pytest.mark.parametrize(
    "arguments", [("work", b"\xff", "--", "cat"), ("ls", "--endpoint", b"\xff"), ("call", b"\xff")]
)
def test_arguments_that_are_not_utf_8(arguments: tuple[str | bytes, ...]) -> None:
    done = titanic(*arguments)
    assert done.code == 2
    assert done.err.endswith("titanic: '\\udcff' is not UTF-8; names, endpoints and texts must be\n")


def test_a_broker_that_speaks_only_0_1(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/broker"
    with script("rfc7_broker.py", endpoint, "0.5", "strict") as broker:
        assert line(broker)
        assert here("call", "mmi.service", "echo", "--endpoint", endpoint).out == b"404"
        for command in (("call", "echo", "x"), ("submit", "echo", "x"), ("ls",)):
            done = here(*command, "--endpoint", endpoint, "--timeout", "0.5")
            assert (done.code, broker.poll()) == (3, None)


def test_a_broker_of_another_version_than_was_named(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/broker"
    with script("rfc7_broker.py", endpoint) as broker:
        assert line(broker)
        for command in (("call", "echo", "x"), ("submit", "echo", "x"), ("ls",)):
            done = here(*command, "--endpoint", endpoint, "--timeout", "0.5", "--mdp", "0.2")
            assert done.code == 3
            assert f"the broker at {endpoint} speaks MDP 0.1 and is not a titanic broker" in done.err
            assert done.err.endswith("try --mdp 0.1\n")
