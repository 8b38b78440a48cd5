"""Asking a server for its figures and its health; and the figures that alerts and dashboard name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from support.waiting import until

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus/alerts.yml"
DASHBOARD = DEPLOY / "grafana/titanic.json"
Samples = dict[str, float]


def ask(url: str) -> tuple[int, str]:
    """The status and the text of a page."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(base: str) -> Samples:
    """What is exported: name and labels as they stand there → value."""
    code, text = ask(f"{base}/metrics")
    assert code == 200
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def names_of(text: str) -> set[str]:
    """The metrics in an exposition."""
    return set(re.findall(r"^(\w+)[ {]", text, re.MULTILINE))


def named_in_alerts() -> set[str]:
    """The metrics that alerts ask for."""
    return _named(re.findall(r"expr: (.*?)\n +(?:for|labels):", ALERTS.read_text(), re.DOTALL))


def named_in_dashboard() -> set[str]:
    """The metrics that the dashboard asks for, those of its variables too."""
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return _named(asked + [one["definition"] for one in dashboard["templating"]["list"] if "definition" in one])


def _named(expressions: list[str]) -> set[str]:
    return set(re.findall(r"\b(?:titanic|process)_\w+", "\n".join(expressions)))


PROMETHEUS = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{alerts}"]
scrape_configs:
  - job_name: titanic
    static_configs: [{{targets: {servers}}}]
  - job_name: titanic-workers
    static_configs: [{{targets: {workers}}}]
"""


needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None and "CI" not in os.environ, reason="needs prometheus, which isn't installed"
)


class Prometheus:
    """A real one, which scrapes servers."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.url = f"http://{until(self._found)}"
        until(lambda: ask(f"{self.url}/-/ready")[0] == 200)

    def _found(self) -> str:
        found = re.search(r"address=(127\.0\.0\.1:[1-9]\d*)", self._log.read_text())
        return found[1] if found else ""

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series that a query finds now. It fails for a query that Prometheus does not understand."""
        code, text = self._get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
        assert code == 200, text
        found: list[dict[str, Any]] = json.loads(text)["data"]["result"]
        return found

    def _get(self, url: str) -> tuple[int, str]:
        return ask(url)


@contextmanager
def prometheus_of(folder: Path, rules: Path, servers: list[str], workers: Sequence[str] = ()) -> Iterator[Prometheus]:
    """One that scrapes these and evaluates a file of rules, every second."""
    folder.mkdir()
    targets = {"servers": json.dumps(servers), "workers": json.dumps([*workers])}
    (folder / "prometheus.yml").write_text(PROMETHEUS.format(alerts=rules, **targets))
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        started = subprocess.Popen(["prometheus", *options, "--web.listen-address=127.0.0.1:0"], stderr=log)
        try:
            yield Prometheus(folder / "log")
        finally:
            started.terminate()
            started.wait(30)
