"""deploy/NODES.md, deploy/nodes and deploy/compose.yml: what can be tried without Docker, Kubernetes and machines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
import yaml
from support.cli_titanic import CLEAN, here
from support.postgres import PostgresServer, alone, needs_postgres, own, program, programs_for, run, shared_server

from titanic.cli import main
from titanic.cli.config_file import commands_of
from titanic.errors import StoreError
from titanic.store import open_store

DEPLOY = Path(__file__).parents[2] / "deploy"
TEXT = (DEPLOY / "NODES.md").read_text()
PATRONI = (DEPLOY / "nodes/patroni.yml").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "nodes/compose.yml").read_text())
ONE_NODE = yaml.safe_load((DEPLOY / "compose.yml").read_text())
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "nodes/kubernetes.yml").read_text()))


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def settings_of(environment: dict[str, Any], command: str = "serve", *arguments: str) -> dict[str, str]:
    """What these variables and arguments set in a command, as it understands it."""
    options = commands_of(click.Context(main))[command]
    names = {f"TITANIC_{key.replace('-', '_')}".upper() for key in options} | {"TITANIC_CONFIG", "TITANIC_ENDPOINT"}
    assert {name for name in environment if name.startswith("TITANIC_")} <= names
    variables = {
        name: re.sub(r"//(server|titanic\.titanic\.svc):", "//127.0.0.1:", str(value))
        for name, value in environment.items()
    }
    shown = here("config", "show", "--json", command, *arguments, **variables)
    assert shown.code == 0, shown.err
    return {key: one["value"] for key, one in shown.json.items() if one["source"] != "default"}


def test_compose_sets_what_there_is() -> None:
    nodes = {name: one for name, one in COMPOSE["services"].items() if name != "db"}
    assert len(nodes) == 3
    for name, one in nodes.items():
        settings = settings_of(one["environment"])
        assert settings["node-name"] == name
        (published,) = one["ports"]
        address, port, inner = published.split(":")
        assert settings["advertise"] == [f"tcp://{address}:{port}"]
        assert settings["bind"] == [f"tcp://0.0.0.0:{inner}", one["environment"]["TITANIC_ENDPOINT"]]
        assert set(one["secrets"]) <= set(COMPOSE["secrets"])
        assert {settings[key] for key in ("access", "key")} <= {f"/run/secrets/{secret}" for secret in one["secrets"]}
        assert f"http://{settings['metrics']}/readyz" in one["healthcheck"]["test"][-1]


def test_compose_of_one_node() -> None:
    """The server has no keys: nothing but the console is published, to this machine alone."""
    services = ONE_NODE["services"]
    server, web, worker = (services[name] for name in ("server", "web", "worker"))
    settings = settings_of(server["environment"])
    (address,) = settings["bind"]
    assert (address, settings["open"], settings.get("access")) == ("tcp://0.0.0.0:5555", True, None)
    assert int(server["stop_grace_period"].rstrip("s")) > float(settings["grace"])
    assert [name for name, one in services.items() if "ports" in one] == ["web"]
    assert (web["ports"], settings_of(web["environment"], "web")["bind"]) == (["127.0.0.1:8080:8080"], "0.0.0.0:8080")
    for one in (web, worker):
        command = one["command"][0]
        assert one["environment"]["TITANIC_ENDPOINT"] == "tcp://server:5555"
        assert settings_of(one["environment"], command)["endpoint"] == ["tcp://127.0.0.1:5555"]
    assert ONE_NODE["networks"]["queue"]["internal"] is True
    assert (server["networks"], worker["networks"]) == (["queue"], ["queue"])
    for one in services.values():
        assert (one["read_only"], one["cap_drop"]) == (True, ["ALL"])


def test_the_console_and_workers_in_kubernetes(tmp_path: Path) -> None:
    config, *_, service, web, shop = KUBERNETES
    path = tmp_path / "titanic.toml"
    there = {"/etc/titanic/access.toml": f"{tmp_path}/access.toml", "titanic.titanic.svc": "127.0.0.1"}
    for name, text in config["data"].items():
        (tmp_path / name).write_text(re.sub("|".join(map(re.escape, there)), lambda found: there[found[0]], text))
    (container,) = web["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["web", "--config", "/etc/titanic/titanic.toml"]
    settings = settings_of({"TITANIC_CONFIG": str(path)}, "web")
    places = {one["mountPath"] for one in container["volumeMounts"]}
    files = {str(Path(settings[name]).parent) for name in ("session-secret", "server-key")}
    assert {settings["keys"], *files} <= places
    (port,) = container["ports"]
    assert settings["bind"] == f"0.0.0.0:{port['containerPort']}"
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    template = shop["spec"]["template"]
    (worker,) = template["spec"]["containers"]
    environment = {one["name"]: one["value"] for one in worker["env"]}
    given = settings_of(environment, *worker["args"][:1], *worker["args"][2:])
    assert {str(Path(given[name]).parent) for name in ("key", "server-key")} <= {
        one["mountPath"] for one in worker["volumeMounts"]
    }
    assert template["spec"]["terminationGracePeriodSeconds"] > float(given["grace"])
    (port,) = worker["ports"]
    assert given["metrics"] == f":{port['containerPort']}"
    probes = {name: worker[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness")}
    assert [*probes.values()] == [{"path": path, "port": port["name"]} for path in ("/healthz", "/readyz")]
    for one in (web, shop):
        assert one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]


def test_kubernetes_knows_every_field() -> None:
    import kubernetes_validate  # takes a second

    version = kubernetes_validate.latest_version()
    for document in KUBERNETES:
        kubernetes_validate.validate(document, version, strict=True)


def test_kubernetes_sets_what_there_is(tmp_path: Path) -> None:
    kinds = [one["kind"] for one in KUBERNETES]
    nodes_alone = ["ConfigMap", "Service", "Service", "PodDisruptionBudget", "StatefulSet"]
    assert kinds == [*nodes_alone, "Service", "Deployment", "Deployment"]
    config, by_name, _, budget, nodes = KUBERNETES[:5]
    assert nodes["spec"]["replicas"] == 3
    assert nodes["spec"]["serviceName"] == by_name["metadata"]["name"]
    template = nodes["spec"]["template"]
    assert budget["spec"]["selector"]["matchLabels"] == by_name["spec"]["selector"] == template["metadata"]["labels"]
    (container,) = template["spec"]["containers"]
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    assert container["args"] == ["serve", "--config", "/etc/titanic/titanic.toml"]
    path = tmp_path / "titanic.toml"
    for name, text in config["data"].items():
        (tmp_path / name).write_text(text.replace("/etc/titanic/access.toml", str(tmp_path / "access.toml")))
    assert here("access", "check", tmp_path / "access.toml").code == 0
    environment = {one["name"]: one.get("value", "titanic-0") for one in container["env"]}
    assert environment["TITANIC_CONFIG"] == container["args"][-1]
    name = by_name["metadata"]
    advertised = environment["TITANIC_ADVERTISE"].replace("$(TITANIC_NODE_NAME)", "titanic-0")
    assert advertised == f"tcp://titanic-0.{name['name']}.{name['namespace']}.svc:5555"
    settings = settings_of(environment | {"TITANIC_ADVERTISE": advertised, "TITANIC_CONFIG": str(path)})
    assert (Path(settings["key"]).parent, settings["access"]) == (Path("/run/titanic"), str(tmp_path / "access.toml"))
    assert mounts == {"/run/titanic", "/etc/titanic"}
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert settings["bind"] == [f"tcp://0.0.0.0:{ports['zmq']}", "ipc:///run/titanic/admin.sock"]
    assert settings["metrics"] == f":{ports['metrics']}"
    assert {container[f"{probe}Probe"]["httpGet"]["port"] for probe in ("startup", "liveness", "readiness")} == {
        "metrics"
    }
    grace = template["spec"]["terminationGracePeriodSeconds"]
    assert container["lifecycle"]["preStop"]["exec"]["command"][:2] == ["titanic", "drain"]
    assert grace > int(container["lifecycle"]["preStop"]["exec"]["command"][-1])


def test_the_unit_of_a_program() -> None:
    """Its command is one of this version, and systemd waits longer for its tasks than it does."""
    unit = (DEPLOY / "systemd/shop.service").read_text()
    (command,) = re.findall(r"^ExecStart=\S+/titanic (.*)$", unit, re.MULTILINE)
    shown = here("config", "show", "--json", "worker", *command.split()[2:])
    assert shown.code == 0, shown.err
    assert [shown.json[name]["source"] for name in ("processes", "jobs", "memory")] == ["command line"] * 3
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(seconds) > float(shown.json["grace"]["value"])


@needs_postgres
def test_what_is_watched_can_be_asked() -> None:
    """Each SELECT of the handbook, of a store with a node."""
    asked = re.findall(r"^    (SELECT .*?;)$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(asked) >= 5
    server = shared_server()
    name = server.new_database()
    with open_store(server.url(name)), psycopg.connect(server.url(name), autocommit=True) as connection:
        for statement in asked:
            connection.execute(statement)  # type: ignore[call-overload]
    server.drop_database(name)


@needs_postgres
def test_patroni_lets_its_leader_be_copied(tmp_path: Path) -> None:
    """By the rules of nodes/patroni.yml, over the socket, as the handbook's copy of every night is made."""
    rules = yaml.safe_load(PATRONI)["postgresql"]["pg_hba"]
    with PostgresServer() as server:
        server.create()
        # Whoever runs this need not be the user postgres.
        (server.data / "pg_hba.conf").write_text("\n".join(rules).replace("peer", "trust") + "\n")
        server.sql("SELECT pg_reload_conf()")
        where = (f"--host={server.folder}", f"--port={server.port}", "--username=postgres")
        run(program("pg_basebackup"), *where, f"--pgdata={server.folder / 'copy'}", "--checkpoint=fast")


@needs_postgres
def test_a_node_verifies_the_database() -> None:
    """With the certificate that nodes/patroni.yml makes, and the parameters of the URL of the section."""
    (parameters,) = re.findall(r"sslmode=.*&sslrootcert=(?=/etc/titanic/db.crt)", section("A node with systemd"))
    command = re.search(r"# (openssl .*)\n +# +(.*)", PATRONI)
    assert command is not None
    with PostgresServer() as server:
        make = " ".join(command.groups()).replace("DNS:db3", "DNS:localhost")
        subprocess.run(make, shell=True, cwd=server.folder, check=True, capture_output=True)
        own(server.folder / "db.key")
        names = ("ssl", "ssl_cert_file", "ssl_key_file")
        settings = yaml.safe_load(PATRONI)["postgresql"]["parameters"]
        server.settings |= {one: settings[one].replace("/etc/patroni", str(server.folder)) for one in names}
        server.create()
        url = server.url(server.new_database(), tcp=True) + f"?{parameters}{server.folder}/db.crt"
        with open_store(url.replace("127.0.0.1", "localhost")):
            assert server.sql("SELECT count(*) FROM pg_stat_ssl WHERE ssl") > 0
        with pytest.raises(StoreError, match="does not match host name"):
            open_store(url)


PUT = """
import sys
from titanic.store import NewRequest, open_store
with open_store(sys.argv[1]) as store, store.write() as transaction:
    transaction.accept([NewRequest(b"echo", [b"x"], key=sys.argv[2].encode(), key_until=2)], 1)
"""


@needs_postgres
def test_a_backup_is_restored(tmp_path: Path) -> None:
    """The commands of the section, as written, but for where things are: what came before the point is there, and what
    came after it is not."""
    commands = re.findall(r"^    \$ (.*)$", section("Backup and restore"), re.MULTILINE)
    assert len(commands) == 4
    (archive,) = re.findall(r"# archive_command: (.*)$", PATRONI, re.MULTILINE)
    programs_for(tmp_path / "bin", "cat", "cp", "mkdir", "mv", "rm", "sh", "touch")
    with PostgresServer() as server:
        server.settings |= {"archive_mode": "on", "archive_command": archive.replace("/mnt", str(server.folder))}
        server.create()
        url = server.url(server.new_database())
        server.stop("fast")
        start, stop = f"pg_ctl start --log={server.folder}/log2 --wait", "pg_ctl stop --mode=fast --wait"
        first, second, third = (f"{sys.executable} -c '{PUT}' $STORE {key}" for key in ("first", "second", "third"))
        make, copy, point, restore = (
            re.sub("^deploy", f"sh {DEPLOY}", line).replace("/mnt", str(server.folder)) for line in commands
        )
        look = f"psql -At -c 'SELECT key FROM titanic.request ORDER BY uuid' {url.replace('&', chr(92) + '&')}"
        lines = [make, start, first, copy, copy, second, point, third, stop, restore, start, look]
        env = {"PATH": f"{tmp_path / 'bin'}:{CLEAN['PATH']}", "PYTHONPATH": str(DEPLOY.parent), "STORE": url}
        env |= {"PGHOST": str(server.folder), "PGPORT": str(server.port), "PGUSER": "postgres", "LC_ALL": "C.UTF-8"}
        env |= {"PGDATA": str(server.data), "BACKUP": str(server.folder / "backup")}
        script = "\n".join(["set -e; cd /", *lines])
        done = subprocess.run(alone(script), env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr + server.log()[-3000:]
        archived = sorted(path.name for path in (server.folder / "backup/wal").glob("00000001*[0-9A-F]"))
        (begin,) = re.findall(r"^START WAL.*file (\w+)", (server.folder / "backup/base/backup_label").read_text(), re.M)
        assert archived[0] == begin
    keys = [bytes.fromhex(one[2:]).decode() for one in done.stdout.splitlines() if one.startswith("\\x")]
    assert keys == ["first", "second"]
