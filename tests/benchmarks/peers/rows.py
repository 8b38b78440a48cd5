"""What is measured: each row is a job, done by Titanic in one or several ways, and by others beside it."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.peers import accept, echo, life, on_postgres
from benchmarks.peers.peer import Peer


class Row(NamedTuple):
    """The first of `ours` is what ratios are of. The goals are the least ratios that are wanted, by the peer's name."""

    name: str
    what: str
    job: str
    """The method of the peers."""
    share: int
    """One in so many of the requests is enough."""
    ours: tuple[type[Peer], ...]
    others: tuple[type[Peer], ...]
    goals: dict[str, float]
    side: str | None = None
    """The process whose CPU is compared, too, and must not be more than the peer's."""
    processes: int = 1
    """Of the worker."""


_ON_POSTGRES = (on_postgres.Procrastinate, on_postgres.PgQueuer)
_AHEAD = {"procrastinate": 1.0, "pgqueuer": 1.0}
_TASKS = (life.Huey, life.Dramatiq, life.Celery, life.RQ)

ROWS = (
    Row(
        "accept",
        "accept, 1,000 in flight, a message each",
        "many",
        1,
        (accept.Titanic, accept.TitanicRaw),
        (accept.RabbitMQ, accept.Nats, accept.Beanstalkd),
        {"RabbitMQ quorum": 1.3},
    ),
    Row(
        "accept-batch",
        "accept, 1,000 in flight, many in a message",
        "many",
        1,
        (accept.TitanicBatches, accept.TitanicKeys),
        (accept.Redis,),
        {"Redis stream": 2.0},
    ),
    Row(
        "accept-one",
        "accept, one after another",
        "one",
        20,
        (accept.Titanic, accept.TitanicKeys),
        (accept.RabbitMQ, accept.Nats, accept.Redis, accept.Beanstalkd),
        {"RabbitMQ quorum": 1.0, "NATS JetStream": 0.7, "Redis stream": 0.5},
    ),
    Row(
        "engine-accept",
        "accept in PostgreSQL and in LMDB, many in a message",
        "many",
        1,
        (accept.PostgresBatches,),
        (accept.TitanicBatches,),
        {"titanic": 0.25},
    ),
    Row(
        "engine-accept-one",
        "accept in PostgreSQL and in LMDB, one after another",
        "one",
        20,
        (accept.PostgresKeys,),
        (accept.TitanicKeys,),
        {"titanic, keys": 0.6},
    ),
    Row(
        "engine-life",
        "whole life in PostgreSQL and in LMDB",
        "many",
        4,
        (life.TitanicPostgres,),
        (life.Titanic,),
        {"titanic": 0.5},
    ),
    Row(
        "engine-life-one",
        "whole life in PostgreSQL and in LMDB, one after another",
        "one",
        40,
        (life.TitanicPostgres,),
        (life.Titanic,),
        {},
    ),
    Row("postgres", "whole life on PostgreSQL", "many", 4, (life.TitanicPostgres,), _ON_POSTGRES, _AHEAD),
    Row(
        "postgres-4",
        "whole life on PostgreSQL, four worker processes",
        "many",
        4,
        (life.TitanicPostgres,),
        _ON_POSTGRES,
        _AHEAD,
        processes=4,
    ),
    Row(
        "postgres-one",
        "whole life on PostgreSQL, one after another",
        "one",
        40,
        (life.TitanicPostgres,),
        _ON_POSTGRES,
        _AHEAD,
    ),
    Row("life", "whole life", "many", 4, (life.Titanic,), _TASKS, {"Huey": 8.0}),
    Row("life-one", "whole life, one after another", "one", 40, (life.Titanic,), _TASKS, {}),
    Row(
        "echo",
        "MDP echo, all in flight, 10 workers",
        "many",
        1,
        (echo.Titanic,),
        (echo.Rival,),
        {"rival": 1.2},
        "broker",
    ),
    Row(
        "echo-one",
        "MDP echo, one after another, 1 worker",
        "one",
        4,
        (echo.Titanic,),
        (echo.Rival,),
        {"rival": 1.0},
        "broker",
    ),
)
