"""A node as deploy/NODES.md installs it, on a machine with a real systemd; its PostgreSQL is outside."""

from __future__ import annotations

import re

import pytest
from support.machine import ROOT, machine, needs_machine
from support.postgres import needs_postgres, new_server

pytestmark = [needs_machine, needs_postgres, pytest.mark.timeout(1200)]

COMMANDS = re.findall(
    r"^    # (.*)$", (ROOT / "deploy/NODES.md").read_text().partition("## A node with systemd")[2], re.M
)


@pytest.mark.torture
def test_the_commands_work() -> None:
    """The database is away when it starts, comes, goes and comes back."""
    before = COMMANDS[: COMMANDS.index("systemctl daemon-reload && systemctl restart titanic") + 1]
    assert len(before) == 5
    with machine("psycopg[binary]>=3.2") as here, new_server() as server:
        here.folder.parent.chmod(0o711)  # PostgreSQL, which is another user, may enter it
        socket = here.folder / "srv/db"
        socket.mkdir()
        socket.chmod(0o777)
        server.stop("fast")
        server.settings["unix_socket_directories"] = f"{server.folder}, {socket}"
        server.configure()
        server.start()
        name = server.new_database()
        server.stop("fast")
        url = f"postgresql://titanic@/{name}?host=/srv/db&port={server.port}&passfile=/etc/titanic/pgpass"
        for command in before:
            # Its restart would wait for as long as it takes.
            line = command.replace("--postgres", "--postgres --wheels /root/wheels").replace(
                "restart", "restart --no-block"
            )
            here.says(f"cd /root; {line}")
            if command == before[0]:
                settings = here.folder / "etc/titanic/titanic.toml"
                settings.write_text(re.sub("^store = .*", f'store = "{url}"', settings.read_text(), flags=re.M))
        here.until(lambda: int(here.shows("titanic", "NRestarts")) > 1)
        server.start()
        here.until(lambda: here.shows("titanic", "ActiveState") == "active")
        uuid = here.does("titanic", "submit", "absent", "x", user="nobody")
        server.restart("immediate")
        here.until(lambda: here.run("curl", "-sf", "http://127.0.0.1:9469/readyz").code == 0)
        assert uuid in here.does("titanic", "ls", "--offline")
        assert here.run("titanic", "reply", uuid, user="nobody").code == 3
