"""The figures as a picture."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from titanic.bench.programme import PROGRAMME, Figure

CURVES = [entry.name for entry in PROGRAMME if entry.group == "curves"]
PERCENTILES = ("p50", "p99", "p99.9")


def draw(pyplot: Any, figures: Sequence[Figure], path: Path) -> None:
    """Draw latency against load on the left, and throughput against counts on the right, with matplotlib's pyplot."""
    picture, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5), layout="constrained")
    loads = [(figure.detail["offered"], figure.detail) for figure in figures if "p50" in figure.detail]
    for label in PERCENTILES:
        left.plot([rate for rate, _ in loads], [detail[label] for _, detail in loads], marker="o", label=label)
    left.set(title="Acknowledged after", xlabel="requests a second, offered", ylabel="ms", yscale="log")
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for figure in figures:
        match = re.fullmatch(rf"({'|'.join(CURVES)})(-.+)?-(\d+)", figure.name)
        if match is not None:
            curves[match[1] + (match[2] or "")].append((int(match[3]), figure.value))
    for name, points in curves.items():
        right.plot(*zip(*points, strict=True), marker="o", label=name)
    right.set(title="Throughput", xlabel="how many of them", ylabel="a second", xscale="log")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.grid(visible=True, alpha=0.3)
        if axes.has_data():
            axes.legend()
    picture.savefig(path)
    pyplot.close(picture)
