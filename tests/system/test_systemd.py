"""Titanic as a service of a real systemd, installed by deploy/install.sh, seen from inside the machine."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from support.machine import WEB, Machine, machine, needs_machine
from support.scraping import named_in_alerts, named_in_dashboard, names_of
from support.torture import LONG

pytestmark = [needs_machine, pytest.mark.timeout(1200)]

INSTALL = ("/root/deploy/install.sh", "--wheels", "/root/wheels")
TOML = "/etc/titanic/titanic.toml"
SOMEBODY = "nobody"
ARCHIVE = "pyarrow>=15", "numpy"
FIGURES = "http://127.0.0.1:9469/metrics"
ELSEWHERE = ("titanic_archive_", "titanic_backup_", "titanic_refusals_", "titanic_user_", "titanic_worker_")
"""Figures that are there with an archive, a backup, a refused user, or at workers."""
SERVERS = tuple(f"titanic{name}.service" for name in ("", "-broker", "-store", "-backup", "-web"))


def exposure(here: Machine, unit: str) -> float:
    """What `systemd-analyze security` thinks of a unit: 0 is a fortress, 10 a barn."""
    return float(here.does("systemd-analyze", "--no-pager", "security", unit).rpartition(": ")[2].split()[0])


def main_pid(here: Machine) -> int:
    return int(here.shows("titanic", "MainPID"))


def restarted(here: Machine, times: int, unit: str = "titanic") -> bool:
    """Whether it runs again, for the so-manieth time."""
    found = (here.shows(unit, "NRestarts"), here.shows(unit, "ActiveState"))
    return found == (str(times), "active")


def serve_upper(here: Machine) -> None:
    """Start a worker of the service upper."""
    (here.folder / "etc/titanic/workers/upper.conf").write_text("COMMAND=tr a-z A-Z\nTITANIC_JOBS=2\n")
    here.does("systemctl", "enable", "--now", "titanic-worker@upper")


@pytest.mark.torture(short=True)
def test_its_life() -> None:
    """All on one machine: to make another one and to install there takes longer than what is tested."""
    with machine(*WEB, *ARCHIVE) as here:
        # Machines of other tests run at the same time, with units of the same names.
        groups = Path(f"/proc/{here.leader()}/cgroup").read_text()
        assert f"/{here.folder.parent.name}/" in groups
        what_install_says(here)
        life(here)
        what_uninstalling_leaves(here)


def life(here: Machine) -> None:
    here.does("systemctl", "enable", "--now", "titanic")

    # It serves, and systemd knows how it is.
    assert here.shows("titanic", "ActiveState") == "active"
    assert here.shows("titanic", "StatusText").startswith("0 waiting, 0 running, ")
    assert here.shows("titanic", "User") == "titanic"
    assert here.shows("titanic", "Documentation") == ""  # there are no manual pages
    here.does("systemd-analyze", "--man=no", "verify", *SERVERS)
    assert [unit for unit in SERVERS if exposure(here, unit) > 1.5] == []

    # The whole walk, as somebody without any rights.
    uuid = here.does("titanic", "submit", "upper", "hello", user=SOMEBODY)
    assert here.run("titanic", "reply", uuid, user=SOMEBODY).code == 3
    serve_upper(here)
    assert here.does("titanic", "reply", uuid, "--wait", "30", user=SOMEBODY) == "HELLO"
    assert exposure(here, "titanic-worker@upper.service") <= 1.5
    here.does("titanic", "close", uuid, user=SOMEBODY)
    assert here.run("titanic", "reply", uuid, user=SOMEBODY).code == 4

    # Its figures are all that alerts and dashboard ask for, however little it may see of the machine.
    here.does("titanic", "pause", "idle")  # which is told of services that are paused only
    asked = {name for name in named_in_alerts() | named_in_dashboard() if not name.startswith(ELSEWHERE)}
    here.until(lambda: asked <= names_of(here.does("curl", "-s", FIGURES)))
    started = here.says(f"curl -s {FIGURES} | sed -n 's/^process_start_time_seconds //p'")
    assert abs(float(started) - time.time()) < 600
    archive(here)  # this may upgrade, and a new process has no figures of services yet

    # Killed: it is there again, and nothing is lost.
    kept = here.does("titanic", "submit", "absent", "kept", user=SOMEBODY)
    here.does("kill", "-KILL", str(main_pid(here)))
    here.until(lambda: restarted(here, 1))
    assert here.run("titanic", "reply", kept, user=SOMEBODY).code == 3

    # The configuration changes while it serves; a faulty one does not.
    pid = main_pid(here)
    settings = here.folder / TOML.lstrip("/")
    good = settings.read_text().replace('#keep-dead = "30d"', "keep-dead = 60")
    settings.write_text(good)
    here.does("systemctl", "reload", "titanic")
    here.until(lambda: "reloaded: keep-dead" in here.journal("TITANIC_EVENT=reloaded", "PRIORITY=6"))
    settings.write_text(f"{good}\n[serv]\n")
    fault = "unknown key [serv]; did you mean serve?"
    assert fault not in here.journal()
    refused = here.run("systemctl", "reload", "titanic")
    assert refused.code != 0, refused
    here.until(lambda: re.search(rf"{TOML}:\d+: {re.escape(fault)}", here.journal()))
    assert here.journal("TITANIC_EVENT=reload-refused") == ""  # it was not even asked
    here.does("kill", "-HUP", str(pid))
    assert fault in here.until(lambda: here.journal("TITANIC_EVENT=reload-refused", "PRIORITY=3"))
    assert (main_pid(here), here.shows("titanic", "ActiveState")) == (pid, "active")
    settings.write_text(good)
    assert here.run("titanic", "reply", kept, user=SOMEBODY).code == 3

    # Stuck: the watchdog ends it, and it is there again; so does that of a worker.
    for unit in ("titanic.service", "titanic-worker@.service"):
        here.says(f"mkdir -p /run/systemd/system/{unit}.d")
        here.does("tee", f"/run/systemd/system/{unit}.d/soon.conf", stdin="[Service]\nWatchdogSec=8\n")
    (here.folder / "etc/titanic/workers/slow.conf").write_text("COMMAND=/usr/local/bin/slowly\n")
    slowly = "#!/bin/sh\nuntil [ -e /etc/titanic/go ]; do sleep 0.5; done; cat"
    here.says(f"printf '{slowly}' >/usr/local/bin/slowly; chmod 755 /usr/local/bin/slowly")
    here.does("systemctl", "daemon-reload")
    here.does("systemctl", "restart", "titanic", "titanic-worker@upper", "titanic-worker@slow")
    here.does("systemctl", "reload", "titanic-worker@upper", "titanic-worker@slow")  # their successors are watched, too
    upper = "titanic-worker@upper"  # its main process may end between the two commands
    here.until(lambda: "keep" not in here.says(f"ps -o args= -p {here.shows(upper, 'MainPID')} || echo keep"))
    slow = here.does("titanic", "submit", "slow", "done", user=SOMEBODY)
    here.until(lambda: slow in here.does("titanic", "ls", "--state", "running"))
    here.does("kill", "-STOP", str(main_pid(here)), here.shows("titanic-worker@upper", "MainPID"))
    here.until(lambda: restarted(here, 1))
    here.until(lambda: restarted(here, 1, "titanic-worker@upper"))
    for unit in ("titanic", "titanic-worker@upper"):
        assert "Watchdog timeout (limit 8s)!" in here.journal("-u", unit)
    assert here.run("titanic", "reply", kept, user=SOMEBODY).code == 3
    uuid = here.does("titanic", "submit", "upper", "back", user=SOMEBODY)
    assert here.does("titanic", "reply", uuid, "--wait", "60", user=SOMEBODY) == "BACK"
    # A command that takes longer than that is no reason: it has run since before both were stuck.
    assert here.shows("titanic-worker@slow", "NRestarts") == "0"
    (here.folder / "etc/titanic/go").touch()
    assert here.does("titanic", "reply", slow, "--wait", "60", user=SOMEBODY) == "done"

    # Stopped in the middle of traffic: at once, with 0, and what was acknowledged is there.
    submit = "while titanic submit absent x --timeout 1; do :; done >/tmp/acknowledged 2>/tmp/refused"
    here.does("systemd-run", "--unit=traffic", "--uid=nobody", "sh", "-c", submit)
    here.until(lambda: (here.folder / "tmp/acknowledged").exists() or here.says("cat /tmp/acknowledged || true"))
    began = time.monotonic()
    here.does("systemctl", "stop", "titanic")
    assert time.monotonic() - began < 30
    assert here.shows("titanic", "Result") == "success"
    assert here.shows("titanic", "ExecMainStatus") == "0"
    here.until(lambda: here.run("systemctl", "is-active", "traffic").code != 0)
    acknowledged = here.does("cat", "/tmp/acknowledged").split()
    assert acknowledged

    # Switched off and on again: it is there by itself, and so is all of that.
    here.power_off()
    here.boot()
    here.until(lambda: restarted(here, 0))
    listed = here.does("titanic", "ls", "--most", "100000", "--state", "waiting", user=SOMEBODY)
    assert [one for one in [kept, *acknowledged] if one not in listed] == []
    uuid = here.does("titanic", "submit", "upper", "again", user=SOMEBODY)
    assert here.does("titanic", "reply", uuid, "--wait", "60", user=SOMEBODY) == "AGAIN"

    # The web console.
    here.does("systemctl", "enable", "--now", "titanic-web")
    assert here.does("curl", "-sf", "http://127.0.0.1:8080/readyz") == "ok"
    assert here.shows("titanic-web", "User") == "titanic-web"
    assert here.shows("titanic-web", "StatusText").endswith("; without access control")

    # What it may not: read the store.
    assert here.run("runuser", "-u", "titanic-web", "--", "ls", "/var/lib/titanic/store").code != 0

    # Killed: it is there again. Ended with an open stream: it ends in time.
    here.does("kill", "-KILL", here.shows("titanic-web", "MainPID"))
    here.until(lambda: here.run("curl", "-sf", "http://127.0.0.1:8080/healthz").code == 0)
    here.says("curl -sN http://127.0.0.1:8080/v1/events >/root/stream 2>&1 & until [ -s /root/stream ]; do :; done")
    here.does("systemctl", "stop", "titanic-web")
    assert here.shows("titanic-web", "Result") == "success"
    assert here.shows("titanic-web", "ExecMainStatus") == "0"

    # A fault in the settings is told, and not tried again.
    settings = here.folder / "etc/titanic/titanic.toml"
    settings.write_text(settings.read_text().replace('#bind = "127.0.0.1:8080"', 'bind = "10.0.0.1:8080"'))
    assert here.run("systemctl", "start", "titanic-web").code != 0
    here.until(lambda: "cannot bind 10.0.0.1 without an access file" in here.journal("-u", "titanic-web"))
    assert here.shows("titanic-web", "NRestarts") == "0"

    # The handbook's socket for a proxy has its folder, which the proxy's group may enter.
    settings.write_text(
        settings.read_text().replace('bind = "10.0.0.1:8080"', 'bind = "unix:/run/titanic-web/web.sock"')
    )
    here.does("systemctl", "start", "titanic-web")
    assert here.does("curl", "-sf", "--unix-socket", "/run/titanic-web/web.sock", "http://localhost/readyz") == "ok"
    assert here.does("stat", "-c", "%a %G", "/run/titanic-web").split() == ["750", "titanic-web"]
    here.does("systemctl", "stop", "titanic-web")


def archive(here: Machine) -> None:
    """One request was closed."""
    here.does("systemctl", "start", "titanic-archive")
    if LONG:  # once more in what an upgrade made
        here.does(*INSTALL)
        here.does("systemctl", "start", "titanic-archive")
    said = here.journal("-u", "titanic-archive")
    assert "/var/lib/titanic/archive: 1 row added" in said
    assert "complete up to number 1" in said
    assert exposure(here, "titanic-archive.service") <= 1.5
    here.does("systemctl", "enable", "--now", "titanic-archive.timer")
    assert here.shows("titanic-archive.timer", "ActiveState") == "active"
    # By hand it finds the store as the service has it.
    assert here.does("titanic-data", "unregister") == "/var/lib/titanic/store: the ring no longer waits for an archive"
    here.does("systemctl", "disable", "--now", "titanic-archive.timer")


def what_install_says(here: Machine) -> None:
    assert here.does("/root/deploy/install.sh", "--help").startswith("Usage: install.sh ")
    for arguments, code, fact in (
        (("--wheel", "x"), 2, "unknown option --wheel; install.sh --help lists the options"),
        (("--prefix",), 2, "--prefix needs a value"),
        (("--prefix", "here"), 2, "--prefix must begin with a /"),
        (("--purge",), 2, "--purge goes with --uninstall"),
        (("--rollback",), 1, "no earlier version in /opt/titanic"),
        (("--python", "/bin/false"), 1, "Titanic needs Python 3.11 or newer"),
        ((), 1, "no source tree beside this script; give --wheels DIR"),
    ):
        done = here.run("/root/deploy/install.sh", *arguments)
        assert (done.code, fact in done.err) == (code, True), done
    assert (
        "not run as root"
        in here.run("sh", "-c", "cp /root/deploy/install.sh /tmp && setpriv --reuid=nobody /tmp/install.sh").err
    )
    # No half of it is there when it cannot be all there, and it is said why.
    here.says("mkdir /tmp/empty && mount --bind -o ro /etc/systemd/system /etc/systemd/system")
    refused = here.run(*INSTALL)
    assert (refused.code, "cannot write to /etc/systemd/system; is it mounted read-only?" in refused.err) == (
        1,
        True,
    )
    here.does("umount", "/etc/systemd/system")
    refused = here.run("/root/deploy/install.sh", "--wheels", "/tmp/empty")
    assert (refused.code, "a wheel is missing in /tmp/empty, see above; nothing" in refused.err) == (1, True)
    assert here.says("ls /opt/titanic 2>/dev/null || true; ls /etc/systemd/system/titanic* 2>/dev/null || true") == ""
    here.says("rmdir /opt/titanic")
    assert here.says("ls /opt") == ""
    # A folder where others are, too, and rights that let nobody else in.
    here.says("mkdir -p /srv/t/2024-01-photos && touch /srv/t/2024-01-photos/a")
    options = "--prefix /srv/t --no-start --web --archive"
    here.says(f"umask 077; /root/deploy/install.sh --wheels /root/wheels {options}")
    assert here.does("titanic", "--version", user=SOMEBODY).startswith("titanic, version ")
    assert "titanic work mail-out " in here.shows("titanic-worker@mail-out", "ExecStart")
    assert here.shows("titanic", "ActiveState") == "inactive"
    # A worker without a command is not started, which is said, and not tried again and again.
    started = here.run("systemctl", "start", "titanic-worker@nobody")
    assert (started.code, "Assertion failed" in started.err) == (1, True), started
    reason = r"Assertion failed for .* see /etc/titanic/workers/nobody\.conf"
    assert re.search(reason, here.journal("-u", "titanic-worker@nobody"))
    (here.folder / "etc/titanic/workers/nothing.conf").write_text("TITANIC_JOBS=2\n")
    here.run("systemctl", "start", "titanic-worker@nothing")
    here.until(lambda: here.shows("titanic-worker@nothing", "ActiveState") == "failed")
    assert "titanic: missing argument '-- COMMAND...'" in here.journal("-u", "titanic-worker@nothing")
    assert [here.shows(f"titanic-worker@{name}", "NRestarts") for name in ("nobody", "nothing")] == ["0", "0"]
    assert here.does("/srv/t/current/bin/pip", "--version").startswith("pip ")
    assert "/srv/t/current/bin/titanic serve" in here.does("systemctl", "cat", "titanic")
    if LONG:
        assert here.does(*INSTALL, "--no-start").endswith(" is installed in /srv/t")
        assert here.does("/root/deploy/install.sh", "--rollback").endswith(" is active again")
    assert here.does("titanic", "--version").startswith("titanic, version ")


def what_uninstalling_leaves(here: Machine) -> None:
    """What others have put there; and, until it is purged, what it knew."""
    here.does("/root/deploy/install.sh", "--uninstall")
    assert here.says("find /srv/t") == "/srv/t\n/srv/t/2024-01-photos\n/srv/t/2024-01-photos/a"
    mine = "ls -d /etc/titanic /var/lib/titanic /var/lib/titanic-web 2>/dev/null || true"
    assert len(here.says(mine).split()) == 3
    here.does("/root/deploy/install.sh", "--uninstall", "--purge")
    assert here.says(mine) == ""


@pytest.mark.torture
def test_its_upkeep() -> None:
    with machine(*WEB) as here:
        keep_up(here)


def keep_up(here: Machine) -> None:
    here.does(*INSTALL)
    kept = here.does("titanic", "submit", "absent", "kept")

    # Installed once more, which is an upgrade; and back.
    first = here.says("readlink /opt/titanic/current")
    here.does(*INSTALL)
    second = here.says("readlink /opt/titanic/current")
    assert first != second
    assert second in here.says(f"cat /proc/{main_pid(here)}/cmdline | tr '\\0' ' '; readlink -f /opt/titanic/current")
    here.does("/root/deploy/install.sh", "--rollback")
    assert here.says("readlink /opt/titanic/current") == first
    assert here.run("titanic", "reply", kept).code == 3
    here.does(*INSTALL)
    assert len(here.says("ls -d /opt/titanic/2*").split()) == 2

    # An upgrade that would not understand the settings changes nothing; a start with them is not tried again and again.
    here.says(f"echo 'garce = 1' >>{TOML}")
    refused = here.run(*INSTALL)
    assert (refused.code, f"{TOML}:" in refused.err) == (1, True)
    assert "unknown key [web] garce" in refused.err
    assert "does not understand these settings; nothing was changed" in refused.err
    assert len(here.says("ls -d /opt/titanic/2*").split()) == 2
    assert here.shows("titanic", "ActiveState") == "active"
    assert here.run("systemctl", "restart", "titanic").code != 0
    assert here.shows("titanic", "ExecMainStatus") == "2"
    assert (here.shows("titanic", "ActiveState"), here.shows("titanic", "NRestarts")) == ("failed", "0")
    assert f"{TOML}:" in here.journal()
    here.says(f"sed -i '/^garce/d' {TOML}")
    here.does("systemctl", "restart", "titanic")

    # A backup, and what is restored from it.
    for _ in range(3):
        here.does("systemctl", "start", "titanic-backup")
    copies = here.says("ls -d /var/backups/titanic/*").split()
    assert len(copies) == 3
    here.does("titanic", "restore", copies[0], "--store", "/tmp/restored")
    assert kept in here.does("titanic", "ls", "--store", "/tmp/restored")
    # By hand as root, twice at once: no other than those of the timer, which can remove them.
    by_hand = f"/opt/titanic/lib/titanic-backup titanic {TOML} /var/backups/titanic 9"
    here.says(f"{by_hand} & {by_hand} && wait $!")
    assert here.says("stat -c %U /var/backups/titanic/*").split() == ["titanic"] * 5
    config = "KEEP=1 INTO=/var/backups/titanic"
    here.says(
        f"mkdir -p /etc/systemd/system/titanic-backup.service.d; printf '[Service]\\nEnvironment={config}\\n'"
        " >/etc/systemd/system/titanic-backup.service.d/few.conf; systemctl daemon-reload"
    )
    here.does("systemctl", "start", "titanic-backup")
    assert len(here.says("ls -d /var/backups/titanic/*").split()) == 1
    assert here.shows("titanic-backup.timer", "ActiveState") == "inactive"
    here.does("systemctl", "enable", "--now", "titanic-backup.timer")
    assert here.shows("titanic-backup.timer", "ActiveState") == "active"

    # Through a socket, for members of its group only.
    sockets = '["tcp://127.0.0.1:5555", "ipc:///run/titanic/titanic.sock"]'
    here.says(f"sed -i '/^\\[serve\\]/,/^\\[work\\]/ s|^#bind = .*|bind = {sockets}|' {TOML}")
    here.does("systemctl", "restart", "titanic")
    here.says("useradd --system --groups titanic friend; useradd --system stranger")
    ipc = ("--endpoint", "ipc:///run/titanic/titanic.sock", "--timeout", "1")
    assert here.run("titanic", "status", *ipc, user="friend").code == 0
    assert here.run("titanic", "status", *ipc, user="stranger").code == 3
    lower = here.folder / "etc/titanic/workers/lower.conf"
    lower.write_text("COMMAND=tr A-Z a-z\nTITANIC_ENDPOINT=ipc:///run/titanic/titanic.sock\n")
    here.does("systemctl", "start", "titanic-worker@lower")
    assert here.does("titanic", "submit", "lower", "QUIET", "--wait", "60").splitlines()[-1] == "quiet"

    # With access control: by TCP with a key, through the socket as the user that it stands for.
    (key,) = here.says("stat -c '%U %a %n' /etc/titanic/*_secret").splitlines()
    assert key == "root 600 /etc/titanic/server.key_secret"
    here.does("titanic", "keys", "new", "shop", "--dir", "/etc/titanic")
    shop, friends = '[users.shop]\nkeys = ["shop.key"]\nsubmit = ["*"]\n', '[users.friends]\nsubmit = ["absent"]\n'
    access = here.folder / "etc/titanic/access.toml"
    access.write_text(f'{shop}{friends}[endpoints."ipc:///run/titanic/titanic.sock"]\nuser = "friends"\n')
    here.says("chgrp titanic /etc/titanic/access.toml; chmod 640 /etc/titanic/access.toml")
    here.says(rf"sed -i '/^#\(access\|key\) = /d' {TOML}")  # as settings of an earlier version, that lack these lines
    assert "access control takes effect at the next start" in here.does("titanic", "access", "enable")
    here.does("systemctl", "restart", "titanic")
    assert "access control on, 2 users" in here.journal("-u", "titanic")
    assert here.run("cat", "/run/credentials/titanic.service/server.key_secret", user="friend").code != 0
    keys = ("--key-file", "/etc/titanic/shop.key_secret", "--server-key", "/etc/titanic/server.key")
    here.does("titanic", "submit", "anything", "x", *keys)
    refused = here.run("titanic", "submit", "anything", "x", user=SOMEBODY)
    assert (refused.code, "requires a key; this client has none" in refused.err) == (1, True), refused
    assert here.run("titanic", "submit", "anything", "x", *keys, user=SOMEBODY).code == 2  # the file is root's
    here.does("titanic", "submit", "absent", "x", *ipc, user="friend")
    refused = here.run("titanic", "submit", "anything", "x", *ipc, user="friend")
    assert (refused.code, "user 'friends' may not submit to 'anything'" in refused.err) == (1, True), refused
    # The file is read again as a whole, or not at all, which fails.
    whole = access.read_text()
    access.write_text(f"{whole}[users.more]\nsubmits = []\n")
    assert here.run("systemctl", "reload", "titanic").code != 0
    here.until(lambda: re.search(r"access\.toml:\d+: unknown \[users\.more\] submits; did you", here.journal()))
    here.does("titanic", "submit", "anything", "x", *keys)
    access.write_text(whole.replace(shop, ""))
    here.does("systemctl", "reload", "titanic")
    refused = here.run("titanic", "submit", "anything", "x", *keys)  # at once: it returns when the file is in force
    assert (refused.code, "refused this key" in refused.err) == (1, True), refused
    here.until(lambda: "removed shop" in here.journal("TITANIC_EVENT=access-reloaded"))
    here.says(rf"sed -i 's/^\(access\|key\) = /#\1 = /' {TOML}")

    # Broker and queue apart.
    here.does("systemctl", "disable", "--now", "titanic")
    here.does("systemctl", "enable", "--now", "titanic-broker", "titanic-store")
    assert here.shows("titanic-store", "ActiveState") == "active"
    assert here.run("titanic", "reply", kept).code == 3
    serve_upper(here)
    uuid = here.does("titanic", "submit", "upper", "apart", user=SOMEBODY)
    assert here.does("titanic", "reply", uuid, "--wait", "60", user=SOMEBODY) == "APART"
    # Each has its figures, and the store says that nobody works for `absent`, and when its broker is gone.
    figures = here.does("curl", "-s", "http://127.0.0.1:9470/metrics")
    assert "titanic_ready 1.0" in figures
    assert {name for name in named_in_alerts() if name.startswith("process_")} <= names_of(figures)
    here.until(lambda: 'titanic_workers{service="absent"} 0.0' in here.does("curl", "-s", FIGURES))
    here.does("systemctl", "stop", "titanic-broker")
    here.until(lambda: "titanic_ready 0.0" in here.does("curl", "-s", FIGURES))
    here.does("systemctl", "start", "titanic-broker")
    here.until(lambda: "titanic_ready 1.0" in here.does("curl", "-s", FIGURES))
    here.does("systemctl", "disable", "--now", "titanic-broker", "titanic-store")
    here.does("systemctl", "enable", "--now", "titanic")

    # Removed: what it knew stays, and is used again; or not.
    assert "were kept" in here.does("/root/deploy/install.sh", "--uninstall")
    assert here.run("systemctl", "cat", "titanic").code != 0
    assert here.says("ls /opt/titanic /usr/local/bin/titanic* 2>/dev/null || echo none") == "none"
    assert here.says("ls /etc/systemd/system/*/titanic* 2>/dev/null || echo none") == "none"
    here.does(*INSTALL)
    assert here.run("titanic", "reply", kept).code == 3
    here.does("/root/deploy/install.sh", "--uninstall", "--purge")
    left = "/etc/titanic /var/lib/titanic /var/backups/titanic /opt/titanic"
    assert here.says(f"ls -d {left} 2>/dev/null || echo none") == "none"
    assert here.run("id", "titanic").code != 0
