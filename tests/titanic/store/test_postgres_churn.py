"""A long day in PostgreSQL: what goes leaves nothing behind that grows."""

from __future__ import annotations

import random

import psycopg
import pytest
from support.postgres import PostgresServer, needs_postgres
from support.postgres_churn import Churn
from support.torture import SEED, figures, tally

from titanic.store.postgres.store import PostgresStore
from titanic.store.postgres.tools import check

pytestmark = needs_postgres

LIVES = 200_000
PARTS = 10


@pytest.mark.torture
def test_tables_stay_as_large_as_they_are() -> None:
    with (
        PostgresServer(autovacuum_naptime="5s").create() as server,  # a day passes in minutes
        PostgresStore.open(server.url(name := server.new_database()), capacity=8 << 30) as store,
        psycopg.connect(server.url(name), autocommit=True) as connection,
    ):
        churn = Churn(store, random.Random(SEED))
        parts = [churn.go_on(connection, LIVES // PARTS) for _ in range(PARTS)]
        assert check(store) == []
    tally["operations modelled"] += LIVES
    early, late = parts[: PARTS // 2], parts[PARTS // 2 :]
    for part in parts:
        print(f"{part.size >> 10} KiB, {part.dead} dead rows, {len(part.partitions)} partitions, p99 {part.p99:.3f} s")
        for table in sorted(part.tables):
            print("   ", table)
    figures.append(
        f"PostgreSQL, {LIVES} lives: tables {early[-1].size >> 20} MiB half-way, {late[-1].size >> 20} MiB at the end,"
        f" {late[-1].dead} dead rows; accepting, p99: {early[0].p99 * 1000:.0f} and {late[-1].p99 * 1000:.0f} ms"
    )
    assert max(part.size for part in late) <= 1.5 * max(part.size for part in early)
    assert max(part.dead for part in late) <= 1.5 * max(part.dead for part in early) + 10_000
    assert len(late[-1].partitions) <= 6
    hot = {table.name: table.hot / max(1, table.updates) for table in late[-1].tables}
    assert min(hot[name] for name in ("usage", "load", "meta", "ready")) > 0.9
