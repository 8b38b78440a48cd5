"""`titanic keys`: what is made, what is kept, and what is never printed."""

from __future__ import annotations

from pathlib import Path

from support.cli_titanic import here
from support.each import each

from broker import hash_token, load_secret, public_key


def test_a_pair(tmp_path: Path) -> None:
    done = here("keys", "new", "shop", "--dir", tmp_path)
    pair = load_secret(tmp_path / "shop.key_secret")
    assert (done.code, done.err) == (0, "")
    assert done.out.decode().splitlines() == [
        f"{tmp_path}/shop.key: public, to hand out: {pair.public.decode()}",
        f"{tmp_path}/shop.key_secret: secret, for --key-file of this user alone: do not share it",
    ]
    again = here("keys", "new", "shop", "--dir", tmp_path)
    assert (again.code, again.out) == (1, b"")
    assert again.err.startswith(f"titanic: {tmp_path}/shop.key_secret: the file exists and was not overwritten; ")
    assert f"titanic keys show {tmp_path}/shop.key_secret`" in again.err
    assert load_secret(tmp_path / "shop.key_secret") == pair


def test_the_servers_pair_is_kept(tmp_path: Path) -> None:
    first = here("keys", "server", "--json", TITANIC_DIR=str(tmp_path))
    public, secret = tmp_path / "server.key", tmp_path / "server.key_secret"
    told = {"key": public_key(public), "public_file": str(public), "secret_file": str(secret)}
    assert (first.code, first.json) == (0, told | {"made": True})
    before = secret.read_bytes()
    public.unlink()
    again = here("keys", "server", "--dir", tmp_path, "--json")
    assert (again.code, again.json) == (0, told | {"made": False})
    kept = here("keys", "server", "--dir", tmp_path)
    assert kept.code == 0
    assert kept.out.decode().count(": already exists; ") == 2
    assert secret.read_bytes() == before


def test_a_broken_pair_of_the_server_is_told(tmp_path: Path) -> None:
    """A script that goes on with it would start a server that cannot start."""
    (tmp_path / "server.key_secret").touch()
    done = here("keys", "server", "--dir", tmp_path)
    assert done.code == 1
    assert f"titanic: {tmp_path}/server.key_secret: this is not a key file" in done.err


def test_no_command_shows_a_secret_key(tmp_path: Path) -> None:
    outputs = [here("keys", "server", "--dir", tmp_path), here("keys", "server", "--dir", tmp_path, "--json")]
    secret = tmp_path / "server.key_secret"
    outputs += [here("keys", "show", secret), here("keys", "new", "a", "--dir", tmp_path, "--json")]
    keys = [load_secret(tmp_path / name).secret for name in ("server.key_secret", "a.key_secret")]
    assert all(done.code == 0 for done in outputs)
    assert not [key for key in keys for done in outputs if key in done.out or key.decode() in done.err]


def test_show(tmp_path: Path) -> None:
    here("keys", "new", "shop", "--dir", tmp_path)
    key = public_key(tmp_path / "shop.key")
    assert here("keys", "show", tmp_path / "shop.key").line == key
    assert here("keys", "show", tmp_path / "shop.key_secret").line == key
    missing = here("keys", "show", tmp_path / "none")
    assert (missing.code, missing.out) == (2, b"")
    assert missing.err == f"titanic: {tmp_path}/none: there is no such key file; `titanic keys new` creates a pair\n"


def test_a_token() -> None:
    done = here("keys", "token")
    token, line = done.out.decode().splitlines()
    assert line == f'tokens = ["{hash_token(token)}"]'


@each("command", ["new", "server", "show", "token"])
def test_help(command: str) -> None:
    done = here("keys", command, "--help")
    assert done.code == 0
    assert b"Example:" in done.out
    assert b"..." not in here("keys", "--help").out.partition(b"Commands:")[2]
