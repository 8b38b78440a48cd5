"""Tripping: every kind makes its round trips. How fast is no matter of a test."""

from __future__ import annotations

import pytest
from support.cli_titanic import here
from support.each import each
from support.shortages import no_draft_sockets

from broker.patterns import KINDS, trip
from broker.patterns.tripping import measurement


def test_replies_that_are_not_taken_at_once_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "WINDOW", 10_000)
    assert trip("dealer", 1, 50_000).asynchronous


@each("kind", KINDS)
def test_every_kind(kind: str) -> None:
    found = trip(kind, 20, 3000)
    assert found.kind == kind
    assert found.synchronous > 0
    assert (found.asynchronous is None) == (kind == "req")
    assert found.asynchronous is None or found.asynchronous > 0


def test_the_command() -> None:
    done = here("pattern", "tripping", "--kind", "dealer", "--kind", "req", "--synchronous", "5", "--asynchronous", "5")
    assert [line.split()[0] for line in done.out.decode().splitlines()] == ["CALLS/S", "dealer", "req"]
    with no_draft_sockets():
        without = here("pattern", "tripping", "--kind", "client")
    assert without.code == 0
    assert "without client: " in without.err
