"""Commands with keys: what they say when the server refuses them, and where the keys may come from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli_titanic import here, running
from support.keyed_router import key_files, keyed_router
from support.secured import SERVER, curve_of

from broker import Curve, load_secret

SERVER_KEY = SERVER.public.decode()
UUID = "01a1ff29e82d7a2da099783c4f481113"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A client's secret key file."""
    return key_files(tmp_path_factory.mktemp("keys"))[0]


@pytest.fixture(scope="module")
def curve(key: Path) -> Curve:
    return curve_of(load_secret(key))


@pytest.fixture(scope="module")
def stranger(key: Path) -> Iterator[str]:
    """A server that does not know the key."""
    with keyed_router([]) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def friend(curve: Curve) -> Iterator[str]:
    """A server that does."""
    with keyed_router([curve.public]) as endpoint:
        yield endpoint


@pytest.mark.parametrize(
    "command",
    [
        ("submit", "upper", "x"),
        ("reply", UUID),
        ("reply", UUID, "--wait", "30"),
        ("close", UUID),
        ("call", "upper", "x"),
        ("status",),
        ("ls",),
        ("show", UUID),
        ("retry", "--all"),
        ("purge", "--all", "--state", "failed"),
        ("pattern", "majordomo-async", "client", "upper", "x"),
        ("pattern", "idempotent", "client", "upper", "x"),
    ],
    ids=lambda command: "-".join(command[:2]),
)
def test_a_refused_key_is_told_in_time(
    command: tuple[str, ...], stranger: str, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.client.PROBE_AFTER", 0.05)
    began = time.monotonic()
    done = here(*command, "--endpoint", stranger, "--key-file", key, "--server-key", SERVER_KEY)
    assert (done.code, done.out) == (1, b"")
    assert done.err.startswith(f"titanic: the server at {stranger} refused this key; no user there has the public key ")
    assert time.monotonic() - began < 40


def test_health_is_unknown(stranger: str, key: Path) -> None:
    done = here("health", "--endpoint", stranger, "--key", key, "--server-key", SERVER_KEY)
    assert done.code == 3
    assert b"refused this key" in done.out


def test_who_has_no_key_is_told_what_to_give(stranger: str) -> None:
    done = here("submit", "upper", "x", "--endpoint", stranger)
    assert done.code == 1
    assert "requires a key; this client has none" in done.err


def test_a_worker_says_it_and_goes_on(stranger: str, key: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    keys = ("--key", key, "--server-key", SERVER_KEY)
    with running(tmp_path / "log", "work", "upper", "--endpoint", stranger, *keys, "--", "cat") as worker:
        worker.says(r"connecting to .* to work on upper")
        began = time.monotonic()
        worker.says(r"ERROR broker.worker: the server at \S+ refused this key; .*; still trying\n")
        assert time.monotonic() - began < 40
        assert worker.process.poll() is None


def test_keys_come_from_options_the_environment_or_a_file(friend: str, key: Path, tmp_path: Path) -> None:
    ask = ("call", "echo", "hello", "--endpoint", friend)
    assert here(*ask, "--key", key, "--server-key", SERVER_KEY).out == b"hello"
    assert here(*ask, TITANIC_KEY=str(key), TITANIC_SERVER_KEY=SERVER_KEY).out == b"hello"
    settings = tmp_path / "titanic.toml"
    settings.write_text(f"key = '{key}'\nserver-key = '{SERVER_KEY}'\n")
    assert here(*ask, "--config", settings).out == b"hello"


def test_the_idempotency_key_of_submit_is_another_one(key: Path, tmp_path: Path) -> None:
    """What names the file for all commands must not make all requests one."""
    settings = tmp_path / "titanic.toml"
    settings.write_text(f"key = '{key}'\nserver-key = '{SERVER_KEY}'\n")
    for given in ({"TITANIC_KEY": str(key), "TITANIC_SERVER_KEY": SERVER_KEY}, {"TITANIC_CONFIG": str(settings)}):
        found = here("config", "show", "submit", "--json", **given).json
        assert found["key"]["value"] == str(key)
        assert found["idempotency-key"]["value"] is None
    shown = here("config", "show", "submit", "--json", "--key", "order 7").json
    assert shown["idempotency-key"]["value"] == "order 7"
    assert shown["key"]["value"] is None


def test_a_key_file_is_not_taken_for_an_idempotency_key(key: Path, friend: str) -> None:
    """As which it would make all requests one, without a word."""
    done = here("submit", "upper", "x", "--endpoint", friend, "--key", key, "--server-key", SERVER_KEY)
    assert done.code == 2
    assert f"{key} is a key file; give it as --key-file" in done.err


def test_faults_of_keys_are_faults_of_usage(key: Path, tmp_path: Path) -> None:
    ask = ("call", "echo", "x", "--endpoint", "tcp://127.0.0.1:1")
    for options, said in (
        (("--key", key), "a key without a server key; an encrypted connection needs both;"),
        (("--server-key", SERVER_KEY), "a server key without a key;"),
        (("--key", tmp_path / "no.key_secret", "--server-key", SERVER_KEY), "there is no such key file"),
        (("--key", key.with_suffix(".key"), "--server-key", SERVER_KEY), "it has only a public key"),
        (("--key", key, "--server-key", key), "stays with the server; give the public one as the server key"),
        (("--key", key, "--server-key", "nonsense"), "neither a public key nor a file with one"),
    ):
        done = here(*ask, *options)
        assert done.code == 2
        assert said in done.err
        assert "secret-key" not in done.err
    assert load_secret(key).secret.decode() not in done.err
