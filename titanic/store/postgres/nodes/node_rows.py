"""What `node` tells of the nodes that share the store (titanic/store/nodes.py)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from titanic.store.nodes import NodeRow
from titanic.store.postgres.connection import numbers
from titanic.store.postgres.transaction import Looking
from titanic.store.postgres.writing import Writing

_COLUMNS = """n.incarnation, n.name, n.version, n.endpoints, (extract(epoch FROM n.started_at) * 1000000)::bigint,
CASE WHEN n.lease_until > '-infinity' THEN extract(epoch FROM n.lease_until - clock_timestamp())::float8 END,
n.services, n.draining, n.shard, n.access"""

_NODES = f"""
SELECT {_COLUMNS}, NULL::bigint FROM titanic.node AS n
WHERE n.lease_until > '-infinity' ORDER BY n.name, n.started_at, n.incarnation"""

_NODES_AND_CLAIMS = f"""
WITH held AS (
    SELECT incarnation, count(*) AS claims FROM titanic.ready WHERE incarnation IS NOT NULL GROUP BY incarnation
)
SELECT {_COLUMNS}, coalesce(h.claims, 0) FROM titanic.node AS n LEFT JOIN held AS h ON h.incarnation = n.incarnation
WHERE n.lease_until > '-infinity' OR h.claims > 0 ORDER BY n.name, n.started_at, n.incarnation"""

_DRAIN = "UPDATE titanic.node SET draining = true WHERE incarnation = ANY(%s::bigint[]) AND lease_until > '-infinity'"


def nodes(tx: Looking) -> list[NodeRow]:
    """Those that live."""
    return [_node(*row) for row in tx.fetch(_NODES)]


def nodes_and_claims(tx: Looking) -> list[NodeRow]:
    """Those that live or have claimed something, with how much that is."""
    return [_node(*row) for row in tx.fetch(_NODES_AND_CLAIMS)]


def drain_nodes(tx: Writing, incarnations: Collection[int]) -> None:
    """Have these end."""
    tx.fetch(_DRAIN, numbers(list(incarnations)))


def _node(number: int, name: str, version: str, endpoints: list[str], started_at: int, *more: Any) -> NodeRow:
    lease, services, draining, shard, access, claims = more
    counts = {service: (workers, running) for service, (workers, running) in services.items()}
    return NodeRow(number, name, version, endpoints, started_at, lease, counts, draining, shard, claims, access)
