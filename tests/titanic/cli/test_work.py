"""`titanic work`: commands that fail, hang, flood, do not listen, and the end of it all."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.cli_titanic import Running, alive, here, running, serving, working
from support.each import each
from support.waiting import until

from titanic import Client


@pytest.fixture
def outcome(endpoint: str, tmp_path: Path) -> Callable[..., tuple[int, bytes, str]]:
    """What a request becomes that a command works on."""

    def run(*command: str, body: bytes = b"x", options: tuple[str, ...] = ()) -> tuple[int, bytes, str]:
        with working(tmp_path, endpoint, tmp_path.name, *command, options=options):
            done = here("submit", tmp_path.name, "--stdin", "--wait", "25", "--endpoint", endpoint, stdin=body)
        return done.code, done.out, done.err.partition("\n")[2]  # behind the UUID

    return run


Outcome = Callable[..., tuple[int, bytes, str]]


def test_the_body_is_its_input_and_its_output_the_reply(outcome: Outcome) -> None:
    body = bytes(range(256)) * 1000
    assert outcome("cat", body=body) == (0, body, "")


def test_it_finds_its_request_in_the_environment(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    monkeypatch.setenv("TITANIC_UUID", "somebody else's")
    command = (
        "sh",
        "-c",
        "echo $TITANIC_UUID/$TITANIC_ATTEMPT/$TITANIC_ATTEMPTS/$TITANIC_DEADLINE/"
        "$TRACEPARENT/$TRACESTATE/$TITANIC_TYPE; false",
    )
    with working(tmp_path, endpoint, "environment", *command, options=("--log-format", "json")) as worker:
        given = (
            "--max-attempts",
            "1",
            "--limit",
            "99",
            "--trace",
            trace,
            "--type",
            "text/x",
            "--wait",
            "25",
            "--endpoint",
            endpoint,
        )
        done = here("submit", "environment", "x", *given)
        uuid = done.err.split("\n")[0]
        worker.says(f"{uuid}: the command exited with 1")
    with working(tmp_path, endpoint, "environment", *command[:-1], command[-1].removesuffix("; false")):
        assert here("retry", uuid, "--endpoint", endpoint).code == 0
        said = here("reply", uuid, "--wait", "25", "--endpoint", endpoint).out.decode().strip().split("/")
        with Client(endpoint) as client:
            line = here(
                "submit", "environment", "x", "--trace", trace, "--tracestate", "a=1", "--endpoint", endpoint
            ).line
            assert client.wait(line, 60)[0].endswith(f"/{trace}/a=1/\n".encode())
    assert [said[0], said[1], said[2], *said[4:]] == [uuid, "1", "1", trace, "", "text", "x"]
    assert b"type         text/x" in here("show", uuid, "--endpoint", endpoint).out
    assert float(said[3]) > 1.7e9


def test_a_trace_that_is_none(endpoint: str) -> None:
    done = here("submit", "environment", "x", "--trace", "00-x", "--endpoint", endpoint)
    assert done.code == 2
    assert "--trace is '00-x'; it must be a traceparent" in done.err


@pytest.mark.parametrize("trace", [(), ("--trace", "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")])
def test_a_tracestate_that_is_none(endpoint: str, trace: tuple[str, ...]) -> None:
    done = here(
        "submit", "environment", "x", *trace, "--tracestate", "a=1" if not trace else "ä", "--endpoint", endpoint
    )
    assert done.code == 2
    assert "it needs --trace, and must be entries such as vendor=value" in done.err


def test_a_content_type_that_is_none(endpoint: str) -> None:
    done = here("submit", "environment", "x", "--type", "größe", "--endpoint", endpoint)
    assert done.code == 2
    assert "--type is 'größe'; it must be 1 to 127 printable ASCII characters" in done.err


def test_what_it_writes_to_stderr_is_no_failure(outcome: Outcome) -> None:
    assert outcome("sh", "-c", "cat; echo careful >&2") == (0, b"x", "")


def test_exit_code(outcome: Outcome) -> None:
    said = "titanic: failed: the command exited with 7\noh no\n"
    assert outcome("sh", "-c", "echo lost; echo oh no >&2; exit 7") == (1, b"", said)


@pytest.mark.parametrize(
    ("codes", "code", "fatal"), [("7", 7, True), ("1,64-78", 64, True), ("1,64-78", 75, False), ("1,64-78", 7, False)]
)
def test_an_exit_code_may_be_for_good(endpoint: str, tmp_path: Path, codes: str, code: int, fatal: bool) -> None:
    command = "sh", "-c", f"echo oh no >&2; exit {code}"
    with working(tmp_path, endpoint, tmp_path.name, *command, options=("--fatal-exit", codes)):
        given = "--max-attempts", "9999", "--endpoint", endpoint
        uuid = here("submit", tmp_path.name, "x", *given).out.decode().strip()
        until(lambda: f"exited with {code}\n" in here("show", uuid, "--endpoint", endpoint).out.decode())
        shown = here("show", uuid, "--endpoint", endpoint).out.decode()
    assert ("state        failed\n" in shown) is fatal
    assert "             oh no\n" in shown
    assert not fatal or "attempts     1\n" in shown


@each("codes", ["", "0", "256", "75", "x", "9-8", "1-", "1,,2"])
def test_exit_codes_that_are_none(codes: str) -> None:
    done = here("work", "echo", "--fatal-exit", codes, "--", "true")
    assert done.code == 2
    assert "--fatal-exit" in done.err


def test_killed_by_a_signal(outcome: Outcome) -> None:
    said = "titanic: failed: the command was killed by signal 9\n"
    assert outcome("sh", "-c", "kill -9 $$") == (1, b"", said)


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_request_that_is_closed_ends_its_command(endpoint: str, tmp_path: Path, stubborn: bool) -> None:
    """By SIGTERM, which it may heed, and soon by SIGKILL: also what it has started."""
    heed = "trap '' TERM" if stubborn else f"trap 'echo bye >{tmp_path}/said; exit 0' TERM"
    script = f"{heed}; sleep 1000 & echo $! $$ >{tmp_path}/new && mv {tmp_path}/new {tmp_path}/pids; wait; wait"
    options = ("--kill-after", "0.2" if stubborn else "60")
    with working(tmp_path, endpoint, tmp_path.name, "sh", "-c", script, options=options) as worker:
        uuid = here("submit", tmp_path.name, "x", "--endpoint", endpoint).out.decode().strip()
        until((tmp_path / "pids").exists)
        assert here("close", uuid, "--endpoint", endpoint).code == 0
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        until(lambda: not any(map(alive, pids)))
        worker.says(f"{uuid}: (cancelled|the command was killed by signal 9)")
    assert (tmp_path / "said").exists() is not stubborn


def test_it_need_not_read(outcome: Outcome) -> None:
    assert outcome("true", body=b"x" * 3_000_000) == (0, b"", "")


def test_a_flood_of_output(outcome: Outcome) -> None:
    code, out, _ = outcome("head", "-c", "5000000", "/dev/zero")
    assert (code, len(out)) == (0, 5_000_000)


def test_of_a_flood_on_stderr_the_end_is_kept(outcome: Outcome) -> None:
    code, _, err = outcome("sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' a >&2; echo the end >&2; exit 1")
    assert code == 1
    assert len(err) < 5000
    assert err.endswith("aaaathe end\n")


def test_a_limit_ends_all_that_it_started(outcome: Outcome, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code, _, err = outcome(
        "sh", "-c", f"sleep 600 & echo $$ $! >{pids}; echo so far >&2; wait", options=("--time-limit", "2")
    )
    assert (code, err) == (1, "titanic: failed: the command took longer than 2 s\nso far\n")
    until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))


def test_a_limit_holds_also_when_something_escapes_and_keeps_the_pipes_open(endpoint: str, tmp_path: Path) -> None:
    escaped = tmp_path / "pid"
    program = f"import os, time; os.setsid(); open({str(escaped)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    script = f'{sys.executable} -c "{program}" & wait'
    with working(tmp_path, endpoint, "escape", "sh", "-c", script, options=("--time-limit", "4")):
        done = here("call", "escape", "x", "--endpoint", endpoint, "--timeout", "60")
        os.kill(int(escaped.read_text()), signal.SIGKILL)
    assert (done.code, done.err) == (1, "titanic: 500 the command took longer than 4 s\n")


def test_jobs_run_at_the_same_time(endpoint: str, tmp_path: Path) -> None:
    """Each waits until all have begun: one after another they would never end."""
    script = f"mktemp {tmp_path}/job-XXXXXX; while [ $(ls {tmp_path}/job-* | wc -l) -lt 3 ]; do sleep 0.01; done"
    with working(tmp_path, endpoint, "three", "sh", "-c", script, options=("--jobs", "3")):
        uuids = here("submit", "three", "--lines", "-", "--endpoint", endpoint, stdin=b"1\n2\n3\n").out.decode().split()
        assert [here("reply", uuid, "--wait", "25", "--endpoint", endpoint).code for uuid in uuids] == [0] * 3


def test_options_of_the_command_need_no_dashes_before_it(endpoint: str, tmp_path: Path) -> None:
    with working(tmp_path, endpoint, "cut", "cut", "-c", "1-2"):
        assert here("call", "cut", "abc", "--endpoint", endpoint, "--timeout", "20").out == b"ab\n"


def test_command_not_found(endpoint: str) -> None:
    done = here("work", "s", "--endpoint", endpoint, "--", "no-such-command-anywhere", "-x")
    assert done.code == 2
    assert "command not found: no-such-command-anywhere" in done.err
    assert here("work", "s").code == 2
    assert here("work", "", "--", "cat").code == 1
    assert here("work", "s", "--endpoint", "nonsense", "--", "cat").code == 2


# -- the end -------------------------------------------------------------------------------------------------------


class Held:
    """A worker with a request in its hands, held until it is let go."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        self.service = folder.name
        self.pids, self.go = folder / "pids", folder / "go"
        script = f"sleep 600 & echo $$ $! >{self.pids}; while ! [ -e {self.go} ]; do sleep 0.01; done; kill $!; cat"
        self.at = ("--endpoint", endpoint)
        self.worker = Running(folder / "log", "work", self.service, *self.at, "--", "sh", "-c", script)
        self.uuid = here("submit", self.service, "done", *self.at).line
        until(lambda: self.pids.exists() and len(self.pids.read_text().split()) == 2)

    def has_ended(self) -> bool:
        return not any(alive(int(pid)) for pid in self.pids.read_text().split())

    def end(self) -> None:
        """Whatever the test came to."""
        self.worker.end()
        self.go.touch()  # ends the command, which ends what it started
        until(self.has_ended)


@pytest.fixture
def held(endpoint: str, tmp_path: Path) -> Iterator[Held]:
    one = Held(endpoint, tmp_path)
    yield one
    one.end()


def test_a_signal_lets_the_job_in_hand_finish(held: Held) -> None:
    later = here("submit", held.service, "later", *held.at).line
    held.worker.send(signal.SIGINT)
    held.go.touch()
    assert held.worker.ends() == 0
    assert here("reply", held.uuid, "--wait", "20", *held.at).out == b"done"
    assert here("reply", later, *held.at).code == 3, "nothing new was begun"
    assert held.has_ended()


def test_the_second_signal_ends_it_and_the_command_at_once(held: Held) -> None:
    held.worker.send(signal.SIGTERM)
    held.worker.says("stopping")
    held.worker.send(signal.SIGTERM)
    assert held.worker.ends() == 128 + signal.SIGTERM
    until(held.has_ended)


def test_what_it_had_in_hand_then_goes_to_another_worker_at_once(tmp_path: Path) -> None:
    """Not when it is missed: that would take this broker an hour."""
    with serving(tmp_path, "--heartbeat", "1000") as (_, endpoint):
        held = Held(endpoint, tmp_path)
        try:
            held.worker.send(signal.SIGTERM)
            held.worker.says("stopping")
            held.worker.send(signal.SIGTERM)
            assert held.worker.ends() == 128 + signal.SIGTERM
            with working(tmp_path, endpoint, held.service, "cat"):
                assert here("reply", held.uuid, "--wait", "20", *held.at).out == b"done"
            assert "attempts     1\n" in here("show", held.uuid, *held.at).out.decode(), "that was no failure"
        finally:
            held.end()


def test_a_signal_ends_a_worker_that_has_nothing_to_do(tmp_path: Path) -> None:
    """Also one that has no broker."""
    with running(tmp_path / "log", "work", "s", "--endpoint", f"ipc://{tmp_path}/b", "--", "cat") as worker:
        worker.says("connecting to ipc:.* to work on s\n")
        worker.send(signal.SIGTERM)
        assert worker.ends() == 0
        assert "registered" not in worker.log.read_text()


def test_it_says_whether_a_broker_is_there(tmp_path: Path) -> None:
    bind = f"ipc://{tmp_path}/b"
    with running(tmp_path / "log", "work", "s", "--endpoint", bind, "--heartbeat", "0.1", "--", "cat") as worker:
        worker.says(r"WARNING broker.worker: no answer from ipc:\S+ for \d+ s; is a broker there\?")
        with running(tmp_path / "broker", "broker", "--bind", bind, "--heartbeat", "0.1") as broker:
            worker.says("INFO broker.worker: s is registered at ipc:")
            broker.kill()
        worker.says("WARNING broker.worker: lost the broker at ipc:")


def test_a_reserved_service(tmp_path: Path) -> None:
    """It said that nobody answers."""
    with serving(tmp_path) as (_, endpoint):
        log = tmp_path / "work.log"
        with running(log, "work", "titanic.reply", "--endpoint", endpoint, "--", "cat") as worker:
            worker.says(
                r"WARNING broker.worker: the broker at \S+ refuses workers of titanic.reply: the name is reserved"
            )
