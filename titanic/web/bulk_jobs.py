"""Bulk jobs: retry or close many requests in the background; a page shows their progress."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from titanic.aio import Client
from titanic.errors import TitanicError
from titanic.web.problems import Problem

MAX_RUNNING = 8
"""Jobs at a time, of all users."""

MAX_KEPT = 64
"""Jobs that are kept."""

BATCH = 1000
"""UUIDs sent in one call."""

Batches = AsyncGenerator[Sequence[str], None]
"""The UUIDs, a batch at a time."""


@dataclass(slots=True)
class BulkJob:
    """A job. `action`: retry or close. `total`: the number of requests that was confirmed; None: not counted."""

    user: str
    action: str
    total: int | None
    back: str
    """The URL of the list that it was started from."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    processed: int = 0
    done: int = 0
    error: str = "an internal error of titanic web; see its log"
    """Why it ended early."""
    ended: bool = False
    stopped: bool = False
    began: float = field(default_factory=time.time)
    task: asyncio.Task[None] | None = None

    async def run(self, client: Client, batches: Batches) -> None:
        """Process all batches, or those before it is stopped."""
        try:
            async with aclosing(batches):
                async for uuids in batches:
                    if self.action == "retry":
                        self.done += await client.retry(*uuids)
                    else:
                        await client.close_many(uuids)
                        self.done += len(uuids)
                    self.processed += len(uuids)
                    if self.stopped:
                        break
            self.error = ""
        except TitanicError as error:
            self.error = str(error)
        finally:
            self.ended = True


class BulkJobs:
    """The jobs of all users, with the most recent ones that ended."""

    def __init__(self) -> None:
        self._jobs: dict[str, BulkJob] = {}

    def start(self, job: BulkJob, client: Client, batches: Batches) -> None:
        """Start a job. Raises Problem while too many are running."""
        if sum(not one.ended for one in self._jobs.values()) >= MAX_RUNNING:
            raise Problem(503, "nothing was changed: too many bulk jobs are running; try again when they have ended")
        ended = [name for name, one in self._jobs.items() if one.ended]
        for name in ended[: max(0, len(self._jobs) - MAX_KEPT + 1)]:
            del self._jobs[name]
        self._jobs[job.id] = job
        job.task = asyncio.create_task(job.run(client, batches))

    def get(self, user: str, name: str) -> BulkJob:
        """Return a user's job. Raises Problem for unknown jobs and those of other users."""
        job = self._jobs.get(name)
        if job is None or job.user != user:
            raise Problem(404, "this job is no longer known: titanic web was restarted, or many jobs ran since")
        return job

    def close(self) -> None:
        """Cancel all jobs."""
        for job in self._jobs.values():
            if job.task is not None:
                job.task.cancel()


async def in_batches(uuids: Sequence[str]) -> Batches:
    """Yield these UUIDs a batch at a time."""
    for at in range(0, len(uuids), BATCH):
        yield uuids[at : at + BATCH]
