"""The Debian package on a real systemd: installed, upgraded, removed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.machine import ROOT, Machine, machine, needs_machine
from support.made_programs import alone, builder, shared_folder

pytestmark = [needs_machine, pytest.mark.timeout(1800)]

INSTALL = ("/root/deploy/install.sh", "--wheels", "/root/wheels")
SOMEBODY = "nobody"
UNITS = [path.name.replace("@", "@upper") for path in (ROOT / "deploy/systemd").glob("titanic*")]


@pytest.fixture
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package, built once as `make deb` does, by the first process of this run that wants it."""
    folder = shared_folder(tmp_path_factory, "deb")
    with alone(folder):
        if not (found := [*folder.glob("titanic-queue_*-1_*.deb")]):
            call(str(ROOT / "deploy/deb.sh"), str(builder(tmp_path_factory)), str(folder), "1")
            found = [*folder.glob("titanic-queue_*-1_*.deb")]
    (path,) = found
    return path


def package(here: Machine, built: Path) -> str:
    """Where the package is in the machine."""
    shutil.copy(built, here.folder / "root")
    return f"/root/{built.name}"


def old_package(here: Machine, package: str) -> str:
    """The same as revision 0, which had its units in /lib."""
    unpacked = here.folder / "root/unpacked"
    call("dpkg-deb", "--raw-extract", f"{here.folder}{package}", str(unpacked))
    (unpacked / "lib/systemd").mkdir(parents=True)
    (unpacked / "usr/lib/systemd/system").rename(unpacked / "lib/systemd/system")
    control = unpacked / "DEBIAN/control"
    control.write_text(re.sub(r"^(Version: .*)-1$", r"\1-0", control.read_text(), flags=re.MULTILINE))
    call("dpkg-deb", "--root-owner-group", "--build", str(unpacked), f"{here.folder}/root/0.deb")
    return "/root/0.deb"


def with_bytecode(here: Machine, package: str) -> str:
    """The same with what postinst compiled when another revision was installed, so that it finds nothing to do: that
    takes most of the time of an installation."""
    unpacked, name = here.folder / f"root/with-{Path(package).stem}", f"with-{Path(package).name}"
    call("dpkg-deb", "--raw-extract", f"{here.folder}{package}", str(unpacked))
    installed = here.folder / "usr/lib/titanic" / here.says("readlink /usr/lib/titanic/current")
    for compiled in installed.rglob("__pycache__"):
        place = unpacked / "usr/lib/titanic/package" / compiled.relative_to(installed)
        shutil.copytree(compiled, place, copy_function=shutil.copy2)
    call("dpkg-deb", "--root-owner-group", "--build", str(unpacked), f"{here.folder}/root/{name}")
    shutil.rmtree(unpacked)
    return f"/root/{name}"


def call(*command: str) -> None:
    """Run a command that builds; optimising and compressing would take its time."""
    env = {"MYPYC_OPT_LEVEL": "0", "DPKG_DEB_COMPRESSOR_TYPE": "none", **os.environ}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_life(built: Path) -> None:
    """All on one machine: what is purged leaves it as it was."""
    with machine(wheels=False) as here:
        life(here, built)


def life(here: Machine, built: Path) -> None:
    new = package(here, built)
    old = old_package(here, new)

    # Installed: it serves, with its settings, for everybody.
    here.does("dpkg", "--install", old)
    assert here.shows("titanic", "ActiveState") == "active"
    assert here.shows("titanic", "UnitFileState") == "enabled"
    kept = here.does("titanic", "submit", "absent", "kept", user=SOMEBODY)
    (here.folder / "etc/titanic/workers/upper.conf").write_text("COMMAND=tr a-z A-Z\n")
    here.does("systemctl", "start", "titanic-worker@upper", "titanic-backup")
    uuid = here.does("titanic", "submit", "upper", "hello", user=SOMEBODY)
    assert here.does("titanic", "reply", uuid, "--wait", "60", user=SOMEBODY) == "HELLO"
    assert kept in here.does("titanic", "ls", "--offline")
    assert "/etc/titanic/titanic.toml:" in here.does("titanic", "config", "show", "serve")
    assert here.run("dpkg", "--verify", "titanic-queue").out == ""
    # The server's own key is there, and root's alone. The service starts without it, too.
    rights = "stat -c '%U %a %n' /etc/titanic/server.*"
    assert here.says(rights).splitlines() == [
        "root 644 /etc/titanic/server.key",
        "root 600 /etc/titanic/server.key_secret",
    ]
    here.does("cmp", "/etc/titanic/server.key_secret", "/run/credentials/titanic.service/server.key_secret")
    own_key = here.does("cat", "/etc/titanic/server.key")
    version = here.does("python3", "-c", "import sys; print(sys.version_info[:2])")
    build = "compiled" if version == str(sys.version_info[:2]) else "pure Python"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    said = here.does("titanic", "--version")
    assert (f"({build}, " in said, said.rpartition(", ")[2].rstrip(")") in commit) == (True, True), said
    # What it says of itself: the library that its modules need, and the licences of what is within.
    assert "libc6 (>= 2." in here.does("dpkg-query", "--show", "--showformat", "${Depends}", "titanic-queue")
    licences = here.does("cat", "/usr/share/doc/titanic-queue/copyright")
    assert all(f"\n{name} " in licences for name in ("click", "cronsim", "lmdb", "psycopg", "pyzmq", "uvicorn"))
    here.does("test", "-f", "/usr/share/doc/titanic-queue/deploy/prometheus/alerts.yml")
    # Manual pages, and completion for shells.
    page = here.says("zcat /usr/share/man/man1/titanic-access-test.1.gz")
    assert page.startswith(".TH titanic\\-access\\-test 1 ")
    assert "Explain whether an access file permits an action" in page
    completes = ". /usr/share/bash-completion/completions/titanic; complete -p titanic"
    assert "_titanic_completion" in here.does("bash", "-c", completes)
    assert "man:titanic-serve(1)" in here.shows("titanic", "Documentation")
    here.does("test", "-f", "/usr/share/man/man1/titanic-serve.1.gz")
    # Schedules need what others have to install.
    schedules = here.folder / "etc/titanic/schedules.toml"
    schedules.write_text("[nightly]\nservice = 'absent'\ncron = '0 3 * * *'\n")
    assert "nightly" in here.does("titanic", "cron", "list", "/etc/titanic/schedules.toml")
    here.does("systemctl", "start", "titanic-cron")
    assert here.shows("titanic-cron", "ActiveState") == "active"
    here.does("systemctl", "stop", "titanic-cron")

    assert here.says("find /usr/lib/titanic/current/titanic/ -name '*.pyc' | grep -c entry") == "1"
    old, new = with_bytecode(here, old), with_bytecode(here, new)

    # install.sh changes nothing beside it.
    refused = here.run(*INSTALL)
    assert (refused.code, "is already installed as a Debian package; remove it first" in refused.err) == (1, True)
    assert here.shows("titanic", "ActiveState") == "active"

    # Upgraded: what ran runs, what was set is set, nothing is lost.
    settings = here.folder / "etc/titanic/titanic.toml"
    settings.write_text(settings.read_text().replace("#grace = 10.0", "grace = 3.0"))
    before = here.shows("titanic", "MainPID")
    here.does("systemctl", "enable", "--now", "titanic-backup.timer")
    here.does("dpkg", "--install", new)
    assert here.does("dpkg-query", "--show", "--showformat", "${Version}", "titanic-queue").endswith("-1")
    assert here.says("dpkg --listfiles titanic-queue | grep -v ^/usr") == "/."  # else lintian says aliased-location
    assert here.run("dpkg", "--verify", "titanic-queue").out == ""
    for unit in UNITS:
        assert here.shows(unit, "LoadState") == "loaded", unit
    for unit in ("titanic", "titanic-backup.timer"):
        assert (here.shows(unit, "ActiveState"), here.shows(unit, "UnitFileState")) == ("active", "enabled"), unit
    assert here.shows("titanic", "MainPID") not in (before, "0")
    here.until(lambda: here.shows("titanic-worker@upper", "ActiveState") == "active")  # an upgrade waits for no worker
    assert "grace = 3.0" in settings.read_text()
    assert here.does("cat", "/etc/titanic/server.key") == own_key
    assert here.run("titanic", "reply", kept, user=SOMEBODY).code == 3

    # What somebody stopped is left alone.
    here.does("systemctl", "disable", "--now", "titanic")
    here.does("dpkg", "--install", old)
    assert here.shows("titanic", "ActiveState") == "inactive"
    assert here.shows("titanic", "UnitFileState") == "disabled"

    # Removed, what it knew stays, and is used again. What was disabled still is.
    here.does("dpkg", "--remove", "titanic-queue")
    assert here.run("titanic", "--version").code != 0
    assert here.says("systemctl list-units --plain --no-legend 'titanic*'") == ""
    assert here.says("ls -d /usr/lib/titanic 2>/dev/null || echo none") == "none"
    here.does("dpkg", "--install", new)
    assert (here.shows("titanic", "ActiveState"), here.shows("titanic", "UnitFileState")) == ("inactive", "disabled")

    # What was enabled runs again, also without the key.
    here.says("mv /etc/titanic/server.key_secret /root")
    units = ["titanic.service", "titanic-worker@upper.service", "titanic-backup.timer", "titanic-archive.timer"]
    here.does("systemctl", "enable", "--now", *units)
    here.says("mv /root/server.key_secret /etc/titanic")
    here.does("dpkg", "--remove", "titanic-queue")
    here.does("dpkg", "--install", new)
    assert [here.shows(unit, "ActiveState") for unit in units] == ["active"] * 4
    assert here.run("titanic", "reply", kept, user=SOMEBODY).code == 3
    uuid = here.does("titanic", "submit", "upper", "again", user=SOMEBODY)
    assert here.does("titanic", "reply", uuid, "--wait", "60", user=SOMEBODY) == "AGAIN"

    # The archive's unit is there; what it needs besides is not, which it says.
    assert here.run("systemctl", "start", "titanic-archive").code != 0
    assert "python3 -m pip install --target /usr/local/lib/titanic-archive" in here.journal("-u", "titanic-archive")

    # Settings that it does not understand: the package is installed all the same, and says what does not run.
    good = settings.read_text()
    settings.write_text(f"garce = 1\n{good}")
    done = here.run("dpkg", "--install", old)
    assert (done.code, "restart titanic.service failed; see systemctl status" in done.err) == (0, True), done
    assert here.shows("titanic", "ActiveState") == "failed"
    settings.write_text(good)
    here.does("dpkg", "--install", new)
    assert here.shows("titanic", "ActiveState") == "active"

    an_upgrade_waits_for_no_worker(here, new, old)

    # Purged, it was never there, however it was enabled.
    here.does("systemctl", "enable", "titanic-broker", "titanic-store")
    here.does("dpkg", "--purge", "titanic-queue")
    left = "/etc/titanic /var/lib/titanic /var/backups/titanic /usr/lib/titanic /usr/bin/titanic"
    assert here.says(f"ls -d {left} 2>/dev/null || echo none") == "none"
    assert here.says("find /etc/systemd /lib/systemd /var/lib/systemd -name '*titanic*'") == ""


@pytest.mark.torture
def test_it_takes_turns_with_install_sh(built: Path) -> None:
    with machine() as here:
        it_takes_turns(here, built)


def it_takes_turns(here: Machine, built: Path) -> None:
    settings = here.folder / "etc/titanic/titanic.toml"
    package_file = package(here, built)

    here.does("dpkg", "--install", package_file)

    # The package goes, and install.sh's Titanic takes its place: it runs, and will after a boot.
    here.does("systemctl", "enable", "--now", "titanic-backup.timer")
    mine = settings.read_text().replace("#grace = 10.0", "grace = 3.0")
    settings.write_text(mine)
    here.does("dpkg", "--remove", "titanic-queue")
    assert " is installed in /opt/titanic" in here.does(*INSTALL)
    for unit in ("titanic.service", "titanic-backup.timer"):
        assert (here.shows(unit, "ActiveState"), here.shows(unit, "UnitFileState")) == ("active", "enabled"), unit
    assert here.says("find /etc/systemd/system -lname /dev/null -name 'titanic*'") == ""
    assert settings.read_text() == mine

    # While it is there, the package is refused, and changes nothing.
    refused = here.run("dpkg", "--install", package_file)
    assert refused.code != 0
    assert "Titanic is already installed by install.sh; remove it first" in refused.err
    assert here.shows("titanic", "ActiveState") == "active"
    assert here.run("titanic", "--version").code == 0

    # To purge the package that went before takes nothing from it.
    assert "were kept: the Titanic that install.sh installed uses them" in here.does("dpkg", "--purge", "titanic-queue")
    assert settings.read_text() == mine
    assert (here.shows("titanic", "ActiveState"), here.shows("titanic", "UnitFileState")) == ("active", "enabled")

    # It goes in turn, and the package takes over its settings, with no question to anybody.
    here.does("/root/deploy/install.sh", "--uninstall")
    here.does("dpkg", "--install", package_file)
    assert (here.shows("titanic", "ActiveState"), here.shows("titanic", "UnitFileState")) == ("active", "enabled")
    assert settings.read_text() == mine
    assert "#grace = 10.0" in settings.with_suffix(".toml.dist").read_text()

    # Units that the operator has changed as a whole are still the package's.
    here.does("cp", "/lib/systemd/system/titanic.service", "/etc/systemd/system/titanic.service")
    here.does("systemctl", "daemon-reload")
    here.does("dpkg", "--install", package_file)
    here.does("dpkg", "--remove", "titanic-queue")
    assert here.shows("titanic", "ActiveState") == "inactive"

    # A package that was removed, install.sh and back.
    here.does(*INSTALL)
    here.does("/root/deploy/install.sh", "--uninstall")
    here.does("dpkg", "--install", package_file)
    assert (here.shows("titanic", "ActiveState"), here.shows("titanic", "UnitFileState")) == ("active", "enabled")
    here.does("dpkg", "--purge", "titanic-queue")
    assert not settings.exists()


def an_upgrade_waits_for_no_worker(here: Machine, old: str, new: str) -> None:
    """Workers that still have something to do finish it, from files of their version; new ones work beside them. The
    first package is installed."""
    slow, go = here.folder / "usr/local/bin/slow", here.folder / "etc/titanic/go"
    wait = "while [ ! -e /etc/titanic/go ]; do sleep 0.1; done"
    slow.write_text(f"#!/bin/sh\n{wait}; echo done $PPID $TITANIC_DELIVERY\n")
    slow.chmod(0o755)
    (here.folder / "etc/titanic/workers/slow.conf").write_text("COMMAND=/usr/local/bin/slow\n")
    here.does("systemctl", "start", "titanic-worker@slow")

    def begun() -> str:
        uuid = here.does("titanic", "submit", "slow", "x", user=SOMEBODY)
        here.until(lambda: f"{uuid}" in here.does("titanic", "ls", "--state", "running"))
        return uuid

    def is_alive(pid: str) -> bool:
        return here.run("kill", "-0", pid).code == 0

    current = "readlink -f /usr/lib/titanic/current"
    first, before, folder = begun(), here.shows("titanic-worker@slow", "MainPID"), here.says(current)
    here.does("dpkg", "--install", new)
    here.until(lambda: here.shows("titanic-worker@slow", "MainPID") not in (before, "0"))
    assert here.says(current) != folder
    second = begun()
    assert (is_alive(before), here.run("test", "-d", folder).code) == (True, 0)

    # If the new one dies, another takes its place, and the old one goes on.
    def working(uuid: str) -> str:
        worker = json.loads(here.does("titanic", "show", uuid, "--json")).get("worker", "")
        return str(worker.rpartition(":")[2])

    killed = working(second)
    assert killed not in ("", before)
    here.does("kill", "-KILL", killed)
    successor = here.until(lambda: (pid := working(second)) != killed and pid)
    assert (is_alive(before), here.shows("titanic-worker@slow", "NRestarts")) == (True, "0")
    go.touch()
    for uuid, pid, delivery in ((first, before, 1), (second, successor, 2)):
        done = here.does("titanic", "reply", uuid, "--wait", "60", user=SOMEBODY)
        assert done == f"done {pid} {delivery}", here.journal()
    here.until(lambda: not is_alive(before))
    here.until(lambda: here.shows("titanic-worker@slow", "MainPID") == successor)
    here.does("dpkg", "--install", old)
    assert here.run("test", "-d", folder).code == 1
    here.until(lambda: here.shows("titanic-worker@slow", "MainPID") not in (successor, "0"))
    here.until(lambda: here.shows("titanic-worker@slow", "ActiveState") == "active")  # the reload is over

    # A worker whose successor does not start goes on. A stop waits for all.
    settings = here.folder / "etc/titanic/titanic.toml"
    args = "ps -o args= -p {} || echo keep"  # which may have ended since it was named
    here.until(lambda: "keep" not in here.says(args.format(here.shows("titanic-worker@slow", "MainPID"))))
    good, last = settings.read_text(), here.shows("titanic-worker@slow", "MainPID")
    settings.write_text(f"garce = 1\n{good}")
    assert here.run("systemctl", "reload", "titanic-worker@slow").code != 0
    assert here.shows("titanic-worker@slow", "MainPID") == last
    settings.write_text(good)
    go.unlink()
    first = begun()
    here.does("systemctl", "reload", "titanic-worker@slow")
    second = begun()
    successor = working(second)
    here.does("titanic", "close", second)
    here.until(lambda: here.does("titanic", "ls", "--state", "running").count("slow") == 1)
    here.does("systemctl", "--no-block", "stop", "titanic-worker@slow")
    here.until(lambda: not is_alive(successor))
    assert here.shows("titanic-worker@slow", "ActiveState") == "deactivating"
    go.touch()
    here.until(lambda: here.shows("titanic-worker@slow", "ActiveState") == "inactive")
    assert here.does("titanic", "reply", first, user=SOMEBODY) == f"done {last} 1"
