"""The nodes that share a store, in titanic.stats and titanic.admin: see PROTOCOL.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from titanic.store import NodeRow, ReadTransaction, SharedReadTransaction, SharedWriteTransaction, WriteTransaction
from titanic.util.text import quoted


def document(row: NodeRow, asked: int | None) -> dict[str, Any]:
    """A node for JSON. `asked`: the incarnation of the node that answers."""
    counted = {"workers": row.workers, "running": row.running, "asked": row.incarnation == asked}
    return {**row._asdict(), "endpoints": list(row.endpoints), **counted}


def listed(transaction: ReadTransaction, me: int | None) -> dict[str, Any]:
    """The answer to a titanic.stats that asks for the nodes."""
    rows = cast(SharedReadTransaction, transaction).nodes_and_claims()
    return {"nodes": [document(row, me) for row in rows]}


def rows_of(transaction: ReadTransaction) -> Sequence[NodeRow]:
    """The nodes that share the store."""
    return cast(SharedReadTransaction, transaction).nodes()


def running_elsewhere(rows: Sequence[NodeRow], me: int | None) -> dict[bytes, int]:
    """The number of running requests by service on the other nodes, as last reported."""
    total: Counter[bytes] = Counter()
    for row in rows:
        if row.incarnation != me:
            total.update({name.encode(): running for name, (_, running) in row.services.items()})
    return dict(total)


def shared(rows: Sequence[NodeRow], me: int | None, running: int) -> dict[str, Any]:
    """The part of titanic.stats for a shared store: `running` on all nodes, this node, and the others. `running`: the
    number in flight here."""
    own = [row for row in rows if row.incarnation == me]
    others = [row for row in rows if row.incarnation != me]
    about = _about(own[0]) | {"shard": own[0].shard} if own else None
    return {
        "running": running + sum(row.running for row in others),
        "node": about and {**about, "incarnation": me, "running": running},
        "other_nodes": [
            _about(row) | {"workers": row.workers, "running": row.running, "incarnation": row.incarnation}
            for row in others
        ],
        "workers_elsewhere": _workers(others),
    }


def _about(row: NodeRow) -> dict[str, Any]:
    return {"name": row.name, "draining": row.draining, "access": row.access}


def _workers(rows: Sequence[NodeRow]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for row in rows:
        total.update({name: workers for name, (workers, _) in row.services.items() if workers})
    return dict(total)


def drain(transaction: WriteTransaction, node: str | None, me: int | None) -> dict[str, Any]:
    """Drain a node; None: this one. Raises ValueError."""
    tx = cast(SharedWriteTransaction, transaction)
    rows = tx.nodes()
    if node is None:
        chosen = [row for row in rows if row.incarnation == me]
        if not chosen:
            raise ValueError("this node has no lease at the moment; try again, or name another node")
    else:
        chosen = [row for row in rows if node in (row.name, str(row.incarnation))]
    if not chosen:
        raise ValueError(f"there is no node {quoted(node)}; known: {', '.join(row.name for row in rows)}")
    if len(chosen) > 1:
        numbers = ", ".join(" ".join([str(row.incarnation), "at", *row.endpoints]) for row in chosen)
        raise ValueError(f"{len(chosen)} nodes have the name {quoted(node)}; give the incarnation of one: {numbers}")
    tx.drain_nodes([row.incarnation for row in chosen])
    return {"done": len(chosen), "nodes": [document(row, me) for row in chosen]}
