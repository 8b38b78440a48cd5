"""`titanic serve` and `titanic broker` with an access file: how they start, refuse to, and read it again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.access_files import ALICE, BOB, AccessFiles
from support.cli_titanic import Running, here, running, titanic

ANY = "tcp://127.0.0.1:*"
BOTH = pytest.mark.parametrize("command", ["serve", "broker"])


@pytest.fixture
def files(tmp_path: Path) -> AccessFiles:
    return AccessFiles(tmp_path / "access")


def started(command: str, folder: Path) -> tuple[str, ...]:
    """A command without its access control."""
    return (command, "--bind", ANY, *(("--store", str(folder / "store")) if command == "serve" else ()))


@contextmanager
def secured(command: str, folder: Path, *options: str) -> Iterator[Running]:
    with running(folder / "log", *started(command, folder), *options) as one:
        yield one


@BOTH
def test_what_is_missing_or_contradicts_is_said_with_what_to_do(
    command: str, tmp_path: Path, files: AccessFiles
) -> None:
    start = started(command, tmp_path)
    for options, said in (
        (("--access", str(files.path)), "create one with `titanic keys server`"),
        (("--key", str(files.key)), "--key-file has no effect without --access"),
        ((*files.options, "--open"), "open is for endpoints without access control"),
        ((*files.options[:2], "--key", str(files.server_key)), "it has only a public key"),
        (("--access", str(tmp_path / "none"), *files.options[2:]), "none"),
    ):
        done = here(*start, *options)
        assert (done.code, done.out) == (2, b""), options
        assert said in done.err, options
    assert not (tmp_path / "store").exists()


def test_a_broker_elsewhere_has_the_access_control(tmp_path: Path, files: AccessFiles) -> None:
    start = ("serve", "--store", str(tmp_path / "store"), "--broker", "tcp://127.0.0.1:5999")
    for options, said in (
        (files.options, "access control is enforced by the broker that clients connect to"),
        (("--key", str(files.key)), "key is given without server-key"),
        (("--server-key", str(files.server_key)), "server-key is given without key"),
    ):
        done = here(*start, *options)
        assert done.code == 2
        assert said in done.err
    done = here(*start[:3], "--server-key", str(files.server_key))
    assert done.code == 2
    assert "--server-key has no effect without --broker" in done.err


@BOTH
def test_a_file_with_faults_is_refused_with_each_line(command: str, tmp_path: Path, files: AccessFiles) -> None:
    files.write(ALICE + "[users.bob]\nsubmitt = []\nread = true\n")
    done = here(*started(command, tmp_path), *files.options)
    assert done.code == 2
    first, second = done.err.splitlines()
    assert f"{files.path}:9: unknown [users.bob] submitt; did you mean submit?" in first
    assert f"{files.path}:10: " in second


@BOTH
def test_it_says_that_access_control_is_on_and_reads_the_file_again_whole_or_not_at_all(
    command: str, tmp_path: Path, files: AccessFiles
) -> None:
    bound, other = f"ipc://{tmp_path}/a", f"ipc://{tmp_path}/b"
    users = "".join(f'[endpoints."{endpoint}"]\nuser = "bob"\n' for endpoint in (bound, other))
    files.write(ALICE + BOB + users)
    with secured(command, tmp_path, *files.options, "--bind", bound) as one:
        one.says(r"(serving|broker) at tcp://127\.0\.0\.1:\d+, ipc://.*;.*access control on, 2 users\n")
        text = one.log.read_text()
        assert f'[endpoints."{other}"], but nothing listens there' in text
        assert f'[endpoints."{bound}"], and' not in text
        files.write(ALICE.replace('"own"', '"all"') + '[users.carol]\nsubmit = ["x"]\n')
        one.send(signal.SIGHUP)
        one.says(r"access\.toml reloaded: added carol, removed bob, changed alice\n")
        files.write(ALICE + BOB + "[users.dave]\nadmin = 1\n")
        one.send(signal.SIGHUP)
        one.says(r"ERROR titanic: not reloaded, nothing has changed: .*access\.toml:11: .*admin")
        files.write(ALICE)
        one.send(signal.SIGHUP)
        one.says("reloaded: removed carol, changed alice\n")  # dave never was
        one.send(signal.SIGHUP)
        one.says("reloaded: nothing has changed\n")
        one.send(signal.SIGTERM)
        assert one.ends() == 0


def test_settings_of_a_refused_reload_stay(tmp_path: Path, files: AccessFiles) -> None:
    """The access file is looked at first."""
    toml = tmp_path / "titanic.toml"
    toml.write_text("[serve]\ngrace = 1\n")
    with secured("serve", tmp_path, *files.options, "--config", str(toml)) as one:
        one.says("access control on")
        toml.write_text("[serve]\ngrace = 2\n")
        files.write("[users.")
        one.send(signal.SIGHUP)
        one.says("not reloaded, nothing has changed: ")
        files.write(ALICE)
        one.send(signal.SIGHUP)
        one.says("reloaded: grace\n")


def test_gathering_needs_a_user_for_each_endpoint(tmp_path: Path, files: AccessFiles) -> None:
    where = f"ipc://{tmp_path}/gather"
    start = (*started("serve", tmp_path), *files.options, "--gather", where)
    done = titanic(*start)
    assert done.code == 2
    assert f'give it a user: [endpoints."{where}"] user = "NAME"' in done.err
    files.write(ALICE + f'[endpoints."{where}"]\nuser = "alice"\nuids = [0]\n')
    done = titanic(*start)
    assert done.code == 2
    assert "has uids, which gather cannot check" in done.err


@BOTH
def test_config_check_looks_into_the_access_file(command: str, tmp_path: Path, files: AccessFiles) -> None:
    """So that a reload by systemd fails, and says why."""
    toml = tmp_path / "titanic_settings.toml"
    toml.write_text(f'[{command}]\nmax-body = "1MiB"\naccess = "{files.path}"\n')
    assert here("config", "check", toml).code == 0
    files.write(ALICE + "[users.bob]\nreed = 1\n")
    done = here("config", "check", toml)
    assert done.code == 1
    assert done.err.startswith(f"{toml}:3: [{command}] access: {files.path}:9: unknown [users.bob] reed; did you mean ")
    files.path.unlink()
    assert "no such file" in here("config", "check", toml).err.lower()
    assert here("config", "show", command, "--config", toml).code == 1
