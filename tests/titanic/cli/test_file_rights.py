"""Stores that one may not write, or not even read."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.cli_titanic import Ended, here
from support.store_facts import accept_all
from support.waiting import PATIENCE

from titanic.store import NewRequest, open_store

CAPABILITIES_OF_64_BITS, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 0x20080522, 1, 2
NOBODY = 65534
_libc = ctypes.CDLL(None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store with a request."""
    path = tmp_path / "store"
    with open_store(path) as store, store.write() as transaction:
        accept_all(transaction, [NewRequest(b"s", [b"x"])], 1)
    yield path
    path.chmod(0o755)


def rights(store: Path, *, folder: int, data: int = 0o444, lock: int = 0o444) -> None:
    for name, mode in (("data.mdb", data), ("lock.mdb", lock), ("titanic.lock", 0o444), ("", folder)):
        (store / name).chmod(mode)


def keep_to_the_rights() -> None:
    """Root may do everything, unless it gives that up, here for one thread. Nobody else has it to give."""
    head, capabilities = (ctypes.c_uint32 * 2)(CAPABILITIES_OF_64_BITS, 0), (ctypes.c_uint32 * 6)()
    assert _libc.capget(head, capabilities) == 0
    for number in (0, 1):  # those in effect, and those that can be
        capabilities[number] &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    assert _libc.capset(head, capabilities) == 0


def run(*arguments: str | Path) -> Ended:
    with ThreadPoolExecutor(1, initializer=keep_to_the_rights) as thread:
        return thread.submit(here, *arguments).result(PATIENCE)


@pytest.fixture(params=["status", "ls", "check", "backup"])
def command(request: pytest.FixtureRequest, store: Path) -> list[str | Path]:
    """Those that look at a store's files."""
    more = [store.parent / "copy"] if request.param == "backup" else []
    return [request.param, *more, "--store", store]


def test_the_lock_may_not_be_written(store: Path, command: list[str | Path]) -> None:
    rights(store, folder=0o555)
    done = run(*command)
    assert (done.code, done.out) == (1, b"")
    assert done.err == (
        f"titanic: the store in {store} cannot be read; lock.mdb, which readers also write, is not"
        f" writable; run this as {store.owner()}, or let your group read data.mdb and read and write"
        " lock.mdb\n"
    )


@pytest.mark.parametrize("command", ["ls"], indirect=True)
def test_the_lock_may_not_be_made(store: Path, command: list[str | Path]) -> None:
    rights(store, folder=0o755)
    (store / "lock.mdb").unlink()
    store.chmod(0o555)
    done = run(*command)
    assert done.code == 1
    assert "lock.mdb, which readers also write, does not exist and cannot be created; run this as" in done.err


@pytest.mark.parametrize(
    ("command", "folder", "fact"),
    [
        ("status", 0o555, "data.mdb is not readable"),
        ("check", 0, "its directory cannot be entered"),
        ("backup", 0, "its directory cannot be entered"),
    ],
    indirect=["command"],
)
def test_what_may_not_be_read(store: Path, command: list[str | Path], folder: int, fact: str) -> None:
    rights(store, folder=folder, data=0)
    done = run(*command)
    assert (done.code, done.out) == (1, b"")
    assert done.err.startswith(f"titanic: the store in {store} cannot be read; {fact}; run this as ")


def test_the_lock_is_all_that_a_reader_must_write(store: Path, command: list[str | Path]) -> None:
    rights(store, folder=0o555, lock=0o666)
    assert run(*command).code == 0


def test_a_settings_file_names_files_of_other_users(tmp_path: Path) -> None:
    (tmp_path / "tls.key").touch(0o000)
    (tmp_path / "web-keys").mkdir(0o000)
    (tmp_path / "access.toml").write_text("[users.ann]\nread = 'all'\n")
    settings = tmp_path / "titanic.toml"
    web = {"access": "access.toml", "keys": "web-keys", "tls-certificate": "tls.pem", "tls-key": "tls.key"}
    settings.write_text("[web]\n" + "".join(f"{key} = '{tmp_path / name}'\n" for key, name in web.items()))
    assert run("config", "check", settings) == Ended(0, f"{settings}: 4 settings, no errors\n".encode(), "")
    ended = run("web", "--config", settings)
    assert ended.code == 2
    assert f"Directory '{tmp_path / 'web-keys'}' is not readable" in ended.err


@pytest.mark.skipif("CI" not in os.environ and os.geteuid() != 0, reason="needs root")
def test_root_leaves_no_file_that_the_owner_of_a_store_cannot_open(store: Path) -> None:
    for name in ("lock.mdb", "titanic.lock"):
        (store / name).unlink()
    os.chown(store, NOBODY, NOBODY)
    os.chown(store / "data.mdb", NOBODY, NOBODY)
    assert here("check", "--store", store).code == 0
    assert {path.name: path.stat().st_uid for path in store.iterdir()} == dict.fromkeys(
        ("data.mdb", "lock.mdb", "titanic.lock"), NOBODY
    )
