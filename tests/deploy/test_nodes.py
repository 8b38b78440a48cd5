"""deploy/NODES.md and deploy/nodes: what can be tried without Docker, Kubernetes and three machines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psycopg
from support.cli_titanic import CLEAN
from support.postgres import PostgresServer, alone, needs_postgres, programs_for, shared_server

from titanic.store import open_store

DEPLOY = Path(__file__).parents[2] / "deploy"
TEXT = (DEPLOY / "NODES.md").read_text()


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@needs_postgres
def test_what_is_watched_can_be_asked() -> None:
    """Each SELECT of the handbook, of a store with a node."""
    asked = re.findall(r"^    (SELECT .*?;)$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(asked) >= 8
    server = shared_server()
    name = server.new_database()
    with open_store(server.url(name)), psycopg.connect(server.url(name), autocommit=True) as connection:
        for statement in asked:
            connection.execute(statement)  # type: ignore[call-overload]
    server.drop_database(name)


PUT = """
import sys
from titanic.store import NewRequest, open_store
with open_store(sys.argv[1]) as store, store.write() as transaction:
    transaction.accept_many([NewRequest(b"echo", [b"x"], key=sys.argv[2].encode(), key_until=2)], 1)
"""


@needs_postgres
def test_a_backup_is_restored(tmp_path: Path) -> None:
    """The commands of the section, as written, but for where things are: what came before the point is there, and what
    came after it is not."""
    commands = re.findall(r"^    # (.*)$", section("Backup and restore"), re.MULTILINE)
    assert len(commands) == 16
    programs_for(tmp_path / "bin", "mkdir", "touch")
    (tmp_path / "bin/titanic").write_text(f'#!/bin/sh\nexec {sys.executable} -m titanic "$@"\n')
    (tmp_path / "bin/titanic").chmod(0o755)
    with PostgresServer() as server:
        server.create()
        url = server.url(server.new_database())
        server.stop("fast")
        lines = [f"pg_ctl start --pgdata={server.data} --log={server.folder}/log2 --wait"]
        for command in commands:
            line = command.replace("/var/lib/postgresql/15/titanic", str(server.data))
            line = line.replace("/var/lib/postgresql/15/log", str(server.folder / "log2"))
            lines.append(line.replace("/mnt/backup", str(server.folder / "backup")))
            for begin, key in (
                ("pg_ctl restart", "first"),
                ("pg_verifybackup", "second"),
                ('psql -c "SELECT', "third"),
            ):
                if command.startswith(begin):
                    lines.append(f"{sys.executable} -c '{PUT}' $STORE {key}")
        env = {"PATH": f"{tmp_path / 'bin'}:{CLEAN['PATH']}", "PYTHONPATH": str(DEPLOY.parent), "STORE": url}
        env |= {"PGHOST": str(server.folder), "PGPORT": str(server.port), "PGUSER": "postgres", "LC_ALL": "C.UTF-8"}
        look = f"psql -At -c 'SELECT key FROM titanic.request ORDER BY uuid' {url.replace('&', chr(92) + '&')}"
        script = "\n".join(["set -e; cd /", *lines, look])
        done = subprocess.run(alone(script), env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr + server.log()[-3000:]
    keys = [bytes.fromhex(one[2:]).decode() for one in done.stdout.splitlines() if one.startswith("\\x")]
    assert keys == ["first", "second"]
