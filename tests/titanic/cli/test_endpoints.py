"""Several `--endpoint`s: commands and workers find the server that is there, and follow when it goes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.cli_titanic import here, running, serving, titanic

NOBODY = "tcp://127.0.0.1:9"


def test_wherever_options_come_from(endpoint: str, tmp_path: Path) -> None:
    assert here("call", "mmi.service", "x", "--endpoint", NOBODY, "--endpoint", endpoint).out == b"404"
    assert titanic("call", "mmi.service", "x", TITANIC_ENDPOINT=f"{NOBODY} {endpoint}").out == b"404"
    toml = tmp_path / "titanic.toml"
    toml.write_text(f'endpoint = ["{NOBODY}", "{endpoint}"]\n')
    assert here("call", "mmi.service", "x", "--config", toml).out == b"404"


def test_a_request_and_its_reply(endpoint: str) -> None:
    several = ("--endpoint", NOBODY, "--endpoint", endpoint)
    uuid = here("submit", "nobody", "x", *several).line
    assert here("reply", uuid, *several).code == 3
    assert here("close", uuid, *several).code == 0


def test_nobody_at_any() -> None:
    nobody = ("--endpoint", NOBODY, "--endpoint", "tcp://127.0.0.1:10", "--timeout", "0.05")
    refused = f"connection refused at {NOBODY} and tcp://127.0.0.1:10; "
    done = here("status", *nobody)
    assert done.code == 3
    assert done.err.startswith(f"titanic: {refused}tried for 50 ms; is a server running, and is this its endpoint? ")
    done = here("submit", "s", "x", *nobody)
    assert done.code == 3
    first, last = done.err.splitlines()
    assert first == f"titanic: {refused}waiting up to 50 ms for a server there"
    assert last.startswith(f"titanic: no answer from {NOBODY} or tcp://127.0.0.1:10; waited ")


@pytest.mark.parametrize("command", [("ls",), ("show", "0" * 32), ("status",)])
def test_who_only_looks_gives_up_soon(command: tuple[str, ...]) -> None:
    began = time.monotonic()
    done = here(*command, "--endpoint", NOBODY)
    assert (done.code, done.out) == (3, b"")
    assert f"connection refused at {NOBODY}; tried for 1 s" in done.err
    assert "may have arrived" not in done.err
    assert time.monotonic() - began < 10  # the time-out is 15 s


@pytest.mark.parametrize(
    "command", [("submit", "s", "x"), ("reply", "0" * 32), ("reply", "0" * 32, "--wait", "60"), ("call", "s")]
)
def test_who_waits_for_a_server_says_so_at_once(tmp_path: Path, command: tuple[str, ...]) -> None:
    socket = f"ipc://{tmp_path}/s"
    for nobody, fact in ((NOBODY, "connection refused"), (socket, "no such file or directory")):
        with running(tmp_path / "log", *command, "--endpoint", nobody) as one:
            limit = command[-1] if "--wait" in command else "15"
            one.says(f"^titanic: {fact} at {nobody}; waiting up to {limit} s for a server there\n$")


def test_a_server_that_comes_while_it_is_waited_for(tmp_path: Path) -> None:
    at = f"ipc://{tmp_path}/s"
    with running(tmp_path / "log", "submit", "s", "x", "--endpoint", at, "--timeout", "60") as one:
        one.says("waiting up to 60 s for a server there")
        with serving(tmp_path, bind=at):
            assert one.ends() == 0


def test_a_bare_host_and_port_are_tcp(endpoint: str, tmp_path: Path) -> None:
    bare = endpoint.removeprefix("tcp://")
    assert here("call", "mmi.service", "x", "--endpoint", bare).out == b"404"
    toml = tmp_path / "titanic.toml"
    toml.write_text(f'endpoint = "{bare}"\n')
    assert here("call", "mmi.service", "x", "--config", toml).out == b"404"
    with serving(tmp_path, bind="127.0.0.1:*") as (_, other):
        assert other.startswith("tcp://127.0.0.1:")
        assert here("status", "--endpoint", other.removeprefix("tcp://")).code == 0


def test_a_worker_follows(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with serving(tmp_path / "two") as (two, second), serving(tmp_path / "one") as (one, first):
        servers = {first: one, second: two}
        both = ("--endpoint", first, "--endpoint", second)
        with running(tmp_path / "work.log", "work", "upper", *both, "--", "tr", "a-z", "A-Z") as worker:
            first = worker.says(r"is registered at (\S+)")[1]
            (second,) = {*servers} - {first}
            assert here("call", "upper", "a", "--endpoint", first, "--timeout", "30").out == b"A"
            servers[first].kill()
            assert here("call", "upper", "b", "--endpoint", second, "--timeout", "30").out == b"B"
            assert here("call", "upper", "c", *both, "--timeout", "30").out == b"C"
            worker.says(f"lost the broker at {first}; reconnecting\n.*registered at {second}\n")


def test_several_in_one_text(endpoint: str, tmp_path: Path) -> None:
    several = f"{NOBODY},{endpoint}"
    asked = ("call", "mmi.service", "x")
    assert here(*asked, "--endpoint", several).out == b"404"
    assert here(*asked, TITANIC_ENDPOINT=several).out == b"404"
    assert here(*asked, TITANIC_ENDPOINT=f"{NOBODY}, {endpoint}").out == b"404"
    toml = tmp_path / "titanic.toml"
    toml.write_text(f'endpoint = "{several}"\n')
    assert here(*asked, "--config", toml).out == b"404"
    wrong = here(*asked, "--endpoint", f"{endpoint},tcp://127.0.0.1:*")
    assert (wrong.code, "no client can connect to 'tcp://127.0.0.1:*'" in wrong.err) == (2, True)
    toml.write_text(f'endpoint = "{endpoint},tcp://127.0.0.1:99999"\n')
    wrong = here(*asked, "--config", toml)
    assert (wrong.code, "use at most 65535" in wrong.err) == (2, True)


def test_a_worker_at_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with serving(tmp_path / "two") as (_, second), serving(tmp_path / "one") as (one, first):
        options = ("--endpoint", f"{first},{second}", "--everywhere")
        with running(tmp_path / "work.log", "work", "upper", *options, "--", "tr", "a-z", "A-Z") as worker:
            worker.says(f"connecting to {first} and {second} to work on upper")
            worker.says(f"is registered at {first}\n")
            worker.says(f"is registered at {second}\n")
            for endpoint in (first, second, first):
                assert here("call", "upper", "a", "--endpoint", endpoint, "--timeout", "30").out == b"A"
            one.kill()
            worker.says(f"lost the broker at {first}; ")
            assert here("call", "upper", "b", "--endpoint", second, "--timeout", "30").out == b"B"
