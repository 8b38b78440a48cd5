"""Asking a server for its figures and its health."""

from __future__ import annotations

import urllib.request
from urllib.error import HTTPError

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
