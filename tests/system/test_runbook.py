"""deploy/README.md: its commands, run as written, one after another, on a machine where some things went wrong."""

from __future__ import annotations

import re
from functools import reduce

import pytest
from support.machine import ROOT, WEB, Machine, machine, needs_machine

README = (ROOT / "deploy/README.md").read_text()

WITHOUT_NETWORK = {
    "deploy/install.sh": "deploy/install.sh --web --wheels /root/wheels",
    "deploy/install.sh --web": "true",  # it takes ten seconds; the first has installed that, too
    "make deb && apt-get install ./dist/titanic-queue_*.deb": "true",  # that is what test_deb.py is about
    # That is what test_migrate.py is about; here the server goes on with the store that it has.
    "runuser -u titanic -- titanic migrate /var/lib/titanic/store postgresql://titanic@db/titanic": (
        "systemctl start titanic"
    ),
}
"""Commands that would fetch something, or need another machine."""

STORE = "var/lib/titanic/store"
PENDING, UNKNOWN = 3, 4
"""What `titanic reply` exits with."""


def test_every_alert_has_its_entry() -> None:
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "deploy/prometheus/alerts.yml").read_text())
    headings = " ".join(re.findall(r"^### (.*)$", README.partition("## Runbook")[2], re.MULTILINE))
    assert [name for name in alerts if name not in headings] == []


def section(heading: str) -> str:
    level, found = re.split(rf"^(##+) {heading}$", README, maxsplit=1, flags=re.MULTILINE)[1:]
    return re.split(rf"^#{{2,{len(level)}}} ", found, maxsplit=1, flags=re.MULTILINE)[0]


def commands(text: str) -> list[str]:
    """The root commands in it."""
    found: list[str] = re.findall(r"^    # (.*)$", text, re.MULTILINE)
    assert found, text
    return found


DOWN, FULL, DAMAGED, BACKUP = DRILLED = [
    section(heading)
    for heading in ("TitanicDown, TitanicRestarts", "TitanicDiskFull", "A damaged store", "Backup and restore")
]
"""What `drills` runs."""


@needs_machine
@pytest.mark.timeout(1200)
def test_the_commands_work() -> None:
    others = reduce(lambda text, drilled: text.replace(drilled, ""), DRILLED, README)
    with machine(*WEB) as here:
        variables = "SERVICE=broken UNIT=titanic PID=1 ERROR='the command exited with 1' UUID="
        for command in commands(others):
            line = WITHOUT_NETWORK.get(command, command)
            done = here.run("sh", "-c", f"cd /root; export {variables}\n{line}")
            assert done.code == 0, f"{command}: {done}\n{here.journal()}"
            if command == "titanic health":
                drills(here)
                # From here on there is something to look at.
                (here.folder / "etc/titanic/workers/broken.conf").write_text("COMMAND=false\n")
                here.does("systemctl", "start", "titanic-worker@broken")
                uuid = here.does("titanic", "submit", "broken", "x", "--max-attempts", "1")
                here.until(lambda: "broken" in here.does("titanic", "ls", "--state", "failed"))
                here.does("titanic", "submit", "absent", "x")
                variables += uuid
            if command == 'titanic show "$UUID"':
                assert "the command exited with 1" in done.out
            if command == 'journalctl TITANIC_UUID="$UUID"':
                assert "for broken failed: the command exited with 1" in done.out
            if command.endswith(("/healthz", "/readyz")):
                assert done.out == "ok\n"
            if command == "! titanic submit mail hello":
                lost_key(here)


def drill(here: Machine, lines: list[str]) -> str:
    """Run commands as they are printed; all that they say."""
    return "\n".join(here.says(f"cd /root; export UNIT=titanic\n{line}") for line in lines)


def submit(here: Machine, body: str) -> str:
    return here.does("titanic", "submit", "absent", body)


def code_of(here: Machine, uuid: str) -> int:
    return here.run("titanic", "reply", uuid).code


def drills(here: Machine) -> None:
    """Something breaks for real, and the commands of its section, as they are printed, mend it. Others are elsewhere:
    clocks that differ (`test_doctor.py`), a node that is lost (`test_nodes_systemd.py`), the fail-over of a database
    (`test_patroni.py`)."""
    kill(here)
    full_disk(here)
    damaged_page(here)
    restore(here)


def kill(here: Machine) -> None:
    kept, pid = submit(here, "kept"), here.shows("titanic", "MainPID")
    here.does("kill", "-KILL", pid)
    here.until(lambda: here.shows("titanic", "MainPID") not in (pid, "0"))
    here.until(lambda: here.shows("titanic", "ActiveState") == "active")
    assert "NRestarts=1" in drill(here, commands(DOWN))
    assert code_of(here, kept) == PENDING


def full_disk(here: Machine) -> None:
    """On a disk of its own, which the store does not notice before it is full."""
    large = "x" * 500_000
    here.does("systemctl", "stop", "titanic")
    here.says("mount -t tmpfs -o size=16m,mode=750 none /var/lib/titanic && chown titanic: /var/lib/titanic")
    here.does("systemctl", "start", "titanic")
    kept = submit(here, "kept")
    here.run("sh", "-c", "cat /dev/zero >/var/lib/titanic/filler")
    refused = here.until(lambda: (done := here.run("titanic", "submit", "absent", "-", stdin=large)).code and done)
    assert "the disk of the store" in refused.err
    said = drill(here, commands(FULL))
    assert "100%" in said
    assert re.search(r"^\d+M\s+/var/lib/titanic/filler$", said, re.MULTILINE)
    here.does("rm", "/var/lib/titanic/filler")
    here.until(lambda: here.run("titanic", "submit", "absent", "-", stdin=large).code == 0)
    assert code_of(here, kept) == PENDING
    here.does("systemctl", "stop", "titanic")
    here.does("umount", "/var/lib/titanic")
    here.does("systemctl", "start", "titanic")


def damaged_page(here: Machine) -> None:
    kept, damaged = submit(here, "kept"), submit(here, "a body that the disk does not keep")
    stop, check, *rest = commands(DAMAGED)
    drill(here, [stop])
    data = here.folder / STORE / "data.mdb"
    content = data.read_bytes()
    assert b"a body that the disk" in content
    data.write_bytes(content.replace(b"a body that the disk", b"a body that no disk!"))
    found = here.run("sh", "-c", check)
    assert (found.code, damaged in found.out + found.err) == (1, True), found
    drill(here, rest)
    assert here.shows("titanic", "ActiveState") == "active"
    assert code_of(here, kept) == PENDING
    assert code_of(here, damaged) != PENDING
    drill(here, [stop, check, rest[-1]])


def restore(here: Machine) -> None:
    kept, lines = submit(here, "kept"), commands(BACKUP)
    stop = lines.index("systemctl stop titanic")
    drill(here, lines[:stop])
    later = submit(here, "later")
    drill(here, lines[stop:])
    assert (code_of(here, kept), code_of(here, later)) == (PENDING, UNKNOWN)


def lost_key(here: Machine) -> None:
    """Of the server: clients refuse the new one, until they have it."""
    here.does("cp", "/etc/titanic/server.key", "/root/old.key")
    keys = ("--key-file", "/etc/titanic/shop.key_secret", "--server-key")
    here.does("titanic", "submit", "mail", "hello", *keys, "/root/old.key")
    here.does("rm", "/etc/titanic/server.key", "/etc/titanic/server.key_secret")
    (printed,) = re.findall(r"delete `/etc/titanic/server.key\*`, run `([^`]+)`, restart", README.replace("\n", " "))
    drill(here, [printed, "systemctl restart titanic"])
    refused = here.run("titanic", "submit", "mail", "hello", "--timeout", "5", *keys, "/root/old.key")
    assert refused.code != 0
    here.does("titanic", "submit", "mail", "hello", *keys, "/etc/titanic/server.key")
