"""Tripping: every kind makes its round trips. How fast is no matter of a test."""

from __future__ import annotations

from support.cli_titanic import here
from support.each import each
from support.shortages import no_draft_sockets

from broker.patterns import KINDS, trip


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
