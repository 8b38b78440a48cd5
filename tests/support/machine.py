"""A machine with a real systemd: Debian in a folder, booted by systemd-nspawn, without a network of its own.

What the folder begins with is made once by debootstrap, from the mirror that this system's own apt uses, and kept below
$XDG_CACHE_HOME (for root /var/cache); each machine is a copy of it. Titanic and what it needs come as wheels.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

import pytest
from support.memory import in_memory

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0
"""Seconds after which something that should happen has not; an installation takes 8, where nothing else runs."""
ROOM = 4 << 30
"""Bytes that several machines take, each of them one at most."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WEB: list[str] = PROJECT["optional-dependencies"]["web"]
"""What install.sh --web wants besides."""
PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "util-linux", "procps", "curl")
NEEDED = ("systemd-nspawn", "debootstrap", "nsenter")
PLATFORMS = ("manylinux_2_28", "manylinux2014", "manylinux_2_17")
CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}

Found = TypeVar("Found")

needs_machine = pytest.mark.skipif(
    "CI" not in os.environ and (os.geteuid() != 0 or any(shutil.which(tool) is None for tool in NEEDED)),
    reason=f"needs root and {', '.join(NEEDED)}",
)


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


class Machine:
    """One that is booted. `folder` is its root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._console = folder.with_suffix(".console")
        self._process: subprocess.Popen[bytes] | None = None
        # systemd-nspawn puts a machine below the control group that it was started in, and two machines of one group
        # have the same units: one would remove a group that the other needs.
        self._groups = [path / folder.parent.name for path in _control_groups()]

    def boot(self) -> None:
        """Switch it on, and wait until it has booted."""
        options = ("--register=no", "--keep-unit", "--console=pipe", "--private-network", "--quiet", "--boot")
        for group in self._groups:
            group.mkdir(exist_ok=True)
        join = 'for group; do shift; [ "$group" = -- ] && exec "$@"; echo $$ >"$group/cgroup.procs" || exit; done'
        groups = [*map(str, self._groups), "--"]
        with self._console.open("ab") as console:
            self._process = subprocess.Popen(
                ["sh", "-c", join, "sh", *groups, "systemd-nspawn", "--directory", str(self.folder), *options],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        self.until(lambda: self.run("systemctl", "is-system-running").out.strip() in ("running", "degraded"))

    def run(self, *command: str, user: str | None = None, stdin: str = "") -> Done:
        """Run a command in it, as root or as somebody else."""
        if user is not None:
            command = ("runuser", "-u", user, "--", *command)
        words = ["nsenter", "--all", "--target", str(self.leader()), "--", *command]
        done = subprocess.run(
            words, input=stdin.encode(), capture_output=True, env=CLEAN, cwd="/", timeout=PATIENCE, check=False
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def does(self, *command: str, user: str | None = None, stdin: str = "") -> str:
        """Run a command that must succeed; its output."""
        done = self.run(*command, user=user, stdin=stdin)
        assert done.code == 0, f"{' '.join(command)}: {done.code}\n{done.out}{done.err}\n{self.journal()}"
        return done.out.strip()

    def says(self, script: str, *, user: str | None = None) -> str:
        """The output of a script of the shell, which must succeed."""
        return self.does("sh", "-c", script, user=user)

    def shows(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.does("systemctl", "show", "--value", "--property", name, unit)

    def journal(self, *arguments: str) -> str:
        """What the journal has of Titanic, with all that was said before."""
        self.run("journalctl", "--sync")
        return self.run("journalctl", "--no-pager", "--quiet", "-o", "cat", *(arguments or ("-u", "titanic*"))).out

    def until(self, look: Callable[[], Found | None]) -> Found:
        """Wait until there is something to be seen. The longer that takes, the less often it is asked for."""
        start = time.monotonic()
        while not (found := look()):
            waited = time.monotonic() - start
            assert waited < PATIENCE, f"waited in vain\n{self._console.read_text(errors='replace')}"
            time.sleep(min(0.05 + waited / 10, 0.5))
        return found

    def power_off(self) -> None:
        """Shut it down as it should be."""
        assert self._process is not None
        self.run("systemctl", "poweroff")
        self._process.wait(PATIENCE)
        self._process = None

    def remove(self) -> None:
        """Switch it off, whatever it is at, and forget it."""
        if self._process is not None:
            with suppress(AssertionError, ProcessLookupError):
                os.kill(self.leader(), signal.SIGKILL)  # the first process of the machine: all others go with it
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.until(lambda: all(_is_removed(group) for group in self._groups))
        shutil.rmtree(self.folder)

    def leader(self) -> int:
        """The process that is number 1 there, as it is numbered here."""
        process = self._process
        assert process is not None

        def found() -> int | None:
            assert process.poll() is None, f"it went off:\n{self._console.read_text(errors='replace')}"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            return int(children[0]) if children else None

        return self.until(found)


def _control_groups() -> Iterator[Path]:
    """The folders of this process's control groups that systemd works with: of version 1, version 2, or both."""
    kinds = {"name=systemd": Path("/sys/fs/cgroup/systemd"), "": Path("/sys/fs/cgroup")}
    if kinds["name=systemd"].exists():
        kinds[""] /= "unified"
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kind, path = line.split(":", 2)
        if kind in kinds and kinds[kind].exists():
            yield kinds[kind] / path.lstrip("/")


def _is_removed(group: Path) -> bool:
    """Remove a control group with those below it, which the kernel permits when their last process has gone."""
    if group.exists():
        with suppress(OSError):
            for below in sorted(group.rglob("*/"), reverse=True):
                below.rmdir()
            group.rmdir()
    return not group.exists()


@contextmanager
def machine(*more: str, wheels: bool = True) -> Iterator[Machine]:
    """A machine that has booted, with the source's deploy folder in /root/deploy and `wheels` in /root/wheels, those of
    `more` packages too."""
    with TemporaryDirectory(prefix="titanic-machine-", dir=in_memory(ROOM)) as memory:
        one = Machine(Path(memory) / "machine")
        subprocess.run(["cp", "-a", str(debian()), str(one.folder)], check=True)
        try:
            shutil.copytree(ROOT / "deploy", one.folder / "root/deploy")
            if wheels:
                collect_wheels(one.folder / "root/wheels", one.folder, *more)
            one.boot()
            yield one
        finally:
            one.remove()


def debian() -> Path:
    """The root file system that machines are copies of; made when there is none."""
    suite = _suite()
    kind = hashlib.sha256(" ".join((suite, *PACKAGES)).encode()).hexdigest()[:8]
    kept = _cache() / f"{suite}-{kind}"
    with _locked("lock"):
        if not kept.exists():
            new = kept.with_suffix(".new")
            subprocess.run(["umount", "--quiet", new / "proc"], check=False)  # of a debootstrap that was killed
            shutil.rmtree(new, ignore_errors=True)
            include = f"--include={','.join(PACKAGES)}"
            done = subprocess.run(
                ["debootstrap", "--variant=minbase", include, suite, str(new), _mirror(suite)],
                capture_output=True,
                text=True,
                timeout=800,
                check=False,
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
            shutil.rmtree(new / "var/cache/apt", ignore_errors=True)
            new.rename(kept)
    return kept


def _suite() -> str:
    """The name of this system's release."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return release["VERSION_CODENAME"].strip('"')


def _mirror(suite: str) -> str:
    """Where this system's packages come from: apt needs a second to find it."""
    form = ["--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"]
    listed = subprocess.run(["apt-get", "indextargets", *form], capture_output=True, text=True, check=True).stdout
    return next(line.split()[0] for line in listed.splitlines() if line.split()[1:] == [suite])


def collect_wheels(folder: Path, root: Path, *more: str) -> None:
    """This source as a wheel, and the wheels of all that it needs, for the Python of a root file system. These are
    fetched once a week."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    _call(build, TITANIC_PURE="1")  # its Python may be another one
    version = subprocess.run(
        ["chroot", str(root), "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    platforms = [f"--platform={name}_{os.uname().machine}" for name in PLATFORMS]
    where = ["--only-binary=:all:", f"--python-version={version}", "--implementation=cp", *platforms]
    (wheel,) = folder.glob("titanic_queue-*.whl")
    needs = *PROJECT["dependencies"], *where, *more, date.today().strftime("%G week %V")
    kept = _cache() / f"wheels-{hashlib.sha256(repr(needs).encode()).hexdigest()[:8]}"
    with _locked("wheels.lock"):
        if not kept.exists():
            new = kept.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            for old in _cache().glob("wheels-*/"):
                if old.stat().st_mtime < time.time() - 14 * 86400:
                    shutil.rmtree(old)
            _call([*pip, "download", "--dest", str(new), *where, str(wheel), *more])
            (new / wheel.name).unlink()
            new.rename(kept)
    shutil.copytree(kept, folder, dirs_exist_ok=True)


def _cache() -> Path:
    """Where what is made once is kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "/var/cache") / "titanic-tests"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Other tests want it at the same time."""
    with (_cache() / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _call(command: Sequence[str], **env: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=os.environ | env)
    assert done.returncode == 0, done.stdout + done.stderr
