"""Every alert, fired by its cause and resolved by its cure, in a real Prometheus (support/alert_causes.py)."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.alert_causes import OF_THE_DATABASE, SCRIPTS, Stage, play, quick_rules
from support.scraping import ALERTS, needs_prometheus, prometheus_of


def test_every_alert_has_its_cause() -> None:
    assert set(SCRIPTS) | OF_THE_DATABASE == set(re.findall(r"- alert: (\w+)", ALERTS.read_text()))


@needs_prometheus
@pytest.mark.torture
@pytest.mark.parametrize("alert", SCRIPTS)
def test_it_fires_and_resolves(alert: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(quick_rules())
    with ExitStack() as stack:
        stage = Stage(tmp_path, stack)
        scraped = prometheus_of(tmp_path / "prometheus", tmp_path / "rules.yml", [stage.metrics])
        stage.prometheus = stack.enter_context(scraped)
        play(alert, SCRIPTS[alert], stage)
