"""Key pairs, their files, and tokens."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
import zmq.auth
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from broker import AccessError, Keys, UsageError, ensure_keys, hash_token, load_secret, new_keys, new_token, public_key
from broker.access.keys import ALPHABET, key_fault

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
"""The one in ZeroMQ's manual."""


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_pair_in_files_of_pyzmq(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        public, secret = new_keys(tmp_path, "shop")
    finally:
        os.umask(before)
    assert (public, secret) == (tmp_path / "shop.key", tmp_path / "shop.key_secret")
    assert (mode(public), mode(secret)) == (0o644, 0o600)
    pair = load_secret(secret)
    assert zmq.auth.load_certificate(secret) == (pair.public, pair.secret)
    assert zmq.auth.load_certificate(public) == (pair.public, None)
    assert zmq.curve_public(pair.secret) == pair.public
    assert public_key(public) == public_key(str(secret)) == public_key(pair.public.decode()) == pair.public.decode()
    assert pair.secret not in public.read_bytes()
    assert pair.secret.decode() not in repr(pair) + str(pair)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shop.key", "shop.key_secret"]


def test_the_secret_file_is_nobody_elses_from_its_first_moment(tmp_path: Path) -> None:
    """The rights are those of the call that makes it: no umask, no second call decides."""
    program = (
        "import os, sys\n"
        "os.umask(0)\n"
        "real = os.fchmod\n"
        "os.fchmod = lambda file, mode: print(oct(os.fstat(file).st_mode & 0o777), oct(mode)) or real(file, mode)\n"
        "from broker import new_keys\n"
        "new_keys(sys.argv[1], 'shop')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == ["0o600", "0o600", "0o644", "0o644"]


def test_pyzmqs_own_files_are_read(tmp_path: Path) -> None:
    public, secret = zmq.auth.create_certificates(tmp_path, "theirs", metadata={"name": "theirs"})
    Path(secret).chmod(0o600)
    pair = load_secret(secret)
    assert pair.public.decode() == public_key(Path(public))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    public, secret = new_keys(tmp_path, "shop")
    before = public.read_bytes(), secret.read_bytes()
    with pytest.raises(AccessError, match=r"shop\.key_secret: the file exists and was not overwritten; choose"):
        new_keys(tmp_path, "shop")
    secret.unlink()
    with pytest.raises(AccessError, match=r"shop\.key: the file exists and was not overwritten"):
        new_keys(tmp_path, "shop")
    assert [path.name for path in tmp_path.iterdir()] == ["shop.key"]
    assert public.read_bytes() == before[0]
    new_keys(tmp_path, "shop", overwrite=True)
    assert public.read_bytes() != before[0]
    assert mode(secret) == 0o600
    assert load_secret(secret).public.decode() == public_key(public)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_pair_that_is_there_is_kept(tmp_path: Path) -> None:
    assert ensure_keys(tmp_path, "server") is True
    public, secret = tmp_path / "server.key", tmp_path / "server.key_secret"
    before = public.read_bytes(), secret.read_bytes()
    assert ensure_keys(tmp_path, "server") is False
    public.unlink()
    assert ensure_keys(tmp_path, "server") is False
    assert (public.read_bytes(), secret.read_bytes()) == before
    assert (mode(public), mode(secret)) == (0o644, 0o600)
    public.write_text(f'public-key = "{KEY}"')
    with pytest.raises(AccessError, match=r"server\.key: it does not match .*server\.key_secret; move the"):
        ensure_keys(tmp_path, "server")
    secret.write_bytes(b"")
    with pytest.raises(AccessError, match=r"server\.key_secret: this is not a key file"):
        ensure_keys(tmp_path, "server")
    secret.unlink()
    with pytest.raises(AccessError, match=r"server\.key: the file exists and was not overwritten"):
        ensure_keys(tmp_path, "server")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "shop.key_secret").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AccessError, match="the file exists"):
        new_keys(tmp_path, "shop")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "ü", "x" * 33, "a\n"])
def test_names_that_cannot_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(AccessError, match="cannot be the name of a key; use 1 to 32 letters"):
        new_keys(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_where_no_file_can_be_made(tmp_path: Path) -> None:
    with pytest.raises(
        AccessError, match=r"x\.key_secret: cannot be written: No such file or .*; create the directory"
    ):
        new_keys(tmp_path / "missing", "x")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("good", [0, 2])
def test_a_disk_that_fails_leaves_no_half_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool, good: int
) -> None:
    """Neither a new one, nor in place of one that is there."""
    if overwrite:
        new_keys(tmp_path, "x")
    before = {path.name for path in tmp_path.iterdir()}
    real, calls = os.fsync, iter(range(100))

    def failing(file: int) -> None:
        if next(calls) >= good:
            raise OSError(28, "No space left on device")
        real(file)

    monkeypatch.setattr("os.fsync", failing)
    with pytest.raises(AccessError, match="cannot be written: No space left on device"):
        new_keys(tmp_path, "x", overwrite)
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("rights", "fact"),
    [(0o644, "read this secret"), (0o604, "read this secret"), (0o606, "change this"), (0o602, "change this")],
)
def test_a_secret_that_is_none(tmp_path: Path, rights: int, fact: str) -> None:
    _, secret = new_keys(tmp_path, "shop")
    secret.chmod(rights)
    with pytest.raises(AccessError, match=rf"any local user can {fact} key.*mode {rights:04o}.*run: chmod .* {secret}"):
        load_secret(secret)


def test_a_public_key_that_anybody_may_change(tmp_path: Path) -> None:
    public, _ = new_keys(tmp_path, "shop")
    public.chmod(0o646)
    with pytest.raises(AccessError, match=rf"any local user can change .*run: chmod o-w {public}"):
        public_key(public)


@pytest.mark.parametrize("rights", [0o600, 0o400, 0o440, 0o640])
def test_rights_that_are_given_on_purpose(tmp_path: Path, rights: int) -> None:
    """systemd's LoadCredential makes files of 0400 and 0440."""
    _, secret = new_keys(tmp_path, "shop")
    secret.chmod(rights)
    assert load_secret(secret)


def test_only_the_public_half(tmp_path: Path) -> None:
    public, _ = new_keys(tmp_path, "shop")
    with pytest.raises(AccessError, match=r"shop\.key: it has only a public key.*ends with \.key_secret"):
        load_secret(public)


def test_two_halves_of_two_pairs(tmp_path: Path) -> None:
    first, second = (new_keys(tmp_path, name) for name in ("a", "b"))
    mixed = first[1].read_text().replace(public_key(first[0]), public_key(second[0]))
    first[1].write_text(mixed)
    with pytest.raises(AccessError, match="public and secret keys do not match"):
        load_secret(first[1])


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"", "this is not a key file"),
        (b"\0\xff" * 100, "this is not a key file"),
        (b"x" * 100_000, "this is not a key file"),
        (b"[users.shop]\nkeys = []\n", "this is not a key file"),
        (b'curve\n    secret-key = "%s"\n' % KEY.encode(), "this is not a key file: it has no line public-key"),
        (b'curve\n    public-key = "short"\n', ":2: invalid public-key: a key has 40 characters, this one has 5"),
        (b'public-key = "%s"\npublic-key = "%s"\n' % ((KEY.encode(),) * 2), ":2: there is a second public-key"),
        (b'public-key = "%s"\n secret-key = nope' % KEY.encode(), ":2: invalid secret-key: "),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, fact: str) -> None:
    path = tmp_path / "x.key"
    path.write_bytes(content)
    path.chmod(0o600)
    for read in (load_secret, public_key):
        with pytest.raises(AccessError, match=re.escape(f"{path}") + ".*" + re.escape(fact)) as caught:
            read(path)
        assert KEY not in str(caught.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for read in (load_secret, public_key):
        with pytest.raises(AccessError, match=r"no\.key: there is no such key file; `titanic keys new` creates"):
            read(tmp_path / "no.key")
        with pytest.raises(AccessError, match="this key file cannot be read: Is a directory"):
            read(tmp_path)
    with pytest.raises(AccessError, match="a path cannot contain NUL"):
        load_secret("a\0b")


def test_a_relative_path_begins_in_a_folder(tmp_path: Path) -> None:
    public, _ = new_keys(tmp_path, "shop")
    assert public_key("shop.key", tmp_path) == public_key(public)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (KEY[:-1], "a key has 40 characters, this one has 39"),
        (KEY + "a", "has 41"),
        ("", "has 0"),
        (KEY[:-1] + "~", "written in Z85, which has no '~'"),
        (KEY[:-1] + "ü", "written in Z85, which has no "),
        ("#" * 40, "this is not valid Z85"),
    ],
)
def test_texts_that_are_no_key(text: str, fact: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(fact)) as caught:
        public_key(text, tmp_path / "nowhere")
    if text:
        assert text not in str(caught.value)
    assert public_key(KEY) == KEY


@given(st.binary(min_size=32, max_size=32), st.integers(0, 39), st.sampled_from(ALPHABET))
def test_what_z85_is(raw: bytes, place: int, digit: str) -> None:
    """As libzmq has it, which says what a key is in the end."""
    key = z85.encode(raw)
    assert key_fault(key.decode()) == ""
    changed = key[:place] + digit.encode() + key[place + 1 :]
    try:
        zmq.curve_public(changed)
        good = True
    except zmq.ZMQError:
        good = False
    assert (key_fault(changed.decode()) == "") is good


def test_tokens() -> None:
    token, hashed = new_token()
    assert re.fullmatch(r"[\w-]{43}", token)
    assert hashed == hash_token(token) == "sha256:" + hashlib.sha256(token.encode()).hexdigest()
    assert new_token()[0] != token


def test_what_a_client_without_a_key_does_not_wait_for() -> None:
    program = "import sys, broker.access.keys, broker.access.users; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert {"zmq", "hashlib", "secrets", "tomllib"}.isdisjoint(done.stdout.split())


def test_a_pair_is_compared_by_value() -> None:
    assert Keys(b"a", b"b") == Keys(b"a", b"b")
