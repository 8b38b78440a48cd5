"""What a server tells of itself has the fields that the types of the client name."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import NotRequired, get_origin, get_type_hints, is_typeddict

from support.nodes import cluster, heard_of_each_other
from support.postgres import needs_postgres
from support.waiting import until

from titanic import Client

KINDS = run_path(str(Path(__file__).parents[3] / "titanic/protocol/documents.py"))
"""The types as they are in the source: compiled ones have lost what need not be there."""


def assert_fields(document: object, kind: str) -> None:
    """That it has those of the type, and so has each document in it whose type is named."""
    hints = get_type_hints(KINDS[kind], KINDS, include_extras=True)
    assert isinstance(document, dict)
    assert document.keys() <= hints.keys()
    assert {name for name, hint in hints.items() if get_origin(hint) is not NotRequired} <= document.keys()
    for name, value in document.items():
        if is_typeddict(hints[name]):
            assert_fields(value, hints[name].__name__)


def test_of_one_server(client: Client) -> None:
    assert_fields(client.stats(), "Stats")
    client.submit("absent", "x")
    assert_fields(stats := client.stats(services=True), "Stats")
    assert_fields(stats["by_service"]["absent"], "ServiceStats")
    assert_fields(client.archive(), "ArchiveInfo")
    assert client.nodes() is None


@needs_postgres
def test_of_several(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as nodes:
        heard_of_each_other(nodes)
        client = nodes.clients[0]
        until(lambda: client.stats().get("other_nodes"))
        stats = client.stats()
        assert_fields(stats, "Stats")
        assert_fields(stats["node"], "AskedNode")
        assert_fields(stats["other_nodes"][0], "OtherNode")
        rows = client.nodes() or []
        assert [row["asked"] for row in rows].count(True) == 1
        for row in rows:
            assert_fields(row, "NodeInfo")
