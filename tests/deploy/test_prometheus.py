"""Alerts, dashboard and scrape configuration: sound in themselves, and of names that are exported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.cli_titanic import here, running
from support.postgres import needs_postgres, shared_server
from support.scraping import (
    ALERTS,
    DASHBOARD,
    DEPLOY,
    named_in_alerts,
    named_in_dashboard,
    names_of,
    needs_prometheus,
    prometheus_of,
)
from support.waiting import PATIENCE, until

from broker import Delivery, Worker
from titanic import Client
from titanic.metrics.families import worker_ready
from titanic.metrics.worker import WorkerMetrics
from titanic.web.settings import DEFAULT_BIND

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None and "CI" not in os.environ, reason="needs promtool, which isn't installed"
)


def promtool(*arguments: str) -> None:
    """Run it in the folder of the rules; it must have nothing to complain of."""
    done = subprocess.run(
        ["promtool", *arguments], cwd=ALERTS.parent, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", ALERTS.read_text())


def of_workers() -> set[str]:
    """The names that a worker exports which has had a request and has another one."""
    metrics = WorkerMetrics()
    metrics.processes(1, 0, 1)
    for delivery in (Delivery(b"", service=b"s"), Delivery(b"", service=b"s")):
        metrics.begun(delivery)
    metrics.ended(delivery, [b"x"], "")
    families = [*metrics.collect(), worker_ready(True)]
    return {sample.name for family in families for sample in family.samples}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names that a server exports which has a service, paused, with a request that has ended and one that waits, an
    archive and a backup; and those of one with users."""
    folder = tmp_path_factory.mktemp("exported")
    arguments = ("serve", "--bind", "tcp://127.0.0.1:*", "--store", folder / "store", "--metrics", "127.0.0.1:0")
    with running(folder / "log", *arguments) as server:
        endpoint = server.says(r"serving at ([^;]+);")[1]
        with Worker("s", lambda frames: frames, endpoint), Client(endpoint) as client:
            client.wait(client.submit("s", "x"), PATIENCE)
            client.archive(register=True, archive="0" * 32, name="here")
        here("backup", folder / "copy", "--store", folder / "store")
        here("submit", "s", "x", "--endpoint", endpoint)
        here("pause", "s", "--endpoint", endpoint)
        url = server.says(r"metrics at (\S+)")[1]
        names: set[str] = set()
        users = {"titanic_user_requests_refused_total", "titanic_refusals_total"}
        while "titanic_thread_lag_seconds" not in names:  # they are asked for the first time soon
            with urllib.request.urlopen(url, timeout=30) as answer:
                names = names_of(answer.read().decode())
        return names | users | of_workers()


@needs_promtool
def test_the_rules_are_sound() -> None:
    promtool("check", "rules", "alerts.yml")


@needs_promtool
def test_the_alerts_fire_when_they_should() -> None:
    promtool("test", "rules", "alerts_test.yml")


@needs_promtool
def test_the_scrape_configuration_is_sound() -> None:
    promtool("check", "config", "--syntax-only", "scrape.yml")


@needs_promtool
def test_the_broker_apart_and_workers_are_some_lines_more(tmp_path: Path) -> None:
    """As comments say; and they are where titanic.toml has their metrics."""
    text = (ALERTS.parent / "scrape.yml").read_text().replace("# - targets", "- targets")
    begin, of_workers, rest = text.partition("  # - job_name")
    text = begin + (of_workers + rest).replace("  # ", "  ")
    (tmp_path / "scrape.yml").write_text(text)
    promtool("check", "config", "--syntax-only", str(tmp_path / "scrape.yml"))
    found = [one for line in re.findall(r"- targets: \[(.*)\]", text) for one in re.findall(r"\"([^\"]+)\"", line)]
    metrics = re.findall(r'^#metrics = "([^"]+)"', (DEPLOY / "titanic.toml").read_text(), re.MULTILINE)
    assert found == [*metrics, DEFAULT_BIND, "db1:8008", "db2:8008", "db3:8008"]


@needs_promtool
def test_with_a_token_it_is_some_lines_more(tmp_path: Path) -> None:
    text = (ALERTS.parent / "scrape.yml").read_text()
    text = text.replace("# authorization:", "authorization:").replace("#   credentials_file", "  credentials_file")
    (tmp_path / "scrape.yml").write_text(text)
    promtool("check", "config", "--syntax-only", str(tmp_path / "scrape.yml"))
    assert text.count("\n    authorization:\n      credentials_file: /") == 1


def test_every_alert_is_tried() -> None:
    tried = re.findall(r"alertname: (\w+)", (ALERTS.parent / "alerts_test.yml").read_text())
    assert len(alerts()) > 10
    assert set(tried) == set(alerts())


def test_alerts_are_about_what_is_exported(exported: set[str]) -> None:
    named = named_in_alerts()
    assert len(named) > 8
    assert named <= exported


def test_the_dashboard_is_about_what_is_exported(exported: set[str]) -> None:
    named = named_in_dashboard()
    assert len(named) > 20
    assert named <= exported


def test_what_is_exported_is_shown(exported: set[str]) -> None:
    """A figure that nobody looks at need not be counted; a few are for those who look closer."""
    shown = named_in_dashboard() | named_in_alerts()
    closer = {"titanic_requests_repeated_total", "titanic_requests_returned_total", "titanic_replies_given_total"}
    closer |= {"titanic_store_free_bytes", "titanic_waiting_clients", "titanic_commit_seconds_count"}
    closer |= {"titanic_store_reader_seconds", "titanic_archive_lag_requests"}
    closer |= {"titanic_commit_seconds_sum", "titanic_commit_changes_bucket", "titanic_store_info"}
    closer |= {f"titanic_service_{name}_seconds_{of}" for name in ("wait", "run") for of in ("count", "sum")}
    closer |= {f"titanic_worker_run_seconds_{of}" for of in ("count", "sum")}
    closer |= {name for name in exported if name.startswith("titanic_broker_")}
    assert {name for name in exported if name.startswith("titanic_")} - shown - closer == set()


def test_the_panels_have_titles_and_places_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["title"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24


SILENT = {"Time to drain, by service", "Changes per commit", "Refusals per second, by user", "{{instance}}: backup"}
"""Panels and lines that may have nothing to show: nothing drains, an idle server commits nothing, there are no users,
and no backup."""


SHOP = """
import time
from pathlib import Path

from titanic.tasks import Tasks

app = Tasks(name="shop")


@app.task
def wait(file: str) -> None:
    while not Path(file).exists():
        time.sleep(0.05)
"""


@needs_prometheus
@pytest.mark.parametrize("count", [1, pytest.param(3, marks=needs_postgres)])
def test_a_prometheus_answers_every_panel(count: int, tmp_path: Path) -> None:
    """With one server, and with three nodes that share a database: what waits there is not counted three times."""
    postgres = shared_server() if count > 1 else None
    name = postgres.new_store() if postgres else ""
    store = postgres.url(name) if postgres else str(tmp_path / "store")
    try:
        with ExitStack() as stack:
            servers = []
            for number in range(count):
                more = ("--node-name", f"node{number}") if postgres else ()
                arguments = ("--bind", "tcp://127.0.0.1:*", "--store", store, "--metrics", "127.0.0.1:0", *more)
                servers.append(stack.enter_context(running(tmp_path / f"log{number}", "serve", *arguments)))
            endpoints = [server.says(r"serving at ([^;]+);")[1] for server in servers]
            targets = [server.says(r"metrics at http://(\S+)/metrics")[1] for server in servers]
            (tmp_path / "panel_shop.py").write_text(SHOP)
            more = ("--endpoint", endpoints[0], "--metrics", "127.0.0.1:0")
            pool = running(tmp_path / "pool", "worker", "panel_shop:app", *more, PYTHONPATH=str(tmp_path))
            worker = stack.enter_context(pool).says(r"metrics at http://(\S+)/metrics")[1]
            prometheus = stack.enter_context(prometheus_of(tmp_path / "prometheus", ALERTS, targets, [worker]))
            until(lambda: len(prometheus.ask("titanic_ready == 1")) == count)
            with Client(endpoints[0]) as client:
                client.archive(register=True, archive="0" * 32, name="here")
                for _ in range(5):
                    client.submit("absent", b"x")
                (tmp_path / "go").touch()
                client.wait(client.submit("shop.wait", f'{{"args": ["{tmp_path}/go"]}}'), PATIENCE)
                until(lambda: prometheus.ask('titanic:service_failed:ratio5m{service="shop.wait"}'))
                client.submit("shop.wait", f'{{"args": ["{tmp_path}/end"]}}')
            until(lambda: prometheus.ask('titanic_worker_running{service="shop.wait"}'))
            panels = json.loads(DASHBOARD.read_text())["panels"]
            for panel in panels:
                for target in panel["targets"]:
                    query = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "5m")
                    if {panel["title"], target["legendFormat"]} & SILENT:
                        prometheus.ask(query)
                    else:
                        until(lambda query=query: prometheus.ask(query))
            (waiting,) = (panel["targets"][0]["expr"] for panel in panels if panel["title"] == "Waiting")
            waiting = waiting.replace("$instance", ".*")
            until(lambda: [one["value"][1] for one in prometheus.ask(waiting)] == ["5"])
            (tmp_path / "end").touch()
    finally:
        if postgres:
            postgres.drop_database(name)
