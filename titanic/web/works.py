"""What is done with many requests: it goes on after the answer, and its page says how far it is."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from titanic.aio import Client
from titanic.errors import TitanicError
from titanic.web.problems import Problem

MOST_AT_A_TIME = 8
"""Works that go on, of all users."""

KEPT = 64
"""Works that are remembered."""

BATCH = 1000
"""UUIDs in a question."""

Batches = Callable[[], AsyncGenerator[Sequence[str], None]]
"""Gives the UUIDs, some at a time."""


@dataclass(slots=True)
class Work:
    """One of them. `do`: retry or close. `most`: how many there were when it was confirmed; None: they were not
    counted."""

    user: str
    do: str
    most: int | None
    back: str
    """The list that it was begun from."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    seen: int = 0
    done: int = 0
    fault: str = "an error of titanic web; its log says more"
    """Why it ended before it was through."""
    ended: bool = False
    stopped: bool = False
    began: float = field(default_factory=time.time)
    task: asyncio.Task[None] | None = None


class Works:
    """All of them."""

    def __init__(self) -> None:
        self._works: dict[str, Work] = {}

    def begin(self, work: Work, client: Client, batches: Batches) -> Work:
        """Raises Problem when too many go on."""
        if sum(not one.ended for one in self._works.values()) >= MOST_AT_A_TIME:
            raise Problem(
                503, "nothing was begun: others retry or close many requests now; try again when they are done"
            )
        for name in [name for name, one in self._works.items() if one.ended][: max(0, len(self._works) - KEPT + 1)]:
            del self._works[name]
        self._works[work.id] = work
        work.task = asyncio.create_task(_run(work, client, batches))
        return work

    def of(self, user: str, name: str) -> Work:
        """A user's. Raises Problem for what is not his."""
        work = self._works.get(name)
        if work is None or work.user != user:
            raise Problem(404, "this is not known any more: titanic web was started again, or much was done since")
        return work

    def close(self) -> None:
        """Stop them all."""
        for work in self._works.values():
            if work.task is not None:
                work.task.cancel()


async def _run(work: Work, client: Client, batches: Batches) -> None:
    try:
        async with aclosing(batches()) as found:
            async for uuids in found:
                if work.do == "retry":
                    work.done += await client.retry(*uuids)
                else:
                    await client.close_many(uuids)
                    work.done += len(uuids)
                work.seen += len(uuids)
                if work.stopped:
                    break
        work.fault = ""
    except TitanicError as error:
        work.fault = str(error)
    finally:
        work.ended = True


async def named(uuids: Sequence[str]) -> AsyncGenerator[Sequence[str], None]:
    """These, some at a time."""
    for at in range(0, len(uuids), BATCH):
        yield uuids[at : at + BATCH]
