"""Asking a server for its figures and its health; and the figures that alerts and dashboard name."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

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
