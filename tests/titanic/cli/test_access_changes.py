"""Commands that change access and settings files: at the same time, killed, without room. Comments stay."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli_titanic import CLEAN, here, titanic
from support.processes import Fork
from support.small_disk import small_disk
from support.waiting import PATIENCE, until

from broker import AccessFile

FILE = """\
# The access file of the warehouse.

# the shop
[users.shop]
keys = [  # two at most
    "shop.key"  # in the office
]

# [users.old]
# read = "all"

[users.op]  # at night
admin = true

# Ask before you change this.
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    assert here("keys", "new", "shop", "--dir", tmp_path).code == 0
    path = tmp_path / "access.toml"
    path.write_text(FILE)
    return path


def start(*arguments: str | Path) -> subprocess.Popen[bytes]:
    return Fork("-m", "titanic", *arguments, env=CLEAN, stdout=subprocess.DEVNULL)


def test_commands_at_the_same_time_lose_nothing(file: Path) -> None:
    """They read the file when none other changes it."""
    folder = os.open(file.parent, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # as another command would
    waiting = [start("access", "add", f"u{number}", "--access", file) for number in range(4)]
    waiting += [start("access", "rotate", "shop", "--access", file), start("access", "revoke", "op", "--access", file)]
    for one in waiting:
        until(lambda fds=Path(f"/proc/{one.pid}/fd"): file.parent.resolve() in [fd.resolve() for fd in fds.iterdir()])
    assert file.read_text() == FILE
    os.close(folder)
    assert [one.wait(PATIENCE) for one in waiting] == [0] * len(waiting)
    found = AccessFile(file)
    assert sorted(found.users) == ["shop", "u0", "u1", "u2", "u3"]
    assert found.users["shop"]["keys"] == ["shop.key", "shop-2.key"]


def test_what_operators_wrote_above_below_and_between_stays(file: Path) -> None:
    assert here("access", "rotate", "shop", "--access", file).code == 0
    assert file.read_text() == FILE.replace('"shop.key"', '"shop.key", "shop-2.key"')
    assert here("access", "rotate", "shop", "--finish", "--access", file).code == 0
    assert 'keys = ["shop-2.key"]\n\n# [users.old]' in file.read_text()
    assert here("access", "revoke", "shop", "--access", file).code == 0
    assert file.read_text() == FILE[: FILE.index("# the shop")] + FILE[FILE.index("\n# [users.old]") :]
    assert here("access", "add", "ann", "admin = true", "--access", file).code == 0
    assert here("access", "revoke", "op", "--access", file).code == 0
    for line in ("# The access file of the warehouse.", '# read = "all"', "# Ask before you change this."):
        assert f"{line}\n" in file.read_text()


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_stay_and_a_byte_order_mark_is_no_fault(file: Path, mark: bytes) -> None:
    file.write_bytes(mark + FILE.replace("\n", "\r\n").encode())
    for arguments in (("add", "ann", "read = 'own'"), ("rotate", "shop"), ("revoke", "op")):
        done = here("access", *arguments, "--access", file)
        assert done.code == 0, done.err
        assert file.read_bytes().count(b"\r\n") == file.read_bytes().count(b"\n")
    settings = file.with_name("titanic.toml")
    settings.write_bytes(mark + "# größer\r\n[serve]".encode())
    done = here("access", "enable", settings, "--access", file)
    assert done.code == 0, done.err
    assert settings.read_bytes().startswith("# größer\r\n[serve]\r\naccess = ".encode())
    assert settings.read_bytes().count(b"\n") == 4


def test_texts_do_not_depend_on_the_locale(file: Path) -> None:
    file.write_text(f"# größer\n{FILE}", encoding="utf-8")
    done = titanic("access", "rotate", "shop", "--access", file, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", LC_ALL="C")
    assert done.code == 0, done.err
    assert file.read_bytes().startswith("# größer\n".encode())


def test_settings_that_are_not_text_are_refused(file: Path) -> None:
    settings = file.with_name("titanic.toml")
    settings.write_bytes(b"[serve]\n# \xff\n")
    done = here("access", "enable", settings, "--access", file)
    assert (done.code, done.err) == (
        1,
        f"titanic: {settings} cannot be changed: {settings}:2: this is not TOML: it is not UTF-8;"
        " run titanic config check\n",
    )


@pytest.mark.parametrize("text", ["", "# users follow\n", '[roles.sender]\nsubmit = ["mail"]\n'])
def test_the_first_user_of_a_file_is_added(file: Path, text: str) -> None:
    file.write_text(text)
    done = here("access", "add", "ann", "admin = true", "--access", file)
    assert done.code == 0, done.err
    assert file.read_text().startswith(text)
    assert list(AccessFile(file).users) == ["ann"]


def test_a_link_may_lead_to_another_disk(file: Path) -> None:
    with small_disk(file.parent / "disk", "tmpfs", 1 << 20) as disk:
        there = disk.path / "access.toml"
        there.write_text(FILE)
        file.unlink()
        file.symlink_to(there)
        there.chmod(0o600)
        done = here("access", "add", "ann", "--access", file)
        assert done.code == 0, done.err
        assert (file.is_symlink(), list(AccessFile(file).users)) == (True, ["shop", "op", "ann"])
        assert there.stat().st_mode & 0o777 == 0o600
        assert (file.parent / "ann.key_secret").exists()


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "tmpfs", 1 << 20) as disk:
        file = disk.path / "access.toml"
        assert here("keys", "new", "shop", "--dir", disk.path).code == 0
        file.write_text(FILE)
        disk.fill()
        there = sorted(disk.path.iterdir())
        for arguments in (("add", "ann"), ("rotate", "shop"), ("revoke", "op")):
            done = here("access", *arguments, "--access", file)
            assert (done.code, "No space left on device" in done.err) == (1, True), done.err
            assert (file.read_text(), sorted(disk.path.iterdir())) == (FILE, there)


def test_a_command_that_was_killed_leaves_a_whole_file(file: Path) -> None:
    """Also before the rename, where the draft that it leaves does not stay for good."""
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=5"]
    command = [*strace, sys.executable, "-m", "titanic", "access", "add", "ann", "--access", file]
    done = subprocess.run(command, env=CLEAN, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == -signal.SIGKILL
    assert file.read_text() == FILE
    assert len(list(file.parent.glob(".*"))) == 1
    assert here("access", "add", "bob", "--access", file).code == 0
    assert (list(AccessFile(file).users), list(file.parent.glob(".*"))) == (["shop", "op", "bob"], [])
