"""deploy/README.md: its commands, run as written, one after another, on a machine where some things went wrong."""

from __future__ import annotations

import re

import pytest
from support.machine import ROOT, WEB, machine, needs_machine

README = (ROOT / "deploy/README.md").read_text()
COMMANDS = re.findall(r"^    # (.*)$", README, re.MULTILINE)

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


def test_every_alert_has_its_entry() -> None:
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "deploy/prometheus/alerts.yml").read_text())
    headings = " ".join(re.findall(r"^### (.*)$", README.partition("## Runbook")[2], re.MULTILINE))
    assert [name for name in alerts if name not in headings] == []


@needs_machine
@pytest.mark.timeout(1200)
def test_the_commands_work() -> None:
    assert len(COMMANDS) > 50
    with machine(*WEB) as here:
        variables = "SERVICE=broken UNIT=titanic PID=1 ERROR='the command exited with 1' UUID="
        for command in COMMANDS:
            line = WITHOUT_NETWORK.get(command, command)
            done = here.run("sh", "-c", f"cd /root; export {variables}\n{line}")
            assert done.code == 0, f"{command}: {done}\n{here.journal()}"
            if command == "titanic health":  # from here on there is something to look at
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
