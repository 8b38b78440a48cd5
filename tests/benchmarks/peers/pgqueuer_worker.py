"""The worker of pgqueuer."""

import asyncio
from typing import Any

import asyncpg
from benchmarks.peers import tasks
from pgqueuer import PgQueuer


async def main() -> None:
    async with (
        asyncpg.create_pool(tasks.POSTGRES, min_size=10, max_size=10) as results,
        asyncpg.create_pool(tasks.POSTGRES, min_size=4, max_size=10) as pool,
    ):
        queue = PgQueuer.from_asyncpg_pool(pool)

        @queue.entrypoint("echo")
        async def echo(job: Any) -> None:
            await results.execute("INSERT INTO result VALUES ($1, $2)", job.id, tasks.echo(job.payload.decode()))

        await queue.run(batch_size=100)


if __name__ == "__main__":
    asyncio.run(main())
