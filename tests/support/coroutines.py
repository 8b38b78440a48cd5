"""Tests in an asyncio loop, of what has to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from support.waiting import PATIENCE


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine. Nothing may be left behind in its loop."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def clean() -> None:
            loop = asyncio.get_running_loop()
            faults: list[dict[str, Any]] = []
            loop.set_exception_handler(lambda _, context: faults.append(context))
            await test(*args, **kwargs)
            await asyncio.sleep(0)  # what was cancelled ends in the next round
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert faults == []

        asyncio.run(clean())

    return run


async def eventually(condition: Callable[[], object], timeout: float = PATIENCE) -> None:
    """Wait until something is true, while the loop runs."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)
