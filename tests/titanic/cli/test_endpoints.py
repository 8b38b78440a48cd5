"""Several `--endpoint`s: commands and workers find the server that is there, and follow when it goes."""

from __future__ import annotations

from pathlib import Path

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


def test_nobody_at_any(endpoint: str) -> None:
    done = here("status", "--endpoint", NOBODY, "--endpoint", "tcp://127.0.0.1:10", "--timeout", "0.05")
    assert done.code == 3
    assert f"nobody answered at {NOBODY} or tcp://127.0.0.1:10" in done.err


def test_a_worker_follows(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with serving(tmp_path / "two") as (_, second), serving(tmp_path / "one") as (one, first):
        both = ("--endpoint", first, "--endpoint", second)
        with running(tmp_path / "work.log", "work", "upper", *both, "--", "tr", "a-z", "A-Z") as worker:
            worker.says("is registered at")
            assert here("call", "upper", "a", "--endpoint", first, "--timeout", "30").out == b"A"
            one.kill()
            assert here("call", "upper", "b", "--endpoint", second, "--timeout", "30").out == b"B"
            assert here("call", "upper", "c", *both, "--timeout", "30").out == b"C"
