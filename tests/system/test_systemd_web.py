"""titanic-web.service under a real systemd: it serves, is hardened, and comes back."""

from __future__ import annotations

import tomllib

import pytest
from support.machine import ROOT, machine, needs_machine

WEB = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["web"]


@needs_machine
@pytest.mark.timeout(900)
def test_its_life() -> None:
    with machine(*WEB) as here:
        here.does("/root/deploy/install.sh", "--web", "--wheels", "/root/wheels")
        here.does("systemctl", "enable", "--now", "titanic-web")
        assert here.does("curl", "-sf", "http://127.0.0.1:8080/readyz") == "ok"
        assert here.shows("titanic-web", "User") == "titanic-web"
        assert here.shows("titanic-web", "StatusText").endswith("; without access control")
        here.does("systemd-analyze", "--man=no", "verify", "titanic-web.service")
        rating = here.does("systemd-analyze", "security", "--no-pager", "titanic-web.service").splitlines()[-1]
        assert float(rating.split("exposure level")[1].split(":")[1].split()[0]) <= 1.5, rating

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
        here.until(lambda: "no access file, but 10.0.0.1 is to be bound" in here.journal("-u", "titanic-web"))
        assert here.shows("titanic-web", "NRestarts") == "0"
