"""The one task, an echo, as each task queue wants it to be written. BENCH_REDIS and BENCH_POSTGRES say where
Redis and PostgreSQL are."""

from __future__ import annotations

import os
from typing import Any

URL = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:1/0")
POSTGRES = os.environ.get("BENCH_POSTGRES", "")


def echo(body: str) -> str:
    """What RQ runs."""
    return body


def huey() -> Any:
    """The queue and the task of Huey."""
    from huey import RedisHuey

    queue = RedisHuey("bench", url=URL)
    return queue, queue.task()(echo)


def dramatiq() -> Any:
    """The actor of Dramatiq, which keeps its results in Redis, too."""
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.results import Results
    from dramatiq.results.backends import RedisBackend

    broker = RedisBroker(url=URL)
    broker.add_middleware(Results(backend=RedisBackend(url=URL)))
    dramatiq.set_broker(broker)
    return dramatiq.actor(store_results=True)(echo)


def celery() -> Any:
    """The application and the task of Celery."""
    from celery import Celery

    app = Celery("bench", broker=URL, backend=URL)
    app.conf.update(task_acks_late=True, broker_connection_retry_on_startup=True)
    return app, app.task(name="echo")(echo)


def procrastinate(*, in_worker: bool) -> Any:
    """The application and the task of procrastinate, which puts its result into a table."""
    from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

    kind = PsycopgConnector if in_worker else SyncPsycopgConnector
    app = App(connector=kind(conninfo=POSTGRES, **({"min_size": 4, "max_size": 12} if in_worker else {})))
    insert = "INSERT INTO result VALUES (%(id)s, %(value)s)"

    @app.task(name="echo", pass_context=True)
    async def task(context: Any, body: str) -> None:
        await app.connector.execute_query_async(insert, id=context.job.id, value=echo(body))

    return app, task
